"""The lab's own parts do what their names say; what the other tests here tell rests on that."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.net.lab import FOLDER, PREFIX, Lab

ROOT = Path(__file__).parents[2]


def listener(machine, port=7000, family=socket.AF_INET):
    with machine.inside():
        made = socket.create_server(("", port), family=family)
    made.settimeout(10)
    return made


def connect(machine, address, port=7000, timeout=10.0):
    with machine.inside():
        return socket.create_connection((address, port), timeout=timeout)


def answers(machine, address, port=7000, timeout=0.3):
    try:
        connect(machine, address, port, timeout).close()
    except OSError:
        return False
    return True


@pytest.fixture
def pair(lab):
    one, other = lab.machine("one"), lab.machine("other")
    lab.cable(one, "eth0", other, "eth0")
    one.add("eth0", "10.1.0.1/24", "fd01::1/64")
    other.add("eth0", "10.1.0.2/24", "fd01::2/64")
    return one, other


@pytest.fixture
def home(lab):
    """(inside, router, outside): only the router has a way to the inside."""
    inside, router, outside = lab.machine("inside"), lab.machine("router"), lab.machine("outside")
    lab.cable(inside, "eth0", router, "lan0")
    lab.cable(router, "wan0", outside, "eth0")
    inside.add("eth0", "192.168.7.2/24")
    router.add("lan0", "192.168.7.1/24")
    router.add("wan0", "10.2.0.1/24")
    outside.add("eth0", "10.2.0.2/24")
    inside.via("192.168.7.1")
    router.masquerades("wan0")
    return inside, router, outside


def test_a_cable_carries_both_versions_and_nothing_after_the_link_is_down(pair):
    one, other = pair
    with listener(other, family=socket.AF_INET6), listener(other):
        assert answers(one, "10.1.0.2")
        assert answers(one, "fd01::2")
        other.down("eth0")
        assert not answers(one, "10.1.0.2")


def test_a_switch_joins_what_is_plugged_in(lab):
    switch, one, other = lab.machine("switch"), lab.machine("one"), lab.machine("other")
    for machine, address in ((one, "10.1.0.1/24"), (other, "10.1.0.2/24")):
        lab.cable(machine, "eth0", switch, machine.name)
        machine.add("eth0", address)
    switch.bridge("br0", "one", "other")
    with listener(other):
        assert answers(one, "10.1.0.2")


def test_behind_a_masquerade_one_can_call_out_with_the_routers_address_and_not_be_called(home):
    inside, _router, outside = home
    with listener(outside) as waiting, listener(inside):
        with connect(inside, "10.2.0.2"):
            taken, (caller, _) = waiting.accept()
            taken.close()
        assert caller == "10.2.0.1"
        assert not answers(outside, "192.168.7.2")
        assert not answers(outside, "10.2.0.1")


def test_a_router_that_forgot_drops_what_it_had_carried_in_both_directions_without_a_word(home):
    inside, router, outside = home
    with listener(outside) as waiting, connect(inside, "10.2.0.2") as call:
        taken, _ = waiting.accept()
        with taken:
            call.sendall(b"before")
            assert taken.recv(100) == b"before"
            router.forgets_connections()
            taken.settimeout(0.5)
            call.settimeout(0.5)
            call.sendall(b"after")
            with pytest.raises(TimeoutError):
                taken.recv(100)
            taken.sendall(b"after")
            with pytest.raises(TimeoutError):
                call.recv(100)
        assert answers(inside, "10.2.0.2", timeout=5)


def test_a_wall_stands_as_long_as_it_is_wanted(home):
    inside, router, outside = home
    with listener(outside):
        with router.wall("ip saddr 10.2.0.2"):
            assert not answers(inside, "10.2.0.2")
        with router.wall("ip daddr 10.2.0.2", verdict="reject"), pytest.raises(ConnectionRefusedError):
            connect(inside, "10.2.0.2")
        assert answers(inside, "10.2.0.2", timeout=5)


def test_a_man_in_the_middle_gets_what_was_meant_for_another(home):
    inside, router, outside = home
    router.takes_over("10.2.0.2", 7000, to_port=7001)
    with listener(outside) as meant, listener(router, 7001) as middle, connect(inside, "10.2.0.2"):
        middle.accept()[0].close()
        meant.settimeout(0.05)
        with pytest.raises(TimeoutError):
            meant.accept()


def test_a_long_cable_takes_its_time_each_way(lab):
    one, other = lab.machine("one"), lab.machine("other")
    lab.long_cable(one, "line0", other, "line0", delay_ms=50)
    one.add("line0", "10.3.0.1/24")
    other.add("line0", "10.3.0.2/24")
    with listener(other) as waiting:
        began = time.monotonic()
        with connect(one, "10.3.0.2") as call:
            waiting.accept()[0].close()
            assert call.recv(1) == b""
        assert time.monotonic() - began >= 0.2  # there and back twice; how much longer is no matter


def test_a_shaped_line_lets_no_more_through_than_its_rate(pair):
    one, other = pair
    one.shape("eth0", "1mbit")
    with listener(other) as waiting, connect(one, "10.1.0.2") as call:
        taken, _ = waiting.accept()
        with taken:
            began = time.monotonic()
            call.sendall(bytes(100_000))
            call.shutdown(socket.SHUT_WR)
            while taken.recv(65536):
                pass
        assert time.monotonic() - began >= 0.5  # 0.8 s, less the burst


def test_a_process_may_have_a_name_and_a_list_of_hosts_of_its_own(lab, tmp_path):
    machine = lab.machine("one")
    hosts = tmp_path / "hosts"
    hosts.write_text("127.0.0.1 localhost\n127.0.1.1 lonely\n")
    code = "import socket, json; n = socket.gethostname(); print(json.dumps([n, socket.gethostbyname(n)]))"
    argv = machine.argv(sys.executable, "-c", code, hosts=hosts, hostname="lonely")
    assert json.loads(subprocess.run(argv, capture_output=True, check=True).stdout) == ["lonely", "127.0.1.1"]
    assert socket.gethostname() != "lonely"


def test_what_a_killed_run_left_is_removed_by_the_next_with_the_processes_in_it(lab):
    script = (
        "import subprocess, sys, time; from tests.net.lab import Lab; machine = Lab().machine('left');"
        "subprocess.Popen(machine.argv('sleep', '600'), stdout=subprocess.DEVNULL);"
        "print(machine.namespace, flush=True); time.sleep(600)"
    )
    run = subprocess.Popen([sys.executable, "-c", script], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    with run:
        assert run.stdout is not None
        name = run.stdout.readline().strip()
        with Lab():
            assert (FOLDER / name).exists()  # its run lives
        run.send_signal(signal.SIGKILL)
    mine = f"{PREFIX}-{os.getpid()}-"
    assert not name.startswith(mine)
    with Lab():
        assert not (FOLDER / name).exists()
