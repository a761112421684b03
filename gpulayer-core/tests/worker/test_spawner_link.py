"""The agent's link, against real spawners."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from gpulayer.errors import Conflict, NotFound, ProtocolError, TimedOut, Unreachable
from gpulayer.spawner import messages as m
from gpulayer.spawner.state import StateDir
from gpulayer.worker.spawner_link import Attached, Exited, Output, Spawned, SpawnerLink, SpawnFailed
from tests.together import is_alive

DEADLINE_S = 20.0
pytestmark = pytest.mark.anyio

ENVIRONMENT = {"PATH": "/usr/local/bin:/usr/bin:/bin"}


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while not condition():
            await asyncio.sleep(0.005)


class Machine:
    """A folder with a spawner; what is started in it must be gone at the end."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.state = StateDir(str(folder / "spawner"))
        self.pids: set[int] = set()

    @asynccontextmanager
    async def link(self) -> AsyncIterator[SpawnerLink]:
        async with await SpawnerLink.connect_or_start(self.folder / "spawner", deadline_s=DEADLINE_S) as link:
            self.pids.update(self.state.read_pids().values())
            yield link

    async def spawn(self, link: SpawnerLink, key: str, *argv: str) -> Spawned | SpawnFailed:
        reply = await link.spawn(
            key=key,
            argv=argv,
            cwd=self.folder,
            env=ENVIRONMENT,
            log_path=self.folder / f"{key}.log",
            exit_path=self.folder / f"{key}.exit",
        )
        if isinstance(reply, Spawned) and reply.pid:
            self.pids.add(reply.pid)
        return reply

    async def exited(self, link: SpawnerLink, key: str) -> m.ExitRecord:
        async with asyncio.timeout(DEADLINE_S):
            async for event in link.events():
                if isinstance(event, Exited) and event.record.key == key:
                    return event.record
                if isinstance(event, Attached):
                    for row in event.rows:
                        if row.key == key and row.exit is not None:
                            return row.exit
        raise AssertionError("events ended")


@pytest.fixture
def anyio_backend():
    return "asyncio"


@pytest.fixture
def machine(tmp_path):
    machine = Machine(tmp_path)
    yield machine

    async def stop() -> None:
        async with machine.link() as link:
            await link.shutdown(force=True)
        await until(lambda: not any(map(is_alive, machine.pids)))

    try:
        asyncio.run(stop())
    finally:
        for pid in filter(is_alive, machine.pids):
            os.kill(pid, signal.SIGKILL)


async def test_a_job_is_started_its_output_told_and_its_end(machine):
    async with machine.link() as link:
        events = link.events()
        assert (await anext(events)).rows == ()
        reply = await machine.spawn(link, "1.0", "sh", "-c", "echo hello; sleep 0.05; exit 3")
        assert isinstance(reply, Spawned)
        told = await anext(events)
        assert told == Output("1.0", 6)
        ended = await anext(events)
        assert isinstance(ended, Exited)
        assert ended.record.exit_code == 3
        await events.aclose()
        assert [row.key for row in await link.list()] == ["1.0"]
        await link.forget("1.0")
        assert await link.list() == ()


async def test_a_failed_start_is_an_answer_not_an_exception(machine):
    async with machine.link() as link:
        reply = await machine.spawn(link, "1.0", "no-such-command")
        assert isinstance(reply, SpawnFailed)
        assert reply.exit_code == 127


async def test_signal_and_kill_reach_the_job_and_name_unknown_keys(machine):
    async with machine.link() as link:
        await machine.spawn(link, "1.0", "sleep", "600")
        assert await link.signal("1.0", signal.SIGTERM) == 1
        assert (await machine.exited(link, "1.0")).signal == signal.SIGTERM
        await machine.spawn(link, "2.0", "sleep", "600")
        with pytest.raises(Conflict, match=r"2\.0"):
            await link.forget("2.0")
        await link.kill("2.0")
        assert (await machine.exited(link, "2.0")).signal == signal.SIGKILL
        with pytest.raises(NotFound, match=r"9\.9"):
            await link.kill("9.9")
        with pytest.raises(NotFound, match=r"9\.9"):
            await link.signal("9.9", signal.SIGTERM)


async def test_another_link_finds_the_job_and_the_first_is_told_it_was_superseded(machine):
    async with machine.link() as first:
        await machine.spawn(first, "1.0", "sleep", "600")
        async with machine.link() as second:
            assert [(row.key, row.state) for row in await second.list()] == [("1.0", "running")]
            with pytest.raises(Conflict, match="another agent"):
                await machine.exited(first, "1.0")
            with pytest.raises(Conflict, match="another agent"):
                await first.list()
            await second.kill("1.0")


async def test_closing_a_link_ends_no_job(machine):
    async with machine.link() as link:
        pid = (await machine.spawn(link, "1.0", "sleep", "600")).pid
    assert is_alive(pid)
    with pytest.raises(Conflict, match="closed"):
        await link.list()


async def test_a_lost_spawner_is_replaced_and_its_jobs_are_told_as_lost(machine):
    async with machine.link() as link:
        events = link.events()
        attached = await anext(events)
        pid = (await machine.spawn(link, "1.0", "sleep", "600")).pid
        os.kill(attached.spawner_pid, signal.SIGKILL)
        again = await anext(events)
        assert isinstance(again, Attached)
        assert again.instance != attached.instance
        machine.pids.update(machine.state.read_pids().values())
        assert [(row.key, row.exit.reason) for row in again.rows] == [("1.0", "spawner_lost")]
        assert not is_alive(pid)
        assert (await machine.spawn(link, "2.0", "true")).existing is False
        assert (await machine.exited(link, "2.0")).exit_code == 0
        await events.aclose()


async def test_a_request_made_while_the_spawner_dies_is_repeated(machine):
    async with machine.link() as link:
        pids = machine.state.read_pids()
        os.kill(pids["spawner"], signal.SIGSTOP)
        waiting = asyncio.create_task(machine.spawn(link, "1.0", "true"))
        await asyncio.sleep(0)
        os.kill(pids["spawner"], signal.SIGKILL)
        assert isinstance(await waiting, Spawned)
        machine.pids.update(machine.state.read_pids().values())
        assert (await machine.exited(link, "1.0")).exit_code == 0


async def test_a_signal_is_not_repeated(machine):
    async with machine.link() as link:
        await machine.spawn(link, "1.0", "sleep", "600")
        pids = machine.state.read_pids()
        os.kill(pids["spawner"], signal.SIGSTOP)
        waiting = asyncio.create_task(link.signal("1.0", signal.SIGTERM))
        await asyncio.sleep(0)
        os.kill(pids["spawner"], signal.SIGKILL)
        with pytest.raises(Unreachable, match=r"signal 1\.0"):
            await waiting
        await link.list()
        machine.pids.update(machine.state.read_pids().values())


async def test_a_spawner_that_does_not_answer_is_a_timeout_that_says_what_for(machine):
    async with machine.link() as link:
        pid = machine.state.read_pids()["spawner"]
        os.kill(pid, signal.SIGSTOP)
        try:
            with pytest.raises(TimedOut, match="list the jobs"):
                await link.list(deadline_s=0.05)
            with pytest.raises(Unreachable, match="can't be reached"):
                await SpawnerLink.connect_or_start(machine.folder / "spawner", deadline_s=0.05)
        finally:
            os.kill(pid, signal.SIGCONT)


async def test_two_agents_that_start_at_once_share_one_spawner(machine):
    async def attach() -> int:
        async with machine.link() as link:
            return (await anext(link.events())).spawner_pid

    pids = await asyncio.gather(attach(), attach(), attach(), return_exceptions=True)
    assert {pid for pid in pids if isinstance(pid, int)} == {machine.state.read_pids()["spawner"]}


async def test_shutdown_is_refused_while_jobs_run_and_ends_the_events(machine):
    async with machine.link() as link:
        await machine.spawn(link, "1.0", "sleep", "600")
        with pytest.raises(Conflict, match="1 job still running"):
            await link.shutdown()
        await link.shutdown(force=True)
        seen = [event async for event in link.events()]
        assert isinstance(seen[-1], Exited)
        assert seen[-1].record.signal == signal.SIGKILL


async def test_a_python_that_can_not_start_is_named(tmp_path):
    with pytest.raises(Unreachable, match="/no/such/python"):
        await SpawnerLink.connect_or_start(tmp_path / "spawner", python="/no/such/python", deadline_s=5)
    with pytest.raises(Unreachable, match="exit code 1"):
        await SpawnerLink.connect_or_start(tmp_path / "spawner", python="/bin/false", deadline_s=5)


async def test_another_protocol_version_is_an_error_that_names_both(tmp_path):
    state = StateDir(str(tmp_path))
    state.prepare()

    async def answer(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(m.encode(m.Failed(0, "protocol", m.version_mismatch(agent=1, spawner=2))))
        writer.close()

    async with await asyncio.start_unix_server(answer, sock=state.listen()):
        with pytest.raises(ProtocolError, match=r"protocol 1.*protocol 2"):
            await SpawnerLink.connect_or_start(tmp_path, deadline_s=5)
