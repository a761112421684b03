"""Which of the held nodes matter now, noted as they change, so that an input costs the work of one node and not of all.

Nothing here decides. ``note`` a node when something of it has changed, ``note_all`` when what holds for all has.
"""

from typing import Final

from gpulayer.protocol.held import Held
from gpulayer.protocol.leases import stop_due_ms
from gpulayer.protocol.messages import Phase
from gpulayer.protocol.state import AgentState
from gpulayer.spec.assignment import NodeKey

__all__ = ["drop", "note", "note_all"]

_USING: Final = (Phase.SPAWNING, Phase.RUNNING, Phase.DRAINING)


def note(state: AgentState, held: Held) -> None:
    """The deadline may then be earlier than that of any node, never later."""
    key, phase = held.assignment.key, held.phase
    _keep(state.news, key, held, is_in=held.is_news)
    _keep(state.ready, key, held, is_in=phase is Phase.STAGING and held.is_staged)
    _keep(state.using, key, held, is_in=phase in _USING)
    due_ms = _due_ms(state, held)
    if due_ms is not None and key in state.held:
        state.deadline_ms = due_ms if state.deadline_ms is None else min(state.deadline_ms, due_ms)


def note_all(state: AgentState) -> None:
    """Everything anew."""
    state.news.clear()
    state.ready.clear()
    state.using.clear()
    state.deadline_ms = None
    for held in state.held.values():
        note(state, held)


def drop(state: AgentState, held: Held) -> None:
    """It is not held any more."""
    for noted in (state.news, state.ready, state.using):
        noted.pop(held.key, None)


def _keep(noted: dict[NodeKey, Held], key: NodeKey, held: Held, *, is_in: bool) -> None:
    if is_in:
        noted[key] = held
    elif key in noted:
        del noted[key]


def _due_ms(state: AgentState, held: Held) -> int | None:
    """When it must be looked at: SIGKILL, or a stop by itself."""
    kill_ms = held.kill_at_ms if held.phase is Phase.RUNNING else None
    if held.phase is Phase.RUNNING and held.is_void and kill_ms is None:
        return 0
    end_ms = stop_due_ms(state, held) if held.stop is None and not held.is_void else None
    if end_ms is None or kill_ms is None:
        return kill_ms if end_ms is None else end_ms
    return min(end_ms, kill_ms)
