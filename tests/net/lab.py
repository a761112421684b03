"""Machines, cables, routers and walls for tests: Linux network namespaces that only a test's own processes are in.

``Lab`` makes machines and puts cables between them; everything is inside namespaces, also the bridges and routers, so
nothing of the host's own network is touched and nothing that is sent leaves them. ``close`` ends every process that is
left in them and deletes them; what a killed run has left is found by its name and removed when the next ``Lab`` is
made. Needs root, iproute2 and nftables: ``missing`` says in words what this host lacks.

Names: a namespace is ``gpulayer-net-<pid>-<start time of that process>-<machine>``; devices have the names given.
"""

import ctypes
import ipaddress
import os
import shutil
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

__all__ = ["Lab", "LabFailed", "Machine", "missing"]

PREFIX: Final = "gpulayer-net"
FOLDER: Final = Path("/run/netns")
_DEADLINE_S: Final = 30.0
_CLONE_NEWNET: Final = 0x40000000
_NETLINK_NETFILTER: Final = 12
_CTNETLINK_DELETE: Final = (1 << 8) | 2
_REQUEST_AND_ACK: Final = 1 | 4


class LabFailed(Exception):
    """A command that builds the network failed; its own words."""


def missing() -> str:
    """Why no network can be made here, or nothing."""
    if sys.platform != "linux" or os.geteuid() != 0:
        return "network namespaces need Linux and root"
    lacking = [name for name in ("ip", "tc", "nft", "nsenter", "unshare") if shutil.which(name) is None]
    if lacking:
        return f"not installed: {', '.join(lacking)} (iproute2, nftables, util-linux)"
    if not os.path.exists("/dev/net/tun"):
        return "there is no /dev/net/tun"
    try:
        with Lab() as lab:
            lab.machine("probe").nft("table ip probe {\nchain post {\ntype nat hook postrouting priority 100\n}\n}")
    except LabFailed as error:
        return f"network namespaces can't be used: {error}"
    return ""


class Lab:
    """Use as a context, or ``close`` it."""

    def __init__(self) -> None:
        _sweep()
        self._prefix = f"{PREFIX}-{os.getpid()}-{_start_time(os.getpid())}"
        self._machines: dict[str, Machine] = {}
        self._links: list[subprocess.Popen[bytes]] = []

    def machine(self, name: str) -> "Machine":
        """A machine without a network: only its own loopback."""
        machine = Machine(name, f"{self._prefix}-{name}")
        _command("ip", "netns", "add", machine.namespace)
        self._machines[name] = machine
        machine.up("lo")
        return machine

    def cable(self, one: "Machine", device: str, other: "Machine", other_device: str) -> None:
        """A wire, plugged in at both ends."""
        _command(
            *("ip", "link", "add", device, "netns", one.namespace, "type", "veth"),
            *("peer", "name", other_device, "netns", other.namespace),
        )
        one.up(device)
        other.up(other_device)

    def long_cable(self, one: "Machine", device: str, other: "Machine", other_device: str, *, delay_ms: int) -> None:
        """A line that every packet is on for ``delay_ms``, in each direction; the kernel at hand may have no netem."""
        relay = subprocess.Popen(
            [
                *(sys.executable, str(Path(__file__).with_name("delay_link.py")), str(delay_ms)),
                *(one.namespace, device, other.namespace, other_device),
            ],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
        )
        self._links.append(relay)
        assert relay.stdout is not None
        if relay.stdout.readline() != b"up\n":
            raise LabFailed("the slow line did not come up")
        one.up(device)
        other.up(other_device)

    def close(self) -> None:
        """May be repeated."""
        for machine in self._machines.values():
            machine.end_all()
        for link in self._links:
            link.kill()
            link.communicate()
        for machine in self._machines.values():
            _command("ip", "netns", "delete", machine.namespace)
        self._machines.clear()
        self._links.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class Machine:
    """One namespace. Devices are those that cables and bridges made."""

    def __init__(self, name: str, namespace: str) -> None:
        self.name = name
        self.namespace = namespace

    # Processes --------------------------------------------------------------------------------------------------------

    def argv(self, *command: str, hosts: Path | None = None, hostname: str = "") -> list[str]:
        """The command line that runs ``command`` on this machine, as the same process.

        hosts: in place of /etc/hosts, with an empty /etc/resolv.conf; hostname: what it takes itself to be called.
        Both for this process and its children alone. Not ``ip netns exec``, which hides control groups.
        """
        inside = ["nsenter", f"--net={FOLDER / self.namespace}", "--"]
        steps = []
        if hosts is not None:
            steps += ['mount --bind "$0" /etc/hosts', "mount --bind /dev/null /etc/resolv.conf"]
        if hostname:
            steps.append('echo "$1" > /proc/sys/kernel/hostname')
        if not steps:
            return [*inside, *command]
        script = " && ".join((*steps, 'shift && exec "$@"'))
        return [*inside, "unshare", "--mount", "--uts", "sh", "-c", script, str(hosts), hostname, *command]

    def run(self, *command: str, **options: Any) -> str:
        """Run it to its end. Returns its stdout; raises LabFailed."""
        return _command(*self.argv(*command), **options)

    def processes(self) -> list[int]:
        return [int(pid) for pid in _command("ip", "netns", "pids", self.namespace).split()]

    def end_all(self) -> None:
        """Kill what runs on this machine, until nothing does."""
        ends = time.monotonic() + _DEADLINE_S
        while pids := self.processes():
            if time.monotonic() > ends:
                raise LabFailed(f"processes of {self.name} can't be killed: {pids}")
            for pid in pids:
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    pass
            time.sleep(0.01)

    @contextmanager
    def inside(self) -> Iterator[None]:
        """This thread is on that machine; a socket that it makes now stays there. Start no threads in it."""
        here = os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
        try:
            _enter(FOLDER / self.namespace)
            try:
                yield
            finally:
                _set_namespace(here)
        finally:
            os.close(here)

    # Devices, addresses, routes ---------------------------------------------------------------------------------------

    def ip(self, *words: str) -> str:
        return _command("ip", "-n", self.namespace, *words)

    def up(self, device: str) -> None:
        self.ip("link", "set", device, "up")

    def down(self, device: str) -> None:
        self.ip("link", "set", device, "down")

    def add(self, device: str, *addresses: str) -> None:
        """Each like 10.0.0.2/24 or fd00::2/64."""
        for address in addresses:
            # Without duplicate address detection, for which a new IPv6 address could not be used for a second or two.
            self.ip("address", "add", address, "dev", device, *(("nodad",) if ":" in address else ()))

    def remove(self, device: str, address: str) -> None:
        self.ip("address", "delete", address, "dev", device)

    def via(self, gateway: str, *, to: str = "default") -> None:
        family = f"-{ipaddress.ip_address(gateway).version}"
        _command("ip", family, "-n", self.namespace, "route", "replace", to, "via", gateway)

    def bridge(self, device: str, *ports: str) -> None:
        """A switch in this machine, with these devices plugged in."""
        self.ip("link", "add", device, "type", "bridge")
        self.up(device)
        for port in ports:
            self.ip("link", "set", port, "master", device)

    def shape(self, device: str, rate: str) -> None:
        """What leaves by ``device`` goes at ``rate`` (like 1mbit) at most."""
        _command(
            *("tc", "-n", self.namespace, "qdisc", "replace", "dev", device, "root"),
            *("tbf", "rate", rate, "burst", "16kb", "latency", "400ms"),
        )

    def _set(self, name: str, value: str) -> None:
        with self.inside():
            Path("/proc/sys/net", name).write_text(value)

    # Walls ------------------------------------------------------------------------------------------------------------

    def nft(self, rules: str) -> None:
        """Line ends count: nested blocks want one after each brace."""
        self.run("nft", "-f", "-", input=rules)

    def forwards(self) -> None:
        """It passes on what is not for itself."""
        self._set("ipv4/ip_forward", "1")
        self._set("ipv6/conf/all/forwarding", "1")

    def masquerades(self, outside: str) -> None:
        """A home router: what goes out has its address, nobody outside can begin anything, and a connection that it
        does not remember (it forgot) is dropped without a word, instead of being taken up in the middle."""
        self.forwards()
        self.nft(
            f"""table inet router {{
  chain out {{
    type nat hook postrouting priority srcnat
    oifname "{outside}" masquerade
  }}
  chain through {{
    type filter hook forward priority filter
    ct state invalid drop
    iifname "{outside}" ct state new drop
  }}
  chain in {{
    type filter hook input priority filter
    iifname "{outside}" ct state {{ new, invalid }} drop
  }}
}}
"""
        )
        self._set("netfilter/nf_conntrack_tcp_loose", "0")  # there once a rule has asked for connections

    def takes_over(self, destination: str, port: int, *, to_port: int) -> None:
        """What passes through for this address and port ends here, at ``to_port``: a man in the middle."""
        family = "ip6" if ":" in destination else "ip"
        self.nft(
            f"""table {family} middle {{
  chain before {{
    type nat hook prerouting priority dstnat
    {family} daddr {destination} tcp dport {port} redirect to :{to_port}
  }}
}}
"""
        )

    @contextmanager
    def wall(self, match: str, *, hook: str = "forward", verdict: str = "drop") -> Iterator[None]:
        """While it stands, packets that ``match`` (in nft's words, like ``ip saddr 10.0.0.1``) do not pass."""
        self.nft(
            f"""table inet wall {{
  chain stop {{
    type filter hook {hook} priority -10
    {match} {verdict}
  }}
}}
"""
        )
        try:
            yield
        finally:
            self.run("nft", "delete", "table", "inet", "wall")

    def forgets_connections(self) -> None:
        """Its table of connections is empty, as after its power was off."""
        with self.inside(), socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _NETLINK_NETFILTER) as kernel:
            kernel.send(struct.pack("=IHHIIBBH", 20, _CTNETLINK_DELETE, _REQUEST_AND_ACK, 1, 0, 0, 0, 0))
            (code,) = struct.unpack_from("=i", kernel.recv(4096), 16)
        if code:
            raise LabFailed(f"connections are not forgotten: {os.strerror(-code)}")


def _command(*argv: str, **options: Any) -> str:
    done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=_DEADLINE_S, **options)
    if done.returncode != 0:
        raise LabFailed(f"{' '.join(argv)}: {(done.stderr or done.stdout).strip()}")
    return done.stdout


def _enter(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        _set_namespace(descriptor)
    finally:
        os.close(descriptor)


def _set_namespace(descriptor: int) -> None:
    if ctypes.CDLL(None, use_errno=True).setns(descriptor, _CLONE_NEWNET) != 0:  # os.setns is there from 3.12 on
        raise LabFailed(f"setns: {os.strerror(ctypes.get_errno())}")


def _sweep() -> None:
    """Remove what runs that were killed have left: names of processes that are no more."""
    for path in FOLDER.glob(f"{PREFIX}-*-*-*") if FOLDER.exists() else ():
        pid, started = path.name[len(PREFIX) + 1 :].split("-")[:2]
        if not pid.isdigit() or _start_time(int(pid)) == started:
            continue
        try:
            Machine("left over", path.name).end_all()
            _command("ip", "netns", "delete", path.name)
        except LabFailed:
            if path.exists():  # else another run has swept it at the same time
                raise


def _start_time(pid: int) -> str:
    """In clock ticks since the host started; empty where there is no such process."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except OSError:
        return ""
