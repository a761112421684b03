"""Where other machines may reach this one: numeric addresses of its interfaces, never what its host name means.

A host name is often known on the machine alone, or means 127.0.1.1 there (Debian's /etc/hosts); a peer that is told to
go to it finds nobody, or itself, and waits. Workers report these addresses and a control plane prints them, so that
both ends of a machine say the same of it. Asks the kernel, and sends nothing.
"""

import ipaddress
import socket
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

__all__ = ["best_first", "interface_addresses", "is_for_others", "own_first"]

_LIMIT: Final = 16
_ELSEWHERE: Final = ((socket.AF_INET, "192.0.2.1"), (socket.AF_INET6, "2001:db8::1"))  # documentation: RFC 5737, 3849
# Of software inside this machine: containers and virtual machines have the same addresses on every host.
_INSIDE: Final = (
    *("docker", "podman", "br-", "veth", "cni", "flannel", "cali"),
    *("virbr", "lxc", "lxd", "vmnet", "vboxnet"),
)


def interface_addresses() -> tuple[str, ...]:
    """Of the interfaces that are up now, best first. Blocks for less than a millisecond; asks no resolver."""
    import psutil  # noqa: PLC0415 - 30 ms, and clients don't need it

    states = psutil.net_if_stats()
    found = {
        name: [each.address for each in addresses if each.family in (socket.AF_INET, socket.AF_INET6)]
        for name, addresses in psutil.net_if_addrs().items()
        if name not in states or states[name].isup
    }
    return best_first(found, routed=_routed())


def best_first(found: Mapping[str, Sequence[str]], *, routed: Sequence[str] = ()) -> tuple[str, ...]:
    """Addresses by interface, in the order in which a peer had better try them: first what the default routes leave
    from (``routed``), IPv4 before IPv6, what belongs to containers and virtual machines of this host last. Pure."""
    ranked = [
        (name.startswith(_INSIDE), text not in routed, ":" in text, text)
        for name, addresses in found.items()
        for text in filter(None, map(is_for_others, addresses))
    ]
    ranked.sort(key=lambda each: each[:3])  # stable: else as the system has them
    return _without_repetition(text for *_, text in ranked)


def own_first(own: str, addresses: Sequence[str]) -> tuple[str, ...]:
    """``own``, the address from which the control plane was reached, before all others; left out where it is only for
    this machine. Pure."""
    return _without_repetition((is_for_others(own), *addresses))


def is_for_others(text: str) -> str:
    """The address as everybody writes it, or nothing where no other machine can mean this one by it: loopback,
    link-local, unspecified, multicast. Pure."""
    try:
        address = ipaddress.ip_address(text.partition("%")[0])
    except ValueError:
        return ""
    address = (address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None) or address
    if address.is_loopback or address.is_link_local or address.is_unspecified or address.is_multicast:
        return ""
    return str(address)


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


def _without_repetition(texts: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(filter(None, texts)))[:_LIMIT]
