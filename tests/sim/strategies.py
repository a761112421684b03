"""Shapes of workload for Hypothesis: machines, jobs, and what goes wrong, each of which it can take out or make plain.

What it draws is a ``Scenario``, so it shrinks by the same moves as ``minimise``, and by those of its own.
"""

from hypothesis import strategies as st

from gpulayer.testing.sim.scenario import Fault, HostPlan, JobPlan, Noise, Scenario, Trouble

MINUTE_MS = 60_000
LONGEST_MS = 3 * MINUTE_MS

# Around the lease of 30 s, and up to three times as long.
_lasting = st.one_of(st.integers(1, 90_000), st.integers(25_000, 40_000))


_MOST_BEFORE = 7


def _earlier(other: int | None, number: int) -> int | None:
    """Of all numbers, so that the first job is drawn like any other, and any other can become the first."""
    return other if other is not None and other < number else None


def hosts(number: int) -> st.SearchStrategy[HostPlan]:
    return st.builds(
        HostPlan,
        number=st.just(number),
        joins_ms=st.integers(0, 5_000),
        cpus=st.sampled_from([2, 1, 4]),
        gpus=st.integers(0, 2),
        rate=st.sampled_from([1.0, 0.96, 1.04]),
    )


def jobs(number: int) -> st.SearchStrategy[JobPlan]:
    return st.builds(
        JobPlan,
        number=st.just(number),
        owner=st.sampled_from(["ann", "ben"]),
        at_ms=st.integers(0, LONGEST_MS),
        cpus=st.sampled_from([1, 2]),
        needs_device=st.booleans(),
        retries=st.sampled_from([2, 0, 1]),
        exclusive=st.booleans(),
        keep_for_ms=st.sampled_from([120_000, 40_000, 3_600_000]),
        grace_ms=st.sampled_from([5_000, 1_000, 30_000]),
        has_source=st.booleans(),
        run_ms=st.sampled_from([500, 10, 20_000, 120_000]),
        exit_code=st.sampled_from([0, 1]),
        after_term_ms=st.sampled_from([1, 60_000]),
        cancel_after_ms=st.one_of(st.none(), st.integers(1, 60_000)),
        after=st.one_of(st.none(), st.integers(0, _MOST_BEFORE)).map(lambda other: _earlier(other, number)),
        after_any=st.booleans(),
    )


@st.composite
def faults(draw: st.DrawFn, host_count: int) -> Fault:
    kind = draw(st.sampled_from(list(Trouble)))
    host = draw(st.integers(0, host_count - 1)) if kind.is_of_host else None
    amount = draw(st.sampled_from([86_400_000, -86_400_000])) if "wall" in kind else draw(st.integers(1, 3))
    return Fault(kind, draw(st.integers(0, LONGEST_MS)), host, draw(_lasting), amount)


noises = st.builds(
    Noise,
    loss=st.sampled_from([0.0, 0.05, 0.2]),
    doubling=st.sampled_from([0.0, 0.05, 0.2]),
    stall=st.sampled_from([0.0, 0.02, 0.1]),
    mean_ms=st.sampled_from([1.0, 50.0]),
    commit_failure=st.sampled_from([0.0, 0.02]),
)


@st.composite
def scenarios(draw: st.DrawFn, *, most_hosts: int = 3, most_jobs: int = 8, most_faults: int = 8) -> Scenario:
    host_count = draw(st.integers(1, most_hosts))
    job_count = draw(st.integers(1, most_jobs))
    troubles = draw(st.lists(faults(host_count), max_size=most_faults))
    return Scenario(
        seed=draw(st.integers(0, 1_000)),
        hosts=tuple(draw(hosts(number)) for number in range(host_count)),
        jobs=tuple(draw(jobs(number)) for number in range(job_count)),
        faults=tuple(sorted(troubles, key=lambda fault: fault.at_ms)),
        noise=draw(noises),
        trouble_ms=LONGEST_MS + 2 * MINUTE_MS,
    )
