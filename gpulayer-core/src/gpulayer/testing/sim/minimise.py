"""The smallest scenario that still breaks the same rule: what a person has to read, instead of forty jobs.

Nothing is understood here. Parts are taken out, and whatever the rule is still broken without stays out: first all that
comes after the moment at which it is broken, which also ends the plays that break nothing sooner; then the noise of the
network; then faults, jobs, and machines with what happens to them, in halves, quarters, and one by one (Zeller and
Hildebrandt, "Simplifying and isolating failure-inducing input", 2002, without the complements); then what is unusual
about the jobs and machines that are left. That goes round until nothing changes, or for as long as
there is time.
"""

from collections.abc import Callable, Iterator
from dataclasses import MISSING, dataclass, fields, replace
from functools import partial
from typing import Any, Final, TypeVar

from gpulayer.testing.sim.scenario import Fault, HostPlan, Noise, Scenario

__all__ = ["Minimised", "minimise"]

Part = TypeVar("Part")

QUIET: Final = Noise(loss=0.0, doubling=0.0, stall=0.0, mean_ms=1.0, commit_failure=0.0)
LOUD: Final = 0.3
_KEPT: Final = frozenset({"number", "at_ms", "joins_ms"})  # by which a part is known, or which say when


@dataclass(frozen=True, slots=True)
class Minimised:
    """``plays``: how many scenarios were tried. is_smallest: no single step makes it smaller; else time ran out."""

    scenario: Scenario
    plays: int
    is_smallest: bool


def minimise(
    scenario: Scenario, breaks_at: Callable[[Scenario], int | None], *, has_time: Callable[[], bool] = lambda: True
) -> Minimised:
    """``breaks_at``: plays one, and says at what time it breaks the same rule, as ``scenario`` does; None: it does not.
    ``has_time`` is asked before each play. Deterministic, but for ``has_time``."""
    search = _Search(scenario, breaks_at, has_time)
    search.takes(replace(scenario), is_known=True)
    before = None
    while before != search.best and not search.is_out_of_time:
        before = search.best
        search.try_each(_calmer)
        search.thin(lambda best: best.faults, lambda best, left: replace(best, faults=left))
        search.thin(lambda best: best.jobs, lambda best, left: replace(best, jobs=left))
        search.thin(lambda best: best.hosts, _with_hosts)
        for number in range(len(search.best.jobs)):
            search.try_each(partial(_usual_job, number))
        for number in range(len(search.best.hosts)):
            search.try_each(partial(_usual_host, number))
        for number in range(len(search.best.faults)):
            search.try_each(partial(_rounder_fault, number))
    return Minimised(search.best, search.plays, is_smallest=not search.is_out_of_time)


@dataclass(slots=True)
class _Search:
    best: Scenario
    breaks_at: Callable[[Scenario], int | None]
    has_time: Callable[[], bool]
    plays: int = 0
    is_out_of_time: bool = False

    def takes(self, candidate: Scenario, *, is_known: bool = False) -> bool:
        """Whether it is broken too; then it, or what of it came before that, is the best one so far."""
        if candidate == self.best and not is_known:
            return False
        self.is_out_of_time = self.is_out_of_time or not self.has_time()
        if self.is_out_of_time:
            return False
        self.plays += 1
        at_ms = self.breaks_at(candidate)
        if at_ms is None:
            return False
        self.best = candidate
        if (ended := _until(candidate, at_ms)) != candidate:
            self.takes(ended)
        return True

    def thin(
        self, parts_of: Callable[[Scenario], tuple[Part, ...]], having: Callable[[Scenario, tuple[Part, ...]], Scenario]
    ) -> None:
        """Take out runs of parts, long ones first."""
        size = len(parts_of(self.best))
        while size:
            at = 0
            while at < len(parts := parts_of(self.best)):
                if not self.takes(having(self.best, parts[:at] + parts[at + size :])):
                    at += size
            size //= 2

    def try_each(self, simpler: Callable[[Scenario], Iterator[Scenario]]) -> None:
        """Each of the ways to make it simpler, from what is the best one by then."""
        tried = 0
        while True:
            candidates = list(simpler(self.best))
            if tried >= len(candidates):
                return
            if not self.takes(candidates[tried]):
                tried += 1


def _with_hosts(scenario: Scenario, hosts: tuple[HostPlan, ...]) -> Scenario:
    there = {host.number for host in hosts}
    faults = tuple(fault for fault in scenario.faults if fault.host is None or fault.host in there)
    return replace(scenario, hosts=hosts, faults=faults)


def _until(scenario: Scenario, at_ms: int) -> Scenario:
    """Without what is planned for later; peace comes soon after, for a rule that is broken in trouble."""
    return replace(
        scenario,
        jobs=tuple(job for job in scenario.jobs if job.at_ms <= at_ms),
        faults=tuple(fault for fault in scenario.faults if fault.at_ms <= at_ms),
        trouble_ms=min(scenario.trouble_ms, at_ms + 1_000),
    )


def _calmer(scenario: Scenario) -> Iterator[Scenario]:
    if scenario.noise != QUIET:
        yield replace(scenario, noise=QUIET)
    for one in fields(Noise):
        if (quiet := getattr(QUIET, one.name)) != getattr(scenario.noise, one.name):
            yield replace(scenario, noise=replace(scenario.noise, **{one.name: quiet}))
            # What goes wrong by chance, and is needed, is not to depend on that of all that there is now.
            if one.name != "mean_ms" and getattr(scenario.noise, one.name) < LOUD:
                yield replace(scenario, noise=replace(scenario.noise, **{one.name: LOUD}))
    if scenario.scorers:
        yield replace(scenario, scorers=())
    if scenario.rate != 1.0:
        yield replace(scenario, rate=1.0)
    if scenario.store != "memory":
        yield replace(scenario, store="memory")


def _usual_job(number: int, scenario: Scenario) -> Iterator[Scenario]:
    for usual in _usual(scenario.jobs[number]) if number < len(scenario.jobs) else ():  # what is broken earlier is cut
        yield replace(scenario, jobs=_put(scenario.jobs, number, usual))


def _usual_host(number: int, scenario: Scenario) -> Iterator[Scenario]:
    for usual in _usual(scenario.hosts[number]) if number < len(scenario.hosts) else ():
        yield replace(scenario, hosts=_put(scenario.hosts, number, usual))


def _rounder_fault(number: int, scenario: Scenario) -> Iterator[Scenario]:
    """A story is easier to follow when it does not go on for 41.237 seconds."""
    for rounder in _rounder(scenario.faults[number]) if number < len(scenario.faults) else ():
        yield replace(scenario, faults=_put(scenario.faults, number, rounder))


def _usual(plan: Any) -> Iterator[Any]:
    """Any: both kinds of plan. One field at a time as it is unless said otherwise; all of them first."""
    unusual = {
        one.name: one.default
        for one in fields(plan)
        if one.name not in _KEPT and one.default is not MISSING and getattr(plan, one.name) != one.default
    }
    if len(unusual) > 1:
        yield replace(plan, **unusual)
    for name, default in unusual.items():
        yield replace(plan, **{name: default})


def _rounder(fault: Fault) -> Iterator[Fault]:
    for unit_ms in (60_000, 10_000, 1_000):
        lasts_ms = round(fault.lasts_ms / unit_ms) * unit_ms
        if lasts_ms and lasts_ms != fault.lasts_ms and fault.lasts_ms % 1_000:
            yield replace(fault, lasts_ms=lasts_ms)
        at_ms = round(fault.at_ms / unit_ms) * unit_ms
        if at_ms != fault.at_ms and fault.at_ms % 1_000:
            yield replace(fault, at_ms=at_ms)


def _put(parts: tuple[Part, ...], number: int, part: Part) -> tuple[Part, ...]:
    return (*parts[:number], part, *parts[number + 1 :])
