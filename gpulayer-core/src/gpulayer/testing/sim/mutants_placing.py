"""Planted faults in how work finds its place: what there is room for, what is lent ahead, what scorers say."""

from typing import Any, Final

from gpulayer import engine
from gpulayer.engine import ahead, asking, opinions, rooms, schedule
from gpulayer.placement import capacity
from gpulayer.protocol import agent, messages
from gpulayer.spec.opinion import NO_OPINION, Refusal
from gpulayer.testing.sim.mutant import Mutant

__all__ = ["PLACING"]


def _no_room_asked(start_staged: Any) -> Any:
    """The agent starts all that it was lent, whether or not there is room."""

    def broken(state: Any, now_ms: int, actions: Any) -> None:
        state.cpus = state.memory_bytes = None
        start_staged(state, now_ms, actions)

    return broken


def _endless_resources(_: Any) -> Any:
    """What was lent of a resource is there for the next one as well."""
    return lambda free, taken: free


def _lowest_indices(_: Any) -> Any:
    """Of free devices the lowest indices are lent, however they are joined."""
    return lambda request, devices, there: there[: request.devices]


def _gives_back_what_runs(give_back: Any) -> Any:
    """The agent gives back a program that has started."""

    def broken(state: Any, epoch: Any, now_ms: int, actions: Any) -> None:
        for held in state.held.values():
            if held.key.epoch == epoch and held.phase in (messages.Phase.SPAWNING, messages.Phase.RUNNING):
                held.phase = messages.Phase.STAGING
        give_back(state, epoch, now_ms, actions)

    return broken


def _ahead_uses_nothing(_: Any) -> Any:
    """What was lent ahead is counted by nobody once it has started."""

    def broken(state: Any, worker: Any, attempt: Any) -> None:
        ahead.forget(state, worker.id, attempt.epoch)
        attempt.nodes[0].is_ahead = False

    return broken


def _refusals_ignored(may_take: Any) -> Any:
    """Once scorers have spoken, their refusals keep nobody away."""

    def broken(state: Any, known: Any, worker: Any) -> bool:
        refused = opinions.refuses(state, known, worker)
        return bool(refused or may_take(state, known, worker))

    return broken


def _lends_ahead_where_refused(_: Any) -> Any:
    """Scorers are not minded where work is lent ahead."""
    return lambda state, known, worker: schedule.is_eligible_for(known, worker)


def _never_held(_: Any) -> Any:
    """The first job of its kind goes to the machine on which there is an opinion first."""
    return lambda state, known, ours: None


def _unfresh(_: Any) -> Any:
    """What a scorer once said is used for ever."""

    def broken(state: Any, known: Any, worker: Any) -> bool:
        ours = known.opinions or state.opinions.get(known.request)
        if not state.policy.scorers:
            return True
        if ours is None or state.now_ms < ours.held_until_ms:
            return False
        words = [said.get(worker.facts_digest) for said in ours.said.values()]
        return all(word is not None and not isinstance(word[0], Refusal) for word in words)

    return broken


def _marks_ignored(_: Any) -> Any:
    """Packing alone decides."""
    return lambda state, known, worker: NO_OPINION


def _endless_opinion_wait(_: Any) -> Any:
    """A scorer that does not answer is waited for as long as it takes."""

    def broken(state: Any, ours: Any, digest: Any, lacking: Any) -> int:
        ours.waits[digest] = state.now_ms + state.policy.opinion_wait_ms
        return int(ours.waits[digest])

    return broken


def _forgets_the_undecided(rebuilt: Any) -> Any:
    """After a restart nobody knows that a job was not to wait."""

    def broken(*args: Any, **kwargs: Any) -> Any:
        state = rebuilt(*args, **kwargs)
        state.undecided.clear()
        return state

    return broken


def _gains_overlooked(_: Any) -> Any:
    """A worker that has room again is tried by nobody who waits."""
    return lambda state, worker: []


def _room_kept(_: Any) -> Any:
    """Workers that come or change are no room for what has been looked at before."""
    return lambda known: None


PLACING: Final[dict[str, Mutant]] = {
    "no_room_asked": Mutant(2, agent, "_start_staged", _no_room_asked),
    "endless_resources": Mutant(2, capacity, "_less", _endless_resources),
    "lowest_indices": Mutant(14, capacity, "_chosen", _lowest_indices),
    "gives_back_what_runs": Mutant(4, agent, "_give_back", _gives_back_what_runs),
    "ahead_uses_nothing": Mutant(2, ahead, "count", _ahead_uses_nothing),
    "refusals_ignored": Mutant(14, opinions, "may_take", _refusals_ignored),
    "lends_ahead_where_refused": Mutant(14, ahead, "_may_go", _lends_ahead_where_refused),
    "never_held": Mutant(14, asking, "_hold", _never_held),
    "unfresh": Mutant(14, opinions, "may_take", _unfresh),
    "marks_ignored": Mutant(14, opinions, "mark", _marks_ignored),
    "endless_opinion_wait": Mutant(14, asking, "_fall_silent", _endless_opinion_wait),
    "forgets_the_undecided": Mutant(14, engine, "rebuild", _forgets_the_undecided),
    "gains_overlooked": Mutant(13, rooms, "gained", _gains_overlooked),
    "room_kept": Mutant(13, rooms, "forget", _room_kept),
}
