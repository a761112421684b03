"""Put a ``ServicePlan`` into effect, or take it back. The same again changes nothing; another's file is left alone."""

import getpass
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Final

from gpulayer.cli.service import MARKER, Command, Host, ServicePlan
from gpulayer.errors import Conflict, NotFound, StorageUnavailable

__all__ = ["check_place", "install_service", "is_running", "remove_service", "this_host"]

SYSTEMD_RUNS: Final = "/run/systemd/system"  # sd_booted(3)
_COMMAND_S: Final = 120


def this_host() -> Host:
    """The machine and user of this process."""
    home = Path.home()
    return Host(
        platform=sys.platform,
        is_systemd=os.path.isdir(SYSTEMD_RUNS) and shutil.which("systemctl") is not None,
        uid=os.getuid(),
        user=getpass.getuser(),
        home=home,
        config=Path(os.environ.get("XDG_CONFIG_HOME") or home / ".config"),
    )


def check_place(plan: ServicePlan) -> bool:
    """Whether this very service is installed already. Raises Conflict where the file is somebody else's."""
    try:
        content = plan.path.read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        return False
    except OSError as error:
        raise StorageUnavailable(f"{plan.path} can't be read: {error.strerror}") from None
    if MARKER not in content:
        raise Conflict(
            f"{plan.path} is there, and gpulayer did not write it", hint="remove it, or choose another name: --name N"
        )
    return content == plan.content


def is_running(plan: ServicePlan) -> bool:
    """Whether the service manager has it running now."""
    return _run(plan.ask) is None


def install_service(plan: ServicePlan, *, say: Callable[[str], None]) -> None:
    """Write the file, enable and start. Blocks. Raises StorageUnavailable for the file, Conflict for a command."""
    was_running = is_running(plan)
    is_same = check_place(plan)
    if not is_same:
        _write(plan.path, plan.content)
        say(f"wrote {plan.path}")
    if is_same and was_running:
        say(f"{plan.name} is installed and runs")
    else:
        for command in plan.install:
            _must(command)
        say(f"{plan.name} is installed and {'runs' if is_running(plan) else 'starts'}")
    if was_running and not is_same:
        say(f"it ran before: what has changed holds after `{plan.restart}`, which ends the jobs it runs")
    for line in plan.notes:
        say(line)
    say("see how it is:")
    for line in plan.look:
        say(f"  {line}")


def remove_service(plan: ServicePlan, *, say: Callable[[str], None]) -> None:
    """Stop it, in good order, and remove the file. Raises NotFound where there is none."""
    check_place(plan)
    if not plan.path.exists():
        raise NotFound(f"there is no service {plan.name} here ({plan.path})", hint="name it with --name N")
    for command in plan.remove:
        _must(command)
    try:
        plan.path.unlink()
    except OSError as error:
        raise StorageUnavailable(f"{plan.path} can't be removed: {error.strerror}") from None
    for command in plan.after_removal:
        _must(command)
    say(f"{plan.name} is removed; its work folder stays, and `gpulayer worker remove NAME` makes it forgotten")


def _must(command: Command) -> None:
    failure = _run(command)
    if failure is not None and not command.may_fail:
        raise Conflict(f"`{' '.join(command.argv)}` failed: {failure}", hint="run it yourself to see why")


def _run(command: Command) -> str | None:
    """None for success, else what the command said."""
    try:
        done = subprocess.run(
            command.argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=_COMMAND_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    if done.returncode == 0:
        return None
    return done.stdout.decode("utf-8", "replace").strip() or f"exit code {done.returncode}"


def _write(path: Path, content: str) -> None:
    """Whole or not at all; readable for everybody, as a service manager's files are."""
    temporary = ""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        with open(descriptor, "w", encoding="utf-8") as file:
            os.fchmod(descriptor, 0o644)
            file.write(content)
        os.replace(temporary, path)
    except OSError as error:
        if temporary:
            Path(temporary).unlink(missing_ok=True)
        raise StorageUnavailable(f"{path} can't be written: {error.strerror}", hint="check its folder") from None
