"""A worker behind a home router: nobody can call it, and what the router forgets or loses costs time and nothing else.

The log's bytes are compared one by one, and the attempts counted: nothing is lost, doubled or run again.
"""

import socket
import time

import pytest

from tests.net.town import SERVER, Counting, until


def ready(town, *, lease=""):
    invitation = town.up(lease=lease)
    desk, router = town.desk()
    town.joined(desk, *invitation.join)
    return desk, router


def test_a_worker_behind_a_masquerade_joins_and_runs_jobs_though_nobody_can_call_it(town):
    desk, _router = ready(town)
    with desk.machine.inside():
        waiting = socket.create_server(("", 7000))
    with waiting, town.server.machine.inside():
        for address in ("192.168.7.2", "203.0.113.20"):
            with pytest.raises(OSError, match=r"timed out|unreachable"):
                socket.create_connection((address, 7000), timeout=0.3).close()
    ended = town.server.did("submit", "--", "sh", "-c", "echo out; echo err >&2; echo made > file")
    assert ended.out == b"out\nerr\n"
    assert town.server.came_home() == {"file": b"made\n"}
    job = Counting(town, desk, town.server)
    assert job.goes_on()
    assert job.is_whole()


def test_a_router_that_forgets_all_connections_costs_a_job_nothing(town):
    desk, router = ready(town)
    job = Counting(town, desk, town.server, "--retries", "0")
    router.forgets_connections()
    assert job.goes_on()
    # A held request has nothing to send, so it notices last.
    assert town.server.did("submit", "--", "echo", "next").out == b"next\n"
    assert job.is_whole()


@pytest.mark.parametrize("towards", ["worker", "plane"])
def test_one_way_loss_is_not_noticed_within_the_lease_and_after_it_shows_the_job_unreachable_until_it_ends(
    town, towards
):
    desk, router = ready(town, lease="6s")
    job = Counting(town, desk, town.server, "--retries", "0")
    lost = f"ip {'saddr' if towards == 'worker' else 'daddr'} {SERVER}"
    with router.wall(lost):
        ends = time.monotonic() + 2.0
        while time.monotonic() < ends:
            time.sleep(0.05)
            assert job.state() == "running"
    assert job.goes_on()
    with router.wall(lost):
        until(lambda: job.state() == "unreachable", "the worker is silent")
    until(lambda: job.state() == "running", "it is back")
    assert job.goes_on()
    assert job.is_whole()
