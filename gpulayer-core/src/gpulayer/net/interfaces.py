"""Where other machines may reach this one: numeric addresses of its interfaces, never what its host name means.

A host name is often known on the machine alone, or means 127.0.1.1 there (Debian's /etc/hosts); a peer that is told to
go to it finds nobody, or itself, and waits. The same goes for networks of containers and virtual machines inside this
machine, which have the same addresses on every host: a peer that tries one finds somebody of its own. Workers report
these addresses and a control plane prints them, so that both ends of a machine say the same of it. Asks the kernel, and
sends nothing.
"""

import ipaddress
import socket
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final

__all__ = ["best_first", "interface_addresses", "is_for_others", "own_first"]

_LIMIT: Final = 16
_ELSEWHERE: Final = ((socket.AF_INET, "192.0.2.1"), (socket.AF_INET6, "2001:db8::1"))  # documentation: RFC 5737, 3849
# Of software inside this machine, and of its own USB port: there, every Jetson is 192.168.55.1.
_INSIDE: Final = (
    *("docker", "podman", "br-", "veth", "vnet", "cni", "flannel", "cali", "cilium_", "kube-", "nodelocaldns"),
    *("virbr", "lxc", "lxd", "incusbr", "vmnet", "vboxnet", "bridge10", "l4tbr"),
)
_CLAT: Final = ipaddress.ip_network("192.0.0.0/29")  # RFC 7335: the same on every machine that has one
_NET: Final = Path("/sys/class/net")


def interface_addresses(*, net_root: Path = _NET) -> tuple[str, ...]:
    """Of the interfaces that are up now, best first. Blocks for a millisecond or so; asks no resolver."""
    import psutil  # noqa: PLC0415 - 30 ms, and clients don't need it

    states = psutil.net_if_stats()
    found = {
        name: [each.address for each in addresses if each.family in (socket.AF_INET, socket.AF_INET6)]
        for name, addresses in psutil.net_if_addrs().items()
        if name not in states or states[name].isup
    }
    return best_first(found, routed=_routed(), inside=[name for name in found if _leads_inside(net_root, name)])


def best_first(
    found: Mapping[str, Sequence[str]], *, routed: Collection[str] = (), inside: Collection[str] = ()
) -> tuple[str, ...]:
    """Addresses by interface, in the order in which a peer had better try them: first what the default routes leave
    from (``routed``), IPv4 before IPv6. Pure.

    inside: interfaces that lead to containers and virtual machines of this host alone. They are left out, and so are
    those whose name says it; but an address that a default route leaves from is this machine's, whatever has it: a node
    of OpenShift has its own on a bridge ``br-ex``.
    """
    ranked = [
        (text not in routed, ":" in text, text)
        for name, addresses in found.items()
        for text in filter(None, map(is_for_others, addresses))
        if text in routed or not (name in inside or name.startswith(_INSIDE))
    ]
    ranked.sort(key=lambda each: each[:2])  # stable: else as the system has them
    return _without_repetition(text for *_, text in ranked)


def own_first(own: str, addresses: Sequence[str]) -> tuple[str, ...]:
    """``own``, the address from which the control plane was reached, before all others; where it is none of them, the
    control plane is on this machine, perhaps in a container, and nobody else reaches it there. Pure."""
    own = is_for_others(own)
    return _without_repetition((own if own in addresses else "", *addresses))


def is_for_others(text: str) -> str:
    """The address as everybody writes it, or nothing where no other machine can mean this one by it: loopback,
    link-local, unspecified, multicast, broadcast. Pure."""
    try:
        address = ipaddress.ip_address(text.partition("%")[0])
    except ValueError:
        return ""
    address = (address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None) or address
    if address.is_loopback or address.is_link_local or address.is_unspecified or address.is_multicast:
        return ""
    if address in _CLAT or str(address) == "255.255.255.255":
        return ""
    return str(address)


def _leads_inside(net_root: Path, name: str) -> bool:
    """A bridge that nothing but containers and virtual machines of this host is plugged into, or nothing at all. What
    is not told, as on macOS, is not believed to be one."""
    try:
        if not (net_root / name / "bridge").is_dir():
            return False
        ports = [net_root / port.name for port in (net_root / name / "brif").iterdir()]
        return all((port / "tun_flags").exists() or _is_veth(port) for port in ports)
    except (OSError, ValueError):
        return False


def _is_veth(port: Path) -> bool:
    """One end of a pair: a device without hardware and without a type that has another device at its other end."""
    index, other = int((port / "ifindex").read_text()), int((port / "iflink").read_text())
    is_typed = "DEVTYPE=" in (port / "uevent").read_text()  # vlan, bond, vxlan, wlan: those lead out
    return other not in (0, index) and not is_typed and not (port / "device").exists()


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
