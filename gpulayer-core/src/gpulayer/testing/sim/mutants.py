"""Planted faults: each takes one rule out of the product's own code. A harness that does not notice proves nothing.

``planted(name)`` is a context; within it the simulated world runs the broken code.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Final

from gpulayer import engine
from gpulayer.engine import ahead, asking, attempts, opinions, schedule, workers
from gpulayer.engine.effects import Void
from gpulayer.engine.state import Policy
from gpulayer.placement import capacity
from gpulayer.protocol import agent, leases, messages
from gpulayer.spec.opinion import NO_OPINION, Refusal
from gpulayer.spec.worker import WorkerState
from gpulayer.testing.sim.clockwork import WALL_MS

__all__ = ["MUTANTS", "planted"]

# Any: a mutant replaces functions of many signatures, and passes their arguments on as they come.
Patch = Callable[[Any], Any]


def _no_fence(step: Any) -> Any:
    """The control plane never says that an attempt is void."""

    def broken(state: Any, event: Any) -> Any:
        result = step(state, event)
        effects = tuple(replace(e, epochs=()) if isinstance(e, Void) else e for e in result.effects)
        return engine.Step(result.records, effects)

    return broken


def _reused_epoch(rebuilt: Any) -> Any:
    """After a restart epochs begin again behind the largest live one."""

    def broken(*args: Any, **kwargs: Any) -> Any:
        state = rebuilt(*args, **kwargs)
        state.next_epoch = max(state.attempts, default=0) + 1
        return state

    return broken


def _short_lease(_: Any) -> Any:
    """The control plane lends again before the worker has given up."""
    return lambda self, duration_ms: duration_ms // 3


def _endless_retries(runs_again: Any) -> Any:
    """Retries are not counted."""
    return lambda job, task, outcome: not outcome.is_success and job.stop is None and task.attempts < 20


def _early_forget(end: Any) -> Any:
    """The agent forgets an ended attempt before the control plane has answered its report."""

    def broken(state: Any, now_ms: int, actions: Any) -> None:
        end(state, now_ms, actions)
        for held in [held for held in state.held.values() if held.phase is messages.Phase.ENDED and state.in_flight]:
            del state.held[held.key]
            actions.append(messages.Forget(held.key))

    return broken


def _no_vanish_check(_: Any) -> Any:
    """An agent that started anew without an attempt is believed to run it still."""
    return lambda turn, worker, recovered: None


def _endless_work(kill_by_ms: Any) -> Any:
    """The spawner is told of a time that is far too late: a dead or stopped agent ends nothing."""
    return lambda state, held: kill_by_ms(state, held) + 3_600_000


def _no_room_asked(start_staged: Any) -> Any:
    """The agent starts all that it was lent, whether or not there is room."""

    def broken(state: Any, now_ms: int, actions: Any) -> None:
        state.cpus = state.memory_bytes = None
        start_staged(state, now_ms, actions)

    return broken


def _endless_resources(_: Any) -> Any:
    """What was lent of a resource is there for the next one as well."""
    return lambda free, taken: free


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

    def broken(state: Any, known: Any, digest: Any, lacking: Any) -> int:
        known.waits[digest] = state.now_ms + state.policy.opinion_wait_ms
        return int(known.waits[digest])

    return broken


def _forgets_the_undecided(rebuilt: Any) -> Any:
    """After a restart nobody knows that a job was not to wait."""

    def broken(*args: Any, **kwargs: Any) -> Any:
        state = rebuilt(*args, **kwargs)
        state.undecided.clear()
        return state

    return broken


def _deaf_once_away(_: Any) -> Any:
    """A control plane that was away takes everybody for silent."""
    return lambda state, now_ms: None


def _wall_clock(contact: Any) -> Any:
    """When a worker was heard of is read from the wall clock."""

    def broken(turn: Any, worker: Any, event: Any) -> None:
        contact(turn, worker, event)
        worker.heard_ms = turn.at.wall_ms - WALL_MS

    return broken


def _no_kill_grace(keep_for: Any) -> Any:
    """An exclusive job goes on for the whole lease, and gets its grace time after that."""

    def broken(state: Any, assignment: Any) -> Any:
        if not assignment.exclusive:
            return keep_for(state, assignment)
        return min(assignment.keep_for_ms, state.lease_ttl_ms), assignment.grace_ms

    return broken


def _gives_up_soon(keep_for: Any) -> Any:
    """A worker that has lost contact ends its work after half of the time."""

    def broken(state: Any, assignment: Any) -> Any:
        keep_for_ms, grace_ms = keep_for(state, assignment)
        return keep_for_ms // 2, grace_ms

    return broken


def _trusts_lost_notes(_: Any) -> Any:
    """After a restart of its machine the agent starts what its notes do not say has begun."""

    def broken(held: Any, now_ms: int, actions: Any) -> None:
        held.phase = messages.Phase.STAGING
        agent._stage(held, actions)  # noqa: SLF001 - what a careless recovery would do

    return broken


def _begins_without_contact(_: Any) -> Any:
    """An exclusive job begins although it would have to be ended at once."""
    return lambda state, assignment, now_ms: True


def _never_kills(signal: Any) -> Any:
    """SIGTERM is not followed by SIGKILL."""

    def broken(held: Any, now_ms: int, actions: Any) -> None:
        signal(held, now_ms, actions)
        held.kill_at_ms = now_ms + 10**9

    return broken


def _old_answers_count(_: Any) -> Any:
    """Commands count, however long ago they were asked for."""
    return lambda state, asked_ms, *, now_ms: True


def _old_agents_count(reported: Any) -> Any:
    """What comes late, or from an agent that has been replaced, counts as if it had come just now."""

    def broken(turn: Any, event: Any) -> None:
        worker = turn.state.workers.get(event.worker)
        if worker is not None and (event.boot, event.seq) <= (worker.boot, worker.seq):
            event = replace(event, boot=worker.boot, seq=worker.seq + 1)
        reported(turn, event)

    return broken


def _late_to_a_new_plane(_: Any) -> Any:
    """A control plane that was started again lends to workers that it has not heard of since."""
    return lambda worker: worker.state is WorkerState.READY


MUTANTS: Final[dict[str, tuple[object, str, Patch]]] = {
    "no_fence": (engine, "step", _no_fence),
    "reused_epoch": (engine, "rebuild", _reused_epoch),
    "short_lease": (Policy, "expiry_ms", _short_lease),
    "endless_retries": (attempts, "_runs_again", _endless_retries),
    "early_forget": (agent, "_report", _early_forget),
    "endless_work": (leases, "kill_by_ms", _endless_work),
    "no_vanish_check": (workers, "_end_vanished", _no_vanish_check),
    "no_room_asked": (agent, "_start_staged", _no_room_asked),
    "endless_resources": (capacity, "_less", _endless_resources),
    "gives_back_what_runs": (agent, "_give_back", _gives_back_what_runs),
    "ahead_uses_nothing": (ahead, "count", _ahead_uses_nothing),
    "refusals_ignored": (opinions, "may_take", _refusals_ignored),
    "lends_ahead_where_refused": (ahead, "_may_go", _lends_ahead_where_refused),
    "never_held": (asking, "_hold", _never_held),
    "unfresh": (opinions, "may_take", _unfresh),
    "marks_ignored": (opinions, "mark", _marks_ignored),
    "endless_opinion_wait": (asking, "_fall_silent", _endless_opinion_wait),
    "forgets_the_undecided": (engine, "rebuild", _forgets_the_undecided),
    "deaf_once_away": (engine, "hear_anew", _deaf_once_away),
    "wall_clock": (workers, "_contact", _wall_clock),
    "no_kill_grace": (leases, "keep_for", _no_kill_grace),
    "gives_up_soon": (leases, "keep_for", _gives_up_soon),
    "trusts_lost_notes": (agent, "_end_unsure", _trusts_lost_notes),
    "begins_without_contact": (agent, "may_begin", _begins_without_contact),
    "never_kills": (agent, "_signal", _never_kills),
    "old_answers_count": (agent, "is_current", _old_answers_count),
    "old_agents_count": (workers, "reported", _old_agents_count),
    "lends_unheard": (schedule, "takes_work", _late_to_a_new_plane),
}


@contextmanager
def planted(name: str) -> Iterator[None]:
    """Run with the fault of this name in place."""
    owner, attribute, patch = MUTANTS[name]
    sound = getattr(owner, attribute)
    setattr(owner, attribute, patch(sound))
    try:
        yield
    finally:
        setattr(owner, attribute, sound)
