"""Was whoever drives the engine there all the time? Silence counts only while somebody listens.

A control plane that was stopped (SIGSTOP, a debugger, a laptop that slept) or that could not look at anything for long
(a disk that takes half a minute to write) finds every lease expired when it goes on, and what workers sent meanwhile
still unread. Nobody is to lose anything by that: everyone counts as heard of at that moment, as after a start. Leases
only get longer, which is the safe side: a worker counts its own from what was answered. The price: while each look
comes more than ten seconds after the last (a disk that takes that long for every commit), nobody is taken for silent.
"""

from dataclasses import dataclass
from typing import Final

from gpulayer.engine.state import State

__all__ = ["BEAT_MS", "Attention", "hear_anew"]

BEAT_MS: Final = 5_000  # whoever drives looks at least so often, or says nothing of silence
_AWAY_MS: Final = 10_000  # a beat, and what a busy machine may take; a third of the usual lease


@dataclass(slots=True)
class Attention:
    """Pure: whoever looks says when. ``seen_ms``: when it last did; None: never."""

    seen_ms: int | None = None

    def was_away(self, now_ms: int) -> bool:
        """Look, and say whether nobody has for too long."""
        seen_ms, self.seen_ms = self.seen_ms, now_ms
        return seen_ms is not None and now_ms - seen_ms > _AWAY_MS


def hear_anew(state: State, now_ms: int) -> None:
    """From now on everyone's silence counts. Changes only what is volatile; may be repeated."""
    state.now_ms = max(state.now_ms, now_ms)
    for worker in state.workers.values():
        worker.heard_ms = state.now_ms
