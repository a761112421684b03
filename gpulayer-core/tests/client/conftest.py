"""Both shells with one face, so that a test says once what holds for both; and what stands between them and a plane."""

import asyncio
import contextlib
import selectors
import socket
import threading

import pytest

from gpulayer.client.async_transport import AsyncTransport
from gpulayer.client.location import Location
from gpulayer.client.transport import Transport

TOKEN = "glc_" + "a" * 12 + "_secret"


class Sync:
    def __init__(self, url, token=TOKEN, *, fingerprint="", proxy="", sleep=lambda _: None, **options):
        self._shell = Transport(
            Location.of(url, token, fingerprint=fingerprint, proxy=proxy), sleep=sleep, random01=lambda: 0.5, **options
        )

    def send(self, call, **options):
        return self._shell.send(call, **options)

    def read(self, call):
        with self._shell.stream(call) as stream:
            return b"".join(stream.chunks), stream.start, stream.attempt

    @property
    def url(self):
        return self._shell.url

    def close(self):
        self._shell.close()


class Async:
    def __init__(self, url, token=TOKEN, *, fingerprint="", proxy="", sleep=lambda _: None, **options):
        self._loop = asyncio.Runner()

        async def rest(seconds):
            sleep(seconds)

        location = Location.of(url, token, fingerprint=fingerprint, proxy=proxy)
        self._shell = AsyncTransport(location, sleep=rest, random01=lambda: 0.5, **options)

    def send(self, call, **options):
        return self._loop.run(self._shell.send(call, **options))

    def read(self, call):
        async def read():
            async with self._shell.stream(call) as stream:
                return b"".join([chunk async for chunk in stream.chunks]), stream.start, stream.attempt

        return self._loop.run(read())

    @property
    def url(self):
        return self._shell.url

    def close(self):
        self._loop.run(self._shell.close())
        self._loop.close()


@pytest.fixture
def shells():
    return Sync, Async


@pytest.fixture(params=[Sync, Async], ids=["sync", "async"])
def shell(request):
    opened = []

    def make(url, **options):
        opened.append(request.param(url, **options))
        return opened[-1]

    yield make
    for one in opened:
        one.close()


class Listener:
    """A TCP server on loopback; ``serve(connection)`` runs in a thread a connection and may block until the end."""

    def __init__(self, serve):
        self._serve = serve
        self.opened = []
        self._threads = []
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.port = self._socket.getsockname()[1]
        self._accepting = threading.Thread(target=self._accept)
        self._accepting.start()

    def close(self):
        self._socket.shutdown(socket.SHUT_RDWR)
        self._accepting.join()
        self._socket.close()
        for connection in self.opened:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join()

    def _accept(self):
        while True:
            try:
                connection = self._socket.accept()[0]
            except OSError:
                return
            self.opened.append(connection)
            thread = threading.Thread(target=self._run, args=[connection])
            self._threads.append(thread)
            thread.start()

    def _run(self, connection):
        with connection, contextlib.suppress(OSError):
            self._serve(connection)


@pytest.fixture
def listen():
    """``listen(serve)``: a Listener, closed with the test."""
    opened = []

    def start(serve):
        opened.append(Listener(serve))
        return opened[-1]

    yield start
    for one in opened:
        one.close()


class Middle(Listener):
    """Carries bytes both ways. asks_connect: as an HTTP proxy. refuse: what it says in place of a tunnel.

    cut: asked before bytes go back to the client; where it says so, both connections are closed in their place.
    """

    def __init__(self, port=None, *, refuse=None, cut=lambda: False):
        self.port_behind, self.refuse, self.cut = port, refuse, cut
        self.heads = []
        super().__init__(self._carry)

    @property
    def url(self):
        return f"http://127.0.0.1:{self.port}"

    def _carry(self, client):
        target = ("127.0.0.1", self.port_behind)
        if self.port_behind is None:
            head = b""
            while not head.endswith(b"\r\n\r\n"):
                piece = client.recv(1)
                if not piece:
                    return
                head += piece
            self.heads.append(head)
            if self.refuse is not None:
                client.sendall(self.refuse)
                return
            host, _, port = head.split()[1].decode().rpartition(":")
            target = (host.strip("[]"), int(port))
        with socket.create_connection(target) as server, selectors.DefaultSelector() as selector:
            if self.port_behind is None:
                client.sendall(b"HTTP/1.1 200 Connection established\r\nVia: middle\r\n\r\n")
            selector.register(client, selectors.EVENT_READ, server)
            selector.register(server, selectors.EVENT_READ, client)
            while True:
                for key, _ in selector.select():
                    piece = key.fileobj.recv(65536)
                    if not piece or (key.fileobj is server and self.cut()):
                        return
                    key.data.sendall(piece)


@pytest.fixture
def middle():
    """``middle(port)`` carries to that port; ``middle()`` is an HTTP proxy."""
    opened = []

    def start(*args, **options):
        opened.append(Middle(*args, **options))
        return opened[-1]

    yield start
    for one in opened:
        one.close()
