"""Pins: what is one, and that the very object that does the handshake checks it, in both of Python's forms."""

import contextlib
import hashlib
import socket
import ssl
import threading

import pytest
from cryptography.hazmat.primitives.serialization import Encoding

from gpulayer.errors import UsageError
from gpulayer.net import Address, parse_pins, pin_of, socket_options, tls_context, trust_failure

DIGEST = "0123456789abcdef" * 4
PIN = f"sha256:{DIGEST}"
ADDRESS = Address("box", 8470, is_secure=True)


def test_a_pin_is_the_digest_of_the_certificate_as_openssl_prints_it():
    assert pin_of(b"der") == f"sha256:{hashlib.sha256(b'der').hexdigest()}"
    colons = ":".join(DIGEST[n : n + 2] for n in range(0, 64, 2)).upper()
    assert parse_pins([f"SHA256:{colons}"]) == (PIN,)
    assert parse_pins([f"{PIN}, {PIN}", PIN.upper()]) == (PIN,)
    assert parse_pins(["", " , "]) == ()


@pytest.mark.parametrize(
    "text", ["sha256:", DIGEST, f"sha1:{DIGEST}", PIN[:-1], PIN + "0", PIN[:-1] + "g", f"{PIN},oops"]
)
def test_anything_else_is_an_error_and_never_no_pin(text):
    with pytest.raises(UsageError, match="is not a fingerprint"):
        parse_pins([text])


def handshake(context, certificate):
    """Through memory: an SSLObject's, as event loops do it. Returns what the server could read after it."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    server = certificate.context.wrap_bio(to_server, to_client, server_side=True)
    client = context.wrap_bio(to_client, to_server, server_hostname="box")
    done = set()
    while len(done) < 2:
        for side in (client, server):
            try:
                side.do_handshake()
                done.add(side)
            except ssl.SSLWantReadError:
                pass
    client.write(b"secret")
    return server.read()


def test_a_pinned_server_is_spoken_to_and_another_is_not(certify):
    ours, theirs = certify("ours"), certify("theirs")
    assert handshake(tls_context([ours.pin]), ours) == b"secret"
    assert handshake(tls_context([theirs.pin, ours.pin]), ours) == b"secret"
    with pytest.raises(ssl.SSLCertVerificationError) as caught:
        handshake(tls_context([theirs.pin]), ours)
    told = trust_failure(caught.value, ADDRESS)
    assert told.details == {"shown": ours.pin}
    assert ours.pin in told.message
    assert pin_of(ours.certificate.public_bytes(Encoding.DER)) == ours.pin


def test_the_socket_form_checks_the_pin_before_it_is_handed_out(certify):
    ours, read = certify("ours"), []
    left, right = socket.socketpair()

    def serve():
        with right, contextlib.suppress(OSError), ours.context.wrap_socket(right, server_side=True) as secured:
            read.append(secured.recv(100))

    serving = threading.Thread(target=serve)
    serving.start()
    with left, pytest.raises(ssl.SSLCertVerificationError):
        tls_context([PIN]).wrap_socket(left, server_hostname="box")
    serving.join()
    assert read in ([], [b""])


def test_a_failure_of_another_kind_is_not_a_matter_of_trust():
    for error in (OSError("x"), ssl.SSLError(1, "[SSL: WRONG_VERSION_NUMBER]"), ValueError()):
        assert trust_failure(error, ADDRESS) is None
    round_about = ValueError("a")
    round_about.__context__ = round_about
    assert trust_failure(round_about, ADDRESS) is None


def test_without_a_pin_names_and_authorities_are_checked():
    context = tls_context([])
    assert context.check_hostname
    assert context.verify_mode is ssl.CERT_REQUIRED


def test_every_option_of_a_connection_is_one_that_this_machine_takes():
    with socket.socket() as sock:
        for level, option, value in socket_options():
            sock.setsockopt(level, option, value)
            assert sock.getsockopt(level, option) == value
