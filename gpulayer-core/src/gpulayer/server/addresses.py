"""Under which addresses and names other machines may find this one. Sends nothing.

What the machine says of itself is read by ``read_machine``, which asks the kernel and, for its full name, the resolver;
everything else is pure.
"""

import ipaddress
import socket
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

__all__ = ["Machine", "best_first", "host_of", "read_machine"]

_RESOLVER_S: Final = 1.0
_ELSEWHERE: Final = ((socket.AF_INET, "192.0.2.1"), (socket.AF_INET6, "2001:db8::1"))  # documentation: RFC 5737, 3849
_VIRTUAL: Final = (
    *("docker", "podman", "br-", "veth", "cni", "flannel", "cali"),  # containers
    *("virbr", "lxc", "lxd", "vmnet", "vboxnet"),  # virtual machines
)


@dataclass(frozen=True, slots=True)
class Machine:
    """names: its host name and, where the resolver knows it, the full one. addresses: numeric, best first."""

    names: tuple[str, ...]
    addresses: tuple[str, ...]


def read_machine() -> Machine:
    """Blocks for a second at most, where the resolver does not answer."""
    import psutil  # noqa: PLC0415 - 30 ms, and only a control plane for others needs it

    up = {name for name, stats in psutil.net_if_stats().items() if stats.isup}
    interfaces = {
        name: [each.address for each in found if each.family in (socket.AF_INET, socket.AF_INET6)]
        for name, found in psutil.net_if_addrs().items()
        if name in up
    }
    return Machine(_names(), best_first(interfaces, routed=_routed()))


def best_first(interfaces: Mapping[str, Sequence[str]], *, routed: Sequence[str] = ()) -> tuple[str, ...]:
    """Addresses that another machine could use, numeric: first what the default routes leave from (``routed``), IPv4
    before IPv6, networks that exist inside this machine alone last. Loopback and link-local ones are left out."""
    ranked: list[tuple[bool, bool, int, str]] = []
    for interface, texts in interfaces.items():
        for text in texts:
            try:
                address = ipaddress.ip_address(text.partition("%")[0])
            except ValueError:
                continue
            if address.is_loopback or address.is_link_local or address.is_multicast or address.is_unspecified:
                continue
            is_routed = str(address) in routed
            ranked.append((interface.startswith(_VIRTUAL), not is_routed, address.version, str(address)))
    ranked.sort(key=lambda each: each[:3])  # stable: otherwise in the kernel's order
    return tuple(dict.fromkeys(each[3] for each in ranked))


def host_of(address: str) -> str:
    """As a URL writes it: IPv6 in brackets."""
    return f"[{address}]" if ":" in address else address


def _routed() -> Sequence[str]:
    found: list[str] = []
    for family, elsewhere in _ELSEWHERE:
        try:
            with socket.socket(family, socket.SOCK_DGRAM) as probe:
                probe.connect((elsewhere, 9))  # of a datagram socket: picks the route, and sends nothing
                found.append(probe.getsockname()[0])
        except OSError:
            continue  # no such route, or no such family
    return found


def _names() -> tuple[str, ...]:
    name = socket.gethostname()
    found = [name]
    # The resolver may take many seconds to say that it knows nothing.
    asking = threading.Thread(target=lambda: found.append(socket.getfqdn(name)), name="gpulayer-fqdn", daemon=True)
    asking.start()
    asking.join(_RESOLVER_S)
    return tuple(dict.fromkeys(each.lower() for each in tuple(found) if each and each != "localhost"))
