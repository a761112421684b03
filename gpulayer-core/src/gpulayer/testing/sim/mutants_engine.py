"""Planted faults in the control plane: what it lends, whom it believes, when it gives up, what it keeps."""

from dataclasses import replace
from importlib import import_module
from typing import Any, Final

from gpulayer import engine
from gpulayer.engine import attempts, rooms, workers
from gpulayer.engine.effects import Stop, Void
from gpulayer.engine.events import NodePhase
from gpulayer.engine.records import CounterImage
from gpulayer.engine.state import Policy
from gpulayer.engine.turn import Turn
from gpulayer.protocol import retry
from gpulayer.server.mailbox import Mailboxes
from gpulayer.spec.outcome import EndedBy
from gpulayer.spec.worker import WorkerState
from gpulayer.testing.sim.mutant import Mutant

__all__ = ["ENGINE", "UNSEEN_ENGINE"]

# The package has functions of these names.
_DUE: Final = import_module("gpulayer.engine.due")
_STEP: Final = import_module("gpulayer.engine.step")

# Fencing --------------------------------------------------------------------------------------------------------------


def _no_fence(step: Any) -> Any:
    """The control plane never says that an attempt is void."""

    def broken(state: Any, event: Any) -> Any:
        result = step(state, event)
        effects = tuple(replace(e, epochs=()) if isinstance(e, Void) else e for e in result.effects)
        return engine.Step(result.records, effects)

    return broken


def _holding_unread(reported: Any) -> Any:
    """What a worker only says it holds is not looked at: that it is void is told with its news, and not again."""
    return lambda turn, event: reported(turn, replace(event, holding=()))


def _reused_epoch(rebuilt: Any) -> Any:
    """After a restart epochs begin again behind the largest live one."""

    def broken(*args: Any, **kwargs: Any) -> Any:
        state = rebuilt(*args, **kwargs)
        state.next_epoch = max(state.attempts, default=0) + 1
        return state

    return broken


def _late_counters(records: Any) -> Any:
    """Counters are stored with the next transaction, not with the one that used them."""

    def late(turn: Any, counters: Any) -> Any:
        return replace(counters, next_epoch=max(counters.next_epoch - len(turn.attempts), 1))

    def broken(self: Any) -> Any:
        return tuple(late(self, one) if isinstance(one, CounterImage) else one for one in records(self))

    return broken


# Leases ---------------------------------------------------------------------------------------------------------------


def _short_lease(_: Any) -> Any:
    """The control plane lends again before the worker has given up."""
    return lambda self, duration_ms: duration_ms // 3


def _no_tenth(_: Any) -> Any:
    """The control plane waits no longer than the worker, as if all clocks ran equally fast."""
    return lambda self, duration_ms: duration_ms


def _wall_clock_decides(due_: Any) -> Any:
    """How long a worker has been silent is read from the wall clock."""

    def broken(state: Any, at: Any) -> Any:
        heard = {worker.id: worker.heard_ms for worker in state.workers.values()}
        for worker in state.workers.values():
            if at.wall_ms:
                worker.heard_ms = at.ms - (at.wall_ms - worker.seen_wall_ms)
        events = due_(state, at)
        for worker in state.workers.values():
            worker.heard_ms = heard[worker.id]
        return events

    return broken


def _keep_for_unheard(_: Any) -> Any:
    """The control plane gives a silent worker's job up with the lease, however long it is to be kept."""
    return lambda state, worker, epoch: worker.heard_ms + state.policy.expiry_ms(state.policy.lease_ttl_ms)


def _grace_unminded(kept_until_ms: Any) -> Any:
    """The control plane forgets that a worker which gives a job up leaves it its grace time."""

    def broken(state: Any, worker: Any, epoch: Any) -> Any:
        entry = state.jobs[state.attempts[epoch].job_id].entry
        late_ms = 0 if entry.exclusive else entry.grace_ms
        return max(kept_until_ms(state, worker, epoch) - late_ms, worker.heard_ms + state.policy.lease_ttl_ms)

    return broken


def _silence_unseen(_: Any) -> Any:
    """A worker that has fallen silent is lent more work."""
    return lambda turn, event: None


def _unheard_is_lent_to(_: Any) -> Any:
    """After a restart of the control plane workers are lent work that it has not heard of since."""
    return lambda worker: worker.state is WorkerState.READY


def _lost_while_unreachable(lease_expired: Any) -> Any:
    """A job without retries is lost as soon as its worker's lease has passed."""

    def broken(turn: Any, event: Any) -> None:
        lease_expired(turn, event)
        attempt = turn.state.attempts.get(event.epoch)
        if attempt is not None and attempt.is_unreachable:
            workers.keep_for_passed(turn, event)

    return broken


# Reports --------------------------------------------------------------------------------------------------------------


def _boots_unread(reported: Any) -> Any:
    """What an agent that was replaced still had on its way counts as its successor's word."""

    def broken(turn: Any, event: Any) -> None:
        worker = turn.state.workers.get(event.worker)
        if worker is not None and event.boot < worker.boot:
            event = replace(event, boot=worker.boot, seq=worker.seq + 1)
        reported(turn, event)

    return broken


def _repeats_taken(reported: Any) -> Any:
    """A report that comes twice, or late, is taken in as often as it comes."""

    def broken(turn: Any, event: Any) -> None:
        worker = turn.state.workers.get(event.worker)
        if worker is not None and event.boot == worker.boot:
            event = replace(event, seq=max(event.seq, worker.seq + 1))
        reported(turn, event)

    return broken


def _phases_go_back(node_reported: Any) -> Any:
    """A late report takes an attempt back to where it was."""

    def broken(turn: Any, attempt: Any, index: int, report: Any) -> None:
        if attempt.nodes[index].phase is not NodePhase.ENDED:
            attempt.nodes[index].phase = NodePhase.ASSIGNED
        node_reported(turn, attempt, index, report)

    return broken


def _no_vanish_check(_: Any) -> Any:
    """An agent that started anew without an attempt is believed to run it still."""
    return lambda turn, worker, recovered: None


def _begun_anew(_: Any) -> Any:
    """An agent that would start what is known to run may do so."""
    return lambda turn, worker, unstarted: None


def _older_believed(_: Any) -> Any:
    """An agent whose folder may be older than what was lent to it is lent that as if it had never begun."""
    return lambda turn, worker, safe: None


# Commands -------------------------------------------------------------------------------------------------------------


def _told_is_taken(waiting: Any) -> Any:
    """A command is forgotten when it is told, not when the worker says that it has it."""

    def broken(self: Any, worker: Any) -> Any:
        cursor, orders = waiting(self, worker)
        self.acknowledge(worker, cursor)
        return cursor, orders

    return broken


def _never_retracted(deliver: Any) -> Any:
    """What waits for a worker that is away is told to it when it is back, though it was lent to another since."""

    def broken(self: Any, state: Any, records: Any, effects: Any) -> Any:
        return deliver(self, state, (), effects)

    return broken


def _cursors_never_expire(knows: Any) -> Any:
    """A cursor of an earlier run of the control plane is taken for one of this run."""

    def broken(self: Any, worker: Any, cursor: str) -> bool:
        return knows(self, worker, cursor) or (worker in self._boxes and "." in cursor)

    return broken


# Retries --------------------------------------------------------------------------------------------------------------


def _endless_retries(runs_again: Any) -> Any:
    """Retries are not counted."""
    return lambda job, task, attempt, outcome: not outcome.is_success and job.stop is None and task.attempts < 20


def _one_retry_more(runs_again: Any) -> Any:
    """Of a job that the infrastructure failed, one retry more is made than was allowed: so with none, it runs twice."""

    def broken(job: Any, task: Any, attempt: Any, outcome: Any) -> bool:
        is_lost = outcome.ended_by is EndedBy.WORKER_LOST and job.stop is None
        return bool(runs_again(job, task, attempt, outcome)) or (is_lost and task.failures == job.entry.retries)

    return broken


def _one_retry_fewer(runs_again: Any) -> Any:
    """The last retry is never made."""

    def broken(job: Any, task: Any, attempt: Any, outcome: Any) -> bool:
        return (
            bool(runs_again(job, task, attempt, outcome))
            and max(task.failures, task.program_failures) + 1 < job.entry.retries
        )

    return broken


def _failures_mixed_up(spend: Any) -> Any:
    """A failure of the infrastructure uses up a retry of the program's own."""

    def broken(task: Any, *args: Any) -> None:
        spend(task, *args)
        task.program_failures = max(task.program_failures, task.failures)

    return broken


def _cancelled_runs_again(runs_again: Any) -> Any:
    """A job that somebody cancelled runs again when its worker is lost."""

    def broken(job: Any, task: Any, attempt: Any, outcome: Any) -> bool:
        stop, job.stop = job.stop, None
        try:
            return bool(runs_again(job, task, attempt, outcome))
        finally:
            job.stop = stop

    return broken


def _detours_cost(_: Any) -> Any:
    """What was in the way before anything ran uses up a retry."""
    return lambda attempt, outcome: False


def _asked_again(spend: Any) -> Any:
    """Who had no device for a task is asked for one again at once."""

    def broken(task: Any, attempt: Any, outcome: Any, worker: Any) -> None:
        avoid = set(task.avoid)
        spend(task, attempt, outcome, worker)
        task.avoid = type(task.avoid)(avoid)

    return broken


def _cancel_unheard(_: Any) -> Any:
    """A cancel is answered, and nothing comes of it."""
    return lambda turn, event: None


def _cancel_untold(stop: Any) -> Any:
    """The worker is never told of a cancel."""

    def broken(turn: Any, attempt: Any, ended_by: Any, grace_ms: int) -> None:
        before = len(turn.effects)
        stop(turn, attempt, ended_by, grace_ms)
        turn.effects[before:] = [effect for effect in turn.effects[before:] if not isinstance(effect, Stop)]

    return broken


# People ---------------------------------------------------------------------------------------------------------------


def _removed_keeps(removed: Any) -> Any:
    """What a removed worker had stays lent to it."""

    def broken(turn: Any, event: Any) -> None:
        worker = turn.state.workers.get(event.worker)
        if worker is not None:
            worker.leases.clear()
        removed(turn, event)

    return broken


def _drain_unheard(set_draining: Any) -> Any:
    """A drained worker is lent more."""

    def broken(turn: Any, worker_id: Any, *, draining: bool) -> None:
        set_draining(turn, worker_id, draining=draining)
        worker = turn.state.workers.get(worker_id)
        if worker is not None and worker.state is WorkerState.DRAINING:
            worker.state = WorkerState.READY

    return broken


def _stops_unheard(_: Any) -> Any:
    """A worker that is about to end is lent more."""
    return lambda turn, worker: None


def _forgets_failures(rebuilt: Any) -> Any:
    """After a restart nobody knows how often a task has failed."""

    def broken(*args: Any, **kwargs: Any) -> Any:
        state = rebuilt(*args, **kwargs)
        for job in state.jobs.values():
            for task in job.tasks.values():
                task.failures = 0
        return state

    return broken


def _gives_up(_: Any) -> Any:
    """A client does not ask again when it had no answer."""
    return lambda failure, repeatable: False


ENGINE: Final[dict[str, Mutant]] = {
    "no_fence": Mutant(3, engine, "step", _no_fence),
    "holding_unread": Mutant(3, workers, "reported", _holding_unread),
    "reused_epoch": Mutant(3, engine, "rebuild", _reused_epoch),
    "late_counters": Mutant(3, Turn, "records", _late_counters),
    "short_lease": Mutant(3, Policy, "expiry_ms", _short_lease),
    "no_tenth": Mutant(10, Policy, "expiry_ms", _no_tenth),
    "wall_clock_decides": Mutant(10, engine, "due", _wall_clock_decides),
    "keep_for_unheard": Mutant(6, _DUE, "_kept_until_ms", _keep_for_unheard),
    "grace_unminded": Mutant(6, _DUE, "_kept_until_ms", _grace_unminded),
    "silence_unseen": Mutant(13, workers, "went_silent", _silence_unseen),
    "unheard_is_lent_to": Mutant(3, rooms, "takes_work", _unheard_is_lent_to),
    "lost_while_unreachable": Mutant(6, workers, "lease_expired", _lost_while_unreachable),
    "boots_unread": Mutant(4, workers, "reported", _boots_unread),
    "repeats_taken": Mutant(4, workers, "reported", _repeats_taken),
    "older_believed": Mutant(4, workers, "_end_unheard", _older_believed),
    "told_is_taken": Mutant(4, Mailboxes, "waiting", _told_is_taken),
    "never_retracted": Mutant(3, Mailboxes, "deliver", _never_retracted),
    "endless_retries": Mutant(4, attempts, "_runs_again", _endless_retries),
    "one_retry_more": Mutant(4, attempts, "_runs_again", _one_retry_more),
    "one_retry_fewer": Mutant(4, attempts, "_runs_again", _one_retry_fewer),
    "failures_mixed_up": Mutant(4, attempts, "_spend_retry", _failures_mixed_up),
    "cancelled_runs_again": Mutant(8, attempts, "_runs_again", _cancelled_runs_again),
    "detours_cost": Mutant(4, attempts, "_is_detour", _detours_cost),
    "asked_again": Mutant(13, attempts, "_spend_retry", _asked_again),
    "cancel_unheard": Mutant(8, _STEP, "_cancel", _cancel_unheard),
    "cancel_untold": Mutant(8, attempts, "stop", _cancel_untold),
    "removed_keeps": Mutant(13, workers, "removed", _removed_keeps),
    "drain_unheard": Mutant(13, workers, "set_draining", _drain_unheard),
    "stops_unheard": Mutant(13, workers, "_stops", _stops_unheard),
    "forgets_failures": Mutant(4, engine, "rebuild", _forgets_failures),
    "gives_up": Mutant(1, retry, "_may_repeat", _gives_up),
}

UNSEEN_ENGINE: Final[dict[str, Mutant]] = {
    "no_vanish_check": Mutant(
        4,
        workers,
        "_end_vanished",
        _no_vanish_check,
        "36 attempts vanished in 200 fleets, each with all notes of its agent, which is unsure and loses them anyway",
    ),
    "phases_go_back": Mutant(
        4,
        attempts,
        "node_reported",
        _phases_go_back,
        "a report that comes late is dropped by its number before its phases are looked at",
    ),
    "begun_anew": Mutant(
        4,
        workers,
        "_end_begun",
        _begun_anew,
        "a copy of a folder ends what had not begun in it, as after a restart of the machine",
    ),
    "cursors_never_expire": Mutant(
        4,
        Mailboxes,
        "knows",
        _cursors_never_expire,
        "a worker that this run has not heard yet has no mailbox, and gets everything from the state",
    ),
}
