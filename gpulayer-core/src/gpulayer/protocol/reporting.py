"""What an agent reports, and when: news at once or with company, a heartbeat at least every ``heartbeat_ms``."""

from typing import Final

from gpulayer.ids import Epoch
from gpulayer.protocol.held import Held
from gpulayer.protocol.messages import Item, Phase, ReportedState, ReportPlan
from gpulayer.protocol.state import AgentState

__all__ = ["answer_limit_ms", "can_leave", "next_report", "report_due_ms"]


_LIMIT_MS: Final = (3_000, 30_000)  # the least and the most that an answer is waited for
_COMPANY_MS: Final = 100  # while work waits here for room, news waits so long for more of it


def report_due_ms(state: AgentState) -> int:
    """When the next report is to go out if nothing else happens and none is on its way."""
    if state.last_sent_ms is None:
        return state.retry_at_ms
    due = state.last_sent_ms + state.heartbeat_ms
    is_stop_news = state.is_stopping and not state.is_stop_told
    if state.recovered is not None or state.has_new_facts or is_stop_news or can_leave(state):
        due = state.last_sent_ms
    if state.news:
        news_ms = min(held.news_due_ms for held in state.news.values())
        # Slots are not idle meanwhile; but more must have been lent before what waits here has run out.
        ended = sum(held.phase is Phase.ENDED for held in state.news.values())
        due = min(due, news_ms + _COMPANY_MS if ended < len(state.ready) else news_ms)
    return max(due, state.retry_at_ms)


def answer_limit_ms(state: AgentState, *, tries: int) -> int:
    """How long to wait for the answer to a report; ``tries`` before it got none. Then it is repeated at once, on a new
    connection.

    A lease must survive a connection that died in silence. The report that meets it is sent up to a heartbeat after
    the last answered one, and what is left of the lease is shared by three tries: of 30 s with a heartbeat of 10 s, it
    is given up at 16.7 s and repeated; the control plane waits for 33 s, and an exclusive job ends itself at 19 s. The
    answer to a later try is waited for longer, for a network where everything takes its time: the second until 30 s,
    so that a third still begins within the lease.
    """
    least, most = _LIMIT_MS
    first = max(least, (state.lease_ttl_ms - state.heartbeat_ms) // 3)
    return min(first * (1 + tries), most)


def next_report(state: AgentState, now_ms: int) -> ReportPlan | None:
    """The report that is due now; None where none is, or one is on its way. Changes nothing."""
    if state.boot == 0 or state.is_finished or state.in_flight is not None or now_ms < report_due_ms(state):
        return None
    news = [held for key, held in state.held.items() if key in state.news]
    return ReportPlan(
        boot=state.boot,
        seq=state.seq,
        sent_ms=now_ms,
        holding=tuple(sorted({held.key.epoch for held in state.held.values() if not held.is_void})),
        recovered=state.recovered,
        items=tuple(_item(held, now_ms) for held in news),
        has_facts=state.has_new_facts,
        stopping=state.is_stopping,
        leaving=can_leave(state),
        unstarted=() if state.recovered is None else _unstarted(state),
        unsure=state.is_unsure,
    )


def _unstarted(state: AgentState) -> tuple[Epoch, ...]:
    return tuple(sorted({held.key.epoch for held in state.held.values() if held.phase is Phase.STAGING}))


def _item(held: Held, now_ms: int) -> Item:
    if held.phase is Phase.ENDED:
        is_start_told = held.started_ms is None or held.acked not in (None, ReportedState.STAGING)
        ago_ms = None if is_start_told or held.started_ms is None else max(0, now_ms - held.started_ms)
        return Item(held.key, ReportedState.ENDED, held.outcome, held.outputs, ago_ms)
    return Item(held.key, held.reported_state)


def can_leave(state: AgentState) -> bool:
    """Everything is told, and nothing more is wanted here."""
    return state.is_stopping and not state.held
