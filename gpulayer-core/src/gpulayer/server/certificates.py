"""The certificate that this control plane shows: made once in its state folder, or somebody's own from two files.

Clients trust a self-made one by its pin, so it must stay the same for years, and a crash must never leave half of it:
it is made in a folder of its own that then gets its name. Own files may be replaced while the plane runs (they are
renewed every few weeks): ``Shown.look`` notices that, and keeps what it has where the new ones are no good.

``cryptography`` is loaded only where a certificate is made or somebody's own is read: it is slow to start.
"""

import logging
import os
import re
import shutil
import ssl
import stat
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path
from typing import Any, Final

from gpulayer.clock import iso_utc
from gpulayer.errors import UsageError
from gpulayer.faults import here
from gpulayer.net import Pin, pin_of
from gpulayer.server.settings import CertificateFiles
from gpulayer.syncing import Syncs

__all__ = ["Certificate", "Shown", "load_certificate", "own_certificate", "server_context"]

_LIFE: Final = timedelta(days=3650)
_OTHERS: Final = 0o077
_BACK: Final = timedelta(days=1)  # other machines' clocks may be behind
_BLOCK: Final = re.compile(rb"-----BEGIN CERTIFICATE-----.+?-----END CERTIFICATE-----", re.DOTALL)
_Signature = tuple[tuple[int, int, int], ...]

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Certificate:
    """What clients need to know of it. names: the DNS names and addresses it is for, none where its pin says all.

    warning: what is wrong with it for people, empty where nothing is.
    """

    files: CertificateFiles
    pin: Pin
    is_self_signed: bool
    names: tuple[str, ...] = ()
    warning: str = ""


def own_certificate(
    folder: Path, *, names: Iterable[str], addresses: Iterable[str], now_ms: int, syncs: Syncs | None = None
) -> Certificate:
    """The certificate of this state folder, made at its first use: ``folder/cert.pem`` and, mode 0600, ``key.pem``.

    Whoever calls this holds the lock of the state folder. Raises UsageError where one of the two files is missing or
    can't be read, because another certificate would lock everybody out who was given the old one's pin; where others
    may read the key; and where none can be made.
    """
    files = CertificateFiles(folder / "cert.pem", folder / "key.pem")
    try:
        if not folder.exists():
            _make(folder, names, addresses, now_ms, syncs or Syncs())
    except OSError as error:
        raise UsageError(f"no certificate can be made in {folder}: {_said(error)}") from None
    hint = f"bring {folder} back, or remove it: then there is a new certificate, with a new fingerprint for everybody"
    try:
        server_context(files)
        pin = _pin(_content(files.cert), files.cert)
        mode = os.stat(files.key).st_mode
    except OSError as error:
        raise UsageError(f"{files.key} can't be read: {_said(error)}", hint=hint) from None
    except UsageError as error:
        raise UsageError(error.message, hint=hint) from None
    if mode & _OTHERS:
        raise UsageError(
            f"others on this machine may read {files.key} (mode {stat.S_IMODE(mode):04o}): they could pass for this "
            "control plane",
            hint=f"chmod 600 {files.key}; if somebody may have, remove {folder}: then there is a new certificate, with "
            "a new fingerprint for everybody",
        )
    return Certificate(files, pin, is_self_signed=True)


def load_certificate(files: CertificateFiles, *, now_ms: int) -> Certificate:
    """Somebody's own. Raises UsageError that says which file is wrong, and how."""
    from cryptography import x509  # noqa: PLC0415 - slow: see the module

    server_context(files)
    content = _content(files.cert)
    try:
        leaf = x509.load_pem_x509_certificates(content)[0]
    except ValueError as error:
        raise UsageError(f"{files.cert} is no certificate: {error}") from None
    warning = _dates(leaf, files.cert, now_ms)
    return Certificate(files, _pin(content, files.cert), _is_self_signed(leaf), _names_of(leaf), warning)


def server_context(files: CertificateFiles) -> ssl.SSLContext:
    """TLS 1.2 and newer. Raises UsageError for files that are missing, no PEM, encrypted, or no pair."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_RENEGOTIATION
    context.num_tickets = 0  # no client resumes a session: tickets would be two more records a handshake
    for path in (files.cert, files.key):
        try:
            with open(path, "rb"):
                pass
        except OSError as error:
            raise _unreadable(path, error) from None

    def password() -> str:  # asked only for an encrypted key; without this, OpenSSL would ask the terminal
        raise UsageError(
            f"the key {files.key} is encrypted: nobody is here to type its password",
            hint="give a key without one, mode 0600",
        )

    try:
        context.load_cert_chain(files.cert, files.key, password=password)
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            raise UsageError(f"the key {files.key} does not belong to the certificate {files.cert}") from None
        blamed = files.cert if not _BLOCK.search(_content(files.cert)) else files.key
        raise UsageError(
            f"{blamed} can't be used for TLS: {error.reason or error}", hint="both files must be PEM"
        ) from None
    except OSError as error:
        raise UsageError(f"{files.cert} and {files.key} can't be read: {error.strerror}") from None
    return context


class Shown:
    """The certificate in use. ``context`` is for listeners: connections that are made later get what is in use then."""

    def __init__(self, certificate: Certificate) -> None:
        self.certificate = certificate
        self._files = certificate.files
        self._seen = _signature(self._files)
        self._pending = self._seen
        self.context = _Current(ssl.PROTOCOL_TLS_SERVER)
        self.context.current = server_context(self._files)

    def look(self, *, now_ms: int) -> bool:
        """Whether the files were replaced and are in use now. Reads files; call it now and then.

        Files are tried once they have stayed the same for two looks: the two are never written at one instant. Where
        they are no good, whatever is wrong with them, that is said once in the log, and the old ones stay in use.
        """
        signature = _signature(self._files)
        if signature != self._pending:
            self._pending = signature
            return False
        if signature == self._seen:
            return False
        self._seen = signature
        try:
            fresh, context = load_certificate(self._files, now_ms=now_ms), server_context(self._files)
        except UsageError as error:
            _log.warning("the new certificate is not used, the old one stays: %s", error.message)
            return False
        except Exception:  # somebody else's files, read by two libraries: none may end a plane that serves
            _log.warning("the new certificate is not used, the old one stays", exc_info=True)
            return False
        if fresh.is_self_signed and fresh.pin != self.certificate.pin:
            _log.warning("the certificate was replaced: clients and workers need its fingerprint %s", fresh.pin)
        if fresh.warning:
            _log.warning("%s", fresh.warning)
        self.certificate, self.context.current = fresh, context
        return True


class _Current(ssl.SSLContext):
    """Hands each new connection on to another context. asyncio asks its context for nothing else."""

    current: ssl.SSLContext

    def wrap_bio(self, *args: Any, **kwargs: Any) -> ssl.SSLObject:  # Any: as its parent's, whatever the version
        return self.current.wrap_bio(*args, **kwargs)


def _make(folder: Path, names: Iterable[str], addresses: Iterable[str], now_ms: int, syncs: Syncs) -> None:
    from cryptography import x509  # noqa: PLC0415 - slow: see the module
    from cryptography.hazmat.primitives import hashes, serialization  # noqa: PLC0415
    from cryptography.hazmat.primitives.asymmetric import ec  # noqa: PLC0415
    from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID  # noqa: PLC0415

    key = ec.generate_private_key(ec.SECP256R1())
    called = [name for name in dict.fromkeys((*names, "localhost")) if name.isascii() and 0 < len(name) <= 253]
    numeric = [ip_address(text) for text in dict.fromkeys((*addresses, "127.0.0.1", "::1"))]
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "GPUlayer control plane")])
    now = datetime.fromtimestamp(now_ms / 1000, UTC)
    certificate = (
        x509.CertificateBuilder(subject, subject, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - _BACK)
        .not_valid_after(now + _LIFE)
        .add_extension(
            x509.SubjectAlternativeName([*map(x509.DNSName, called), *map(x509.IPAddress, numeric)]), critical=False
        )
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .sign(key, hashes.SHA256())
    )
    secret = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    making = folder.with_name(f"{folder.name}.new")
    shutil.rmtree(making, ignore_errors=True)  # of a plane that died while it made one; nobody has seen that
    making.mkdir(mode=0o700)
    here("plane.before_certificate")
    _write(making / "key.pem", secret, 0o600, syncs)
    here("plane.in_certificate")
    _write(making / "cert.pem", certificate.public_bytes(serialization.Encoding.PEM), 0o644, syncs)
    syncs.path(making)
    here("plane.before_certificate_name")
    os.rename(making, folder)
    here("plane.after_certificate")
    syncs.path(folder.parent)


def _write(path: Path, content: bytes, mode: int, syncs: Syncs) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    with open(descriptor, "wb") as file:
        file.write(content)
        file.flush()
        syncs.file(descriptor, path)


def _content(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise _unreadable(path, error) from None


def _unreadable(path: Path, error: OSError) -> UsageError:
    return UsageError(f"{path} can't be read: {_said(error)}")


def _said(error: OSError) -> str:
    return (error.strerror or str(error)).lower()


def _pin(content: bytes, path: Path) -> Pin:
    """Of the first certificate: the chain that vouches for it comes after it."""
    found = _BLOCK.search(content)
    if found is None:
        raise UsageError(f"{path} holds no certificate", hint="the file must be PEM")
    return pin_of(ssl.PEM_cert_to_DER_cert(found[0].decode("ascii", "replace")))


def _is_self_signed(leaf: Any) -> bool:  # Any: an x509.Certificate, which is loaded lazily
    from cryptography.exceptions import InvalidSignature  # noqa: PLC0415 - slow: see the module

    if leaf.issuer != leaf.subject:
        return False
    try:
        leaf.verify_directly_issued_by(leaf)
    except (InvalidSignature, TypeError, ValueError):
        return False
    return True


def _names_of(leaf: Any) -> tuple[str, ...]:  # Any: as above
    from cryptography import x509  # noqa: PLC0415 - slow: see the module

    try:
        found = leaf.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except (x509.ExtensionNotFound, ValueError):
        return ()
    numeric = map(str, found.get_values_for_type(x509.IPAddress))
    return (*(name.lower() for name in found.get_values_for_type(x509.DNSName)), *numeric)


def _dates(leaf: Any, path: Path, now_ms: int) -> str:  # Any: as above
    now = datetime.fromtimestamp(now_ms / 1000, UTC)
    first, last = leaf.not_valid_before_utc, leaf.not_valid_after_utc
    if now > last:
        return f"the certificate {path} has expired ({iso_utc(int(last.timestamp() * 1000))}): clients refuse it"
    if now < first:
        return f"the certificate {path} is not valid before {iso_utc(int(first.timestamp() * 1000))}: clients refuse it"
    return ""


def _signature(files: CertificateFiles) -> _Signature:
    """Changes with every replacement; links are followed (ACME clients change the link)."""
    found: list[tuple[int, int, int]] = []
    for path in (files.cert, files.key):
        try:
            status = os.stat(path)
        except OSError:
            found.append((0, 0, 0))
        else:
            found.append((status.st_ino, status.st_size, status.st_mtime_ns))
    return tuple(found)
