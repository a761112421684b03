"""``gpulayer down``: the control plane of this machine and its own worker end; joined workers go on and wait.

Where commands go otherwise does not matter: to end another machine's control plane somebody has to name it.
"""

import json
import sys
import time
from pathlib import Path
from typing import Annotated

import typer

from gpulayer.cli.console import safe, say
from gpulayer.cli.nouns import StateOption, TargetOption, command_app, settings_for
from gpulayer.client import calls
from gpulayer.client.embedded import find_plane, wait_until_gone
from gpulayer.client.location import LOCAL, Configured, Local
from gpulayer.client.transport import Transport
from gpulayer.errors import GpulayerError, TimedOut, UsageError
from gpulayer.server.local_worker import LocalWorker

app = command_app()

_DEADLINE_S = 90.0  # a worker that hangs, and a spawner too, are waited for before they are killed
_POLL_S = 0.02


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
            with Transport(location, client=settings.client, retry_for_s=settings.retry_for_s) as transport:
                transport.send(calls.shutdown_plane())
            say(f"the control plane at {location.addresses[0]} ends")
        case Local(state_dir):
            endpoint = find_plane(state_dir)
            if endpoint is None:
                say(f"no control plane runs here (state in {state_dir})")
                _end_worker(state_dir)
                return 0
            with Transport(endpoint.location, client=settings.client) as transport:
                running = _jobs_here(transport, state_dir)
                if running and not yes and not _may_end(running):
                    say("the control plane goes on")
                    return 1
                transport.send(calls.shutdown_plane())
            if not wait_until_gone(endpoint, state_dir, deadline_s=_DEADLINE_S):
                raise TimedOut(
                    f"the control plane (process {endpoint.pid}) still runs after {_DEADLINE_S:.0f} s",
                    hint=f"see {state_dir / 'plane.log'}",
                )
            say("the control plane has ended")
            if running:
                say(_ended(running))
    return 0


def _end_worker(state_dir: Path) -> None:
    """Of a control plane that was killed: it would wait for the next one, and its jobs go on."""
    worker = LocalWorker((), state_dir / "worker", environment={})
    if worker.is_gone():
        return
    say("its worker still does: ending it")
    while not worker.end_step():
        time.sleep(_POLL_S)
    say("the worker and what it ran have ended")


def _jobs_here(transport: Transport, state_dir: Path) -> int:
    """How many jobs its own worker has. 0 where that can't be told: it must not keep anyone from ending it."""
    try:
        own = json.loads((state_dir / "worker" / "identity.json").read_bytes())["worker_id"]
        return len(transport.send(calls.get_worker(own))["leases"])
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
