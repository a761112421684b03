"""What a simulated world is made of, as data: machines, jobs, what goes wrong and when. Nothing happens here.

``Scenario.of_seed`` draws one; whoever wants another builds or reduces one: every scenario can be played, with any of
its hosts, jobs and faults taken out. Each part is drawn from numbers of its own (``numbers``), and so is what happens
in the world later, so that taking one out leaves the others as they were.
"""

from dataclasses import dataclass, field
from enum import StrEnum
from random import Random
from typing import Final, Self, TypedDict

__all__ = ["Fault", "HostPlan", "JobPlan", "Noise", "Scenario", "Shape", "Trouble", "numbers"]

LEASE_MS: Final = 30_000
SQLITE: Final = 0.1  # of the worlds: each commit of theirs is some milliseconds of real time
DAY_MS: Final = 24 * 3_600_000
MOST_SKEW: Final = 1.05  # what two clocks' rates may differ by


class Trouble(StrEnum):
    """What goes wrong, or is done by people while work goes on. Of the control plane: it dies (anywhere, or at the next
    moment of the kind that is named), its power is lost, it is stopped by a signal. Of a host: see ``SimHost``. Of the
    fleet: a provider makes a machine and does not say so.

    lasts_ms of a fault is how long it goes on, or how long until what has died is started again.
    """

    PLANE_DIES = "plane_dies"
    PLANE_DIES_BEFORE_STEP = "plane_dies_before_step"
    PLANE_DIES_STEPPED = "plane_dies_stepped"
    PLANE_DIES_IN_COMMIT = "plane_dies_in_commit"
    PLANE_DIES_COMMITTED = "plane_dies_committed"
    PLANE_DIES_ANSWERED = "plane_dies_answered"
    PLANE_LOSES_POWER = "plane_loses_power"
    PLANE_STOPS = "plane_stops"
    PLANE_DISK_FULL = "plane_disk_full"
    PLANE_FSYNC_FAILS = "plane_fsync_fails"
    PLANE_WALL_JUMPS = "plane_wall_jumps"  # by ``amount`` ms
    PLANE_RESTORED = "plane_restored"  # from a backup that was made at its end
    PLANE_SCORERS_CHANGE = "plane_scorers_change"
    AGENT_DIES = "agent_dies"
    AGENT_STOPS = "agent_stops"
    AGENT_LEAVES = "agent_leaves"  # it is asked to end, and started again so long after it has
    SPAWNER_DIES = "spawner_dies"
    SPAWNER_STOPS = "spawner_stops"
    AGENT_AND_SPAWNER_STOP = "agent_and_spawner_stop"
    WATCHDOG_AND_SPAWNER_DIE = "watchdog_and_spawner_die"
    ALL_STOP = "all_stop"
    SLEEPS = "sleeps"
    LOSES_POWER = "loses_power"
    LOSES_DISK = "loses_disk"
    DISK_FULL = "disk_full"
    WALL_JUMPS = "wall_jumps"  # by ``amount`` ms
    PROBE_LIES = "probe_lies"  # ``amount``: 0 fewer devices, 1 other cores, 2 it flaps, 3 it is slow
    SPOT_LOST = "spot_lost"
    COPIED = "copied"  # its folder is, to another machine that works with it; it is out of contact until after that
    CUT = "cut"
    CUT_OUT = "cut_out"  # what the host sends is lost
    CUT_IN = "cut_in"  # what it is sent is lost
    HALF_OPEN = "half_open"
    DRAINED = "drained"  # by a person, and resumed
    REMOVED = "removed"  # by a person, and it joins again
    STRANGER = "stranger"  # somebody who can't be seen has its devices
    PROVIDER_ERRS = "provider_errs"  # ``amount``: how often
    PROVIDER_HANGS = "provider_hangs"

    def __repr__(self) -> str:
        """As it is written in Python, so that the repr of a scenario is one."""
        return f"Trouble.{self.name}"

    @property
    def is_of_host(self) -> bool:
        """It needs a host to happen to."""
        return not self.value.startswith(("plane_", "provider_"))


PLANE_TROUBLES: Final = tuple(trouble for trouble in Trouble if trouble.value.startswith("plane_"))
HOST_TROUBLES: Final = tuple(trouble for trouble in Trouble if trouble.is_of_host)
FLEET_TROUBLES: Final = (Trouble.PROVIDER_ERRS, Trouble.PROVIDER_HANGS)


@dataclass(frozen=True, slots=True)
class Fault:
    """``host``: the number of the one it happens to; None: the control plane or the fleet. lasts_ms, amount: see
    ``Trouble``."""

    kind: Trouble
    at_ms: int
    host: int | None = None
    lasts_ms: int = 0
    amount: int = 0


@dataclass(frozen=True, slots=True)
class HostPlan:
    """A machine. ``rate``: how fast its clock runs. ``staging_failure``: probability that a source does not come;
    launch_failure: that a start is put off, and that outputs can't be brought home; a start takes long as often.
    wall_ms: how far its wall clock is off from the start."""

    number: int
    joins_ms: int = 0
    cpus: int = 2
    memory_bytes: int = 8 * 10**9
    gpus: int = 0
    licences: int = 0
    rate: float = 1.0
    staging_failure: float = 0.03
    wall_ms: int = 0
    launch_failure: float = 0.0


@dataclass(frozen=True, slots=True)
class JobPlan:
    """A job, and what its program will do. Wishes that no host of the scenario can meet are not made.

    licences: of these it asks so many. retry_any: also after a failure of its own. run_ms, exit_code: when left alone.
    after_term_ms: how long it goes on after SIGTERM. cancel_after_ms: the client cancels so long after it was
    answered; None: never. after: the number of the job that it comes after, and is not submitted before; after_any:
    whatever that one's end. array: it is one of so many elements, of which the odd ones exit with 0; array_limit: at
    most so many at once; 0: any number.
    """

    number: int
    owner: str = "ann"
    at_ms: int = 0
    cpus: int = 1
    needs_device: bool = False
    licences: int = 0
    priority: int = 0
    retries: int = 2
    retry_any: bool = False
    exclusive: bool = False
    timeout_ms: int | None = None
    grace_ms: int = 5_000
    keep_for_ms: int = 120_000
    wait: bool = True
    has_source: bool = False
    run_ms: int = 500
    exit_code: int = 0
    after_term_ms: int = 1
    cancel_after_ms: int | None = None
    after: int | None = None
    after_any: bool = False
    array: int = 0
    array_limit: int = 0


@dataclass(frozen=True, slots=True)
class Noise:
    """What goes wrong now and then: probabilities of a message's loss, doubling and stalling for up to half a minute,
    of a commit's failure. mean_ms: how long a message takes."""

    loss: float = 0.05
    doubling: float = 0.05
    stall: float = 0.02
    mean_ms: float = 5.0
    commit_failure: float = 0.01


@dataclass(frozen=True, slots=True)
class Shape:
    """How large a drawn scenario is. ``trouble_ms``: how long faults go on. ``trouble``: so many times the usual
    number of faults."""

    workers: int = 3
    jobs: int = 40
    trouble_ms: int = 600_000
    trouble: float = 1.0


@dataclass(frozen=True, slots=True)
class Scenario:
    """``trouble_ms``: until then things go wrong, and then nothing more does. ``store``: what the control plane keeps
    its state in, ``memory`` or ``sqlite``. rate: of its clock; that of no host may differ by more than 5 %."""

    seed: int = 0
    hosts: tuple[HostPlan, ...] = ()
    jobs: tuple[JobPlan, ...] = ()
    faults: tuple[Fault, ...] = ()
    noise: Noise = field(default_factory=Noise)
    scorers: tuple[str, ...] = ()
    store: str = "memory"
    rate: float = 1.0
    trouble_ms: int = 600_000

    @classmethod
    def of_seed(cls, seed: int, shape: Shape | None = None) -> Self:
        """The same seed and shape are the same scenario."""
        shape = shape or Shape()
        rng = numbers(seed, "world")
        rate = 1 + rng.uniform(-0.02, 0.02)
        has_licences = rng.random() < 0.2
        mean_ms = rng.choice([1.0, 5.0, 50.0])
        scorers = ("cheap", "near")[: rng.choice([0, 0, 0, 0, 1, 2])]
        burst_ms = rng.randrange(shape.trouble_ms)
        in_burst = rng.choice([0, shape.jobs * 2 // 3, shape.jobs * 2 // 3])
        return cls(
            seed=seed,
            hosts=tuple(_host(seed, number, rate=rate, has_licences=has_licences) for number in range(shape.workers)),
            jobs=tuple(
                _job(seed, number, shape, burst_ms=burst_ms if number >= shape.jobs - in_burst else None)
                for number in range(shape.jobs)
            ),
            faults=_faults(seed, shape),
            noise=Noise(mean_ms=mean_ms),
            scorers=scorers,
            store="sqlite" if rng.random() < SQLITE else "memory",
            rate=rate,
            trouble_ms=shape.trouble_ms,
        )


def numbers(seed: int, purpose: str, entity: object = "") -> Random:
    """A generator for one thing alone: nothing else draws from it."""
    return Random(f"{seed} {purpose} {entity}")  # noqa: S311 - reproducible, not secret


class _After(TypedDict, total=False):
    after: int
    after_any: bool


class _Array(TypedDict, total=False):
    array: int
    array_limit: int


def _host(seed: int, number: int, *, rate: float, has_licences: bool) -> HostPlan:
    rng = numbers(seed, "host", number)
    skew = rng.choice([1.0, MOST_SKEW, 1 / MOST_SKEW, rng.uniform(1 / MOST_SKEW, MOST_SKEW)])
    return HostPlan(
        number=number,
        joins_ms=1 + int(rng.expovariate(1 / 2000)),
        gpus=rng.choice([0, 1, 3]),
        cpus=rng.choice([1, 2, 4]),
        licences=rng.choice([1, 2]) if has_licences else 0,
        rate=round(min(max(rate * skew, 0.95), 1.05), 5),
        wall_ms=rng.choice([0, 0, rng.randrange(-DAY_MS, DAY_MS)]),
        launch_failure=0.03,
    )


def _job(seed: int, number: int, shape: Shape, *, burst_ms: int | None) -> JobPlan:
    """burst_ms: it comes with many others around then, most of them tiny."""
    rng = numbers(seed, "job", number)
    is_tiny = burst_ms is not None
    run_ms = rng.choice([10] * 14 + [20_000] if is_tiny else [10, 500, 20_000, 90_000, 600_000])
    return JobPlan(
        number=number,
        owner=numbers(seed, "owner", number).choice(["ann", "ann", "ben"]),
        cpus=numbers(seed, "width", number).choice([1, 1, 1, 2]),
        at_ms=rng.randrange(shape.trouble_ms) if burst_ms is None else burst_ms + rng.randrange(300),
        needs_device=rng.random() < (0.05 if is_tiny else 0.3),
        licences=rng.choice([0, 1, 2]),
        priority=rng.choice([0, 0, 0, 5]),
        retries=rng.choice([0, 2, 2, 2, 5] if is_tiny else [0, 1, 2, 5]),
        retry_any=rng.random() < 0.33,
        exclusive=rng.random() < (0.05 if is_tiny else 0.25),
        timeout_ms=rng.choice([None, None, 60_000]),
        grace_ms=rng.choice([1_000, 5_000, 30_000]),
        keep_for_ms=rng.choice([40_000, 120_000, 3_600_000]),
        wait=rng.random() < 0.9,
        has_source=rng.random() < 0.5,
        run_ms=1 + int(run_ms * rng.random()),
        exit_code=rng.choice([0, 0, 0, 1, 255]),
        after_term_ms=rng.choice([1, 500, 60_000]),
        cancel_after_ms=1 + int(rng.expovariate(1 / 20_000)) if rng.random() < 0.2 else None,
        **_after(seed, number),
        **_array(seed, number),
    )


def _after(seed: int, number: int) -> _After:
    rng = numbers(seed, "after", number)
    if not number or rng.random() > 0.12:
        return {}
    return {"after": rng.randrange(number), "after_any": rng.random() < 0.5}


def _array(seed: int, number: int) -> _Array:
    rng = numbers(seed, "parts", number)
    return {"array": rng.choice([2, 3, 5]), "array_limit": rng.choice([0, 1, 2])} if rng.random() < 0.08 else {}


# How often each kind happens in a run: to every host, or to the control plane or the fleet.
_RATES: Final[dict[Trouble, float]] = {
    Trouble.PLANE_DIES: 0.5,
    Trouble.PLANE_DIES_BEFORE_STEP: 0.2,
    Trouble.PLANE_DIES_STEPPED: 0.2,
    Trouble.PLANE_DIES_IN_COMMIT: 0.2,
    Trouble.PLANE_DIES_COMMITTED: 0.2,
    Trouble.PLANE_DIES_ANSWERED: 0.2,
    Trouble.PLANE_LOSES_POWER: 0.2,
    Trouble.PLANE_STOPS: 0.4,
    Trouble.PLANE_DISK_FULL: 0.4,
    Trouble.PLANE_FSYNC_FAILS: 0.2,
    Trouble.PLANE_WALL_JUMPS: 0.7,
    Trouble.PLANE_RESTORED: 0.1,
    Trouble.PLANE_SCORERS_CHANGE: 0.1,
    Trouble.AGENT_DIES: 1.2,
    Trouble.AGENT_STOPS: 0.5,
    Trouble.AGENT_LEAVES: 0.4,
    Trouble.SPAWNER_DIES: 0.5,
    Trouble.SPAWNER_STOPS: 0.4,
    Trouble.AGENT_AND_SPAWNER_STOP: 0.5,
    Trouble.WATCHDOG_AND_SPAWNER_DIE: 0.4,
    Trouble.ALL_STOP: 0.4,
    Trouble.SLEEPS: 0.4,
    Trouble.LOSES_POWER: 0.6,
    Trouble.LOSES_DISK: 0.2,
    Trouble.DISK_FULL: 0.5,
    Trouble.WALL_JUMPS: 0.7,
    Trouble.PROBE_LIES: 0.5,
    Trouble.SPOT_LOST: 0.15,
    Trouble.COPIED: 0.3,
    Trouble.CUT: 0.8,
    Trouble.CUT_OUT: 0.5,
    Trouble.CUT_IN: 0.5,
    Trouble.HALF_OPEN: 0.5,
    Trouble.DRAINED: 0.3,
    Trouble.REMOVED: 0.15,
    Trouble.STRANGER: 0.4,
    Trouble.PROVIDER_ERRS: 0.15,
    Trouble.PROVIDER_HANGS: 0.15,
}


def _faults(seed: int, shape: Shape) -> tuple[Fault, ...]:
    found: list[Fault] = []
    for kind, rate in _RATES.items():
        for host in range(shape.workers) if kind.is_of_host else (None,):
            rng = numbers(seed, kind.value, host)
            drawn = [_fault(rng, kind, host, shape) for _ in range(_count(rng, rate * shape.trouble))]
            found += drawn
            if kind is Trouble.LOSES_POWER:  # what its line hangs on often goes first
                found += [_before(rng, fault) for fault in drawn if rng.random() < 0.6]
    return tuple(sorted(found, key=lambda fault: fault.at_ms))


def _before(rng: Random, fault: Fault) -> Fault:
    at_ms = max(0, fault.at_ms - rng.randrange(10_000))
    return Fault(Trouble.CUT_OUT, at_ms, fault.host, fault.at_ms - at_ms + fault.lasts_ms)


def _count(rng: Random, mean: float) -> int:
    """Spread as things are that happen independently of one another."""
    count, passed = 0, rng.expovariate(1)
    while passed < mean:
        count, passed = count + 1, passed + rng.expovariate(1)
    return count


def _fault(rng: Random, kind: Trouble, host: int | None, shape: Shape) -> Fault:
    at_ms = rng.randrange(shape.trouble_ms)
    lasts_ms, amount = 1 + int(rng.expovariate(1 / 8_000)), 0
    match kind:
        case Trouble.PLANE_WALL_JUMPS | Trouble.WALL_JUMPS:
            amount = rng.choice([DAY_MS, -DAY_MS, -1_000, rng.randrange(-DAY_MS, DAY_MS)])
        case Trouble.PROBE_LIES:
            amount = rng.randrange(4)
        case Trouble.PROVIDER_ERRS | Trouble.PROVIDER_HANGS:
            amount = rng.randrange(1, 4)
            lasts_ms = rng.randrange(60_000, 300_000)  # how long the machine is wanted
        case (
            Trouble.CUT
            | Trouble.CUT_OUT
            | Trouble.CUT_IN
            | Trouble.AGENT_STOPS
            | Trouble.SPAWNER_STOPS
            | Trouble.AGENT_AND_SPAWNER_STOP
            | Trouble.ALL_STOP
            | Trouble.SLEEPS
            | Trouble.PLANE_STOPS
            | Trouble.PLANE_SCORERS_CHANGE
            | Trouble.DRAINED
        ):
            # About as often for less than the lease as for more, and often around it, where it is decided.
            usual = 1 + int(rng.expovariate(1 / 40_000))
            lasts_ms = rng.choice([usual, usual, LEASE_MS + rng.randrange(-6_000, 8_000)])
        case Trouble.LOSES_POWER | Trouble.LOSES_DISK | Trouble.DRAINED | Trouble.STRANGER:
            lasts_ms = 1 + int(rng.expovariate(1 / 40_000))
        case _:
            pass
    return Fault(kind, at_ms, host, lasts_ms, amount)
