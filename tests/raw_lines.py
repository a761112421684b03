"""A connection of raw bytes to a control plane, for what no client library would send."""

import json
import socket

__all__ = ["Line", "head_of", "serves"]


class Line:
    """A connection of raw bytes."""

    def __init__(self, live, sent: bytes = b"") -> None:
        self.live = live
        self.socket = socket.create_connection(("127.0.0.1", live.listener.getsockname()[1]), timeout=20)
        self.left = b""
        if sent:
            self.send(sent)

    def send(self, sent: bytes) -> bool:
        """False once the other side takes nothing any more."""
        try:
            self.socket.sendall(sent)
        except ConnectionError:
            return False
        return True

    def answer(self) -> tuple[int, dict[str, str], bytes]:
        """The next answer; its body by its length."""
        while b"\r\n\r\n" not in self.left:
            piece = self.socket.recv(65_536)
            assert piece, f"closed without an answer: {self.left!r}"
            self.left += piece
        head, _, self.left = self.left.partition(b"\r\n\r\n")
        first, *lines = head.decode("latin-1").split("\r\n")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        while len(self.left) < int(headers.get("content-length", 0)):
            piece = self.socket.recv(65_536)
            assert piece
            self.left += piece
        length = int(headers.get("content-length", 0))
        body, self.left = self.left[:length], self.left[length:]
        return int(first.split()[1]), headers, body

    def refusal(self) -> tuple[int, str]:
        """Status and code of an error in the one form, after which nothing more comes."""
        status, headers, body = self.answer()
        assert headers["content-type"] == "application/json"
        error = json.loads(body)["error"]
        assert set(error) == {"code", "message", "hint", "blame", "details"}
        assert self.is_closed()
        return status, error["code"]

    def is_closed(self) -> bool:
        try:
            return self.left == b"" and self.socket.recv(1) == b""
        except ConnectionError:
            return True

    def close(self) -> None:
        self.socket.close()


def head_of(live, method: str = "GET", path: str = "/v1/plane", *lines: str, token: bool = True) -> bytes:
    given = [f"{method} {path} HTTP/1.1", "Host: localhost", *lines]
    if token:
        given.append(f"Authorization: Bearer {live.token}")
    return "\r\n".join([*given, "", ""]).encode("latin-1")


def serves(live) -> bool:
    return live.http.get("/v1/plane").status_code == 200
