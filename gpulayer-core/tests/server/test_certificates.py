"""The certificate: made once and whole, or somebody's own, which may be replaced while it is in use."""

import os
import signal
import ssl
import stat
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from gpulayer.errors import UsageError
from gpulayer.net import pin_of, tls_context
from gpulayer.server import certificates
from gpulayer.server.certificates import Shown, load_certificate, own_certificate
from gpulayer.server.settings import CertificateFiles

NOW = datetime(2026, 11, 30, 12, tzinfo=UTC)
NOW_MS = int(NOW.timestamp() * 1000)


def make_pair(folder, *, stem="own", issuer=None, names=("gpu.example.org",), days=(-1, 90), password=None):
    """Files of a certificate; ``issuer``: a pair made before that signs it. Gives (files, key, certificate)."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"{stem} {names}")])
    signer = (subject, key) if issuer is None else (issuer[2].subject, issuer[1])
    builder = (
        x509.CertificateBuilder(signer[0], subject, key.public_key(), x509.random_serial_number())
        .not_valid_before(NOW + timedelta(days=days[0]))
        .not_valid_after(NOW + timedelta(days=days[1]))
    )
    if names:
        builder = builder.add_extension(x509.SubjectAlternativeName([x509.DNSName(name) for name in names]), False)
    certificate = builder.sign(signer[1], hashes.SHA256())
    sealed = serialization.NoEncryption() if password is None else serialization.BestAvailableEncryption(password)
    pem = serialization.Encoding.PEM
    files = CertificateFiles(folder / f"{stem}.crt", folder / f"{stem}.key")
    files.cert.write_bytes(certificate.public_bytes(pem))
    files.key.write_bytes(key.private_bytes(pem, serialization.PrivateFormat.PKCS8, sealed))
    return files, key, certificate


def own(tmp_path, **changes):
    options = {"names": ["gpu-box", "gpu-box.example.org"], "addresses": ["10.0.0.5", "fd00::5"], "now_ms": NOW_MS}
    return own_certificate(tmp_path / "tls", **{**options, **changes})


def test_it_is_made_once_for_ten_years_and_its_key_is_private(tmp_path):
    first = own(tmp_path)
    assert own(tmp_path, names=["other"], now_ms=NOW_MS + 10**11) == first
    assert stat.S_IMODE((tmp_path / "tls").stat().st_mode) == 0o700
    assert stat.S_IMODE((tmp_path / "tls" / "key.pem").stat().st_mode) == 0o600
    made = x509.load_pem_x509_certificate((tmp_path / "tls" / "cert.pem").read_bytes())
    assert (made.not_valid_before_utc, made.not_valid_after_utc) == (NOW - timedelta(days=1), NOW + timedelta(3650))
    assert isinstance(made.public_key().curve, ec.SECP256R1)
    named = made.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert named.get_values_for_type(x509.DNSName) == ["gpu-box", "gpu-box.example.org", "localhost"]
    numeric = [str(each) for each in named.get_values_for_type(x509.IPAddress)]
    assert numeric == ["10.0.0.5", "fd00::5", "127.0.0.1", "::1"]
    assert first.pin == pin_of(made.public_bytes(serialization.Encoding.DER))
    assert (first.is_self_signed, first.warning, os.listdir(tmp_path)) == (True, "", ["tls"])


def test_names_that_no_certificate_can_hold_are_left_out(tmp_path):
    files = own(tmp_path, names=["büro", "", "x" * 300, "gpu-box"], addresses=[]).files
    made = x509.load_pem_x509_certificate(files.cert.read_bytes())
    named = made.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert named.get_values_for_type(x509.DNSName) == ["gpu-box", "localhost"]


@pytest.mark.parametrize("call", ["write", "fsync", "rename"])
@pytest.mark.parametrize("time", [1, 2])
def test_a_death_while_it_is_made_leaves_none_or_a_whole_one(tmp_path, call, time):
    if call == "rename" and time == 2:
        time = 0  # right after the folder got its name
    program = f"""
import os, signal, sys
from pathlib import Path
from gpulayer.server import certificates
real, left = {"os.open" if call == "write" else f"os.{call}"}, [{time}]
def deadly(*args, **kwargs):
    left[0] -= 1
    if left[0] == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    done = real(*args, **kwargs)
    if left[0] == -1 and {time} == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    return done
os.{"open" if call == "write" else call} = deadly
certificates.own_certificate(Path(sys.argv[1]), names=["a"], addresses=[], now_ms={NOW_MS})
"""
    died = subprocess.run([sys.executable, "-c", program, str(tmp_path / "tls")], check=False, timeout=60)
    assert died.returncode == -signal.SIGKILL
    is_made = (tmp_path / "tls").exists()
    assert is_made == (time == 0)
    found = own(tmp_path)
    assert own(tmp_path) == found
    assert os.listdir(tmp_path) == ["tls"]


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660, 0o644])
def test_a_key_that_others_may_read_is_refused(tmp_path, mode):
    own(tmp_path)
    key = tmp_path / "tls" / "key.pem"
    key.chmod(mode)
    with pytest.raises(UsageError, match=rf"others on this machine may read .*key\.pem \(mode {mode:04o}\)") as caught:
        own(tmp_path)
    assert f"chmod 600 {key}" in caught.value.hint
    key.chmod(0o600)
    assert own(tmp_path).is_self_signed


@pytest.mark.parametrize("lost", ["cert.pem", "key.pem"])
def test_half_of_it_is_refused_and_not_made_anew(tmp_path, lost):
    own(tmp_path)
    (tmp_path / "tls" / lost).unlink()
    with pytest.raises(UsageError, match=f"{lost} can't be read: no such file") as caught:
        own(tmp_path)
    assert "or remove it: then there is a new certificate" in caught.value.hint
    assert not (tmp_path / "tls" / lost).exists()


def test_ones_own_is_read_with_its_names_and_whether_its_pin_is_needed(tmp_path):
    authority = make_pair(tmp_path, stem="ca", names=("ca.example.org",))
    signed, _, leaf = make_pair(tmp_path, issuer=authority, names=("GPU.example.org", "*.example.net"))
    with open(signed.cert, "ab") as file:
        file.write(authority[0].cert.read_bytes())  # the chain
    found = load_certificate(signed, now_ms=NOW_MS)
    assert (found.is_self_signed, found.names, found.warning) == (False, ("gpu.example.org", "*.example.net"), "")
    assert found.pin == pin_of(leaf.public_bytes(serialization.Encoding.DER))
    alone = load_certificate(authority[0], now_ms=NOW_MS)
    assert (alone.is_self_signed, alone.names) == (True, ("ca.example.org",))
    assert load_certificate(make_pair(tmp_path, stem="bare", names=())[0], now_ms=NOW_MS).names == ()


@pytest.mark.parametrize(
    ("days", "said"), [((-90, -1), "has expired (2026-11-29T12"), ((1, 90), "is not valid before")]
)
def test_a_date_that_does_not_fit_is_a_warning(tmp_path, days, said):
    assert said in load_certificate(make_pair(tmp_path, days=days)[0], now_ms=NOW_MS).warning


def test_files_that_can_not_be_used_are_named_with_what_is_wrong(tmp_path):
    good = make_pair(tmp_path)[0]
    other = make_pair(tmp_path, stem="other")[0]
    sealed = make_pair(tmp_path, stem="sealed", password=b"x")[0]
    garbage, folder, none = tmp_path / "garbage", tmp_path / "folder", tmp_path / "none"
    garbage.write_bytes(b"\x00no PEM\xff")
    folder.mkdir()
    for cert, key, said in (
        (none, good.key, f"{none} can't be read: no such file"),
        (good.cert, none, f"{none} can't be read: no such file"),
        (folder, good.key, f"{folder} can't be read: is a directory"),
        (good.cert, other.key, f"the key {other.key} does not belong to the certificate {good.cert}"),
        (sealed.cert, sealed.key, f"the key {sealed.key} is encrypted"),
        (garbage, good.key, f"{garbage} can't be used for TLS"),
        (good.cert, garbage, f"{garbage} can't be used for TLS"),
        (good.key, good.cert, f"{good.key} can't be used for TLS"),
    ):
        with pytest.raises(UsageError) as caught:
            load_certificate(CertificateFiles(cert, key), now_ms=NOW_MS)
        assert said in caught.value.message


def handshake(client_context, server_context):
    """The client's end after a handshake in memory."""
    client_in, client_out, server_in, server_out = (ssl.MemoryBIO() for _ in range(4))
    client = client_context.wrap_bio(client_in, client_out, server_hostname="10.0.0.9")
    server = server_context.wrap_bio(server_in, server_out, server_side=True)
    done = set()
    for _ in range(6):
        for end, out, other in ((client, client_out, server_in), (server, server_out, client_in)):
            try:
                end.do_handshake()
                done.add(end)
            except ssl.SSLWantReadError:
                pass
            other.write(out.read())
    assert done == {client, server}
    return client


def shown_to_a_client(context):
    """The pin that a client sees in a handshake."""
    curious = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    curious.check_hostname, curious.verify_mode = False, ssl.CERT_NONE
    return pin_of(handshake(curious, context).getpeercert(binary_form=True))


def replace_by(files, pair):
    os.replace(pair.cert, files.cert)
    os.replace(pair.key, files.key)


def test_a_replaced_certificate_is_shown_to_new_connections(tmp_path, caplog):
    files = make_pair(tmp_path)[0]
    shown = Shown(load_certificate(files, now_ms=NOW_MS))
    before = shown.certificate.pin
    assert shown_to_a_client(shown.context) == before
    assert not shown.look(now_ms=NOW_MS)
    replace_by(files, make_pair(tmp_path, stem="new", names=("new.example.org",))[0])
    assert not shown.look(now_ms=NOW_MS), "it may be half written"
    assert shown.look(now_ms=NOW_MS)
    assert shown.certificate.pin != before
    assert shown.certificate.names == ("new.example.org",)
    assert shown_to_a_client(shown.context) == shown.certificate.pin
    assert f"need its fingerprint {shown.certificate.pin}" in caplog.text
    assert not shown.look(now_ms=NOW_MS)


def test_a_broken_replacement_is_said_once_and_the_old_one_stays(tmp_path, caplog):
    files = make_pair(tmp_path)[0]
    shown = Shown(load_certificate(files, now_ms=NOW_MS))
    before = shown.certificate.pin
    new = make_pair(tmp_path, stem="new")[0]
    os.replace(new.cert, files.cert)  # and its key not yet
    for _ in range(4):
        assert not shown.look(now_ms=NOW_MS)
    assert shown_to_a_client(shown.context) == before
    assert caplog.text.count("the old one stays: the key") == 1
    os.replace(new.key, files.key)
    assert [shown.look(now_ms=NOW_MS) for _ in range(3)] == [False, True, False]
    assert shown_to_a_client(shown.context) == shown.certificate.pin != before
    files.cert.unlink()
    assert [shown.look(now_ms=NOW_MS) for _ in range(3)] == [False] * 3
    assert "own.crt can't be read: no such file" in caplog.text
    assert shown_to_a_client(shown.context) == shown.certificate.pin


@pytest.mark.parametrize(
    "fault", [OSError(5, "Input/output error"), ValueError("odd"), RecursionError(), MemoryError()]
)
@pytest.mark.parametrize("step", ["load_certificate", "server_context", "_content", "_names_of"])
def test_whatever_is_wrong_with_a_new_certificate_the_old_one_stays(tmp_path, caplog, monkeypatch, step, fault):
    files = make_pair(tmp_path)[0]
    shown = Shown(load_certificate(files, now_ms=NOW_MS))
    before = shown.certificate
    replace_by(files, make_pair(tmp_path, stem="new")[0])

    def fail(*args, **kwargs):
        raise fault

    with monkeypatch.context() as patch:
        patch.setattr(certificates, step, fail)
        assert [shown.look(now_ms=NOW_MS) for _ in range(4)] == [False] * 4
    assert caplog.text.count("the new certificate is not used, the old one stays") == 1
    assert shown.certificate == before
    assert shown_to_a_client(shown.context) == before.pin


def test_one_that_can_not_be_read_or_made_is_told_in_words(tmp_path, monkeypatch):
    files = make_pair(tmp_path)[0]

    def full(*args):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(Path, "read_bytes", full)
        with pytest.raises(UsageError, match=r"own.crt can't be read: no space left"):
            load_certificate(files, now_ms=NOW_MS)
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(UsageError, match=r"no certificate can be made in .*/tls: no space left on device"):
            own(tmp_path)
    own(tmp_path)


def test_a_client_that_pinned_it_needs_neither_its_name_nor_its_dates(tmp_path):
    found = load_certificate(make_pair(tmp_path, days=(-90, -1))[0], now_ms=NOW_MS)
    shown = Shown(found)
    assert handshake(tls_context([found.pin]), shown.context).version() == "TLSv1.3"


def test_no_server_asks_cryptography_for_help_when_it_starts_again(tmp_path):
    own(tmp_path)
    code = (
        "import sys; from pathlib import Path; from gpulayer.server.certificates import own_certificate as own;"
        f"own(Path({str(tmp_path / 'tls')!r}), names=[], addresses=[], now_ms=0);"
        "sys.exit('cryptography' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=60).returncode == 0
