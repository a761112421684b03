"""A machine that is suspended, or a control plane that moves: who was away finds back by itself."""

import signal

from tests.net.town import Counting, until


def test_a_worker_that_sleeps_for_longer_than_lease_and_router_remember_goes_on_when_it_wakes(town):
    invitation = town.up(lease="2s")
    desk, router = town.desk()
    town.joined(desk, *invitation.join)
    job = Counting(desk, town.server, "--retries", "0")
    desk.signal_all(signal.SIGSTOP)
    router.forgets_connections()
    until(lambda: job.state() == "unreachable", "the worker is silent")
    before = job.count()
    desk.signal_all(signal.SIGCONT)
    until(lambda: job.state() == "running", "it is back")
    until(lambda: job.count() > before, "what it prints comes")
    assert job.goes_on()
    assert job.is_whole()
