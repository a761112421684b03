"""From "which control plane" to an open shell: the one place that joins location, embedded start and transport.

The address may change under a running command, so a shell looks it up again when nothing answers: that of this
machine's control plane in its endpoint file (``gpulayer up`` adopted it, or it crashed and another command started it
again), that of a context in the file of contexts (the machine moved, and somebody wrote down where to).
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

from gpulayer.client.embedded import EmbeddedPlane, ensure_plane, find_plane, is_stale, is_starting
from gpulayer.client.holder import ENDPOINT_FILE, FORMER_FILE
from gpulayer.client.location import Configured, Local, Location
from gpulayer.client.reach import Awaited
from gpulayer.client.transport import Transport
from gpulayer.errors import GpulayerError, Unreachable
from gpulayer.variables import background_variables

if TYPE_CHECKING:
    from gpulayer.client.async_transport import AsyncTransport

__all__ = ["Settings", "has_ended", "is_local", "open_async_transport", "open_transport", "telling"]

COMES_BACK_S: Final = 15.0


@dataclass(frozen=True, slots=True)
class Settings:
    """Everything a client is told from outside; resolved once, at the face.

    environment: what a local job and a background control plane inherit. client: how this program names itself.
    contexts: the file that ``where`` came from, if it is a context's; read again when nothing answers.
    """

    where: Configured | Local
    environment: Mapping[str, str] = field(repr=False)  # tokens may be in it
    version: str
    client: str
    idle_exit_s: float | None = None
    retry_for_s: float = 5.0
    contexts: Path | None = None

    def plane(self, state_dir: Path) -> EmbeddedPlane:
        """This machine's own control plane in that folder. It inherits neither where commands are to go nor any
        credential of whoever starts it."""
        return EmbeddedPlane(
            state_dir=state_dir,
            version=self.version,
            environment=background_variables(self.environment),
            idle_exit_s=self.idle_exit_s,
        )


def is_local(settings: Settings) -> bool:
    """Whether the control plane meant is this machine's own, which may be started when it is not there."""
    return isinstance(settings.where, Local)


def has_ended(settings: Settings) -> bool:
    """Whether this machine's own control plane has ended in order (``gpulayer down``, or nobody needed it)."""
    if not isinstance(settings.where, Local):
        return False
    return not any((settings.where.state_dir / name).exists() for name in (ENDPOINT_FILE, FORMER_FILE))


def open_transport(settings: Settings, *, say: Callable[[str], None] = lambda _: None) -> Transport:
    """A sync shell to the control plane meant, which is started where it is this machine's own. Blocks.

    say: what takes long: that it is started, or, later on, that it has too much to do.
    """
    transport = Transport(
        _location(settings, say),
        client=settings.client,
        retry_for_s=settings.retry_for_s,
        relocate=_relocation(settings),
    )
    return telling(transport, say)


def telling(transport: Transport, say: Callable[[str], None]) -> Transport:
    """The same, which from now on says what holds a command up."""
    transport.busy = lambda wait_s: say(f"the control plane is busy; trying again in {max(1, round(wait_s))} s")
    transport.slow = lambda url, left_s: say(
        f"the control plane at {url} has not answered yet; waiting for it, {max(1, round(left_s))} s more at most"
    )
    return transport


def open_async_transport(settings: Settings) -> "AsyncTransport":
    """The async twin. Blocks while a control plane is started: call it in a thread."""
    from gpulayer.client.async_transport import AsyncTransport  # noqa: PLC0415 - httpx costs 0.3 s

    return AsyncTransport(
        _location(settings, lambda _: None),
        client=settings.client,
        retry_for_s=settings.retry_for_s,
        relocate=_relocation(settings),
    )


def _location(settings: Settings, say: Callable[[str], None]) -> Location:
    match settings.where:
        case Configured(location):
            return location
        case Local(state_dir):
            return ensure_plane(settings.plane(state_dir), say=say).endpoint.location


def _relocation(settings: Settings) -> Callable[[], Location | Awaited | None]:
    ended_at: float | None = None

    def look() -> Location | Awaited | None:
        nonlocal ended_at
        if isinstance(settings.where, Configured):
            return _context_now(settings, settings.where.context)
        state_dir = settings.where.state_dir
        endpoint = find_plane(state_dir)
        # Another one may be about to take over, and takes its time to start; but nobody else starts one.
        ended_at = (ended_at or time.monotonic()) if has_ended(settings) else None
        if ended_at is not None and time.monotonic() - ended_at > COMES_BACK_S:
            raise Unreachable(
                "the control plane of this machine has ended",
                hint="`gpulayer up`, or the next command that needs one, starts it again",
                details={"has_ended": True},
            )
        if endpoint is None and is_stale(state_dir):
            # It died without a goodbye; its jobs are in the store. After `gpulayer down` there is no file: leave it.
            try:
                endpoint = ensure_plane(settings.plane(state_dir), only_died=True).endpoint
            except GpulayerError:
                return None
        if endpoint is not None:
            return endpoint.location
        return Awaited.STARTS if ended_at is not None or is_starting(state_dir) else None

    return look


def _context_now(settings: Settings, name: str) -> Location | None:
    if not name or settings.contexts is None:
        return None
    from gpulayer.client.contexts import read_contexts  # noqa: PLC0415 - only for a context, when nothing answers

    try:
        contexts = read_contexts(settings.contexts)
        return contexts.find(name).location(proxy=settings.environment.get("GPULAYER_PROXY", ""))
    except GpulayerError:
        return None  # gone, or being edited: what was known goes on to be tried
