"""What must hold after every step. The simulator checks it each time; a violation is always a fault of ours."""

from collections.abc import Iterable

from gpulayer.engine.ahead import AHEAD_LIMIT
from gpulayer.engine.effects import Assign, Effect
from gpulayer.engine.events import NodePhase
from gpulayer.engine.schedule import is_eligible_for, takes_work
from gpulayer.engine.state import State, Worker
from gpulayer.placement.capacity import usable_capacity
from gpulayer.spec.opinion import Refusal
from gpulayer.spec.worker import WorkerState

__all__ = ["InvariantViolated", "check"]


class InvariantViolated(AssertionError):
    """The message says which rule and names the entities."""


def check(state: State, effects: Iterable[Effect] = ()) -> None:
    """Raise InvariantViolated for the first rule that does not hold. O(size of the state).

    effects: of the step that led here. What it lent must be there, by what its worker reports now; of older leases that
    can't be asked, because they stand when a worker reports less than before.
    """
    _check_leases(state)
    _check_tasks(state)
    _check_workers(state)
    _check_queue(state)
    _check_opinions(state)
    _check_undecided(state)
    for effect in effects:
        if isinstance(effect, Assign):
            _check_lent(state, effect)
            _check_not_refused(state, effect)


def _check_leases(state: State) -> None:
    held: set[tuple[str, str]] = set()
    for epoch, attempt in state.attempts.items():
        _require(epoch == attempt.epoch < state.next_epoch, f"epoch {epoch} was never given out")
        _require(attempt.job_id in state.jobs, f"attempt {epoch} is of job {attempt.job_id}, which is not live")
        _require(attempt.outcome is None, f"attempt {epoch} has ended and is still live")
        machines = [node.allocation.worker for node in attempt.nodes]
        _require(len(set(machines)) == len(machines), f"attempt {epoch} has two nodes on one worker")
        for index, node in enumerate(attempt.nodes):
            _require(
                (node.phase is NodePhase.ENDED) == (node.outcome is not None), f"attempt {epoch}: phase and outcome"
            )
            worker = state.workers.get(node.allocation.worker)
            if node.outcome is not None:
                _require(worker is None or epoch not in worker.leases, f"{epoch} has ended but is leased")
                continue
            _require(worker is not None and worker.leases.get(epoch) == index, f"{epoch} runs without a lease")
            for uuid in node.allocation.devices:
                _require((node.allocation.worker, uuid) not in held, f"device {uuid} is leased twice")
                held.add((node.allocation.worker, uuid))


def _check_tasks(state: State) -> None:
    for job_id, job in state.jobs.items():
        _require(job.entry.id == job_id, f"job {job_id} is filed under another id")
        _require(not job.state.is_final, f"job {job_id} is {job.state} and still live")
        _require(job.seq < state.next_seq, f"job {job_id} has a number never given out")
        _require(any(not task.is_done for task in job.tasks.values()), f"job {job_id} is done and still live")
        for task in job.tasks.values():
            if task.epoch is None:
                continue
            attempt = state.attempts.get(task.epoch)
            _require(attempt is not None, f"job {job_id} waits for attempt {task.epoch}, which is gone")
            _require(not task.is_done, f"job {job_id}: a done task has a live attempt")
            _require(attempt is not None and attempt.job_id == job_id, f"attempt {task.epoch} is of another job")
            most = max(task.failures, task.program_failures)
            _require(most <= job.entry.retries, f"job {job_id} ran more often than its retries allow")
    owned = {(attempt.job_id, attempt.task_index): epoch for epoch, attempt in state.attempts.items()}
    _require(len(owned) == len(state.attempts), "a task has two live attempts")
    for (job_id, index), epoch in owned.items():
        _require(state.jobs[job_id].tasks[index].epoch == epoch, f"attempt {epoch} is not its task's current one")


def _check_workers(state: State) -> None:
    names: set[str] = set()
    digests = {worker.facts_digest for worker in state.workers.values()}
    _require(state.facts.keys() == digests, "facts are known that no worker has, or are missing")
    for worker in state.workers.values():
        _require(worker.state is not WorkerState.GONE, f"worker {worker.name} is gone and still known")
        _require(worker.name not in names, f"two workers are named {worker.name}")
        names.add(worker.name)
        free = usable_capacity(worker.facts)
        for epoch, index in worker.leases.items():
            _require(epoch in state.attempts, f"worker {worker.name} leases {epoch}, which is not live")
            node = state.attempts[epoch].nodes[index]
            if not node.is_ahead:
                free = free.less(node.allocation)
        _require(free == worker.free, f"worker {worker.name}: what is free drifted")
        _check_started(state, worker)
        _check_ahead(state, worker)
    _require(not state.ahead.keys() - state.workers.keys(), "something is lent ahead to a worker that is not known")


def _check_started(state: State, worker: Worker) -> None:
    """Books may be wrong for a moment about what a worker starts next; what it has started has room there."""
    started = [
        node.allocation
        for epoch, index in worker.leases.items()
        if (node := state.attempts[epoch].nodes[index]).phase in (NodePhase.RUNNING, NodePhase.ENDING)
    ]
    _require(sum(share.cpus for share in started) <= worker.facts.cpus, f"worker {worker.name} runs too many")
    memory_bytes = sum(share.memory_bytes for share in started)
    _require(memory_bytes <= worker.facts.memory_bytes, f"worker {worker.name} runs what its memory can't hold")


def _check_lent(state: State, lent: Assign) -> None:
    worker = state.workers[lent.worker]
    for name, _ in state.attempts[lent.epoch].nodes[lent.node].allocation.resources:
        there, taken = dict(worker.facts.resources).get(name, 0), 0
        for epoch, index in worker.leases.items():
            taken += dict(state.attempts[epoch].nodes[index].allocation.resources).get(name, 0)
        _require(taken <= there, f"worker {worker.name} is lent {taken} × {name} and has {there}")


def _check_ahead(state: State, worker: Worker) -> None:
    known = state.ahead.get(worker.id, {})
    _require(worker.id not in state.ahead or bool(known), f"worker {worker.name}: nothing is lent ahead, and noted")
    _require(len(known) <= AHEAD_LIMIT, f"worker {worker.name} was lent too much ahead")
    marked = {epoch for epoch, index in worker.leases.items() if state.attempts[epoch].nodes[index].is_ahead}
    _require(marked == set(known), f"worker {worker.name}: what is lent ahead is not what is noted")
    for epoch in known:
        attempt = state.attempts[epoch]
        node, job = attempt.nodes[0], state.jobs[attempt.job_id]
        is_plain = len(attempt.nodes) == 1 and not node.allocation.devices and not node.allocation.resources
        _require(is_plain and not job.entry.exclusive, f"attempt {epoch} is lent ahead, and may not be")
        _require(node.phase in (NodePhase.ASSIGNED, NodePhase.STAGING), f"attempt {epoch} is {node.phase} and ahead")
        share, free = node.allocation, worker.free
        fits = share.cpus <= free.cpus and share.memory_bytes <= free.memory_bytes
        _require(node.is_revoked or not fits, f"attempt {epoch} waits ahead although there is room")


def _check_queue(state: State) -> None:
    waiting = {
        (job_id, task.index)
        for job_id, job in state.jobs.items()
        for task in job.tasks.values()
        if task.epoch is None and not task.is_done
    }
    queued: list[tuple[str, int]] = []
    for key, known in state.classes.items():
        _require((known.request, known.nodes) == key, "a request class is filed under another key")
        queued.extend((entry[2], entry[3]) for entry in known.queue if (entry[2], entry[3]) in waiting)
    _require(set(queued) == waiting, f"tasks wait outside the queue: {sorted(waiting - set(queued))[:3]}")
    _require(len(queued) == len(set(queued)), "a task waits twice")


def _check_opinions(state: State) -> None:
    """Every pair that a waiting class lacks an opinion on is asked about, or looked at in time."""
    for opinions in state.opinions.values():
        for scorer, asked in opinions.asked.items():
            _require(asked <= opinions.waits.keys(), f"scorer {scorer} was asked, and nobody waits for the answer")
        _require(opinions.held_until_ms == 0 or bool(opinions.waits), "a class is held, and no opinion is waited for")
    for known in state.classes.values() if state.policy.scorers else ():
        if known.looks_ms <= state.now_ms or known.opinions is None:
            continue  # due now
        _require(state.opinions.get(known.request) is known.opinions, "a class has opinions of its own")
        for worker in state.workers.values():
            if not takes_work(worker) or not is_eligible_for(known, worker):
                continue
            digest = worker.facts_digest
            moments = [said[digest][1] for said in known.opinions.said.values() if digest in said]
            is_fresh = len(moments) == len(known.opinions.said) and min(moments) > state.now_ms
            until_ms = min(moments) if is_fresh else known.opinions.waits.get(digest, -1)
            _require(known.looks_ms <= until_ms, f"what scorers think of {worker.name} is lacking, and not asked for")


def _check_undecided(state: State) -> None:
    """A job that does not wait is decided soon, also after a restart."""
    latest_ms = state.now_ms + state.policy.opinion_wait_ms
    for job in state.jobs.values():
        task = job.tasks[0]
        if not job.entry.wait and task.epoch is None and not task.attempts:
            until_ms = state.undecided.get(job.class_key, {}).get(job.entry.id)
            _require(until_ms is not None and until_ms <= latest_ms, f"job {job.entry.id} waits and may not")


def _check_not_refused(state: State, lent: Assign) -> None:
    """No attempt begins where a scorer refuses it at that time."""
    opinions = state.opinions.get(state.jobs[lent.job_id].class_key[0])
    worker = state.workers[lent.worker]
    for scorer, said in opinions.said.items() if opinions is not None else ():
        opinion, until_ms = said.get(worker.facts_digest, (None, 0))
        is_refused = isinstance(opinion, Refusal) and state.now_ms < until_ms
        _require(not is_refused, f"attempt {lent.epoch} began on {worker.name}, which scorer {scorer} refuses")


def _require(holds: bool, rule: str) -> None:
    if not holds:
        raise InvariantViolated(rule)
