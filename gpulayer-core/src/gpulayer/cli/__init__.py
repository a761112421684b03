"""The command line: a file a noun, loaded when named. Only this package prints and picks exit codes.

This module must stay light: ``background`` (what control planes and workers start as) lives in the package too.
"""

import sys
from collections.abc import Sequence

__all__ = ["main"]


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code; never raises. Entry point of ``gpulayer``.

    ``gpulayer up`` itself does not return: the process ends here, see ``ending``.
    """
    from gpulayer.cli.app import run  # noqa: PLC0415 - typer is not for the background processes

    if argv is None and sys.argv[1:2] == ["up"]:  # it serves in this very process, and so plugins run in it
        from gpulayer.cli.ending import end_with  # noqa: PLC0415 - for this command alone

        end_with(run)
    return run(argv)
