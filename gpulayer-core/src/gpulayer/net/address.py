"""The URL of a control plane, taken apart once. Pure.

Plain http is for this machine's own address alone: over a network it would show the token to everybody on the way.
A name or password in a URL is refused before the URL is read any further, and no message repeats it.
"""

from dataclasses import dataclass
from typing import Final
from urllib.parse import urlsplit

from gpulayer.errors import UsageError

__all__ = ["LOOPBACK", "Address", "host_of", "parse_proxy", "parse_url", "parse_urls"]

LOOPBACK: Final = frozenset({"127.0.0.1", "localhost", "::1"})
_PORTS: Final = {"http": 80, "https": 443}
_FORM: Final = "write it like https://gpu-box:8470, or http://127.0.0.1:8470 on the machine itself"


@dataclass(frozen=True, slots=True)
class Address:
    """Where a control plane listens. prefix: the path that its routes stand under, without a final slash.

    host: with its zone, where it is an IPv6 address that has one (``fe80::1%eth0``, RFC 4007).
    """

    host: str
    port: int
    is_secure: bool = False
    prefix: str = ""

    @property
    def name(self) -> str:
        """The host as the other end knows it, for TLS: a zone names an interface of this machine alone."""
        return self.host.partition("%")[0]

    @property
    def netloc(self) -> str:
        """As a Host header names it: without the zone, which is no part of it (RFC 6874, section 1)."""
        return f"{host_of(self.name)}:{self.port}"

    def __str__(self) -> str:
        return f"{'https' if self.is_secure else 'http'}://{host_of(self.host)}:{self.port}{self.prefix}"


def host_of(host: str) -> str:
    """As a URL writes it: IPv6 in brackets."""
    return f"[{host}]" if ":" in host else host


def parse_url(url: str) -> Address:
    """Raises UsageError for what is no URL of a control plane, and for plain http to another machine."""
    _check_open(url)
    try:
        parts = urlsplit(url.strip())
        host, port = _host(parts.hostname), parts.port
        _check_host(host)
    except ValueError as error:
        raise UsageError(f"{url!r} is not a URL: {error}", hint=_FORM) from None
    if not host or parts.scheme not in _PORTS or parts.query or parts.fragment:
        raise UsageError(f"{url!r} is not a control plane's address", hint=_FORM)
    if parts.scheme == "http" and host not in LOOPBACK:
        raise UsageError(
            f"{url}: plain http would show your token to everybody on the way",
            hint="use the https:// line that `gpulayer up` printed, or forward the port: ssh -L 8470:127.0.0.1:8470",
        )
    return Address(host, port or _PORTS[parts.scheme], parts.scheme == "https", parts.path.rstrip("/"))


def parse_urls(text: str) -> tuple[Address, ...]:
    """Several URLs of one control plane, with commas or spaces between. Raises UsageError, also for none."""
    _check_open(text)  # as a whole: a password may hold commas and spaces, too
    found = tuple(dict.fromkeys(parse_url(each) for each in text.replace(",", " ").split()))
    if not found:
        raise UsageError("no control plane's address was given", hint=_FORM)
    return found


def parse_proxy(text: str) -> Address | None:
    """An HTTP proxy to tunnel through (CONNECT), None for an empty text. Raises UsageError."""
    if not text:
        return None
    _check_open(text)
    try:
        parts = urlsplit(text.strip())
        host, port = _host(parts.hostname), parts.port
        _check_host(host)
    except ValueError:
        parts, host, port = urlsplit(""), "", None
    if parts.scheme != "http" or not host or not port or parts.path not in ("", "/"):
        raise UsageError(f"{text!r} is not a proxy's address", hint="write it like http://proxy.example.org:3128")
    return Address(host, port)


def _check_open(text: str) -> None:
    """Raises UsageError, with nothing of the text, where it holds a name or a password (RFC 3986, section 3.2.1)."""
    if "@" in text or "%40" in text:
        raise UsageError(
            "the address holds a name or a password (NAME:PASSWORD@HOST), which GPUlayer does not take",
            hint="give the address alone; the token goes into GPULAYER_TOKEN. If that password was real and others may "
            "have seen it, change it",
        )


def _check_host(host: str) -> None:
    """Raises ValueError for a name that no resolver takes: a label is 1 to 63 octets, also as IDNA writes it."""
    if ":" in host:
        return
    if any(sign.isspace() or not sign.isprintable() for sign in host):
        raise ValueError("its host holds signs that no name has")
    try:
        host.encode("idna")
    except UnicodeError:
        raise ValueError("its host is no name: each part between dots has 1 to 63 letters") from None


def _host(named: str | None) -> str:
    """A zone may be written with ``%25`` in a URL (RFC 6874), and everywhere else has its bare ``%``."""
    host, mark, zone = (named or "").partition("%")
    return f"{host}%{zone.removeprefix('25') or zone}" if mark and ":" in host else host + mark + zone
