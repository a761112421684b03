"""``gpulayer down``: the control plane of this machine and its own worker end; joined workers go on and wait.

Where commands go otherwise does not matter: to end another machine's control plane somebody has to name it.
"""

import json
import os
import signal
import sys
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Final

import typer

from gpulayer.cli.console import safe, say
from gpulayer.cli.nouns import StateOption, TargetOption, command_app, settings_for
from gpulayer.client import calls
from gpulayer.client.connect import telling
from gpulayer.client.embedded import find_plane, is_alive, wait_until_gone
from gpulayer.client.holder import ENDPOINT_FILE, FORMER_FILE
from gpulayer.client.limits import LIMITS
from gpulayer.client.location import LOCAL, Configured, EndpointFound, Local, parse_endpoint
from gpulayer.client.transport import Transport
from gpulayer.errors import Conflict, GpulayerError, TimedOut, Unreachable, UsageError
from gpulayer.server.folder import held_still, lock_holder
from gpulayer.server.local_worker import LocalWorker
from gpulayer.server.settings import Layout

app = command_app()

_DEADLINE_S: Final = 90.0  # a worker that hangs, and a spawner too, are waited for before they are killed
_QUIET_S: Final = 3.0
_ANSWER_S: Final = 5.0
_TERM_S: Final = 10.0
_KILLED_S: Final = 5.0
_POLL_S: Final = 0.02
_SOON: Final = replace(LIMITS, answer_s=_ANSWER_S)


@app.command()
def down(
    *,
    target: TargetOption = "",
    state: StateOption = "",
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask: jobs run there, or others use it.")] = False,
) -> int:
    """End the control plane and its own worker. Queued jobs stay in its state; joined workers go on and wait.

    Of this machine, unless --target names another, whatever GPULAYER_URL and the current context say.
    """
    settings = settings_for(target or LOCAL, state=state)
    match settings.where:
        case Configured(location, context):
            if not yes and not _may_end_theirs(f"{location.addresses[0]}{f' ({context})' if context else ''}"):
                say("the control plane goes on")
                return 1
            with telling(
                Transport(location, client=settings.client, retry_for_s=settings.retry_for_s), say
            ) as transport:
                transport.send(calls.shutdown_plane())
            say(f"the control plane at {location.addresses[0]} ends")
        case Local(state_dir):
            return _end_ours(state_dir, client=settings.client, may_ask=not yes)
    return 0


def _end_ours(state_dir: Path, *, client: str, may_ask: bool) -> int:
    """In good order where that can be had, else by signals: whoever says down must be able to start anew."""
    endpoint = find_plane(state_dir)
    if endpoint is None:
        _has_gone(lock_holder(Layout(state_dir)), state_dir, within_s=_QUIET_S)  # one that is about to end, or to serve
        endpoint, pid = find_plane(state_dir), lock_holder(Layout(state_dir))
        if pid is None:
            try:
                died = _forget_died(state_dir)
            except Conflict as error:
                if "is_served" in error.details:
                    return _end_ours(state_dir, client=client, may_ask=may_ask)  # one starts at this very moment
                raise
            say(f"no control plane runs here (state in {state_dir})")
            if died is not None and not died.embedded:
                say(f"the one at {died.url} had died, and is not started again as it was: gpulayer up starts one")
            _end_worker(state_dir, "its worker still does: ending it")
            return 0
        if endpoint is None:
            return _end_mute(pid, state_dir, may_ask=may_ask)
    with Transport(endpoint.location, client=client, retry_for_s=_ANSWER_S, limits=_SOON) as transport:
        try:
            running = _jobs_here(transport, state_dir)
            if running and may_ask and not _may_end(running):
                say("the control plane goes on")
                return 1
            transport.send(calls.shutdown_plane())
        except Unreachable:
            return _end_mute(endpoint.pid, state_dir, may_ask=may_ask)
    if not wait_until_gone(endpoint, state_dir, deadline_s=_QUIET_S):
        say(f"waiting for the control plane (process {endpoint.pid}) and its worker, {_DEADLINE_S:.0f} s at most")
        if not wait_until_gone(endpoint, state_dir, deadline_s=_DEADLINE_S - _QUIET_S):
            _kill(endpoint.pid, state_dir, f"it did not end within {_DEADLINE_S:.0f} s of being asked to")
            return 0
    say("the control plane has ended")
    if running:
        say(_ended(running))
    return 0


def _end_mute(pid: int, state_dir: Path, *, may_ask: bool) -> int:
    """One that does not answer: which jobs run there is not known."""
    if may_ask and _can_ask() and not _is_yes(f"the control plane (process {pid}) does not answer; end it by force?"):
        say("the control plane goes on")
        return 1
    say(f"the control plane (process {pid}) does not answer: ending its process")
    _forget_others(pid, state_dir)  # a start that is called off leaves what it found, and somebody may be looking
    was_serving = (state_dir / ENDPOINT_FILE).exists()
    _signal(pid, state_dir, signal.SIGTERM)
    _signal(pid, state_dir, signal.SIGCONT)  # one that was stopped would not hear of it
    is_gone = _has_gone(pid, state_dir, within_s=_TERM_S)
    if not is_gone and was_serving and not (state_dir / ENDPOINT_FILE).exists():
        is_gone = _has_gone(pid, state_dir, within_s=_DEADLINE_S)  # it has heard, and ends its worker first
    if is_gone:
        say("the control plane has ended")
        _clean_up(pid, state_dir)
    else:
        _kill(pid, state_dir, f"it neither answered nor ended within {_TERM_S:.0f} s of SIGTERM")
    return 0


def _kill(pid: int, state_dir: Path, why: str) -> None:
    """Raises TimedOut where its folder stays locked all the same."""
    _forget_others(None, state_dir)  # who sees such a file, and no process, starts it again
    _signal(pid, state_dir, signal.SIGKILL)
    is_gone = _has_gone(pid, state_dir, within_s=_KILLED_S)
    if is_alive(pid):
        raise TimedOut(
            f"the control plane (process {pid}) can't be ended: {why}",
            hint=f"see {state_dir / 'plane.log'}, and whose process that is",
        )
    say(f"killed the control plane (process {pid}): {why}")
    say(f" hint: the end of {state_dir / 'plane.log'} may say what it was at; plugins can hold it up: gpulayer plugins")
    _clean_up(pid, state_dir)
    if not is_gone:
        raise TimedOut(
            f"process {pid} was killed, and something still holds {Layout(state_dir).lock}: a process that it started",
            hint=f"fuser {Layout(state_dir).lock} names it, to root; once it has ended a control plane can start here",
        )


def _has_gone(pid: int | None, state_dir: Path, *, within_s: float) -> bool:
    """Whether that process has ended, and nobody has the folder any more."""
    ends = time.monotonic() + within_s
    while lock_holder(Layout(state_dir)) is not None or (pid is not None and is_alive(pid)):
        if time.monotonic() >= ends:
            return False
        time.sleep(_POLL_S)
    return True


def _signal(pid: int, state_dir: Path, number: int) -> None:
    """Only as long as it is the one that has the folder, and never this very process."""
    if pid == lock_holder(Layout(state_dir)) and pid != os.getpid():
        with suppress(ProcessLookupError):
            os.kill(pid, number)


def _forget_died(state_dir: Path) -> EndpointFound | None:
    """Nobody has the folder: whoever says down does not want the one that was killed there back, either. Returns what
    it was. Raises Conflict where somebody has the folder by now."""
    files = [state_dir / name for name in (ENDPOINT_FILE, FORMER_FILE) if (state_dir / name).exists()]
    if not files:
        return None
    with held_still(Layout(state_dir), doing="gpulayer down"):
        died = [parse_endpoint(file.read_bytes()) for file in files if file.is_file()]
        _forget_others(None, state_dir)
    return died[0] if died else None


def _forget_others(pid: int | None, state_dir: Path) -> None:
    """What is left of control planes that this process is not. No other one has the folder, whoever has their PIDs."""
    for name in (FORMER_FILE, ENDPOINT_FILE):
        file = state_dir / name
        try:
            if pid is None or _pid_in(file) != pid:
                file.unlink(missing_ok=True)
        except OSError as error:
            say(f"{file} can't be removed ({error.strerror}): the next command starts that control plane again")


def _pid_in(file: Path) -> int | None:
    try:
        return int(json.loads(file.read_bytes())["pid"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _clean_up(pid: int, state_dir: Path) -> None:
    """What it would have done at its end. A file that stays, its own or one of those that were killed before it, would
    make the next command start it again as it was."""
    for name in (FORMER_FILE, ENDPOINT_FILE):
        file = state_dir / name
        said = _pid_in(file)
        with suppress(OSError):
            if said is not None and (said == pid or not is_alive(said)):
                file.unlink()
    _end_worker(state_dir, "its worker still runs: ending it")


def _end_worker(state_dir: Path, told: str) -> None:
    """Of a control plane that was killed: it would wait for the next one, and its jobs go on."""
    worker = LocalWorker((), state_dir / "worker", environment={})
    if worker.is_gone():
        return
    say(told)
    while not worker.end_step():
        time.sleep(_POLL_S)
    say("the worker and what it ran have ended")


def _jobs_here(transport: Transport, state_dir: Path) -> int:
    """How many jobs its own worker has. 0 where that can't be told: it must not keep anyone from ending it. Raises
    Unreachable."""
    try:
        own = json.loads((state_dir / "worker" / "identity.json").read_bytes())["worker_id"]
        return len(transport.send(calls.get_worker(own))["leases"])
    except Unreachable:
        raise
    except (OSError, ValueError, KeyError, GpulayerError):
        return 0


def _may_end(running: int) -> bool:
    """Off a terminal nobody can be asked: who says down there means it."""
    if not _can_ask():
        return True
    return _is_yes("1 job is running here; end it?" if running == 1 else f"{running} jobs are running here; end them?")


def _may_end_theirs(which: str) -> bool:
    """Others work with it, and from here it can't be started again. Raises UsageError off a terminal."""
    if not _can_ask():
        raise UsageError(f"the control plane at {which} is not this machine's own", hint="--yes ends it all the same")
    return _is_yes(f"end the control plane at {which}, for all who use it?")


def _can_ask() -> bool:
    return sys.stdin.isatty() and sys.stderr.isatty()


def _is_yes(question: str) -> bool:
    sys.stderr.write(safe(f"{question} [y/N] "))
    sys.stderr.flush()
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def _ended(running: int) -> str:
    if running == 1:
        return "1 running job was ended; it runs again when a control plane is back, unless it has no retries left"
    return (
        f"{running} running jobs were ended; they run again when a control plane is back,"
        " but those that have no retries left"
    )
