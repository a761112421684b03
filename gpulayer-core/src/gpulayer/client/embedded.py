"""The background control plane of one state folder: found if it runs, started if not, one for all commands.

Several commands may come at once: each starts a process, the control plane's own file lock lets one serve, and the
others find that one's endpoint. What is started is detached (its own session, output to ``plane.log``) and ends
by itself when idle. It is started as a process, never by import: a client does not load the server.
"""

import errno
import os
import shlex
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from gpulayer.client import calls
from gpulayer.client.holder import ENDPOINT_FILE, FORMER_FILE, Holder, folder_holder, is_restored
from gpulayer.client.location import EndpointFound, parse_endpoint
from gpulayer.client.transport import Transport
from gpulayer.errors import Unreachable, UsageError

__all__ = [
    "LIVE_STATES",
    "EmbeddedPlane",
    "Running",
    "ensure_plane",
    "find_plane",
    "is_alive",
    "is_compatible",
    "is_stale",
    "is_starting",
    "log_size",
    "log_tail",
    "plane_argv",
    "start_detached",
    "wait_until_gone",
    "why_not_started",
]

PLANE_LOG: Final = "plane.log"
LIVE_STATES: Final = frozenset({"queued", "provisioning", "staging", "running", "ending", "unreachable"})
_POLL_S: Final = 0.01
_START_BYTES: Final = 1 << 20
_AGAIN: Final = (
    "it was started as {}/" + ENDPOINT_FILE + " says; gpulayer up, with the options that you want, starts it anew"
)
_CONFLICT: Final = 2  # the exit code of a control plane that is not the first in its folder, and of wrong use
_IN_PLACE: Final = "--in-place-of-one-that-died"


@dataclass(frozen=True, slots=True)
class EmbeddedPlane:
    """How to start one. environment: what the process inherits. deadline_s: how long it may take to serve."""

    state_dir: Path
    version: str
    environment: Mapping[str, str] = field(repr=False)
    python: str = sys.executable
    idle_exit_s: float | None = None
    deadline_s: float = 30.0


@dataclass(frozen=True, slots=True)
class Running:
    """A control plane that serves. is_new: it was not there when this command came."""

    endpoint: EndpointFound
    is_new: bool


def find_plane(state_dir: Path) -> EndpointFound | None:
    """The control plane that serves this folder now, or None. A stale endpoint file (after a crash) is no plane, also
    where its PID and its port are somebody else's by now, who is not to be shown a token."""
    endpoint = _read_endpoint(state_dir)
    if endpoint is None or not _has_folder(endpoint, folder_holder(state_dir)):
        return None
    return endpoint if _is_listening(endpoint) else None


def is_starting(state_dir: Path) -> bool:
    """True where a control plane has this folder, and does not serve yet; or does not any more, and is about to end."""
    holder = folder_holder(state_dir)
    return holder is not None and holder.pid is not None and not holder.doing and find_plane(state_dir) is None


def is_stale(state_dir: Path) -> bool:
    """True where an endpoint file is left of a control plane that ended without removing it: a crash. Also where the
    start after that crash has failed; not while another one is starting, or is about to end."""
    if not any((state_dir / name).exists() for name in (ENDPOINT_FILE, FORMER_FILE)):
        return False
    holder = folder_holder(state_dir)
    return holder is None or (bool(holder.doing) and find_plane(state_dir) is None)


class _CalledOffError(Exception):
    """Somebody said ``gpulayer down`` while it was being started in the place of one that had died."""


def ensure_plane(
    settings: EmbeddedPlane, *, say: Callable[[str], None] = lambda _: None, only_died: bool = False
) -> Running:
    """Find or start it. Blocks until it serves; that its worker registers is the control plane's to wait for.

    only_died: start one only in the place of one that has died, and only if nobody says ``gpulayer down`` before the
    new one serves. ``say`` hears what takes time. Raises Unreachable with what ``plane.log`` says of this start where
    it does not come up, and UsageError where another version with live jobs can't be used, for what its plugins would
    be told, and for a folder that was restored and not started since.
    """
    found = find_plane(settings.state_dir)
    if found is not None:
        kept = _keep_or_replace(found, settings)
        if kept is not None:
            return Running(kept, is_new=False)
    if is_restored(settings.state_dir):
        raise UsageError(
            f"{settings.state_dir} was restored from a backup, and its control plane was not started since",
            hint=f"end the former control plane, if it runs; then start this one: gpulayer up --state"
            f" {shlex.quote(str(settings.state_dir))}",
        )
    died = _read_endpoint(settings.state_dir) or _read_endpoint(settings.state_dir, FORMER_FILE)
    _check_plugin_variables(settings.environment)
    if died is not None and not died.embedded and not _is_command(died.restart):
        say(f"{settings.state_dir / ENDPOINT_FILE} does not say how the control plane at {died.url} was started, which")
        say("has died: starting a background one in its place (gpulayer up makes it one for other machines again)")
        died = None
    elif died is not None and not died.embedded:
        say(f"the control plane at {died.url} has died: starting it again as it was")
    else:
        died = None
        say("starting the background control plane")
    argv = plane_argv(settings, died=died, only_died=only_died)
    log = settings.state_dir / PLANE_LOG
    begins = log_size(log)
    process = start_detached(argv, log=log, environment=settings.environment)
    try:
        endpoint = _await_endpoint(settings, process, log_begins=begins, died=died, may_be_called_off=_IN_PLACE in argv)
    except _CalledOffError:
        if only_died:
            raise Unreachable(
                "the control plane of this machine has ended",
                hint="`gpulayer up`, or the next command that needs one, starts it again",
                details={"has_ended": True},
            ) from None
        return ensure_plane(settings, say=say)  # as any command that comes after it
    return Running(endpoint, is_new=True)


def plane_argv(
    settings: EmbeddedPlane, *, died: EndpointFound | None = None, only_died: bool = False
) -> tuple[str, ...]:
    """The command line of a background control plane, or of a standing one that has ``died``: workers that joined it
    know its port, and its logs are to be kept for as long as was said. only_died: as in ``ensure_plane``. Pure."""
    # -P: the folder a command is typed in must never decide what the control plane imports.
    argv = [settings.python, "-P", "-m", "gpulayer.cli.background", "plane", "--state", str(settings.state_dir)]
    if died is not None:
        return (*argv[:4], *died.restart, _IN_PLACE)
    argv += ["--mode", "embedded", "--host", "127.0.0.1", "--port", "0"]
    if settings.idle_exit_s is not None:
        argv += ["--idle-exit-s", f"{settings.idle_exit_s:g}"]
    return (*argv, _IN_PLACE) if only_died else tuple(argv)


def _hint(folder: Path) -> str:
    """Nobody who has jobs here is to be sent to a second, empty control plane."""
    if not (folder / "store.db").exists():
        return "set GPULAYER_STATE_DIR to a folder that can be written"
    return (
        "the control plane with your jobs lies there: make the folder and its disk writable again (the system's log"
        " says why it is not). Another folder would hold another control plane, without them. gpulayer backup FILE, on"
        " another disk, keeps all of it"
    )


def start_detached(argv: Sequence[str], *, log: Path, environment: Mapping[str, str]) -> "subprocess.Popen[bytes]":
    """Start a process in a session of its own that outlives this one; its output is appended to ``log`` (0600).

    The log's folder is made where it is missing. Raises UsageError where it can't be used."""
    try:
        log.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        if log.is_dir() or (log.exists() and os.access(log.parent, os.W_OK)):
            raise UsageError(
                f"{log} can't be written: {error.strerror}",
                hint="look what it is and whose, and move it away; a new one is made",
            ) from None
        raise UsageError(
            f"state folder {log.parent} can't be used: {error.strerror}",
            hint=_hint(log.parent),
        ) from None
    try:
        return subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=descriptor,
            stderr=descriptor,
            start_new_session=True,
            cwd=log.parent,
            env=dict(environment),
        )
    finally:
        os.close(descriptor)


def is_compatible(ours: str, theirs: str) -> bool:
    """Whether two versions understand each other: the same minor series."""
    return ours.split(".")[:2] == theirs.split(".")[:2]


def wait_until_gone(endpoint: EndpointFound, state_dir: Path, *, deadline_s: float) -> bool:
    """Block until that control plane has ended; False where it has not within the deadline."""
    ends = time.monotonic() + deadline_s
    while time.monotonic() < ends:
        if not _endpoint_is(endpoint, state_dir) and not _is_listening(endpoint) and not is_alive(endpoint.pid):
            return True
        time.sleep(_POLL_S)
    return False


def log_size(log: Path) -> int:
    """Where the next line will stand: what a process that starts now says comes after it."""
    try:
        return log.stat().st_size
    except OSError:
        return 0


def log_tail(log: Path, *, lines: int = 12, begins: int = 0) -> str:
    """The last lines of a log, for a message; empty where there is none. begins: what stands before is left out."""
    try:
        with open(log, "rb") as file:
            file.seek(0, os.SEEK_END)
            file.seek(max(0, file.tell() - 16_384, min(begins, file.tell())))
            text = file.read().decode("utf-8", "replace")
    except OSError:
        return ""
    return "\n".join(text.splitlines()[-lines:])


def why_not_started(log: Path, *, log_begins: int = 0) -> str:
    """What is known of it, to be put behind "it did not start": on a full disk not even the log can say anything.
    log_begins: of the log, what stands after that."""
    room = "" if _has_room(log.parent) else f": there is no room on the disk of {log.parent}"
    tail = log_tail(log, begins=log_begins)
    return room + (f"; the end of its log:\n{tail}" if tail else "")


def _has_room(folder: Path) -> bool:
    """Whether this user can write there what a start does. A quota or a want of inodes shows in no number of bytes."""
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(bytes(_START_BYTES))
    except OSError as error:
        return error.errno not in (errno.ENOSPC, errno.EDQUOT)
    return True


def _keep_or_replace(found: EndpointFound, settings: EmbeddedPlane) -> EndpointFound | None:
    """The running one where it will do; None once it has been ended in favour of a new one."""
    if found.version == settings.version:
        return found
    if found.embedded:
        with Transport(found.location, retry_for_s=1.0) as transport:
            try:
                if _is_idle(transport.send(calls.get_plane())["jobs"]):
                    transport.send(calls.shutdown_plane())
                    if wait_until_gone(found, settings.state_dir, deadline_s=settings.deadline_s):
                        return None
            except Unreachable:
                return None  # it ended by itself between two looks
    if is_compatible(settings.version, found.version):
        return found
    raise UsageError(
        f"the control plane that runs here is version {found.version}, this is {settings.version}",
        hint="wait until its jobs have ended, or end it with that version's `gpulayer down`",
        details={"running": found.version, "own": settings.version},
    )


def _is_idle(jobs: Mapping[str, int]) -> bool:
    return not any(count for state, count in jobs.items() if state in LIVE_STATES)


def _check_plugin_variables(environment: Mapping[str, str]) -> None:
    """Raises UsageError for those that the control plane and its worker would refuse, before anything is started."""
    if any(name.startswith(("GPULAYER_PLUGINS", "GPULAYER_STRICT")) for name in environment):
        from gpulayer.plugins.settings import PluginSettings  # noqa: PLC0415 - most users have none

        PluginSettings.of(environment)


def _is_command(restart: Sequence[str]) -> bool:
    """Whether it may be the command line of a control plane: not of a file that was damaged."""
    return restart[:1] == ("plane",) and {"--state", "--mode"} <= set(restart)


def _await_endpoint(
    settings: EmbeddedPlane,
    process: "subprocess.Popen[bytes]",
    *,
    log_begins: int,
    died: EndpointFound | None,
    may_be_called_off: bool,
) -> EndpointFound:
    ends = time.monotonic() + settings.deadline_s
    has_ended = False
    while time.monotonic() < ends:
        endpoint = find_plane(settings.state_dir)
        if endpoint is not None:
            # It outlives this program on purpose; without a status Popen would warn of that.
            process.returncode = 0 if process.poll() is None else process.returncode
            return endpoint
        if not has_ended and process.poll() is not None:
            # Either another command's process got the lock and is about to serve, or it can't start at all.
            has_ended = True
            if may_be_called_off and process.returncode == _CONFLICT and not _is_left(settings.state_dir):
                raise _CalledOffError
            others_s = settings.deadline_s / 6 if process.returncode == _CONFLICT else 0.0
            ends = min(ends, time.monotonic() + others_s)
        time.sleep(_POLL_S)
    if process.poll() is None:
        process.terminate()
        process.wait(timeout=10)
    log = settings.state_dir / PLANE_LOG
    raise Unreachable(
        f"the background control plane did not start{why_not_started(log, log_begins=log_begins)}",
        hint=f"the whole log is {log}" + ("" if died is None else f"; {_AGAIN.format(settings.state_dir)}"),
        details={"log": str(log)},
    )


def _is_left(state_dir: Path) -> bool:
    """Whether there is anything of a control plane that serves, or has died, or is about to take the place of that."""
    return folder_holder(state_dir) is not None or any(
        os.path.lexists(state_dir / name) for name in (ENDPOINT_FILE, FORMER_FILE)
    )


def _read_endpoint(state_dir: Path, name: str = ENDPOINT_FILE) -> EndpointFound | None:
    try:
        return parse_endpoint((state_dir / name).read_bytes())
    except OSError:
        return None


def _endpoint_is(endpoint: EndpointFound, state_dir: Path) -> bool:
    return _read_endpoint(state_dir) == endpoint


def _has_folder(endpoint: EndpointFound, holder: Holder | None) -> bool:
    """Whether that control plane has it, as far as that can be told."""
    return holder is not None and not holder.doing and holder.pid in (None, endpoint.pid)


def _is_listening(endpoint: EndpointFound) -> bool:
    if not is_alive(endpoint.pid):
        return False
    try:
        socket.create_connection((endpoint.host, endpoint.port), timeout=2.0).close()
    except OSError:
        return False
    return True


def is_alive(pid: int) -> bool:
    """A zombie is dead: it stays one until its parent, perhaps a command that still follows a job, looks."""
    if sys.platform == "win32":
        return True  # there os.kill would end the process; the connection decides
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        return True
    if os.path.exists("/proc/self/stat"):
        try:
            with open(f"/proc/{pid}/stat", "rb") as file:
                return file.read().rpartition(b")")[2].split()[0] not in (b"Z", b"X")
        except (OSError, IndexError):
            return False
    import psutil  # noqa: PLC0415 - 30 ms, not needed on Linux

    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False
