"""Workers come, report, fall silent, come back and go; and what that means for the attempts they hold.

With retries left, the control plane lends a silent worker's task again after the lease: the old attempt is fenced by
its epoch and ends at the next contact. Without, the attempt is shown unreachable until the worker must have ended it
by itself.
"""

from gpulayer.engine import ahead, attempts, holds, opinions, rooms, schedule
from gpulayer.engine.effects import Void
from gpulayer.engine.events import (
    KeepForPassed,
    LeaseExpired,
    NodePhase,
    NodeReport,
    PlaneRestored,
    WorkerJoined,
    WorkerRemoved,
    WorkerReported,
    WorkerWentSilent,
)
from gpulayer.engine.records import FactsForgotten, FactsImage
from gpulayer.engine.state import Attempt, State, Worker
from gpulayer.engine.turn import Turn
from gpulayer.ids import Digest, Epoch, WorkerId
from gpulayer.placement.capacity import usable_capacity
from gpulayer.spec.machine import WorkerFacts
from gpulayer.spec.outcome import EndedBy, Outcome
from gpulayer.spec.worker import WorkerState

__all__ = [
    "joined",
    "keep_for_passed",
    "lease_expired",
    "removed",
    "reported",
    "restored",
    "set_draining",
    "went_silent",
]


def joined(turn: Turn, event: WorkerJoined) -> None:
    """A new worker, or a known identity that enrols again. It takes work from its first report on."""
    state = turn.state
    worker = state.workers.get(event.worker)
    if worker is None:
        worker = state.workers[event.worker] = Worker(
            id=event.worker,
            name=event.name,
            state=WorkerState.JOINING,
            facts=event.facts,
            facts_digest=event.facts_digest,
            free=usable_capacity(event.facts),
        )
        state.fleet = None
        for known in state.classes.values():
            rooms.forget(known)
    worker.heard_ms, worker.seen_wall_ms = turn.at.ms, turn.at.wall_ms
    _set_facts(turn, worker, event.facts, event.facts_digest)
    turn.workers[worker.id] = worker


def reported(turn: Turn, event: WorkerReported) -> None:
    """One report: contact, new facts, and where attempts are; answered with what is not this worker's any more."""
    state = turn.state
    worker = state.workers.get(event.worker)
    if worker is None:
        known = {*event.holding, *(event.recovered or ()), *(item.epoch for item in event.items)}
        turn.effects.append(Void(event.worker, tuple(sorted(known))))
        return
    if event.boot < worker.boot:
        return  # a message of an agent that has been replaced: whatever it knew, its successor has reported
    is_repeated = event.boot == worker.boot and event.seq <= worker.seq
    if not is_repeated:
        _contact(turn, worker, event)
        if event.stopping:
            _stops(turn, worker)  # first: what ends below must not be lent to it again
        _take(turn, worker, event.items)
        if event.leaving:
            _left(turn, worker)
    said = {*event.holding, *(event.recovered or ()), *(item.epoch for item in event.items)}
    void = sorted(epoch for epoch in said if _lent_to(state, worker, epoch) is None)
    turn.effects.append(Void(worker.id, tuple(void)))


def went_silent(turn: Turn, event: WorkerWentSilent) -> None:
    """Shown as silent and lent nothing; its attempts stand until their leases expire."""
    worker = turn.state.workers.get(event.worker)
    if worker is not None and worker.state is not WorkerState.SILENT:
        worker.state = WorkerState.SILENT
        turn.workers[worker.id] = worker
        ahead.revoke_all(turn, worker)
        schedule.workers_changed(turn)  # a task that waited for it rather than for another does so no more


def lease_expired(turn: Turn, event: LeaseExpired) -> None:
    """The control plane may act on the silence: lend the task again, or only say that it can't be reached."""
    worker = turn.state.workers.get(event.worker)
    attempt = turn.state.attempts.get(event.epoch)
    if worker is None or attempt is None or event.epoch not in worker.leases:
        return
    job = turn.state.jobs[attempt.job_id]
    task = job.tasks[attempt.task_index]
    if job.stop is not None or task.failures < job.entry.retries:
        _lose(turn, worker, attempt, f"worker {worker.name} has been silent for longer than its lease")
        return
    if not attempt.is_unreachable:
        attempt.is_unreachable = True
        attempts.refresh(turn, attempt)


def keep_for_passed(turn: Turn, event: KeepForPassed) -> None:
    """By now the worker has ended the attempt by itself, wherever it is."""
    worker = turn.state.workers.get(event.worker)
    attempt = turn.state.attempts.get(event.epoch)
    if worker is None or attempt is None or event.epoch not in worker.leases:
        return
    _lose(turn, worker, attempt, f"worker {worker.name} did not come back within the time it keeps jobs for")


def set_draining(turn: Turn, worker_id: WorkerId, *, draining: bool) -> None:
    """A draining worker lets its work end and takes no more."""
    worker = turn.state.workers.get(worker_id)
    if worker is None or worker.is_draining is draining:
        return
    worker.is_draining = draining
    if worker.state in (WorkerState.READY, WorkerState.DRAINING):
        worker.state = _present_state(worker)
        schedule.workers_changed(turn)
        turn.gained[worker.id] = worker
    if draining:
        ahead.revoke_all(turn, worker)
    turn.workers[worker.id] = worker


def removed(turn: Turn, event: WorkerRemoved) -> None:
    """All that it holds is lost at once, and it is forgotten. Unknown workers are no error."""
    worker = turn.state.workers.get(event.worker)
    if worker is None:
        return
    for epoch in list(worker.leases):
        attempt = turn.state.attempts[epoch]
        holds.hold(turn, attempt, holds.expires_ms(turn.state, worker, attempt))
        _lose(turn, worker, attempt, f"worker {worker.name} was removed")
    worker.state = WorkerState.GONE
    turn.workers[worker.id] = worker
    turn.gained.pop(worker.id, None)
    turn.state.paces.pop(worker.id, None)
    del turn.state.workers[worker.id]
    _forget_facts(turn.state, worker.facts_digest)
    schedule.workers_changed(turn)


def restored(turn: Turn, event: PlaneRestored) -> None:
    """All attempts are lost at once: whatever has become of them since the backup, nothing is taken of them any more,
    and their workers are told so at the next contact. Their tasks run again by their own rules; an exclusive job's
    only when a lease has passed, also where it was queued: since the backup it may have been lent to anybody."""
    state = turn.state
    holds.hold_all(turn)
    for worker in state.workers.values():
        worker.is_heard = False  # to this control plane none has reported, whatever it is that was told before
    schedule.workers_changed(turn)
    state.next_epoch, state.next_seq = max(state.next_epoch, event.first), max(state.next_seq, event.first)
    evidence = "the control plane was restored from a backup that was made while this attempt was live"
    for attempt in list(state.attempts.values()):
        for index in range(len(attempt.nodes)):
            attempts.end_node(turn, attempt, index, Outcome(EndedBy.WORKER_LOST, evidence=evidence))


def _contact(turn: Turn, worker: Worker, event: WorkerReported) -> None:
    is_new_boot = event.boot > worker.boot
    if is_new_boot:
        _doubt(turn, worker)  # while it is known when its former start was heard of
    worker.is_stopping = event.stopping or (worker.is_stopping and not is_new_boot)
    worker.boot, worker.seq = event.boot, event.seq
    worker.heard_ms, worker.seen_wall_ms = turn.at.ms, turn.at.wall_ms
    if event.facts is not None and event.facts_digest is not None:
        _set_facts(turn, worker, event.facts, event.facts_digest)
    if not worker.is_heard:
        worker.is_heard = True
        schedule.workers_changed(turn)
        turn.gained[worker.id] = worker
    if is_new_boot or worker.state in (WorkerState.JOINING, WorkerState.SILENT):
        worker.state = _present_state(worker)
        turn.workers[worker.id] = worker
        schedule.workers_changed(turn)
        turn.gained[worker.id] = worker
    if is_new_boot:
        turn.workers[worker.id] = worker
        _end_vanished(turn, worker, event.recovered or ())
        _end_begun(turn, worker, event.unstarted)
        if event.unsure:
            _end_unheard(turn, worker, event.untold.union(event.recovered or ()))
    for epoch in worker.leases:
        attempt = turn.state.attempts[epoch]
        if attempt.lease_ttl_ms != turn.state.policy.lease_ttl_ms and len(attempt.nodes) == 1:
            attempt.lease_ttl_ms = turn.state.policy.lease_ttl_ms  # its session is of this control plane
            turn.attempts[epoch] = attempt
        if attempt.is_unreachable:
            attempt.is_unreachable = False
            attempts.refresh(turn, attempt)


def _take(turn: Turn, worker: Worker, items: tuple[NodeReport, ...]) -> None:
    """Ends first: what they make room for may have started already, and stand before them in the report."""
    state = turn.state
    ended: list[int] = []
    for item in sorted(items, key=lambda item: item.phase is not NodePhase.ENDED):
        attempt = _lent_to(state, worker, item.epoch)
        if attempt is None or worker.leases.get(item.epoch) != item.node:
            continue
        if item.phase is NodePhase.ENDED and not attempt.nodes[item.node].is_revoked:
            ended.append(attempt.lent_ms)
        if item.phase is NodePhase.ENDED and item.outcome is not None and item.outcome.ran_ms is not None:
            holds.release(turn, attempt)  # somebody was there when its program ended
        attempts.node_reported(turn, attempt, item.node, item)
    ahead.learn(state, worker, ended)
    pushed = ahead.push_back(state, worker) if items else []
    for attempt in pushed:
        attempts.refresh(turn, attempt)
    if pushed:  # a large one may have made more room than was wanting
        schedule.capacity_gained(state, worker)
        turn.gained[worker.id] = worker


def _doubt(turn: Turn, worker: Worker) -> None:
    """The agent starts anew, or another one does in a copy of its folder, which looks the same from here and, after a
    restart of the machine, from there: what is told of the former start's programs by anybody who did not see them end
    is a belief. That one may have been answered until now."""
    for epoch in worker.leases:
        attempt = turn.state.attempts[epoch]
        holds.hold(turn, attempt, holds.expires_ms(turn.state, worker, attempt))


def _end_vanished(turn: Turn, worker: Worker, recovered: tuple[Epoch, ...]) -> None:
    """An agent that started anew and does not know an attempt which its predecessor had begun has lost it."""
    for epoch, index in list(worker.leases.items()):
        attempt = turn.state.attempts.get(epoch)
        if attempt is None or epoch in recovered or attempt.nodes[index].phase is NodePhase.ASSIGNED:
            continue
        _lose(turn, worker, attempt, f"worker {worker.name} started again and no longer knows this attempt")


def _end_begun(turn: Turn, worker: Worker, unstarted: tuple[Epoch, ...]) -> None:
    """An agent that would start what is known to run has an older state of its worker's folder, or a copy of one: it
    must not run twice."""
    for epoch in unstarted:
        attempt = _lent_to(turn.state, worker, epoch)
        if attempt is not None and attempt.nodes[worker.leases[epoch]].phase in (NodePhase.RUNNING, NodePhase.ENDING):
            _lose(turn, worker, attempt, f"worker {worker.name} started again without knowing that this attempt ran")


def _end_unheard(turn: Turn, worker: Worker, safe: frozenset[Epoch]) -> None:
    """What a former start was told may have begun there, on a machine that can't say so any more: it lost power with
    the notes of that, or this is a copy of its folder from before, on another one. Nothing here tells the two apart."""
    for epoch in list(worker.leases):
        attempt = turn.state.attempts.get(epoch)
        if attempt is not None and epoch not in safe:
            evidence = f"worker {worker.name} was started anew as a whole, and may have begun this attempt before"
            _lose(turn, worker, attempt, evidence)


def _stops(turn: Turn, worker: Worker) -> None:
    """It takes nothing more until it starts anew."""
    if worker.state is WorkerState.READY:
        worker.state = WorkerState.DRAINING
        turn.workers[worker.id] = worker
        schedule.workers_changed(turn)
        ahead.revoke_all(turn, worker)


def _left(turn: Turn, worker: Worker) -> None:
    """The agent stopped in good order: nothing runs there, and nothing new goes there until it reports again."""
    for epoch in list(worker.leases):
        attempt = turn.state.attempts.get(epoch)
        if attempt is not None:
            evidence = f"worker {worker.name} was stopped"
            attempts.end_node(turn, attempt, worker.leases[epoch], Outcome(EndedBy.WORKER_STOPPED, evidence=evidence))
    worker.state = WorkerState.SILENT
    turn.workers[worker.id] = worker
    schedule.workers_changed(turn)


def _lose(turn: Turn, worker: Worker, attempt: Attempt, evidence: str) -> None:
    attempts.end_node(turn, attempt, worker.leases[attempt.epoch], Outcome(EndedBy.WORKER_LOST, evidence=evidence))


def _set_facts(turn: Turn, worker: Worker, facts: WorkerFacts, digest: Digest) -> None:
    """Facts are stored once by digest and shared, while any worker has them. Leases stand, also on devices that are no
    longer reported."""
    if digest not in turn.state.facts:
        turn.state.facts[digest] = facts
        turn.facts[digest] = FactsImage(digest, facts)
    if digest == worker.facts_digest and worker.facts is turn.state.facts[digest]:
        return
    known, known_digest = worker.facts, worker.facts_digest
    worker.facts, worker.facts_digest = turn.state.facts[digest], digest
    if turn.state.opinions and known.without_flowing_figures() == worker.facts.without_flowing_figures():
        opinions.carry_over(turn, known_digest, digest)
    if _forget_facts(turn.state, known_digest):
        turn.forgotten_facts[known_digest] = FactsForgotten(known_digest)
    attempts.refresh_free(turn.state, worker)
    turn.workers[worker.id] = worker
    if known.frameworks != worker.facts.frameworks and any(one.is_in_doubt for one in known.frameworks):
        turn.has_checked = True
    if known.without_readings() != worker.facts.without_readings():
        schedule.workers_changed(turn)
    turn.gained[worker.id] = worker


def _forget_facts(state: State, digest: Digest) -> bool:
    """Where no worker has them any more; a figure that goes up and down makes new ones each time."""
    if any(worker.facts_digest == digest for worker in state.workers.values()):
        return False
    del state.facts[digest]
    for known in state.classes.values():
        known.eligible.pop(digest, None)
        known.groups.pop(digest, None)
    return True


def _lent_to(state: State, worker: Worker, epoch: Epoch) -> Attempt | None:
    return state.attempts.get(epoch) if epoch in worker.leases else None


def _present_state(worker: Worker) -> WorkerState:
    return WorkerState.DRAINING if worker.is_draining or worker.is_stopping else WorkerState.READY
