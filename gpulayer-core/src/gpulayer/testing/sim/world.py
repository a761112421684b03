"""One scenario, played: a fleet, a workload, faults, then peace in which everything must finish.

Two things are asked of it. *Safety*, all the time: no rule is ever broken (``rules``, ``guard``, the engine's own
invariants). *Liveness*, once nothing goes wrong any more: everything comes to its end within bounded virtual time, or
``Stuck`` is raised. What is raised says in its notes which of the two, and when.
"""

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final, assert_never

from gpulayer.clock import Instant
from gpulayer.engine.after import UNMET
from gpulayer.engine.events import DrainRequested, Event, WorkerJoined, WorkerRemoved, WorkerResumed
from gpulayer.engine.records import AttemptImage, JobImage
from gpulayer.errors import Blame
from gpulayer.ids import Epoch, JobId, WorkerId
from gpulayer.spec.after import After
from gpulayer.spec.assignment import NodeKey
from gpulayer.spec.job import Array, JobEntry, JobSpec, JobState, RetryOn, Single
from gpulayer.spec.outcome import EndedBy, Outcome
from gpulayer.spec.request import Accelerator, Request
from gpulayer.testing.sim.client import SimClients
from gpulayer.testing.sim.clockwork import Clockwork, Timepiece
from gpulayer.testing.sim.fleet import MACHINE, Fleet, SimProvider
from gpulayer.testing.sim.guard import Guard
from gpulayer.testing.sim.host import HostFolder, SimHost
from gpulayer.testing.sim.network import IN, OUT, Network
from gpulayer.testing.sim.parts import EVERYTHING, Part
from gpulayer.testing.sim.plane import PLANE, SimPlane
from gpulayer.testing.sim.rules import Ledger, Stuck, Violation
from gpulayer.testing.sim.scenario import Fault, HostPlan, JobPlan, Scenario, Shape, Trouble, numbers
from gpulayer.testing.sim.scorers import SimScorers
from gpulayer.testing.sim.store import MemoryStore, Rows, SimStore, SqliteStore
from gpulayer.testing.sim.story import Story
from gpulayer.testing.sim.troubles import standing
from gpulayer.testing.sim.words import counted, element_of, with_job_names

__all__ = ["Course", "Report", "Shape", "Stuck", "Violation", "play", "run"]

SETTLED_MS: Final = 120_000  # so long after the faults every worker has been told what is not its own any more
PEACE_MS: Final = 4 * 3_600_000  # after the faults everything must finish within this much virtual time
SWEEP_MS: Final = 5_000
ASKED_AGAIN_MS: Final = 5_000
COPIED_MS: Final = 1_000  # what it takes to copy a folder
COPY_AGES_MS: Final = (0, 0, 1_000, 10_000)  # how much older it is than its original's last word
CANCELLED: Final = 0.5  # of what is not over then


@dataclass(frozen=True, slots=True)
class Report:
    """What a run was; ``faults`` counts what went wrong in it, ``kinds`` by its kind. ``states`` counts the jobs' final
    states, ``given_back`` the attempts that were revoked in time, of those that were lent ahead, ``refusals`` what
    scorers refused, ``fenced`` what workers wrote for attempts that were not theirs any more, ``judged`` the cancels
    whose end was due with nothing in its way."""

    seed: int
    steps: int
    faults: int
    kinds: dict[str, int]
    virtual_ms: int
    states: dict[str, int]
    attempts: int
    lent_ahead: int = 0
    given_back: int = 0
    refusals: int = 0
    fenced: int = 0
    judged: int = 0
    trace: tuple[str, ...] = ()


@dataclass(slots=True)
class Course:
    """What plays came to, added up, those too that a broken rule ended. ``faults``: by kind."""

    steps: int = 0
    faults: Counter[str] = field(default_factory=Counter)


@dataclass(slots=True)
class _World:
    scenario: Scenario
    clock: Clockwork
    network: Network
    plane: SimPlane
    clients: SimClients
    guard: Guard
    present: dict[int, SimHost] = field(default_factory=dict)  # by the number of its plan
    plans: dict[JobId, JobPlan] = field(default_factory=dict)
    followers: dict[int, list[JobPlan]] = field(default_factory=dict)  # of jobs that are not acknowledged yet
    made: dict[str, SimHost] = field(default_factory=dict)  # by a provider
    fleet: Fleet = field(init=False)
    is_peace: bool = False

    def __post_init__(self) -> None:
        self.fleet = Fleet(self.clock, SimProvider(self._begin_machine, self._end_machine))

    def _begin_machine(self, request_id: str) -> None:
        plan = replace(MACHINE, number=1000 + len(self.made), rate=self.scenario.rate, joins_ms=2_000)
        self.made[request_id] = _add_host(self, plan, WorkerId(request_id))

    def _end_machine(self, request_id: str) -> None:
        self.made[request_id].take_away()


def run(seed: int, shape: Shape | None = None, *, trace: bool = False) -> Report:
    """Play the scenario of a seed."""
    return play(Scenario.of_seed(seed, shape), trace=trace)


def play(
    scenario: Scenario, *, trace: bool = False, story: Story | None = None, course: Course | None = None
) -> Report:
    """Deterministic. A broken rule raises Violation (Stuck, where it is liveness) or the engine's InvariantViolated,
    with the seed and the time in its notes, and jobs by their numbers. story: it is told there, as far as it goes;
    trace: in the report. course: this play is added to it."""
    if story is None and trace:
        story = Story()
    clock = Clockwork(scenario.seed, story=story)
    network = Network(clock, scenario.noise)
    guard = Guard(clock, scenario.noise.mean_ms)
    plane = SimPlane(
        clock,
        Timepiece(clock, scenario.rate),
        SimScorers(clock, scenario.scorers),
        _store(scenario),
        Ledger(),
        cancelled=lambda job_id: guard.cancelled(plane, job_id),
        given_up=guard.given_up,
        commit_failure=scenario.noise.commit_failure,
    )
    guard.plane = plane
    world = _World(scenario, clock, network, plane, SimClients(clock, network, plane), guard)
    try:
        _play(world)
        plane.store.close()
    except AssertionError as error:
        asked = "liveness" if isinstance(error, Stuck) else "safety"
        error.args = (with_job_names(str(error)),)
        error.add_note(f"seed {scenario.seed}, virtual time {clock.now_ms / 1000:.3f} s, {asked}")
        raise
    finally:
        if course is not None:
            course.steps += clock.steps
            course.faults.update(clock.faults)
        plane.store.abandon()
    return _report(world)


def _store(scenario: Scenario) -> SimStore:
    rng = numbers(scenario.seed, "store")
    return SqliteStore(rng) if scenario.store == "sqlite" else MemoryStore(rng)


def _report(world: _World) -> Report:
    clock, disk = world.clock, world.plane.disk
    states: dict[str, int] = {}
    for image in disk.jobs.values():
        states[image.state] = states.get(image.state, 0) + 1
    return Report(
        seed=world.scenario.seed,
        steps=clock.steps,
        faults=clock.faults.total(),
        kinds={str(kind): count for kind, count in sorted(clock.faults.items())},
        virtual_ms=clock.now_ms,
        states=states,
        attempts=len(disk.attempts),
        lent_ahead=len(disk.lent_ahead),
        given_back=sum(image.outcome is not None and not image.is_shown for image in disk.attempts.values()),
        refusals=world.plane.scorers.refusals,
        fenced=world.plane.ledger.refused.total(),
        judged=world.guard.judged,
        trace=tuple(clock.story.told(in_full=True)) if clock.story is not None else (),
    )


def _play(world: _World) -> None:
    clock, scenario = world.clock, world.scenario
    for text in standing(scenario) if clock.story is not None else ():
        clock.say(text)
    world.plane.start()
    for plan in scenario.hosts:
        world.present[plan.number] = _add_host(world, plan, WorkerId(f"w{plan.number}"))
    for job in scenario.jobs:
        clock.after(job.at_ms, lambda job=job: _submit(world, job))  # type: ignore[misc]
    for fault in scenario.faults:
        clock.after(fault.at_ms, lambda fault=fault: _strike(world, fault))  # type: ignore[misc]
    _sweep(world)
    clock.after(scenario.trouble_ms, lambda: _make_peace(world))
    clock.after(scenario.trouble_ms + SETTLED_MS, lambda: world.guard.check_fenced(world.plane))
    clock.after(scenario.trouble_ms + SETTLED_MS, lambda: _cancel_some(world))
    deadline = scenario.trouble_ms + PEACE_MS
    while clock.now_ms < deadline and clock.run_next():
        if world.is_peace and clock.now_ms > scenario.trouble_ms and _is_all_over(world):
            break
    _check_end(world)


def _add_host(world: _World, plan: HostPlan, worker: WorkerId, *, line: str = "") -> SimHost:
    clock, plane = world.clock, world.plane
    host = SimHost(
        worker,
        plan,
        clock,
        world.network,
        plane,
        programs=lambda assignment: _program(world.plans[assignment.job_id], element_of(assignment)),
        guard=world.guard,
        has_source=lambda job_id: world.plans[job_id].has_source,
        line=line,
    )
    world.guard.hosts.append(host)

    def answered(effects: object) -> None:
        if effects is not None and not host.is_enrolled:
            host.is_enrolled = True
            host.start()

    def enrol() -> None:
        if host.is_enrolled or host.is_gone:
            return
        plane.arrive(
            lambda: plane.handle(lambda at: WorkerJoined(at, worker, worker, host.facts, host.facts_digest), answered)
        )
        clock.after(10_000, enrol)  # the answer may be lost with the control plane: enrolling again is harmless

    host.enrol = enrol
    clock.after(plan.joins_ms, enrol)
    return host


def _program(plan: JobPlan, element: int) -> tuple[int, int, int]:
    return plan.run_ms, 0 if element % 2 else plan.exit_code, plan.after_term_ms


def _submit(world: _World, plan: JobPlan) -> None:
    """What it comes after is there first: else nobody could name it."""
    clock = world.clock
    job_id = _job_id(plan.number)
    is_after = any(other.number == plan.after for other in world.scenario.jobs)
    if plan.after is not None and is_after and f"key-{plan.after}" not in world.clients.acknowledged:
        world.followers.setdefault(plan.after, []).append(plan)
        return
    spec = JobSpec(
        command=("program",),
        request=_request(world.scenario, plan),
        shape=Array(plan.array, plan.array_limit) if plan.array else Single(),
        priority=plan.priority,
        retries=plan.retries,
        retry_on=RetryOn.ANY if plan.retry_any else RetryOn.INFRASTRUCTURE,
        exclusive=plan.exclusive,
        timeout_ms=plan.timeout_ms,
        grace_ms=plan.grace_ms,
        keep_for_ms=plan.keep_for_ms,
        wait=plan.wait,
        after=(After(_job_id(plan.after), plan.after_any),) if plan.after is not None and is_after else (),
    )
    world.plans[job_id] = plan
    entry = world.guard.entries[job_id] = JobEntry.of(job_id, plan.owner, spec)

    def then() -> None:
        if plan.cancel_after_ms is not None:
            clock.after(plan.cancel_after_ms, lambda: world.clients.cancel(job_id))
        for follower in world.followers.pop(plan.number, ()):
            _submit(world, follower)

    world.clients.submit(f"key-{plan.number}", entry, then=then)


def _job_id(number: int) -> JobId:
    return JobId(f"{number:016x}")


def _request(scenario: Scenario, plan: JobPlan) -> Request:
    """Of what some host has: else nobody could ever run it, and it waited for ever."""
    most = max((host.gpus for host in scenario.hosts), default=0)
    if plan.needs_device and most:
        return Request(accelerators=(Accelerator.CUDA,), devices=2 if plan.number % 2 and most > 2 else 1)
    licences = min(plan.licences, max((host.licences for host in scenario.hosts), default=0))
    cpus = min(plan.cpus, max((host.cpus for host in scenario.hosts), default=1))
    return Request(cpus=cpus, resources=(("licence", licences),) if licences else ())


def _strike(world: _World, fault: Fault) -> None:
    """Let it happen; to a host that is not there it does not."""
    host = world.present.get(fault.host) if fault.host is not None else None
    if fault.host is not None and (host is None or not host.is_enrolled or host.is_gone):
        return
    if world.clock.story is not None:
        vain = (host or world.plane).why_not(fault)
        world.clock.story.struck(world.clock.now_ms, fault, host.id if host is not None else "", vain=vain)
    if host is None:
        _strike_plane(world, fault)
    else:
        _strike_host(world, host, fault)


def _strike_plane(world: _World, fault: Fault) -> None:
    plane, lasts_ms = world.plane, fault.lasts_ms
    match fault.kind:
        case Trouble.PLANE_DIES | Trouble.PLANE_LOSES_POWER:
            plane.crash(fault.kind, lasts_ms)
        case Trouble.PLANE_STOPS:
            plane.stop(lasts_ms)
        case Trouble.PLANE_DISK_FULL:
            world.clock.fault(fault.kind, PLANE, lasts_ms=lasts_ms)
            world.clock.went_wrong("disk", PLANE)
            plane.store.fail_writes()
            world.clock.after(lasts_ms, lambda: _make_room(world))
        case Trouble.PLANE_WALL_JUMPS:
            world.clock.fault(fault.kind, PLANE, after_ms=0)
            plane.piece.wall_ms += fault.amount
        case Trouble.PROVIDER_ERRS | Trouble.PROVIDER_HANGS:
            name = f"made-{fault.at_ms}"
            world.fleet.want(name, kind=fault.kind, silent=max(fault.amount, 1), lasts_ms=lasts_ms)
        case Trouble.PLANE_RESTORED:
            plane.restore(lasts_ms)
        case Trouble.PLANE_SCORERS_CHANGE:
            world.clock.fault(fault.kind, PLANE, after_ms=0)
            plane.register(world.scenario.scorers[:-1] or ("cheap",))
            world.clock.went_wrong("scorers", PLANE)
            world.clock.after(lasts_ms, lambda: _register_again(world))
        case _:
            plane.armed[fault.kind] = lasts_ms


def _strike_host(world: _World, host: SimHost, fault: Fault) -> None:
    lasts_ms = fault.lasts_ms
    match fault.kind:
        case Trouble.AGENT_DIES:
            host.crash_agent(lasts_ms)
        case Trouble.SPAWNER_DIES:
            host.crash_spawner(with_watchdog=False)
        case Trouble.WATCHDOG_AND_SPAWNER_DIE:
            host.crash_spawner(with_watchdog=True)
        case Trouble.AGENT_STOPS:
            host.stop(fault.kind, (Part.AGENT,), lasts_ms)
        case Trouble.SPAWNER_STOPS:
            host.stop(fault.kind, (Part.SPAWNER,), lasts_ms)
        case Trouble.AGENT_LEAVES:
            host.leave(lasts_ms)
        case Trouble.AGENT_AND_SPAWNER_STOP:
            host.stop(fault.kind, (Part.AGENT, Part.SPAWNER), lasts_ms)
        case Trouble.ALL_STOP | Trouble.SLEEPS:
            host.stop(fault.kind, EVERYTHING, lasts_ms)
            if fault.kind is Trouble.SLEEPS:
                world.network.half_open(host.line)  # its peers have given up, or what they sent is lost
        case Trouble.LOSES_POWER | Trouble.LOSES_DISK:
            host.lose_power(fault.kind, lasts_ms)
        case Trouble.SPOT_LOST:
            host.lose_power(fault.kind, 0)
            assert fault.host is not None
            number = len(world.guard.hosts)
            plan = replace(host.plan, joins_ms=lasts_ms)
            world.present[fault.host] = _add_host(world, plan, WorkerId(f"w{fault.host}x{number}"))
        case Trouble.COPIED:
            _count(world, host, fault)
            folder = HostFolder.of(host)
            age_ms = world.clock.numbers("age of copies", host.line).choice(COPY_AGES_MS)
            world.clock.after(age_ms, lambda: _copy(world, host, folder, fault))
        case Trouble.DISK_FULL:
            host.fill_disk(lasts_ms)
        case Trouble.WALL_JUMPS:
            host.jump(fault.amount)
        case Trouble.PROBE_LIES:
            host.lie(fault.amount, lasts_ms)
        case Trouble.CUT | Trouble.CUT_OUT | Trouble.CUT_IN:
            ways = {Trouble.CUT: (OUT, IN), Trouble.CUT_OUT: (OUT,), Trouble.CUT_IN: (IN,)}[fault.kind]
            _count(world, host, fault)
            world.network.cut(host.line, ways, lasts_ms)
        case Trouble.HALF_OPEN:
            _count(world, host, fault)
            world.network.half_open(host.line)
        case Trouble.DRAINED:
            _count(world, host, fault)
            _drain(world, host, lasts_ms)
        case Trouble.REMOVED:
            _count(world, host, fault)
            _until_done(world, lambda at: WorkerRemoved(at, host.id))
        case Trouble.STRANGER:
            host.let_stranger(lasts_ms)
        case (
            Trouble.PLANE_DIES
            | Trouble.PLANE_DIES_BEFORE_STEP
            | Trouble.PLANE_DIES_STEPPED
            | Trouble.PLANE_DIES_IN_COMMIT
            | Trouble.PLANE_DIES_COMMITTED
            | Trouble.PLANE_DIES_ANSWERED
            | Trouble.PLANE_LOSES_POWER
            | Trouble.PLANE_STOPS
            | Trouble.PLANE_DISK_FULL
            | Trouble.PLANE_FSYNC_FAILS
            | Trouble.PLANE_WALL_JUMPS
            | Trouble.PLANE_RESTORED
            | Trouble.PLANE_SCORERS_CHANGE
            | Trouble.PROVIDER_ERRS
            | Trouble.PROVIDER_HANGS
        ):
            raise ValueError(f"{fault.kind} happens to no host")
        case _:
            assert_never(fault.kind)


def _copy(world: _World, host: SimHost, folder: HostFolder, fault: Fault) -> None:
    """It may be older than what its original was last told, and has begun since."""
    assert fault.host is not None
    if world.present[fault.host] is not host:
        return  # that was copied meanwhile, or is gone
    world.network.cut(host.line, (OUT, IN), PEACE_MS)
    line = f"{host.id} (copy {len(world.guard.hosts)})"
    copy = world.present[fault.host] = _add_host(world, host.plan, host.id, line=line)
    copy.is_enrolled = True
    copy.copy_from(host, folder)
    copy.copied = lambda: world.clock.after(fault.lasts_ms, lambda: world.network.mend(host.line))
    world.clock.after(COPIED_MS, copy.start)


def _make_room(world: _World) -> None:
    world.plane.store.heal()
    world.clock.over("disk", PLANE, "the disk of the control plane has room again")


def _register_again(world: _World) -> None:
    world.clock.over("scorers", PLANE, "the control plane has its own scorers again")
    world.plane.register(world.scenario.scorers)


def _drain(world: _World, host: SimHost, lasts_ms: int) -> None:
    """For so long, or until it has been: nobody asks for the end of what has not begun."""
    ends_ms = world.clock.now_ms + lasts_ms

    def resume() -> None:
        _until_done(world, lambda at: WorkerResumed(at, host.id))

    def drained() -> None:
        world.clock.after(ends_ms - world.clock.now_ms, resume)

    _until_done(world, lambda at: DrainRequested(at, host.id), drained)


def _until_done(world: _World, make: Callable[[Instant], Event], then: Callable[[], None] = lambda: None) -> None:
    """A person asks until it is done."""

    def ask() -> None:
        is_done = False

        def answered(effects: object) -> None:
            nonlocal is_done
            was_done, is_done = is_done, is_done or effects is not None
            if is_done and not was_done:
                then()

        world.plane.arrive(lambda: world.plane.handle(make, answered))
        world.clock.after(ASKED_AGAIN_MS, lambda: None if is_done else ask())

    ask()


def _count(world: _World, host: SimHost, fault: Fault) -> None:
    world.clock.fault(fault.kind, host.id, lasts_ms=fault.lasts_ms)


def _make_peace(world: _World) -> None:
    if world.clock.story is not None:
        world.clock.story.peace(world.clock.now_ms)
    world.network.heal()
    plane = world.plane
    plane.commit_failure = 0.0
    plane.store.heal()
    plane.armed.clear()
    plane.scorers.is_honest = True
    plane.register(world.scenario.scorers)
    plane.go_on()
    for host in world.guard.hosts:
        host.rest()
    world.fleet.provider.silent.clear()
    plane.start()
    world.is_peace = True


def _cancel_some(world: _World) -> None:
    """While nothing goes wrong, so that there is no excuse for those that do not end in time."""
    state = world.plane.state
    for job_id in list(state.jobs) if state is not None else ():
        if world.clock.numbers("cancelled in peace", job_id).random() < CANCELLED:
            world.clients.cancel(job_id)


def _sweep(world: _World) -> None:
    world.guard.sweep()
    world.clock.after(SWEEP_MS, lambda: _sweep(world))


def _is_all_over(world: _World) -> bool:
    plane = world.plane
    return (
        plane.state is not None
        and not plane.state.jobs
        and not plane.is_busy
        and len(world.clients.acknowledged) == len(world.scenario.jobs)
        and not any(host.disk.folders for host in world.guard.hosts if not host.is_gone)
        and not world.fleet.provider.list(owner="the control plane")
    )


_FREE: Final = (EndedBy.WORKER_STOPPED, EndedBy.DRIFT, EndedBy.PREEMPTED)  # these use up no retry


def _check_given_up(job_id: JobId, last: Outcome | None, image: JobImage, entry: JobEntry, ends: list[Outcome]) -> None:
    """A job that nobody stopped, or an element of one, has had all its retries of the kind that ended it: ``last``."""
    if last is None or image.stop is not None:
        return
    if last.ended_by is EndedBy.DRIFT:
        raise Violation(f"job {job_id} was given up for a detour: nothing of it has run", promise=4)
    if last.ended_by is EndedBy.WORKER_LOST:
        spent = sum(end.blame is not Blame.USER and end.ended_by not in _FREE for end in ends)
    elif last.ended_by is EndedBy.PROGRAM and not last.is_success and entry.retry_on is RetryOn.ANY:
        spent = sum(end.blame is Blame.USER for end in ends)
    else:
        return
    if spent <= entry.retries:
        raise Violation(
            f"job {job_id} was given up too soon ({counted(spent, 'failure')}, and"
            f" {counted(entry.retries, 'retry', 'retries')} allowed)",
            promise=4,
        )


def _check_array(job_id: JobId, image: JobImage, shape: Array, disk: Rows) -> None:
    """It ends as the first of its elements that did not succeed; and all of them ran where none was cancelled."""
    rows = [disk.tasks.get((job_id, index)) for index in range(shape.count)]
    ends = [row.outcome if row is not None else None for row in rows]
    failed = [end for end in ends if end is not None and not end.is_success]
    if image.state is JobState.SUCCEEDED and (failed or None in ends):
        raise Violation(f"array {job_id} succeeded, and not all of its elements have", promise=4)
    if image.state in (JobState.SUCCEEDED, JobState.REJECTED) or image.stop is not None or image.reason_code == UNMET:
        return
    if None in ends or image.outcome != failed[0]:
        raise Violation(f"array {job_id} ended as {image.outcome}, and its elements as {ends}", promise=4)


def _check_vain(job_id: JobId, image: JobImage, entry: JobEntry, jobs: Mapping[JobId, JobImage]) -> None:
    """A job is only told that it waits in vain where that is so."""
    if image.reason_code != UNMET:
        return
    if all(after.is_any or jobs[after.job].state is JobState.SUCCEEDED for after in entry.after):
        raise Violation(f"job {job_id} was ended for a failure that there was none of", promise=4)


def _check_end(world: _World) -> None:
    """Everything acknowledged is there, everything is final, nothing runs, no retry beyond what was allowed."""
    disk, acknowledged, jobs = world.plane.disk, world.clients.acknowledged, world.scenario.jobs
    for key, job_id in acknowledged.items():
        if disk.keys.get(key) != job_id or job_id not in disk.jobs:
            raise Violation(f"{job_id} was acknowledged under {key} and is lost", promise=1)
    if len(acknowledged) < len(jobs):
        raise Stuck(f"only {len(acknowledged)} of {len(jobs)} submissions were ever answered")
    for job_id, image in disk.jobs.items():
        if not image.state.is_final:
            raise Stuck(f"job {job_id} never finished, and is {image.state}")
        entry = world.guard.entries[job_id]
        _check_vain(job_id, image, entry, disk.jobs)
        if isinstance(entry.shape, Array):
            _check_array(job_id, image, entry.shape, disk)
    tasks: dict[tuple[JobId, int], list[AttemptImage]] = {(job_id, 0): [] for job_id in disk.jobs}
    for attempt in disk.attempts.values():
        tasks.setdefault((attempt.job_id, attempt.task_index), [])
        if attempt.is_shown:
            tasks[attempt.job_id, attempt.task_index].append(attempt)
    for (job_id, index), tries in tasks.items():
        entry, image = world.guard.entries[job_id], disk.jobs[job_id]
        retried = [attempt.outcome for attempt in sorted(tries, key=lambda attempt: attempt.number)[:-1]]
        retried = [outcome for outcome in retried if outcome is None or outcome.ended_by not in _FREE]
        own = sum(outcome is not None and outcome.blame is Blame.USER for outcome in retried)
        allowed = entry.retries if entry.retry_on is RetryOn.ANY else 0
        if own > allowed or len(retried) - own > entry.retries:
            raise Violation(
                f"job {job_id} ran too often ({counted(len(tries), 'attempt')}, and"
                f" {counted(entry.retries, 'retry', 'retries')} allowed)",
                promise=4,
            )
        last = disk.tasks[job_id, index].outcome if isinstance(entry.shape, Array) and tries else image.outcome
        outcomes = [attempt.outcome for attempt in tries if attempt.outcome is not None]
        _check_given_up(job_id, last, image, entry, outcomes)
        if image.state is JobState.SUCCEEDED and not any(t.outcome and t.outcome.is_success for t in tries):
            raise Violation(f"job {job_id} succeeded without a successful attempt", promise=4)
    for epoch, attempt in disk.attempts.items():
        node = NodeKey(Epoch(epoch), 0)
        is_back = attempt.outcome is not None and not attempt.is_shown
        if is_back and node in world.guard.where:
            raise Violation(
                f"attempt {attempt.number} of job {attempt.job_id} counts as given back unbegun, and was started on"
                f" {world.guard.where[node].id}",
                promise=4,
            )
    world.plane.compare_with_disk()
    world.guard.check_empty()
    world.fleet.check()
