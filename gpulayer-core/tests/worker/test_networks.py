"""A real worker on a network that does everything networks do: it falls silent, cuts, delays, and moves."""

import asyncio
import contextlib
import socket

import pytest

from gpulayer.worker.network import NetworkWatch


class Network:
    """Carries bytes between a worker and a control plane, as badly as a test wants it. ``port``: where it listens."""

    def __init__(self, port):
        self.target = port
        self.port = 0
        self.delay_s = 0.0
        self.accepted = 0
        self._dead_up = set()  # connections on which nothing goes up to the control plane any more
        self._dead_down = set()
        self._is_frozen = False
        self._tasks = {}
        self._server = None

    async def up(self, port=0):
        self._server = await asyncio.start_server(self._carry, "127.0.0.1", port)
        self.port = self._server.sockets[0].getsockname()[1]

    async def down(self):
        await self.cut()
        self._server.close()
        await self._server.wait_closed()

    def half_open(self):
        """What a NAT does that forgot: what is open now stays open and carries nothing; what is new works."""
        self._dead_up |= set(self._tasks)
        self._dead_down |= set(self._tasks)

    def lose_answers(self):
        """Only of the connections that there are, and only downwards: requests arrive, their answers do not."""
        self._dead_down |= set(self._tasks)

    def lose_requests(self):
        self._dead_up |= set(self._tasks)

    def freeze(self):
        """Accepts and carries nothing, for all that is open and all that comes."""
        self._is_frozen = True
        self.half_open()

    def thaw(self):
        """For what comes from now on."""
        self._is_frozen = False

    async def cut(self):
        """Every connection, at once and with a word (RST)."""
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def move(self, port):
        await self.down()
        await self.up(port)

    async def _carry(self, reader, writer):
        number = self.accepted = self.accepted + 1
        self._tasks[number] = asyncio.current_task()
        if self._is_frozen:
            self._dead_up.add(number)
            self._dead_down.add(number)
        target = None
        try:
            there_reader, target = await asyncio.open_connection("127.0.0.1", self.target)
            async with asyncio.TaskGroup() as group:
                group.create_task(self._copy(reader, target, number, self._dead_up))
                group.create_task(self._copy(there_reader, writer, number, self._dead_down))
        except* (OSError, asyncio.CancelledError):
            pass
        finally:
            for one in filter(None, (writer, target)):
                one.transport.abort()
            del self._tasks[number]

    async def _copy(self, source, sink, number, dead):
        while piece := await source.read(65536):
            await asyncio.sleep(self.delay_s)
            if number in dead:
                await asyncio.Event().wait()
            sink.write(piece)
            await sink.drain()
        raise ConnectionResetError


def free_port():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


@contextlib.asynccontextmanager
async def secured(plane, certify):
    """The scripted control plane over TLS, behind a network."""
    await plane.down()
    plane.certificate, plane.port, plane.lease_ttl_ms = certify(), 0, 3_000
    await plane.up()
    network = Network(plane.port)
    await network.up()
    try:
        yield network
    finally:
        await network.down()


def test_a_worker_comes_back_from_every_kind_of_lost_connection_and_its_job_loses_no_byte(scene, certify):
    async def main(plane, worker):
        async with secured(plane, certify) as network:
            elsewhere = free_port()
            urls = [f"https://127.0.0.1:{port}" for port in (network.port, elsewhere)]
            worker.start(urls=urls, pins=[plane.certificate.pin])
            script = "i=0; while [ ! -e stop ]; do i=$((i+1)); echo line $i; sleep 0.01; done; exit 9"
            plane.assign(1, "sh", "-c", script)
            epochs = iter(range(2, 100))

            async def is_back():
                """It reports, its log comes on, and it hears what is wanted of it."""
                reports, logged, epoch = len(plane.reports), len(plane.logs.get(1, b"")), next(epochs)
                plane.assign(epoch, "sh", "-c", f"exit {epoch}")
                assert (await plane.end_of(epoch))["outcome"]["exit_code"] == epoch
                await plane.until(lambda: len(plane.reports) > reports and len(plane.logs.get(1, b"")) > logged)

            await is_back()
            network.half_open()
            await is_back()
            network.lose_answers()
            await is_back()
            network.lose_requests()
            await is_back()
            await network.cut()
            await is_back()
            network.freeze()
            accepted = network.accepted
            await plane.until(lambda: network.accepted > accepted + 1)  # it has tried in vain
            network.thaw()
            await is_back()
            network.delay_s = 0.3
            await is_back()
            network.delay_s = 0.0
            await network.move(elsewhere)
            await is_back()

            (worker.folder / "attempts" / "1.0" / "work" / "stop").touch()
            assert (await plane.end_of(1))["outcome"]["exit_code"] == 9
            lines = bytes(plane.logs[1]).decode().splitlines()
            assert lines == [f"line {number}" for number in range(1, len(lines) + 1)]
            assert plane.states[1].count("ended") >= 1
            await worker.stop()
            assert "the connection is back" in worker.said

    scene(main)


def test_where_the_connection_of_the_commands_alone_is_dead_they_come_soon_after_a_lease(scene):
    async def main(plane, worker):
        plane.lease_ttl_ms = 3_000
        worker.start()
        plane.assign(1, "true")
        await plane.end_of(1)
        plane.swallows_next = True
        await plane.until(lambda: not plane.swallows_next)
        plane.assign(2, "true")
        assert (await plane.end_of(2))["outcome"]["exit_code"] == 0
        await worker.stop()
        assert "connection lost" not in worker.said  # its reports went through all the time

    scene(main)


def test_a_worker_says_nothing_to_a_server_in_the_middle_keeps_its_job_and_finds_its_own_again(scene, certify):
    async def main(plane, worker):
        middle = type(plane)()
        middle.certificate = certify()
        await middle.up()
        try:
            async with secured(plane, certify) as network:
                worker.start(urls=[f"https://127.0.0.1:{network.port}"], pins=[plane.certificate.pin])
                plane.assign(1, "sh", "-c", "echo before; while [ ! -e go ]; do sleep 0.01; done; echo after")
                await plane.until(lambda: plane.states.get(1))
                network.target = middle.port
                await network.cut()
                # All that the worker does connects, its reports alone say that they can't.
                await plane.until(lambda: "connection lost: the server at https://" in worker.said)
                accepted = network.accepted
                await plane.until(lambda: network.accepted >= accepted + 4)  # and it says so once
                (worker.folder / "attempts" / "1.0" / "work" / "go").touch()
                network.target = plane.port
                assert (await plane.end_of(1))["outcome"]["exit_code"] == 0
                assert bytes(plane.logs[1]) == b"before\nafter\n"
                await worker.stop()
            assert middle.requests == []
            said = worker.said
            assert said.count("connection lost: the server at https://") == 1
            assert said.count("somebody may be in the middle: nothing was sent") == 1
            assert middle.certificate.pin in said
        finally:
            await middle.down()

    scene(main)


def test_a_worker_that_has_not_joined_yet_ends_when_its_only_server_is_not_the_pinned_one(scene, certify):
    async def main(plane, worker):
        async with secured(plane, certify) as network:
            worker.start(urls=[f"https://127.0.0.1:{network.port}"], pins=[certify().pin])
            assert await worker.ended() == 1
            assert "is not the pinned one" in worker.said
            assert plane.requests == []

    scene(main)


def test_a_joined_worker_goes_on_as_itself_at_another_address_without_a_token(scene, certify):
    async def main(plane, worker):
        async with secured(plane, certify) as network:
            worker.start(urls=[f"https://127.0.0.1:{network.port}"], pins=[plane.certificate.pin])
            await plane.until(lambda: plane.reports)
            await worker.stop()
            await network.move(free_port())
            plane.assign(1, "true")
            worker.start(urls=[f"https://127.0.0.1:{network.port}"], pins=[plane.certificate.pin], token="")
            assert (await plane.end_of(1))["outcome"]["exit_code"] == 0
            assert len(plane.enrolled) == 1
            await worker.stop()

    scene(main)


def test_a_network_that_swallows_everything_is_told_of_at_once(scene, certify):
    async def main(plane, worker):
        async with secured(plane, certify) as network:
            network.freeze()
            worker.start(urls=[f"https://127.0.0.1:{network.port}"], pins=[plane.certificate.pin])
            await plane.until(lambda: "no answer yet from the control plane at https://127.0.0.1" in worker.said)
            await worker.stop()

    scene(main)


@pytest.mark.parametrize("has_slept", [True, False])
def test_a_suspend_makes_every_connection_useless_and_noise_does_not(has_slept):
    times = iter([5, 5 + (61_000 if has_slept else 20), 61_030])
    watch = NetworkWatch(suspended_ms=lambda: next(times), addresses=lambda: ("10.0.0.5",))
    assert watch.look(own="10.0.0.5") == ("this machine slept for 61 s" if has_slept else "")


def test_losing_the_own_address_makes_every_connection_useless_and_another_one_more_does_not():
    looks = iter([("10.0.0.5",), ("10.0.0.5", "172.17.0.1"), ("192.168.1.7", "172.17.0.1"), ("192.168.1.7",)])
    watch = NetworkWatch(suspended_ms=lambda: 0, addresses=lambda: next(looks))
    assert watch.look(own="10.0.0.5") == ""
    assert watch.look(own="10.0.0.5") == "this machine does not have the address 10.0.0.5 any more"
    assert watch.look(own="10.0.0.5") == ""
    assert watch.addresses == ("192.168.1.7",)
