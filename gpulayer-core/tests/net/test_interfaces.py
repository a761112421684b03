"""Where other machines may reach this one (case R1: a host name that only the machine itself can resolve)."""

import ipaddress
import socket
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

import gpulayer
from gpulayer.net.interfaces import best_first, interface_addresses, is_for_others, own_first
from gpulayer.plugins.builtin.host import HostProbe
from gpulayer.plugins.contracts.probe import ProbeSite
from gpulayer.server.addresses import read_machine
from gpulayer.worker.network import NetworkWatch


def test_r1_a_host_name_that_means_127_0_1_1_here_plays_no_part(monkeypatch, tmp_path):
    def asked(*_, **__):
        raise AssertionError("a host name was looked up")

    for name in ("gethostname", "getfqdn", "gethostbyname", "gethostbyname_ex", "getaddrinfo"):
        monkeypatch.setattr(socket, name, asked)
    addresses = HostProbe().look(ProbeSite(tmp_path, {})).addresses
    assert addresses == interface_addresses()
    for text in addresses:
        address = ipaddress.ip_address(text)
        assert not address.is_loopback
        assert not address.is_link_local


def test_r1_what_only_this_machine_can_mean_by_an_address_is_left_out():
    found = {
        "lo": ["127.0.0.1", "::1"],
        "hosts": ["127.0.1.1"],
        "eth0": ["fe80::1%eth0", "169.254.3.4", "10.0.0.5", "2001:db8::5"],
        "docker0": ["172.17.0.1"],
        "eth1": ["192.168.1.7", "10.0.0.5"],
    }
    assert best_first(found) == ("10.0.0.5", "192.168.1.7", "2001:db8::5", "172.17.0.1")


@pytest.mark.parametrize(
    ("own", "expected"),
    [
        ("192.168.1.7", ("192.168.1.7", "10.0.0.5", "172.17.0.1")),
        ("::ffff:192.168.1.7", ("192.168.1.7", "10.0.0.5", "172.17.0.1")),
        ("100.64.0.9", ("100.64.0.9", "10.0.0.5", "192.168.1.7", "172.17.0.1")),
        ("127.0.0.1", ("10.0.0.5", "192.168.1.7", "172.17.0.1")),
        ("", ("10.0.0.5", "192.168.1.7", "172.17.0.1")),
    ],
)
def test_r1_the_address_that_reached_the_control_plane_comes_first_unless_it_is_loopback(own, expected):
    assert own_first(own, ("10.0.0.5", "192.168.1.7", "172.17.0.1")) == expected


@pytest.mark.parametrize("text", ["gpu-box", "", "0.0.0.0", "::", "224.0.0.1", "ff02::1", "127.0.1.1", "fe80::1"])
def test_r1_names_and_addresses_for_nobody_in_particular_are_no_addresses(text):
    assert is_for_others(text) == ""


def test_a_machine_with_very_many_addresses_names_the_best_of_them():
    assert len(best_first({"eth0": [f"10.0.{n // 250}.{n % 250 + 1}" for n in range(1000)]})) == 16


def test_addresses_come_best_first_and_without_those_that_lead_nowhere():
    interfaces = {
        "lo": ["127.0.0.1", "::1"],
        "docker0": ["172.17.0.1"],
        "br-1a2b": ["172.18.0.1", "fd12::1"],
        "wg0": ["10.9.0.2"],
        "eth1": ["fe80::1%eth1", "2001:db8::7", "192.168.7.2", "169.254.1.1", "224.0.0.1", "0.0.0.0", "no address"],
        "eth0": ["10.0.0.5", "2001:db8::5", "10.0.0.6"],
    }
    assert best_first(interfaces, routed=["10.0.0.5", "2001:db8::5"]) == (
        *("10.0.0.5", "2001:db8::5"),
        *("10.9.0.2", "192.168.7.2", "10.0.0.6", "2001:db8::7"),
        *("172.17.0.1", "172.18.0.1", "fd12::1"),
    )
    assert best_first({"lo": ["127.0.0.1"]}) == ()


def test_worker_probe_and_control_plane_say_the_same_of_one_machine(monkeypatch, tmp_path):
    interfaces = {
        "virbr0": ["192.168.122.1"],
        "vboxnet0": ["192.168.56.1"],
        "podman0": ["10.88.0.1"],
        "lxdbr0": ["10.1.1.1"],
        "eth1": ["fd00::7%eth1", "::ffff:192.168.7.2", "fe80::1%eth1"],
        "eth0": ["2001:db8::5", "10.0.0.5"],
        "down0": ["10.77.0.1"],
    }
    found = {
        name: [
            SimpleNamespace(address=text, family=socket.AF_INET6 if ":" in text else socket.AF_INET) for text in each
        ]
        for name, each in interfaces.items()
    }
    monkeypatch.setattr(psutil, "net_if_addrs", lambda: found)
    monkeypatch.setattr(psutil, "net_if_stats", lambda: {name: SimpleNamespace(isup=name != "down0") for name in found})
    monkeypatch.setattr("gpulayer.net.interfaces._routed", lambda: ["10.0.0.5"])
    expected = (
        *("10.0.0.5", "192.168.7.2", "fd00::7", "2001:db8::5"),
        *("192.168.122.1", "192.168.56.1", "10.88.0.1", "10.1.1.1"),
    )
    assert HostProbe().look(ProbeSite(tmp_path, {})).addresses == expected
    assert NetworkWatch().addresses == expected
    assert read_machine().addresses == expected


def test_no_other_module_asks_for_the_addresses_of_interfaces():
    source = Path(gpulayer.__file__).parent
    asking = [path for path in source.rglob("*.py") if "net_if_addrs" in path.read_text()]
    assert asking == [source / "net" / "interfaces.py"]
