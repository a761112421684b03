"""Sockets as settings say, the addresses that others are told, and the limit of open files."""

import errno
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from gpulayer.errors import UsageError
from gpulayer.net import Pin, socket_options
from gpulayer.server import listening
from gpulayer.server.addresses import Machine, read_machine
from gpulayer.server.certificates import Certificate
from gpulayer.server.listening import open_listeners
from gpulayer.server.reach import others_urls
from gpulayer.server.settings import CertificateFiles

FILES = CertificateFiles(Path("c"), Path("k"))


def names(listeners):
    return [each.getsockname()[0] for each in listeners.others]


def connects(address, port):
    try:
        socket.create_connection((address, port), timeout=10).close()
    except OSError:
        return False
    return True


def test_loopback_is_one_plain_listener():
    for host in ("127.0.0.1", "localhost"):
        with open_listeners(host, 0, tls="auto") as found:
            assert (found.others, found.addresses, found.url) == ((), (), f"http://127.0.0.1:{found.port}")
            assert connects("127.0.0.1", found.port)
    with open_listeners("::1", 0, tls="off") as found:
        assert (found.others, found.url) == ((), f"http://[::1]:{found.port}")


@pytest.mark.parametrize("host", ["0.0.0.0", "::"])
def test_everywhere_is_both_families_on_one_port_and_a_plain_one_of_ones_own(host):
    with open_listeners(host, 0, tls="auto") as found:
        assert names(found) == ["0.0.0.0", "::"]
        assert {each.getsockname()[1] for each in found.others} == {found.port}
        assert found.addresses == ()
        own_port = found.own.getsockname()[1]
        assert found.url == f"http://127.0.0.1:{own_port}"
        assert own_port != found.port
        port = found.port
        assert all(connects(address, port) for address in ("127.0.0.1", "::1"))
    assert not any(connects(address, port) for address in ("127.0.0.1", "::1"))


def test_without_tls_everywhere_is_ones_own_too():
    with open_listeners("0.0.0.0", 0, tls="off") as found:
        assert found.own is found.others[0]
        assert found.url == f"http://127.0.0.1:{found.port}"


def test_ones_own_certificate_is_shown_on_loopback_where_that_is_asked_for():
    with open_listeners("127.0.0.1", 0, tls=FILES) as found:
        assert (names(found), found.addresses) == (["127.0.0.1"], ("127.0.0.1",))
        assert found.own.getsockname()[1] != found.port


@pytest.mark.parametrize(
    ("host", "tls"),
    [("127.0.0.1", "auto"), ("::1", "off"), ("127.0.0.1", FILES), ("127.0.0.2", "auto"), ("0.0.0.0", "auto")],
)
def test_this_machine_finds_the_next_plane_at_the_port_of_the_one_before_unless_another_program_took_it(host, tls):
    with open_listeners(host, 0, tls=tls) as first:
        url, port = first.url, first.own_port
    with open_listeners(host, 0, tls=tls, own_port=port) as again:
        assert again.url == url
        with open_listeners(host, 0, tls=tls, own_port=port) as other:
            assert other.own_port not in (0, port)


def test_a_port_that_was_asked_for_is_taken_and_no_other():
    with open_listeners("127.0.0.1", 0, tls="auto") as free:
        port = free.own_port
    with open_listeners("127.0.0.1", port, tls="auto", own_port=port + 1) as found:
        assert found.own_port == port
        with pytest.raises(UsageError):
            with open_listeners("127.0.0.1", port, tls="auto", own_port=port + 1):
                pass


def test_one_address_or_name_of_this_machine():
    with open_listeners("127.0.0.2", 0, tls="auto") as found:
        assert (names(found), found.addresses) == (["127.0.0.2"], ("127.0.0.2",))
        assert found.url.startswith("http://127.0.0.1:")
        assert not connects("127.0.0.1", found.port)


@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0", "127.0.0.2"])
def test_what_is_accepted_notices_an_end_that_is_gone(host):
    with open_listeners(host, 0, tls="auto") as found:
        for listener in {found.own, *found.others}:
            address, port = listener.getsockname()[:2]
            local = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(address, address)
            with socket.create_connection((local, port), timeout=10), listener.accept()[0] as accepted:
                for level, option, value in socket_options():
                    assert accepted.getsockopt(level, option) == value


@pytest.mark.parametrize("lacking", ["0.0.0.0", "::"])
def test_a_machine_may_lack_either_family(monkeypatch, lacking):
    real = listening._listener

    def without(stack, address, port, backlog):
        if address == lacking:
            raise OSError(errno.EAFNOSUPPORT, "Address family not supported by protocol")
        return real(stack, address, port, backlog)

    monkeypatch.setattr(listening, "_listener", without)
    with open_listeners("0.0.0.0", 0, tls="auto") as found:
        assert names(found) == [{"::": "0.0.0.0", "0.0.0.0": "::"}[lacking]]


def test_a_free_port_is_free_for_both_families(monkeypatch):
    real, taken = listening._listener, []

    def crowded(stack, address, port, backlog):
        if address == "::" and len(taken) < 3:
            taken.append(port)
            raise OSError(errno.EADDRINUSE, "Address already in use")
        return real(stack, address, port, backlog)

    monkeypatch.setattr(listening, "_listener", crowded)
    with open_listeners("0.0.0.0", 0, tls="auto") as found:
        assert len(taken) == 3
        assert {each.getsockname()[1] for each in found.others} == {found.port}


@pytest.mark.parametrize("family", [socket.AF_INET, socket.AF_INET6])
def test_a_port_that_is_taken_in_either_family_is_refused(family):
    with socket.socket(family) as taken:
        taken.bind(("127.0.0.1" if family == socket.AF_INET else "::1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(UsageError, match=f"port {port} can't be used: address already in use"):
            with open_listeners("0.0.0.0", port, tls="auto"):
                pass


@pytest.mark.parametrize(
    ("host", "said"),
    [
        ("192.0.2.77", "port 8471 on 192.0.2.77 can't be used: cannot assign requested address"),
        ("no-such-host.invalid", "--host no-such-host.invalid: no such address or name"),
        ("a" * 70, "no such address or name"),
    ],
)
def test_an_address_that_is_not_this_machines_says_so(host, said):
    with pytest.raises(UsageError) as caught:
        with open_listeners(host, 8471, tls="auto"):
            pass
    assert said in caught.value.message
    assert "leave --host out" in caught.value.hint


def test_what_this_machine_says_of_itself_can_be_bound_and_resolves():
    found = read_machine()
    assert found.names[0] == socket.gethostname().lower()
    for address in found.addresses:
        with socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET) as probe:
            probe.bind((address, 0))


def test_a_resolver_that_hangs_does_not_hold_up_the_start(monkeypatch):
    hangs = threading.Event()
    monkeypatch.setattr("gpulayer.server.addresses._RESOLVER_S", 0.05)
    monkeypatch.setattr(socket, "getfqdn", lambda name: hangs.wait(20) and name)
    assert read_machine().names == (socket.gethostname().lower(),)
    hangs.set()


MACHINE = Machine(("gpu-box",), ("10.0.0.5", "fd00::5"))


@pytest.mark.parametrize(
    ("bound", "is_self_signed", "named", "urls"),
    [
        ((), True, (), ("https://10.0.0.5:8470", "https://[fd00::5]:8470")),
        (("192.0.2.1",), True, (), ("https://192.0.2.1:8470",)),
        (("127.0.0.2",), True, (), ()),
        ((), False, ("gpu.example.org", "*.example.org"), ("https://gpu.example.org:8470",)),
        (("127.0.0.1",), False, ("gpu.example.org",), ("https://gpu.example.org:8470",)),
        ((), False, ("localhost", "127.0.0.1", "::1", "10.0.0.9"), ("https://10.0.0.9:8470",)),
        ((), False, ("*.example.org",), ("https://10.0.0.5:8470", "https://[fd00::5]:8470")),
        ((), True, ("gpu.example.org",), ("https://10.0.0.5:8470", "https://[fd00::5]:8470")),
    ],
)
def test_others_are_told_what_they_can_trust_the_certificate_for(bound, is_self_signed, named, urls):
    certificate = Certificate(FILES, Pin("sha256:" + "0" * 64), is_self_signed, named)
    assert others_urls(MACHINE, bound, 8470, certificate) == urls


def test_the_limit_of_open_files_is_raised_here_and_not_for_what_is_started():
    code = """
import resource, subprocess, sys
from gpulayer.server.filelimit import give_file_limit, raise_file_limit
hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (100, hard))
before = raise_file_limit()
assert before == (100, hard) and resource.getrlimit(resource.RLIMIT_NOFILE) == (hard, hard)
child = subprocess.Popen(["sh", "-c", "read x; ulimit -n; sh -c 'ulimit -n'"], stdin=-1, stdout=-1)
give_file_limit(child.pid, before)
assert child.communicate(b"go\\n")[0] == b"100\\n100\\n"
give_file_limit(child.pid, before)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0"])
def test_a_trial_gives_nobody_a_connection_and_hinders_nobody(host):
    with open_listeners(host, 0, tls="auto") as found:
        port = found.port
        with pytest.raises(UsageError, match=f"port {port}"), open_listeners(host, port, tls="auto", is_trial=True):
            pass
    with (
        open_listeners(host, port, tls="auto", is_trial=True),
        open_listeners(host, port, tls="auto", is_trial=True),
    ):
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", port), timeout=5)
        with open_listeners(host, port, tls="auto") as found:
            assert found.port == port
            socket.create_connection(("127.0.0.1", port), timeout=5).close()
