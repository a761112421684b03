"""An agent's contact with its control plane: reports go out, commands come in, and a removal is heard of.

Nothing is decided here: each answer, and each failure, is an input of the machine (``protocol.agent``), which says when
the next report is due. A request that fails is made again, ever more slowly.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from gpulayer.clock import Clock
from gpulayer.errors import GpulayerError, NotFound, TimedOut, Unreachable, UntrustedServer
from gpulayer.faults import here
from gpulayer.ids import Epoch
from gpulayer.protocol.agent import AgentState, is_current
from gpulayer.protocol.messages import (
    AttemptsVoided,
    CommandsReceived,
    Input,
    ReportAnswered,
    ReportFailed,
    ReportPlan,
    StopAllRequested,
)
from gpulayer.protocol.reporting import answer_limit_ms
from gpulayer.wire.workers import CommandsReply, ReportReply
from gpulayer.worker.facts import KnownFacts
from gpulayer.worker.plugin_records import PluginRecords
from gpulayer.worker.session import NotKnown, Plane, Superseded
from gpulayer.worker.story import Story
from gpulayer.worker.translating import command_from_wire, report_to_wire

__all__ = ["Contact"]

_log: Final = logging.getLogger(__name__)
_HOLD_S: Final = 25.0
_HOLD_MARGIN_S: Final = 5.0  # a held answer is empty at its end: what is later still comes no more
_LOST: Final = (Unreachable, TimedOut, UntrustedServer)
_LEAVE_AGAIN_MS: Final = 50


class Contact:
    """Of one start of an agent. ``removed``: how it was told that it has no place any more; None while it has."""

    def __init__(
        self,
        plane: Plane,
        state: AgentState,
        *,
        feed: Callable[[Input], None],
        known: KnownFacts,
        plugins: PluginRecords,
        story: Story,
        clock: Clock,
    ) -> None:
        """state: only looked at. feed: takes inputs of the machine, in the event loop."""
        self._plane = plane
        self._state = state
        self._feed = feed
        self._known = known
        self._plugins = plugins
        self._story = story
        self._clock = clock
        self._tries = 0
        self.removed: NotFound | NotKnown | Superseded | None = None

    async def report(self, plan: ReportPlan) -> None:
        """Answered by ReportAnswered or ReportFailed."""
        told = self._plugins.untold
        body = report_to_wire(plan, self._known.facts, told)
        path = f"{self._plane.worker_path}/reports"
        limit_s = answer_limit_ms(self._state, tries=self._tries) / 1000
        try:
            here("agent.before_report")
            reply: ReportReply = await self._plane.call("POST", path, document=body, timeout_s=limit_s)
            here("agent.after_report")
        except GpulayerError as error:
            self._tries += 1
            self._hear_of_removal(error)
            if self.removed is None:
                self._story.lost(error, jobs=len(self._state.held), now_ms=self._clock.monotonic_ms())
                retry_in_ms = int(self._plane.backoff_s(self._tries) * 1000)
            else:
                retry_in_ms = _LEAVE_AGAIN_MS  # nobody hears it; it only ends the machine once nothing is held
            self._feed(ReportFailed(plan.seq, retry_in_ms))
        else:
            self._tries = 0
            self._plugins.was_told(told)
            self._story.back()
            self._feed(ReportAnswered(plan.seq, tuple(Epoch(epoch) for epoch in reply["void"])))

    async def listen(self) -> None:
        """For commands, until cancelled. They come as CommandsReceived."""
        cursor, tries = "", 0
        while True:
            # Where this one connection of several is dead, nothing tells so but its end: with a short lease, soon.
            hold_s = min(_HOLD_S, self._state.lease_ttl_ms / 1000)
            path = f"{self._plane.worker_path}/commands?hold_s={hold_s:g}" + (f"&after={cursor}" if cursor else "")
            asked_ms = self._clock.monotonic_ms()
            try:
                reply: CommandsReply = await self._plane.call(
                    "GET", path, timeout_s=hold_s + _HOLD_MARGIN_S, asks_again=True
                )
                heard = [command_from_wire(fields) for fields in reply["commands"]]
                commands = tuple(command for command in heard if command is not None)
            except GpulayerError as error:
                tries += 1
                self._hear_of_removal(error)
                # Of a lost connection the reports tell.
                if tries == 1 and self.removed is None and not isinstance(error, _LOST):
                    _log.warning("no commands: %s", error.message)
                await asyncio.sleep(self._plane.backoff_s(tries, after=error))
            else:
                tries = 0
                is_heard = is_current(self._state, asked_ms, now_ms=self._clock.monotonic_ms())
                if is_heard:
                    cursor = reply["cursor"]
                if commands:
                    self._feed(CommandsReceived(asked_ms, commands))
                    await asyncio.sleep(0)  # what this started goes first: a program, then the next request
                if not is_heard:  # the same answer would come at once, until a report is answered
                    await asyncio.sleep(self._plane.backoff_s(1))

    def _hear_of_removal(self, error: GpulayerError) -> None:
        """Removed, or replaced by an agent in a copy of its folder, its jobs are lost to the control plane, which may
        have started them elsewhere: none goes on here.

        401 on one route alone is no removal: a control plane that was started again knows no sessions.
        """
        if self.removed is not None or not isinstance(error, NotFound | NotKnown | Superseded):
            return
        self.removed = error
        held = list(self._state.held.values())
        if isinstance(error, Superseded):
            _log.warning("the control plane takes nothing more from this agent: %s", error.message)
        else:
            _log.warning("the control plane does not know this worker any more: %s", error.message)
        self._feed(AttemptsVoided(tuple({node.key.epoch for node in held})))
        self._feed(StopAllRequested())
