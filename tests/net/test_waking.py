"""A machine that is suspended, or a control plane that moves: who was away finds back by itself."""

import signal

from tests.net.town import SERVER, Counting, until


def test_a_worker_that_sleeps_for_longer_than_lease_and_router_remember_goes_on_when_it_wakes(town):
    invitation = town.up(lease="3s")
    desk, router = town.desk()
    town.joined(desk, *invitation.join)
    job = Counting(town, desk, town.server, "--retries", "0")
    desk.signal_all(signal.SIGSTOP)
    router.forgets_connections()
    until(lambda: job.state() == "unreachable", "the worker is silent")
    before = job.count()
    desk.signal_all(signal.SIGCONT)
    until(lambda: job.state() == "running", "it is back")
    until(lambda: job.count() > before, "what it prints comes")
    assert job.goes_on()
    assert job.is_whole()


def move(town, address="203.0.113.11"):
    """The server gives its address up for another, as a machine that was carried to another room."""
    town.server.machine.remove("eth0", f"{SERVER}/24")
    town.server.machine.add("eth0", f"{address}/24")
    town.server.machine.via("203.0.113.1")
    return f"https://{address}:8470"


def test_a_moved_control_plane_is_found_by_one_changed_context_also_by_who_follows_a_job(town):
    invitation = town.up()
    near = town.place(town.public("near", 40))
    laptop, _exchange = town.laptop(delay_ms=5)
    new_url = "https://203.0.113.11:8470"
    # The worker was given both addresses, the laptop knows only where it is now.
    town.joined(near, *invitation.urls, new_url, *invitation.rest)
    # The token of a variable is taken for the control plane of GPULAYER_URL alone.
    pasted = {name: invitation.client[name] for name in ("GPULAYER_URL", "GPULAYER_TOKEN")}
    laptop.did("context", "add", "lab", *invitation.urls, *invitation.trust, variables=pasted)
    job = Counting(town, near, laptop, "--retries", "0")
    assert move(town) == new_url
    laptop.did("context", "add", "lab", new_url)
    assert job.goes_on()
    assert job.is_whole()


def test_a_worker_is_the_same_again_after_it_joined_at_a_moved_control_planes_address(town):
    invitation = town.up()
    desk, _router = town.desk()
    first = desk.join(*invitation.join)  # without a name of its own: its folder is found by the fingerprint
    town.ready(desk)
    before = town.worker("desk")
    job = Counting(town, desk, town.server, "--retries", "0")
    new_url = move(town)
    first.send_signal(signal.SIGKILL)  # the agent: what it runs runs on
    first.wait()
    desk.join(new_url, *invitation.trust)
    until(lambda: desk.says("the connection is back") or job.goes_on(), desk.log.read_text)
    assert job.goes_on()
    assert job.is_whole()
    after = town.worker("desk")
    assert (after["id"], after["name"]) == (before["id"], "desk")
