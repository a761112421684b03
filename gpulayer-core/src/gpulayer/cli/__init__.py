"""The command line: a file a noun, loaded when named. Only this package prints and picks exit codes.

This module must stay light: ``background`` (what control planes and workers start as) lives in the package too.
"""

from collections.abc import Sequence

__all__ = ["main"]


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code; never raises. Entry point of ``gpulayer``."""
    from gpulayer.cli.app import run  # noqa: PLC0415 - typer is not for the background processes

    return run(argv)
