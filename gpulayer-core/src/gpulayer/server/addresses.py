"""Under which addresses and names other machines may find this one: the kernel is asked, and for its full name the
resolver."""

import socket
import threading
from dataclasses import dataclass
from typing import Final

from gpulayer.net.interfaces import interface_addresses

__all__ = ["Machine", "read_machine"]

_RESOLVER_S: Final = 1.0


@dataclass(frozen=True, slots=True)
class Machine:
    """names: its host name and, where the resolver knows it, the full one. addresses: numeric, best first."""

    names: tuple[str, ...]
    addresses: tuple[str, ...]


def read_machine() -> Machine:
    """Blocks for a second at most, where the resolver does not answer."""
    return Machine(_names(), interface_addresses())


def _names() -> tuple[str, ...]:
    name = socket.gethostname()
    found = [name]
    # The resolver may take many seconds to say that it knows nothing.
    asking = threading.Thread(target=lambda: found.append(socket.getfqdn(name)), name="gpulayer-fqdn", daemon=True)
    asking.start()
    asking.join(_RESOLVER_S)
    return tuple(dict.fromkeys(each.lower() for each in tuple(found) if each and each != "localhost"))
