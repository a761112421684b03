"""The ways between machines: an address that changes, a net without IPv4, a long thin line."""

import signal

import pytest

from tests.net.town import SERVER_6, Counting, until


def test_a_worker_that_gets_another_address_in_the_middle_of_a_job_goes_on_and_reports_it(town):
    invitation = town.up()
    desk, _router = town.desk()
    town.joined(desk, *invitation.join)
    assert town.worker("desk")["addresses"] == ["192.168.7.2"]
    job = Counting(town, desk, town.server, "--retries", "0")
    desk.machine.remove("eth0", "192.168.7.2/24")
    desk.machine.add("eth0", "192.168.7.3/24")
    desk.machine.via("192.168.7.1")
    assert job.goes_on()
    until(lambda: town.worker("desk")["addresses"] == ["192.168.7.3"], "its record has the new one")
    assert job.is_whole()


def test_a_link_that_is_pulled_and_plugged_in_again_costs_a_job_nothing(town):
    invitation = town.up(lease="3s")
    desk, _router = town.desk()
    town.joined(desk, *invitation.join)
    job = Counting(town, desk, town.server, "--retries", "0")
    desk.machine.down("eth0")
    until(lambda: job.state() == "unreachable", "the worker is silent")
    desk.machine.up("eth0")
    desk.machine.via("192.168.7.1")
    assert job.goes_on()
    assert job.is_whole()


def test_where_there_is_no_ipv4_ipv6_does_it_all(town):
    invitation = town.up()
    # Its router gives out no IPv4 addresses: the printed line, with the address that can be reached.
    six = town.place(town.public("six", 40, versions=(6,)))
    url = f"https://[{SERVER_6}]:8470"
    town.joined(six, url, *invitation.rest)
    six.variables.update(invitation.client, GPULAYER_URL=url)
    (six.here / "app").mkdir()
    (six.here / "app" / "in").write_text("carried\n")
    ended = six.did("submit", "--source", "app", "--", "sh", "-c", "cat in; cp in out")
    assert ended.out == b"carried\n"
    assert six.came_home() == {"out": b"carried\n"}


@pytest.fixture
def slow(town):
    """(a worker on the net, a laptop on a line of 50 ms and 1 Mbit/s each way)"""
    invitation = town.up()
    near = town.place(town.public("near", 40))
    town.joined(near, *invitation.join)
    laptop, exchange = town.laptop(delay_ms=50)
    laptop.machine.shape("line0", "1mbit")
    exchange.shape("line0", "1mbit")
    laptop.variables.update(invitation.client)
    return near, laptop


def test_over_a_long_thin_line_a_job_is_sent_followed_cancelled_and_brought_home(town, slow):
    near, laptop = slow
    (laptop.here / "app").mkdir()
    content = bytes(range(256)) * 400  # 100 kB: most of a second
    (laptop.here / "app" / "in").write_bytes(content)
    ended = laptop.did("submit", "--source", "app", "--", "sh", "-c", "rev < /dev/null; cp in out; echo copied")
    assert ended.out == b"copied\n"
    assert laptop.came_home() == {"out": content}

    job = Counting(town, near, laptop)
    assert job.goes_on()
    job.process.send_signal(signal.SIGINT)
    ended = laptop.end(job.process)
    assert (ended.code, town.job(job.id)["state"]) == (7, "cancelled"), ended.err
    assert laptop.did("job", "logs", job.id).out == job.out.read_bytes()
