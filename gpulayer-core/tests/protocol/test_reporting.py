"""How long the answer to a report is waited for."""

import pytest

from gpulayer.ids import Epoch, JobId
from gpulayer.protocol.leases import heartbeat_ms, keep_for
from gpulayer.protocol.reporting import answer_limit_ms
from gpulayer.protocol.state import AgentState
from gpulayer.spec.assignment import Assignment, NodeKey

LATE = 1.1  # the control plane waits a tenth longer than the lease


@pytest.mark.parametrize(("ttl_ms", "beat_ms"), [(30_000, 10_000), (60_000, 10_000), (30_000, 5_000)])
def test_a_lease_survives_two_connections_that_died_in_silence(ttl_ms, beat_ms):
    state = AgentState(lease_ttl_ms=ttl_ms, heartbeat_ms=beat_ms)
    repeated_ms = beat_ms + answer_limit_ms(state, tries=0)
    assert repeated_ms < ttl_ms * 0.6
    assert repeated_ms + 200 + answer_limit_ms(state, tries=1) + 400 < ttl_ms * LATE


def test_an_exclusive_job_outlives_one_lost_connection():
    state = AgentState(lease_ttl_ms=30_000, heartbeat_ms=10_000)
    ends_itself_ms = 30_000 - 10_000 - 1_000
    assert 10_000 + answer_limit_ms(state, tries=0) + 200 < ends_itself_ms


def test_a_slow_network_is_given_ever_more_time_up_to_a_limit():
    state = AgentState(lease_ttl_ms=30_000, heartbeat_ms=10_000)
    limits = [answer_limit_ms(state, tries=tries) for tries in range(10)]
    assert limits == sorted(limits)
    assert limits[-1] == 30_000
    assert answer_limit_ms(AgentState(lease_ttl_ms=2_000, heartbeat_ms=500), tries=0) == 3_000


@pytest.mark.parametrize("lease_ttl_ms", [3_000, 6_000, 30_000, 600_000])
def test_an_exclusive_job_outlives_the_time_between_two_heartbeats_whatever_the_lease(lease_ttl_ms):
    state = AgentState(lease_ttl_ms=lease_ttl_ms)
    job = Assignment(NodeKey(Epoch(1), 0), JobId("7f3a000000000001"), 1, ("true",), exclusive=True, grace_ms=600_000)
    assert heartbeat_ms(lease_ttl_ms) <= min(10_000, 2 * keep_for(state, job)[0] // 3)


def test_the_usual_heartbeat_is_a_third_of_the_usual_lease():
    assert heartbeat_ms(30_000) == 10_000
