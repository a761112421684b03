"""What must hold after every step. The simulator checks it each time; a violation is always a fault of ours.

``check`` looks at everything, ``check_touched`` at what a step has written or lent: almost as much power for a small
part of the price, where the whole is looked at now and then.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Set
from dataclasses import replace
from itertools import combinations, product
from typing import Final

from gpulayer.engine.ahead import AHEAD_LIMIT
from gpulayer.engine.effects import AskScorer, Assign, Effect
from gpulayer.engine.elements import node_state
from gpulayer.engine.events import NodePhase
from gpulayer.engine.queue import entries, stands
from gpulayer.engine.records import AttemptImage, JobImage, Record, WorkerImage
from gpulayer.engine.rooms import fits, free_devices
from gpulayer.engine.schedule import is_eligible_for, takes_work
from gpulayer.engine.state import Attempt, Job, Opinions, RequestClass, State, Used, Worker
from gpulayer.ids import Digest, Epoch, JobId, WorkerId
from gpulayer.placement.capacity import allocate, usable_capacity
from gpulayer.placement.eligibility import matching_devices, model_rank
from gpulayer.placement.subsets import EXACT_UP_TO, MOST_JOINED, Topology, topology_of
from gpulayer.spec.job import Array, JobState
from gpulayer.spec.opinion import NO_OPINION, Mark, Refusal
from gpulayer.spec.request import Request
from gpulayer.spec.worker import WorkerState

__all__ = ["InvariantViolated", "check", "check_touched"]


class InvariantViolated(AssertionError):
    """The message says which rule and names the entities."""


def check(state: State, effects: Iterable[Effect] = (), *, shrunk: Collection[WorkerId] = ()) -> None:
    """Raise InvariantViolated for the first rule that does not hold. O(size of the state).

    effects: of the step that led here. What it lent must be there, by what its worker reports now, and scorers must
    have let it go there, by what they have said; of older leases neither can be asked, because they stand when a worker
    reports less than before, or is refused. shrunk: the workers that have reported less than before.
    """
    for epoch, attempt in state.attempts.items():
        _check_attempt(state, epoch, attempt)
    for job_id, job in state.jobs.items():
        _check_job(state, job_id, job)
    _check_owners(state)
    _check_names(state)
    for worker in state.workers.values():
        _check_worker(state, worker, is_shrunk=worker.id in shrunk)
    _require(not state.ahead.keys() - state.workers.keys(), "something is lent ahead to a worker that is not known")
    _check_queue(state)
    _check_shares(state)
    _check_reservations(state)
    _check_rooms(state)
    _check_holds(state)
    _check_followers(state)
    _check_opinions(state)
    _check_undecided(state, state.jobs.values())
    _check_effects(state, effects)


def check_touched(
    state: State, records: Iterable[Record], effects: Iterable[Effect] = (), *, shrunk: Collection[WorkerId] = ()
) -> None:
    """``check``, but only of the jobs, attempts and workers that these records and effects of the last step are about.
    O(size of those, and of the queues that they are in)."""
    jobs: dict[JobId, Job] = {}
    attempts: dict[Epoch, Attempt] = {}
    workers: dict[WorkerId, Worker] = {}
    for record in records:
        match record:
            case JobImage():
                if record.id in state.jobs:
                    jobs[record.id] = state.jobs[record.id]
            case AttemptImage():
                if record.epoch in state.attempts:
                    attempts[record.epoch] = state.attempts[record.epoch]
                for node in record.nodes:
                    if node.worker in state.workers:
                        workers[node.worker] = state.workers[node.worker]
            case WorkerImage():
                if record.id in state.workers:
                    workers[record.id] = state.workers[record.id]
            case _:
                pass
    for epoch, attempt in attempts.items():
        _check_attempt(state, epoch, attempt)
    for job_id, job in jobs.items():
        _check_job(state, job_id, job)
        _check_waits(state, job_id, job)
    for worker in workers.values():
        _check_worker(state, worker, is_shrunk=worker.id in shrunk)
    _check_undecided(state, jobs.values())
    _check_effects(state, effects)


def _check_effects(state: State, effects: Iterable[Effect]) -> None:
    effects = list(effects)
    for lent in {effect.worker: effect for effect in effects if isinstance(effect, Assign)}.values():
        _check_joined(state, lent)  # the last one there: before it there was more to choose from
    for lent in [effect for effect in effects if isinstance(effect, Assign)][-1:]:
        _check_fair(state, lent)  # the last one: what came after an earlier one has changed what owners have
    for effect in effects:
        if isinstance(effect, Assign):
            _check_lent(state, effect)
            _check_not_held(state, effect)
            _check_not_early(state, effect)
            _check_let_go(state, effect)
        elif isinstance(effect, AskScorer):
            _check_held(state, effect)


def _check_attempt(state: State, epoch: Epoch, attempt: Attempt) -> None:
    _require(epoch == attempt.epoch < state.next_epoch, f"epoch {epoch} was never given out")
    _require(attempt.job_id in state.jobs, f"attempt {epoch} is of job {attempt.job_id}, which is not live")
    _require(attempt.outcome is None, f"attempt {epoch} has ended and is still live")
    machines = [node.allocation.worker for node in attempt.nodes]
    _require(len(set(machines)) == len(machines), f"attempt {epoch} has two nodes on one worker")
    task = state.jobs[attempt.job_id].tasks[attempt.task_index]
    _require(task.epoch == epoch, f"attempt {epoch} is not its task's current one")
    for index, node in enumerate(attempt.nodes):
        _require((node.phase is NodePhase.ENDED) == (node.outcome is not None), f"attempt {epoch}: phase and outcome")
        worker = state.workers.get(node.allocation.worker)
        if node.outcome is not None:
            _require(worker is None or epoch not in worker.leases, f"{epoch} has ended but is leased")
        else:
            _require(worker is not None and worker.leases.get(epoch) == index, f"{epoch} runs without a lease")


def _check_job(state: State, job_id: JobId, job: Job) -> None:
    _require(job.entry.id == job_id, f"job {job_id} is filed under another id")
    _require(not job.state.is_final, f"job {job_id} is {job.state} and still live")
    _require(job.seq < state.next_seq, f"job {job_id} has a number never given out")
    _require(any(not task.is_done for task in job.tasks.values()), f"job {job_id} is done and still live")
    if job.is_array:
        _check_elements(state, job)
    for task in job.tasks.values():
        if task.epoch is None:
            continue
        attempt = state.attempts.get(task.epoch)
        _require(attempt is not None, f"job {job_id} waits for attempt {task.epoch}, which is gone")
        _require(not task.is_done, f"job {job_id}: a done task has a live attempt")
        _require(attempt is not None and attempt.job_id == job_id, f"attempt {task.epoch} is of another job")
        most = max(task.failures, task.program_failures)
        _require(most <= job.entry.retries, f"job {job_id} ran more often than its retries allow")


def _check_elements(state: State, job: Job) -> None:
    """In memory are those under way, and the head; no more of them are under way than may be."""
    name = f"array {job.entry.id}"
    _require(0 <= job.begun <= job.count, f"{name} has begun {job.begun} of {job.count} elements")
    _require((job.begun in job.tasks) == (job.begun < job.count), f"{name} has no head, or one too many")
    _require(all(index <= job.begun for index in job.tasks), f"{name} has an element out of its turn")
    at = Counter(node_state(state.attempts[task.epoch]) for task in job.tasks.values() if task.epoch is not None)
    del at[JobState.QUEUED]
    _require(at == Counter(job.at or {}), f"{name} is thought to be at {job.at}, and is at {at}")
    lent = sum(task.epoch is not None for task in job.tasks.values())
    limit = job.entry.shape.limit if isinstance(job.entry.shape, Array) else 0
    _require(not limit or lent <= limit, f"{name} has {lent} elements under way at once, and {limit} are allowed")


def _check_owners(state: State) -> None:
    owned = {(attempt.job_id, attempt.task_index) for attempt in state.attempts.values()}
    _require(len(owned) == len(state.attempts), "a task has two live attempts")


def _check_names(state: State) -> None:
    names: set[str] = set()
    digests = {worker.facts_digest for worker in state.workers.values()}
    _require(state.facts.keys() == digests, "facts are known that no worker has, or are missing")
    for worker in state.workers.values():
        _require(worker.name not in names, f"two workers are named {worker.name}")
        names.add(worker.name)


def _check_worker(state: State, worker: Worker, *, is_shrunk: bool) -> None:
    _require(worker.state is not WorkerState.GONE, f"worker {worker.name} is gone and still known")
    free, leased = usable_capacity(worker.facts), set[str]()
    for epoch, index in worker.leases.items():
        _require(epoch in state.attempts, f"worker {worker.name} leases {epoch}, which is not live")
        node = state.attempts[epoch].nodes[index]
        for uuid in node.allocation.devices:
            _require(uuid not in leased, f"device {uuid} is leased twice")
            leased.add(uuid)
        if not node.is_ahead:
            free = free.less(node.allocation)
    are = f"({worker.free}, and leases leave {free})"
    _require(free == worker.free, f"what counts as free on worker {worker.name} is not what its leases leave {are}")
    if not is_shrunk:
        _check_started(state, worker)
    _check_ahead(state, worker)


def _check_started(state: State, worker: Worker) -> None:
    """Books may be wrong for a moment about what a worker starts next; what it has started has room there. What is
    ending has its share until it has ended, but for what an earlier start of its agent had seen end, and not said: the
    next one brings it home once more, beside what took its place."""
    phases = (NodePhase.RUNNING, NodePhase.ENDING) if worker.boot <= 1 else (NodePhase.RUNNING,)
    started = [
        node.allocation
        for epoch, index in worker.leases.items()
        if (node := state.attempts[epoch].nodes[index]).phase in phases
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


def _check_not_held(state: State, lent: Assign) -> None:
    task = state.jobs[lent.job_id].tasks[state.attempts[lent.epoch].task_index]
    _require(task.held_until_ms <= state.now_ms, f"attempt {lent.epoch} begins while an earlier one may still run")


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
        if stands(state, job, task)
    }
    queued: list[tuple[str, int]] = []
    for key, known in state.classes.items():
        _require((known.request, known.nodes) == key, "a request class is filed under another key")
        for owner, entry in entries(known):
            if (entry[2], entry[3]) in waiting:
                queued.append((entry[2], entry[3]))
                _require(state.jobs[entry[2]].entry.owner == owner, f"job {entry[2]} waits as another owner's")
    _require(set(queued) == waiting, f"tasks wait outside the queue: {sorted(waiting - set(queued))[:3]}")
    _require(len(queued) == len(set(queued)), "a task waits twice")


def _check_rooms(state: State) -> None:
    """Of what is remembered of a class nothing is wrong, and no worker that could take it is overlooked."""
    for known in state.classes.values():
        there = [worker for worker in state.workers.values() if takes_work(worker)]
        eligible = [worker for worker in there if is_eligible_for(known, worker)]
        for worker in eligible if known.room is not None else ():
            share = allocate(known.request, worker.id, worker.facts, worker.free)
            has_room = fits(known, worker, free_devices(worker))
            _require(has_room == (share is not None), f"of {worker.name} it is thought that room is there: {has_room}")
            is_seen = known.room is not None and worker.id in known.room
            _require(is_seen or not has_room, f"{worker.name} has room for {known.request.summary()}, and nobody looks")
        counted = len(state.workers) - len(there), len(there) - len(eligible)
        _require(known.left_out in (None, counted), f"{known.left_out} workers are left out, and {counted} should be")


def _check_shares(state: State) -> None:
    used: dict[str, Used] = {}
    for attempt in state.attempts.values():
        sum_of = used.setdefault(state.jobs[attempt.job_id].entry.owner, Used())
        for node in attempt.nodes:
            if node.outcome is None:
                sum_of.nodes += 1
                sum_of.cpus += node.allocation.cpus
                sum_of.memory_bytes += node.allocation.memory_bytes
                sum_of.devices += len(node.allocation.devices)
    used = {owner: sum_of for owner, sum_of in used.items() if sum_of.nodes}
    _require(used == state.used, f"owners are thought to have {state.used}, and have {used}")


def _check_reservations(state: State) -> None:
    """What was promised can be kept: by the limits of what runs there, the task fits at that time on each of the
    workers that are kept for it. A worker that was lent something ahead is not weighed."""
    reserved: dict[WorkerId, tuple[Request, int]] = {}
    for key, reservation in state.reservations.items():
        request, nodes = key
        _require(len(reservation.workers) == nodes, f"{len(reservation.workers)} workers are kept for {nodes} nodes")
        for worker_id in reservation.workers:
            _require(worker_id not in reserved, f"worker {worker_id} is kept for two jobs")
            reserved[worker_id] = key
            worker = state.workers[worker_id]
            attempts = [state.attempts[epoch] for epoch in worker.leases]
            if reservation.starts_ms < state.now_ms or any(each.considered is None for each in attempts):
                continue
            free = usable_capacity(worker.facts)
            for attempt in attempts:
                ends_ms = _ends_ms(state, attempt)
                if ends_ms is None or ends_ms > reservation.starts_ms:
                    free = free.less(attempt.nodes[worker.leases[attempt.epoch]].allocation)
            fits = allocate(request, worker_id, worker.facts, free) is not None
            _require(fits, f"job {reservation.job} can't have {worker.name} at the time that it was promised")
    _require(reserved == state.reserved, "what is kept is not what is noted")


def _ends_ms(state: State, attempt: Attempt) -> int | None:
    entry = state.jobs[attempt.job_id].entry
    if entry.timeout_ms is None or attempt.is_unreachable:
        return None
    return attempt.lent_ms + entry.timeout_ms + entry.grace_ms  # how long it takes to begin nobody promises


def _check_fair(state: State, lent: Assign) -> None:
    """No equal request of equal priority waits whose owner had less of the fleet before. Which workers are left for
    another request is not seen from here, nor what keeps a task off; what waited for others may have come just now."""
    attempt, job = state.attempts[lent.epoch], state.jobs[lent.job_id]
    if attempt.is_ahead:
        return
    owner, limit_ms = job.entry.owner, job.entry.longest_ms
    before = replace(state.used.get(owner, Used()))
    for node in attempt.nodes:
        before.cpus -= node.allocation.cpus
        before.memory_bytes -= node.allocation.memory_bytes
        before.devices -= len(node.allocation.devices)
    for other in state.jobs.values():
        of_other = other.entry
        if of_other.owner == owner or of_other.priority != job.entry.priority or other.class_key != job.class_key:
            continue
        is_shorter = limit_ms is not None and (of_other.longest_ms is None or limit_ms < of_other.longest_ms)
        if is_shorter:
            continue  # it may have gone before others that a reservation kept off
        if of_other.after or not any(stands(state, other, task) and not task.full for task in other.tasks.values()):
            continue
        is_fair = _share(state, before) <= _share(state, state.used.get(of_other.owner, Used()))
        _require(is_fair, f"job {lent.job_id} of {owner}, who has more, began before job {of_other.id}")


def _share(state: State, used: Used) -> int:
    """The greatest of what is used of cores, memory and devices: of a thousand millions."""
    facts = [worker.facts for worker in state.workers.values()]
    shares = (
        (used.cpus, sum(each.cpus for each in facts)),
        (used.memory_bytes, sum(each.memory_bytes for each in facts)),
        (used.devices, sum(len(each.devices) for each in facts)),
    )
    return max(taken * 10**9 // of_all if of_all else 0 for taken, of_all in shares)


def _check_holds(state: State) -> None:
    held = {
        (job_id, task.index): task.held_until_ms
        for job_id, job in state.jobs.items()
        for task in job.tasks.values()
        if task.held_until_ms and task.epoch is None and not task.is_done
    }
    _require(held == state.held, "what is held is not what is noted")


def _check_followers(state: State) -> None:
    """Who waits for another waits for what is live, and is told of its end."""
    followers: dict[JobId, set[JobId]] = {}
    for job_id, job in state.jobs.items():
        for after in job.unmet:
            _require(after.job in state.jobs, f"job {job_id} waits for job {after.job}, which has ended")
            followers.setdefault(after.job, set()).add(job_id)
    waiting = [job_id for job_id in state.met if job_id not in state.jobs or state.jobs[job_id].unmet]
    _require(not waiting, f"jobs are to be queued that still wait, or have ended: {waiting[:3]}")
    known = {job_id: set(jobs) for job_id, jobs in state.followers.items()}
    _require(followers == known, "who waits for whom is not what is noted")


def _check_not_early(state: State, lent: Assign) -> None:
    for after in state.jobs[lent.job_id].entry.after:
        _require(after.job not in state.jobs, f"job {lent.job_id} begins before job {after.job} has ended")


def _check_waits(state: State, job_id: JobId, job: Job) -> None:
    """One job's part of ``_check_queue``."""
    known = state.classes.get(job.class_key)
    for task in job.tasks.values():
        if stands(state, job, task):
            queued = () if known is None else entries(known)
            places = sum((entry[2], entry[3]) == (job_id, task.index) for _, entry in queued)
            _require(places == 1, f"task {task.index} of job {job_id} stands in the queue {places} times")


def _check_opinions(state: State) -> None:
    """Every pair that a waiting class lacks an opinion on is asked about, or looked at in time."""
    for opinions in state.opinions.values():
        for scorer, asked in opinions.asked.items():
            _require(asked <= opinions.waits.keys(), f"scorer {scorer} was asked, and nobody waits for the answer")
        _require(opinions.held_until_ms == 0 or bool(opinions.waits), "a class is held, and no opinion is waited for")
    for known in state.classes.values() if state.policy.scorers else ():
        if known.opinions is not None:
            _check_usable(state, known.opinions)
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


def _check_usable(state: State, opinions: Opinions) -> None:
    for digest in {digest for said in opinions.said.values() for digest in said} | opinions.usable.keys():
        words = [said.get(digest, (None, 0)) for said in opinions.said.values()]
        is_refused = any(isinstance(opinion, Refusal) for opinion, _ in words)
        until_ms = 0 if is_refused else min(until_ms for _, until_ms in words)
        known_ms = opinions.usable.get(digest, 0)
        _require(until_ms == known_ms or max(until_ms, known_ms) <= state.now_ms, "what is usable drifted")


def _check_undecided(state: State, jobs: Iterable[Job]) -> None:
    """A job that does not wait is decided soon, also after a restart."""
    latest_ms = state.now_ms + state.policy.opinion_wait_ms
    for job in jobs:
        if not job.entry.wait and job.is_untried and stands(state, job, job.tasks[0]):
            until_ms = state.undecided.get(job.class_key, {}).get(job.entry.id)
            _require(until_ms is not None and until_ms <= latest_ms, f"job {job.entry.id} waits and may not")


def _check_held(state: State, asked: AskScorer) -> None:
    """Where nothing at all is known of the workers that are there, nothing is placed until all have answered; but for
    a class that has waited its time already."""
    opinions = state.opinions[asked.request]
    known = RequestClass(asked.request, 1)
    is_anything_known = any(
        takes_work(worker) and is_eligible_for(known, worker) and _is_known(state, opinions, worker.facts_digest)
        for worker in state.workers.values()
    )
    is_held = state.now_ms < opinions.held_until_ms or min(opinions.waits.values()) <= state.now_ms
    _require(is_anything_known or is_held, f"scorer {asked.scorer} was asked for a first word, and nobody waits for it")


def _check_let_go(state: State, lent: Assign) -> None:
    """What begins does so where all scorers have spoken and none refuses, not while its class is held, and, but for
    what is lent ahead, on none with a lower mark than another had that could have taken it as well."""
    attempt, worker = state.attempts[lent.epoch], state.workers[lent.worker]
    known = RequestClass(*state.jobs[lent.job_id].class_key)
    opinions = state.opinions.get(known.request)
    if not state.policy.scorers:
        return
    begins = f"attempt {lent.epoch} began on {worker.name}"
    _require(opinions is not None, f"{begins} before any scorer was asked")
    assert opinions is not None
    _require(state.now_ms >= opinions.held_until_ms, f"{begins} while its class is held")
    _require(_is_known(state, opinions, worker.facts_digest), f"{begins} while opinions on that are lacking")
    for scorer, said in opinions.said.items():
        is_refused = isinstance(said[worker.facts_digest][0], Refusal)
        _require(not is_refused, f"{begins}, which scorer {scorer} refuses")
    task = state.jobs[lent.job_id].tasks[attempt.task_index]
    if attempt.is_kept_off or attempt.is_ahead or (known.request.devices and len(known.request.accelerators) > 1):
        return  # marks come after the accelerator that was named first
    own = _mark(state, opinions, worker.facts_digest)
    shunned = task.avoid | task.full | {node.allocation.worker for node in attempt.nodes}
    for other in state.workers.values():
        if other.id in shunned or not takes_work(other) or not is_eligible_for(known, other):
            continue
        words = [said.get(other.facts_digest, (None, 0)) for said in opinions.said.values()]
        if any(isinstance(opinion, Refusal) or until_ms <= state.now_ms for opinion, until_ms in words):
            continue
        is_free = allocate(known.request, other.id, other.facts, other.free) is not None
        is_better = _mark(state, opinions, other.facts_digest) > own + _ROUNDING
        _require(not (is_free and is_better), f"{begins}, and {other.name} is free and has a higher mark")


def _check_joined(state: State, lent: Assign) -> None:
    """No device that stayed free there would have been better than one that was lent: they would be joined better, or
    what stayed free would be."""
    worker, node = state.workers[lent.worker], state.attempts[lent.epoch].nodes[lent.node]
    request = state.jobs[lent.job_id].entry.request
    for devices in matching_devices(request, worker.facts):
        there = [one for one in devices if one.uuid in worker.free.devices or one.uuid in node.allocation.devices]
        chosen = {place for place, one in enumerate(there) if one.uuid in node.allocation.devices}
        if not chosen or len(there) > EXACT_UP_TO or len(devices) > MOST_JOINED:
            continue
        topology, models = topology_of(there), [model_rank(request, one) for one in there]
        for taken, left in product(chosen, set(range(len(there))) - chosen):
            other = chosen - {taken} | {left}
            is_better = models[taken] == models[left] and _joined(topology, other) > _joined(topology, chosen)
            indices = [there[place].index for place in (left, taken)]
            _require(not is_better, "on {} device {} was free, and better than device {}".format(worker.name, *indices))


def _joined(topology: Topology, chosen: Set[int]) -> tuple[int, int, int]:
    """The formula of ``placement.subsets``, as it is written there."""
    pairs = list(combinations(sorted(chosen), 2))
    left = combinations(sorted(set(range(len(topology.links))) - chosen), 2)
    least = min((topology.links[one][other] for one, other in pairs), default=0)
    return least, sum(topology.weight(*pair) for pair in pairs), sum(topology.weight(*pair) for pair in left)


def _is_known(state: State, opinions: Opinions, digest: Digest) -> bool:
    return all(said.get(digest, (None, 0))[1] > state.now_ms for said in opinions.said.values())


def _mark(state: State, opinions: Opinions, digest: Digest) -> float:
    words = [said[digest][0] for said in opinions.said.values()]
    return sum(word.value if isinstance(word, Mark) else NO_OPINION for word in words) / len(state.policy.scorers)


_ROUNDING: Final = 1e-9


def _require(holds: bool, rule: str) -> None:
    if not holds:
        raise InvariantViolated(rule)
