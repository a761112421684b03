"""A man in the middle, for tests: a box on the way to the server that shows a certificate just like the server's."""

import ssl
import subprocess
import sys
from pathlib import Path
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from tests.net.lab import Machine
from tests.net.town import SERVER, Town

__all__ = ["MiddleBox"]

_PORT: Final = 8471


class MiddleBox:
    """``machine`` takes over what passes through it to the server, passes on what it can read, and keeps it.

    Its certificate has the names, the dates and the number of the server's; only the key is another one.
    """

    def __init__(self, town: Town, machine: Machine, folder: Path) -> None:
        folder.mkdir()
        self._folder = folder
        self._machine = machine
        with town.server.machine.inside():
            real = x509.load_pem_x509_certificate(ssl.get_server_certificate((SERVER, 8470)).encode())
        key = ec.generate_private_key(ec.SECP256R1())
        copy = (
            x509.CertificateBuilder()
            .subject_name(real.subject)
            .issuer_name(real.issuer)
            .serial_number(real.serial_number)
            .not_valid_before(real.not_valid_before_utc)
            .not_valid_after(real.not_valid_after_utc)
            .public_key(key.public_key())
        )
        for extension in real.extensions:
            if not isinstance(extension.value, x509.SubjectKeyIdentifier | x509.AuthorityKeyIdentifier):
                copy = copy.add_extension(extension.value, critical=extension.critical)
        (folder / "cert.pem").write_bytes(copy.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM))
        (folder / "key.pem").write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
            )
        )
        program = [sys.executable, str(Path(__file__).with_name("middle_box.py")), str(_PORT), SERVER, "8470"]
        files = [str(folder / "cert.pem"), str(folder / "key.pem"), str(folder)]
        self.process = subprocess.Popen(machine.argv(*program, *files), stdout=subprocess.PIPE)
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == b"up\n"
        machine.takes_over(SERVER, 8470, to_port=_PORT)

    @property
    def connections(self) -> int:
        """How many came to it."""
        path = self._folder / "connections"
        return path.read_text().count("\n") if path.exists() else 0

    @property
    def heard(self) -> bytes:
        """All that it could read of what was meant for the server."""
        path = self._folder / "heard"
        return path.read_bytes() if path.exists() else b""

    def steps_aside(self) -> None:
        """The way to the server is clear again."""
        self._machine.run("nft", "delete", "table", "ip", "middle")

    def close(self) -> None:
        self.process.kill()
        self.process.communicate()
