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
    assert best_first(found) == ("10.0.0.5", "192.168.1.7", "2001:db8::5")


@pytest.mark.parametrize(
    ("own", "expected"),
    [
        ("192.168.1.7", ("192.168.1.7", "10.0.0.5", "fd00::7")),
        ("::ffff:192.168.1.7", ("192.168.1.7", "10.0.0.5", "fd00::7")),
        ("fd00::7%eth1", ("fd00::7", "10.0.0.5", "192.168.1.7")),
        ("172.17.0.1", ("10.0.0.5", "192.168.1.7", "fd00::7")),
        ("127.0.0.1", ("10.0.0.5", "192.168.1.7", "fd00::7")),
        ("", ("10.0.0.5", "192.168.1.7", "fd00::7")),
    ],
)
def test_r1_the_address_that_reached_the_control_plane_comes_first_unless_it_leads_inside_this_machine(own, expected):
    assert own_first(own, ("10.0.0.5", "192.168.1.7", "fd00::7")) == expected


@pytest.mark.parametrize(
    "text",
    [
        "gpu-box",
        "",
        "0.0.0.0",
        "::",
        "224.0.0.1",
        "ff02::1",
        "127.0.1.1",
        "fe80::1",
        "255.255.255.255",
        "192.0.0.4",
        "::ffff:127.0.0.1",
    ],
)
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
    )
    assert best_first({"lo": ["127.0.0.1"]}) == ()
    assert best_first({"docker0": ["172.17.0.1"], "virbr0": ["192.168.122.1"]}) == (), "never, also where it is alone"


def test_private_shared_and_unique_local_addresses_are_offered():
    texts = ("10.0.0.5", "172.20.0.5", "192.168.1.5", "100.64.0.5", "fd12:3456::5", "2001:db8::5")
    assert best_first({"eth0": texts}) == texts
    assert best_first({"tailscale0": ["100.101.102.103"], "wg0": ["10.9.0.2"], "tun0": ["10.8.0.6"]}) == (
        *("100.101.102.103", "10.9.0.2", "10.8.0.6"),
    )


def test_an_address_that_the_default_route_leaves_from_is_the_machines_own_whatever_its_interface_is_called():
    found = {"br-ex": ["192.168.111.20"], "br-1a2b3c4d5e6f": ["172.18.0.1"], "eth1": ["10.0.0.5"]}
    assert best_first(found, routed=["192.168.111.20"]) == ("192.168.111.20", "10.0.0.5")


@pytest.fixture
def net_root(tmp_path):
    """Interfaces as Linux shows them in /sys/class/net: name -> what is in its folder."""

    def make(**interfaces):
        for name, files in interfaces.items():
            for path, content in files.items():
                file = tmp_path / name / path
                file.parent.mkdir(parents=True, exist_ok=True)
                file.mkdir() if content is None else file.write_text(content)
        return tmp_path

    return make


VETH = {"ifindex": "7\n", "iflink": "6\n", "uevent": "INTERFACE=x\nIFINDEX=7\n"}
TAP = {"ifindex": "8\n", "iflink": "8\n", "uevent": "INTERFACE=x\n", "tun_flags": "0x1002\n"}
CARD = {"ifindex": "2\n", "iflink": "2\n", "uevent": "INTERFACE=eth0\n", "device": None}
VLAN = {"ifindex": "9\n", "iflink": "2\n", "uevent": "DEVTYPE=vlan\nINTERFACE=x\n"}
BOND = {"ifindex": "5\n", "iflink": "5\n", "uevent": "DEVTYPE=bond\nINTERFACE=x\n"}


@pytest.mark.parametrize(
    ("ports", "is_offered"),
    [
        ({}, False),
        ({"a": VETH, "b": TAP}, False),
        ({"a": VETH, "b": CARD}, True),
        ({"a": VLAN, "b": TAP}, True),
        ({"a": BOND}, True),
        ({"a": {"ifindex": "?"}}, True),
    ],
)
def test_a_bridge_is_offered_where_more_is_plugged_in_than_containers(monkeypatch, net_root, ports, is_offered):
    bridge = {"bridge": None, "brif": None} | {f"brif/{name}": "" for name in ports}
    root = net_root(lab=bridge, plain={"ifindex": "3\n"}, **ports)
    found = {
        name: [SimpleNamespace(address=text, family=socket.AF_INET)]
        for name, text in {"plain": "10.0.0.5", "lab": "10.1.0.1"}.items()
    }
    monkeypatch.setattr(psutil, "net_if_addrs", lambda: found)
    monkeypatch.setattr(psutil, "net_if_stats", dict)
    monkeypatch.setattr("gpulayer.net.interfaces._routed", lambda: ["10.0.0.5"])
    assert interface_addresses(net_root=root) == (("10.0.0.5", "10.1.0.1") if is_offered else ("10.0.0.5",))


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
    expected = ("10.0.0.5", "192.168.7.2", "fd00::7", "2001:db8::5")
    assert HostProbe().look(ProbeSite(tmp_path, {})).addresses == expected
    assert NetworkWatch().addresses == expected
    assert read_machine().addresses == expected


def test_no_other_module_asks_for_the_addresses_of_interfaces():
    source = Path(gpulayer.__file__).parent
    asking = [path for path in source.rglob("*.py") if "net_if_addrs" in path.read_text()]
    assert asking == [source / "net" / "interfaces.py"]
