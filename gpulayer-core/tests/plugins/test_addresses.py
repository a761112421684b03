"""Where other machines may reach a worker (case R1: a host name that only the machine itself can resolve)."""

import ipaddress
import socket

import pytest

from gpulayer.plugins.builtin.addresses import best_first, interface_addresses, is_for_others, own_first
from gpulayer.plugins.builtin.host import HostProbe
from gpulayer.plugins.contracts import ProbeSite


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
