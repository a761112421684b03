"""Wrong: the launcher plans another file for the log than the one it was given, and GPUlayer would never find it.

Right: change the command line and the variables; ``key`` and all paths but ``cwd`` stay as given.
"""

from dataclasses import replace
from pathlib import Path

from gpulayer.plugins import ProcessLauncher, hookimpl

GPULAYER_API = "1.0"


class ElsewhereLauncher:
    name = "elsewhere"

    def plan(self, attempt, site, machine):
        return replace(ProcessLauncher().plan(attempt, site, machine), log_path=Path("/var/log/mine"))


@hookimpl
def gpulayer_register_launchers(ctx):
    return [ElsewhereLauncher()]
