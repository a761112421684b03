"""A man in the middle of TLS: ``middle_box.py PORT HOST PORT CERT KEY FOLDER``.

Takes connections on PORT, ends their TLS with a certificate of its own, and passes on what it then can read to the
real HOST and PORT, so that who is deceived notices nothing. FOLDER/connections has a line for each that came, FOLDER/
heard every byte that it could read. Says "up" when it listens.
"""

import contextlib
import socket
import ssl
import sys
import threading
from pathlib import Path


def serve(listener: socket.socket, upstream: tuple[str, int], certificate: tuple[str, str], folder: Path) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*certificate)
    while True:
        taken, _ = listener.accept()
        with open(folder / "connections", "a") as file:
            file.write("one\n")
        threading.Thread(target=deceive, args=(taken, context, upstream, folder), daemon=True).start()


def deceive(taken: socket.socket, context: ssl.SSLContext, upstream: tuple[str, int], folder: Path) -> None:
    with taken, contextlib.suppress(OSError):
        to_real = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        to_real.check_hostname, to_real.verify_mode = False, ssl.CERT_NONE
        with context.wrap_socket(taken, server_side=True) as victim, socket.create_connection(upstream) as plain:
            with to_real.wrap_socket(plain) as real:
                threading.Thread(target=pump, args=(real, victim), daemon=True).start()
                pump(victim, real, folder / "heard")


def pump(source: ssl.SSLSocket, sink: ssl.SSLSocket, record: Path | None = None) -> None:
    with contextlib.suppress(OSError):
        while piece := source.recv(65536):
            if record is not None:
                with open(record, "ab") as file:
                    file.write(piece)
            sink.sendall(piece)


def main() -> int:
    port, host, upstream_port, certificate, key, folder = sys.argv[1:]
    with socket.create_server(("", int(port))) as listener:
        print("up", flush=True)
        serve(listener, (host, int(upstream_port)), (certificate, key), Path(folder))
    return 0


if __name__ == "__main__":
    sys.exit(main())
