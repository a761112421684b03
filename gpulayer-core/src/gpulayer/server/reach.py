"""How other machines reach a control plane: its URLs, the pins of its certificate, the names that it goes by."""

import logging
import socket
import ssl
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from ipaddress import ip_address
from typing import TYPE_CHECKING, Final

from gpulayer.net.address import host_of, parse_url
from gpulayer.server.addresses import Machine, read_machine
from gpulayer.server.settings import CertificateFiles, ServeSettings
from gpulayer.syncing import Syncs

if TYPE_CHECKING:
    from gpulayer.server.certificates import Certificate, Shown
    from gpulayer.server.listening import Listeners

__all__ = ["Reach", "others_urls", "reach_of"]

_log: Final = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Reach:
    """urls: best first, empty where nobody else gets here. hosts: the names that requests may be addressed to; names:
    those of them that are not the certificate's. shown: the certificate, which may be replaced meanwhile; None without
    TLS."""

    urls: tuple[str, ...]
    names: tuple[str, ...]
    shown: "Shown | None" = None

    @property
    def fingerprints(self) -> tuple[str, ...]:
        """Of a self-signed certificate: a CA vouches for others, and their pins would end with their 90 days."""
        certificate = None if self.shown is None else self.shown.certificate
        return (certificate.pin,) if certificate is not None and certificate.is_self_signed else ()

    @property
    def hosts(self) -> tuple[str, ...]:
        certified = () if self.shown is None else self.shown.certificate.names
        return tuple(dict.fromkeys((*self.names, *certified)))

    @property
    def tls(self) -> ssl.SSLContext | None:
        return None if self.shown is None else self.shown.context


def reach_of(settings: ServeSettings, listeners: "Listeners", *, now_ms: int, syncs: Syncs | None = None) -> Reach:
    """Makes the certificate where there is none yet. Blocks for a second at most for the resolver, and only where
    others are served. Raises UsageError for a public URL or a certificate that can't be used."""
    public = tuple(parse_url(url) for url in settings.public_urls)
    named = tuple(each.host.lower() for each in public)
    urls = tuple(map(str, public))
    if not listeners.others:
        return Reach(urls, (socket.gethostname().lower(), *named))
    machine = read_machine()
    names = tuple(dict.fromkeys((*machine.names, *named)))
    if settings.tls == "off":
        _log.warning("--tls off: plain http on port %d: put a proxy with TLS before it", listeners.port)
        return Reach(urls, names)
    from gpulayer.server.certificates import Shown, load_certificate, own_certificate  # noqa: PLC0415 - for TLS alone

    if isinstance(settings.tls, CertificateFiles):
        certificate = load_certificate(settings.tls, now_ms=now_ms)
        if certificate.warning:
            _log.warning("%s", certificate.warning)
    else:
        folder = settings.state_dir / "tls"
        certificate = own_certificate(folder, names=names, addresses=machine.addresses, now_ms=now_ms, syncs=syncs)
    urls = urls or others_urls(machine, listeners.addresses, listeners.port, certificate)
    return Reach(urls, names, Shown(certificate))


def others_urls(machine: Machine, bound: Sequence[str], port: int, certificate: "Certificate") -> tuple[str, ...]:
    """The URLs to print, best first. bound: the addresses listened on, empty for all. Pure.

    A certificate that a CA vouches for is good under its own names alone, of which those of loopback mean another
    machine to everybody else; a pinned one is good under any address.
    """
    hosts: Collection[str]
    if not certificate.is_self_signed and (own := [name for name in certificate.names if _is_for_others(name)]):
        hosts = own
    elif bound:
        hosts = [each for each in bound if not ip_address(each.partition("%")[0]).is_loopback]
    else:
        hosts = machine.addresses
    return tuple(f"https://{host_of(host)}:{port}" for host in hosts)


def _is_for_others(name: str) -> bool:
    if "*" in name or name in ("localhost", "localhost.localdomain"):
        return False
    try:
        return not ip_address(name).is_loopback
    except ValueError:
        return True
