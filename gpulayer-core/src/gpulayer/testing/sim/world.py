"""One seeded run: a fleet, a workload, faults, then peace in which everything must finish."""

from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Final

from gpulayer.engine.events import CancelRequested, WorkerJoined
from gpulayer.errors import Blame
from gpulayer.ids import Digest, Epoch, JobId, WorkerId
from gpulayer.protocol.retry import Failure, FailureKind, Repeatable, next_try_ms
from gpulayer.spec.assignment import Assignment, NodeKey
from gpulayer.spec.job import JobEntry, JobSpec, JobState, RetryOn
from gpulayer.spec.machine import Device, WorkerFacts
from gpulayer.spec.request import Accelerator, Request
from gpulayer.testing.sim.clockwork import Clockwork
from gpulayer.testing.sim.host import SimHost
from gpulayer.testing.sim.network import Network
from gpulayer.testing.sim.plane import SimPlane
from gpulayer.testing.sim.rules import Violation
from gpulayer.testing.sim.store import MemoryStore, SimStore, SqliteStore

__all__ = ["Report", "Shape", "Violation", "run"]

SETTLED_MS: Final = 120_000  # so long after the faults every worker has been told what is not its own any more
PEACE_MS: Final = 4 * 3_600_000  # after the faults everything must finish within this much virtual time


@dataclass(frozen=True, slots=True)
class Shape:
    """How large a run is. ``trouble_ms``: how long faults go on. Of the jobs some may come all at once, most of them
    tiny."""

    workers: int = 3
    jobs: int = 40
    trouble_ms: int = 600_000


@dataclass(frozen=True, slots=True)
class Report:
    """What a run was; ``states`` counts the jobs' final states, ``given_back`` the attempts that were revoked in time,
    of those that were lent ahead, ``refusals`` what scorers refused."""

    seed: int
    steps: int
    faults: int
    virtual_ms: int
    states: dict[str, int]
    attempts: int
    lent_ahead: int = 0
    given_back: int = 0
    refusals: int = 0
    trace: tuple[str, ...] = ()


@dataclass(slots=True)
class _World:
    clock: Clockwork
    network: Network
    plane: SimPlane
    shape: Shape
    hosts: list[SimHost] = field(default_factory=list)
    programs: dict[JobId, tuple[int, int, int]] = field(default_factory=dict)
    entries: dict[JobId, JobEntry] = field(default_factory=dict)
    acknowledged: dict[str, JobId] = field(default_factory=dict)
    sourced: set[JobId] = field(default_factory=set)
    started: dict[NodeKey, tuple[SimHost, int]] = field(default_factory=dict)  # where, and which of its disks
    licences: Random | None = None  # of its own, and in few worlds: the stories of the other seeds stay as they are


def run(seed: int, shape: Shape | None = None, *, trace: bool = False) -> Report:
    """Run one world. Deterministic in (seed, shape). A broken rule raises with the seed in its notes."""
    clock = Clockwork(seed, is_tracing=trace)
    network = Network(clock, mean_ms=clock.rng.choice([1.0, 5.0, 50.0]))
    world = _World(clock, network, SimPlane(clock, store=_store(seed)), shape or Shape(), licences=_licences(seed))
    try:
        _play(world)
        world.plane.store.close()
    except AssertionError as error:
        error.add_note(f"seed {seed}, virtual time {clock.now_ms / 1000:.3f} s")
        if trace:
            error.add_note("\n".join(clock.trace[-200:]))
        raise
    states: dict[str, int] = {}
    for image in world.plane.disk.jobs.values():
        states[image.state] = states.get(image.state, 0) + 1
    return Report(
        seed=seed,
        steps=clock.steps,
        faults=network.faults + world.plane.all_faults + sum(host.faults for host in world.hosts),
        virtual_ms=clock.now_ms,
        states=states,
        attempts=len(world.plane.disk.attempts),
        lent_ahead=len(world.plane.disk.lent_ahead),
        given_back=sum(
            image.outcome is not None and not image.is_shown for image in world.plane.disk.attempts.values()
        ),
        refusals=world.plane.scorers.refusals,
        trace=tuple(clock.trace),
    )


def _store(seed: int) -> SimStore:
    """One world in ten has the product's own, on a disk that can fail."""
    return SqliteStore(Random(f"disk {seed}")) if seed % 10 == 9 else MemoryStore()  # noqa: S311


def _licences(seed: int) -> Random | None:
    numbers = Random(f"licences {seed}")  # noqa: S311 - reproducible, not secret
    return numbers if numbers.random() < 0.2 else None


def _play(world: _World) -> None:
    clock, shape = world.clock, world.shape
    world.plane.start()
    for number in range(shape.workers):
        _add_host(world, number)
    burst_ms = clock.rng.randrange(shape.trouble_ms)
    in_burst = clock.rng.choice([0, shape.jobs * 2 // 3, shape.jobs * 2 // 3])
    for number in range(shape.jobs - in_burst):
        clock.after(clock.rng.randrange(shape.trouble_ms), lambda number=number: _submit(world, number))  # type: ignore[misc]
    for number in range(shape.jobs - in_burst, shape.jobs):
        at_ms = burst_ms + clock.rng.randrange(300)
        clock.after(at_ms, lambda number=number: _submit(world, number, is_tiny=True))  # type: ignore[misc]
    _plan_faults(world)
    clock.after(shape.trouble_ms, lambda: _make_peace(world))
    clock.after(shape.trouble_ms + SETTLED_MS, lambda: _check_fenced(world))
    deadline = shape.trouble_ms + PEACE_MS
    while clock.now_ms < deadline and clock.run_next():
        if clock.now_ms > shape.trouble_ms and _is_all_over(world):
            break
    _check_end(world)


def _add_host(world: _World, number: int) -> None:
    clock = world.clock
    gpus = clock.rng.choice([0, 1, 2])
    facts = WorkerFacts(
        platform="linux-x86_64",
        version="0.1.0",
        cpus=clock.rng.choice([1, 2, 4]),
        memory_bytes=8 * 10**9,
        resources=(("licence", world.licences.choice([1, 2])),) if world.licences else (),
        devices=tuple(
            Device(f"GPU-{number}-{index}", index, Accelerator.CUDA, "NVIDIA A100", 40 * 10**9) for index in range(gpus)
        ),
    )
    worker, digest = WorkerId(f"w{number}"), Digest(f"{number:064x}")
    host = SimHost(
        worker,
        facts,
        digest,
        clock,
        world.network,
        world.plane,
        programs=lambda assignment: world.programs[assignment.job_id],
        started=lambda host, assignment: _check_started(world, host, assignment),
        has_source=world.sourced.__contains__,
    )
    world.hosts.append(host)

    def enrol() -> None:
        if world.plane.state is None:
            clock.after(1000, enrol)
            return
        world.plane.handle(
            lambda at: WorkerJoined(at, worker, worker, facts, digest),
            lambda effects: host.start() if effects is not None else clock.after(1000, enrol),
        )
        # The answer may be lost with the control plane: enrolling again is harmless.
        clock.after(60_000, lambda: enrol() if host.boots == 0 else None)

    clock.after(clock.spread_ms(2000), enrol)


def _submit(world: _World, number: int, *, is_tiny: bool = False) -> None:
    """A client submits with an idempotency key and repeats it, as the retry policy says, until it is answered."""
    clock, rng = world.clock, world.clock.rng
    job_id, key = JobId(f"{number:016x}"), f"key-{number}"
    needs_device = rng.random() < (0.05 if is_tiny else 0.3) and any(host.facts.devices for host in world.hosts)
    spec = JobSpec(
        command=("program",),
        request=_request(world, needs_device=needs_device),
        priority=rng.choice([0, 0, 0, 5]),
        retries=rng.choice([0, 2, 2, 2, 5] if is_tiny else [0, 1, 2, 5]),
        retry_on=rng.choice([RetryOn.INFRASTRUCTURE, RetryOn.INFRASTRUCTURE, RetryOn.ANY]),
        exclusive=rng.random() < (0.05 if is_tiny else 0.25),
        timeout_ms=rng.choice([None, None, 60_000]),
        grace_ms=rng.choice([1_000, 5_000, 30_000]),
        keep_for_ms=rng.choice([40_000, 120_000, 3_600_000]),
        wait=rng.random() < 0.9,
    )
    entry = world.entries[job_id] = JobEntry.of(job_id, "me", spec)
    run_ms = rng.choice([10] * 14 + [20_000] if is_tiny else [10, 500, 20_000, 90_000, 600_000])
    if rng.random() < 0.5:
        world.sourced.add(job_id)
    world.programs[job_id] = (
        1 + int(run_ms * rng.random()),
        rng.choice([0, 0, 0, 1, 255]),
        rng.choice([1, 500, 60_000]),
    )
    tries = 0

    def attempt() -> None:
        nonlocal tries
        tries += 1
        answered = False

        def answer(found: JobId | None) -> None:
            nonlocal answered
            if answered or key in world.acknowledged:
                if found is not None and world.acknowledged.get(key, found) != found:
                    raise Violation(f"{key} gave {found} and {world.acknowledged[key]}")
                return
            answered = True
            if found is not None:
                world.acknowledged[key] = found
                if rng.random() < 0.2:
                    clock.after(clock.spread_ms(20_000), lambda: _cancel(world, found))
                return
            wait_ms = next_try_ms(
                Failure(FailureKind.NO_ANSWER), repeatable=Repeatable.IDEMPOTENT, tries=tries, random=rng.random()
            )
            if wait_ms is not None:
                clock.after(wait_ms, attempt)

        world.network.deliver(
            "client",
            lambda: world.plane.submit(
                key, entry, lambda found: world.network.deliver("client", lambda: answer(found))
            ),
        )
        clock.after(10_000, lambda: answer(None))

    attempt()


def _request(world: _World, *, needs_device: bool) -> Request:
    if needs_device:
        return Request(accelerators=(Accelerator.CUDA,), devices=1)
    if world.licences is None or world.licences.random() < 0.5:
        return Request()
    most = max(dict(host.facts.resources)["licence"] for host in world.hosts)
    return Request(resources=(("licence", world.licences.randint(1, most)),))


def _cancel(world: _World, job_id: JobId) -> None:
    world.clock.say(f"client cancels {job_id}")
    world.network.deliver("client", lambda: world.plane.handle(lambda at: CancelRequested(at, job_id), lambda _: None))


def _plan_faults(world: _World) -> None:
    clock, rng, horizon = world.clock, world.clock.rng, world.shape.trouble_ms

    def crash_plane() -> None:
        if world.plane.state is not None:
            world.plane.crash()
            clock.after(clock.spread_ms(8_000), world.plane.start)

    def cut(host: SimHost) -> None:
        world.network.faults += 1
        world.network.cut.add(host.id)
        clock.say(f"{host.id}: network is cut")
        clock.after(clock.spread_ms(40_000), lambda: world.network.cut.discard(host.id))

    def lose_power() -> None:
        if world.plane.state is not None:
            world.plane.lose_power()
            clock.after(clock.spread_ms(8_000), world.plane.start)

    def trouble(begin: Callable[[], None]) -> None:
        world.plane.faults += 1
        begin()
        clock.after(clock.spread_ms(20_000), world.plane.store.heal)

    if isinstance(world.plane.store, SqliteStore):
        store, own = world.plane.store, Random(f"trouble {clock.seed}")  # noqa: S311
        for _ in range(own.randrange(6)):
            clock.after(own.randrange(horizon), lose_power)
        for what in (store.fill, store.break_writes, store.break_sync):
            for _ in range(own.randrange(4)):
                clock.after(own.randrange(horizon), lambda what=what: trouble(what))  # type: ignore[misc]
    for _ in range(rng.randrange(4)):
        clock.after(rng.randrange(horizon), crash_plane)
    for host in world.hosts:
        for what, mean in ((host.crash_agent, 3), (host.crash_spawner, 1), (host.lose_power, 1), (host.stop, 2)):
            for _ in range(rng.randrange(mean + 1)):
                clock.after(rng.randrange(horizon), what)
        for _ in range(rng.randrange(3)):
            clock.after(rng.randrange(horizon), lambda host=host: cut(host))  # type: ignore[misc]


def _make_peace(world: _World) -> None:
    world.clock.say("peace")
    world.network.heal()
    world.plane.commit_failure = 0.0
    world.plane.store.heal()
    world.plane.scorers.is_honest = True
    for host in world.hosts:
        host.staging_failure = 0.0
        host.go_on()
    if world.plane.state is None:
        world.plane.start()


def _is_all_over(world: _World) -> bool:
    plane = world.plane
    return (
        plane.state is not None
        and len(world.acknowledged) == world.shape.jobs
        and not plane.is_busy
        and not plane.state.jobs
        and not any(host.folders for host in world.hosts)
    )


def _check_started(world: _World, host: SimHost, assignment: Assignment) -> None:
    """One live process tree per device; an exclusive job on one worker at a time; no more than a machine has cores, or
    of what it counts by name."""
    alive = [process.assignment.cpus for process in host.processes.values() if process.is_alive]
    if sum(alive) > host.facts.cpus:
        raise Violation(f"{assignment.key} starts on {host.id}, where {alive} cores are in use of {host.facts.cpus}")
    for name, count in host.facts.resources:
        shares = [process.assignment.resources for process in host.processes.values() if process.is_alive]
        if sum(dict(share).get(name, 0) for share in shares) > count:
            raise Violation(f"{assignment.key} starts on {host.id}, where there is no {name} left: {shares}")
    world.started[assignment.key] = (host, host.disks)
    for other in world.hosts:
        for process in other.processes.values():
            if process.assignment.key == assignment.key or not process.is_alive:
                continue
            if set(process.assignment.devices) & set(assignment.devices):
                raise Violation(f"{assignment.key} starts on a device that {process.assignment.key} still uses")
            if assignment.exclusive and process.assignment.job_id == assignment.job_id:
                raise Violation(f"exclusive job {assignment.job_id} starts on {host.id} while it runs on {other.id}")


def _check_fenced(world: _World) -> None:
    """No tree lives on without a lease once its worker has been in contact."""
    for host in world.hosts:
        for key, process in host.processes.items():
            if process.is_alive and not world.plane.is_lent(host.id, key.epoch):
                raise Violation(f"{key} still runs on {host.id}, which has been in contact and does not hold its lease")


def _check_end(world: _World) -> None:
    """Everything acknowledged is there, everything is final, nothing runs, no retry beyond what was allowed."""
    disk = world.plane.disk
    for key, job_id in world.acknowledged.items():
        if disk.keys.get(key) != job_id or job_id not in disk.jobs:
            raise Violation(f"{job_id} was acknowledged under {key} and is lost")
    if len(world.acknowledged) < world.shape.jobs:
        raise Violation(f"only {len(world.acknowledged)} of {world.shape.jobs} submissions were ever answered")
    for job_id, image in disk.jobs.items():
        if not image.state.is_final:
            raise Violation(f"job {job_id} never finished: {image}")
        entry = world.entries[job_id]
        tries = [attempt for attempt in disk.attempts.values() if attempt.job_id == job_id and attempt.is_shown]
        retried = [attempt.outcome for attempt in sorted(tries, key=lambda attempt: attempt.number)[:-1]]
        own = sum(outcome is not None and outcome.blame is Blame.USER for outcome in retried)
        allowed = entry.retries if entry.retry_on is RetryOn.ANY else 0
        if own > allowed or len(retried) - own > entry.retries:
            raise Violation(f"job {job_id} had {len(tries)} attempts with {entry.retries} retries")
        if image.state is JobState.SUCCEEDED and not any(t.outcome and t.outcome.is_success for t in tries):
            raise Violation(f"job {job_id} succeeded without a successful attempt")
    for epoch, attempt in disk.attempts.items():
        host, number = world.started.get(NodeKey(Epoch(epoch), 0), (None, 0))
        # A host that lost its disk does not know what it had started.
        if attempt.outcome is not None and not attempt.is_shown and host is not None and host.disks == number:
            raise Violation(f"attempt {epoch} counts as given back, and was started on {host.id}")
    for host in world.hosts:
        alive = [str(key) for key, process in host.processes.items() if process.is_alive]
        if alive or host.folders:
            raise Violation(f"{host.id} still has {alive or list(host.folders)} when all is over")
