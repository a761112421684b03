"""A spawner that does not answer, and one of another version: what the agent's link makes of them."""

import asyncio
import os
import signal

import pytest

from gpulayer.errors import ProtocolError
from gpulayer.spawner import messages as m
from gpulayer.spawner import tree
from gpulayer.spawner.state import StateDir
from gpulayer.worker.spawner_link import Attached, SpawnerLink
from gpulayer.worker.spawner_pulse import Pulse, end_stuck_spawner

DEADLINE_S = 20.0
ENVIRONMENT = {"PATH": "/usr/local/bin:/usr/bin:/bin"}
pytestmark = pytest.mark.anyio


def impatient():
    return Pulse(ask_after_s=0.05, stuck_after_s=0.3)


@pytest.fixture
def anyio_backend():
    return "asyncio"


class Machine:
    def __init__(self, folder):
        self.folder = folder / "spawner"
        self.work = folder
        self.state = StateDir(str(self.folder))

    async def link(self, **options):
        return await SpawnerLink.connect_or_start(self.folder, deadline_s=DEADLINE_S, **options)

    async def sleeper(self, link, key="1.0", **options):
        paths = {"cwd": self.work, "log_path": self.work / f"{key}.log", "exit_path": self.work / f"{key}.exit"}
        return await link.spawn(key=key, argv=("sleep", "600"), env=ENVIRONMENT, **paths, **options)


@pytest.fixture
async def machine(tmp_path):
    machine = Machine(tmp_path)
    yield machine
    if machine.state.is_held():
        async with await machine.link() as link:
            await link.shutdown(force=True)
        async with asyncio.timeout(DEADLINE_S):
            while machine.state.is_held():
                await asyncio.sleep(0.01)


async def test_a_spawner_that_is_stuck_is_ended_and_what_ran_is_told_as_lost_with_the_reason(machine):
    async with await machine.link(pulse=impatient()) as link:
        events = link.events()
        first = await anext(events)
        pid = (await machine.sleeper(link)).pid
        os.kill(first.spawner_pid, signal.SIGSTOP)
        async with asyncio.timeout(DEADLINE_S):
            again = await anext(events)
        assert isinstance(again, Attached)
        assert again.spawner_pid != first.spawner_pid
        (row,) = again.rows
        assert (row.exit.reason, row.exit.message) == ("spawner_lost", "the spawner was stuck (state T) and was ended")
        assert tree.process(pid) is None
        await events.aclose()


async def test_a_spawner_that_is_stuck_when_the_agent_comes_is_ended_too(machine):
    async with await machine.link() as link:
        first = await anext(link.events())
        await machine.sleeper(link)
    os.kill(first.spawner_pid, signal.SIGSTOP)
    async with await machine.link(pulse=impatient()) as link:
        again = await anext(link.events())
        assert again.spawner_pid != first.spawner_pid
        assert [row.exit.reason for row in again.rows] == ["spawner_lost"]


async def test_a_start_that_is_called_off_while_the_spawner_is_stuck_is_never_made(machine):
    async with await machine.link(pulse=impatient()) as link:
        events = link.events()
        first = await anext(events)
        os.kill(first.spawner_pid, signal.SIGSTOP)
        wanted = [True]
        start = asyncio.ensure_future(machine.sleeper(link, is_wanted=lambda: wanted[0]))
        await asyncio.sleep(0)
        wanted.clear()
        wanted.append(False)
        async with asyncio.timeout(DEADLINE_S):
            answer = await start
            again = await anext(events)
        assert isinstance(answer, m.SpawnFailed)
        assert (again.rows, await link.list()) == ((), ())
        await events.aclose()


async def test_what_had_begun_before_it_was_called_off_is_told_by_the_next_spawner(machine):
    async with await machine.link(pulse=impatient()) as link:
        events = link.events()
        first = await anext(events)
        await machine.sleeper(link)
        os.kill(first.spawner_pid, signal.SIGSTOP)
        wanted = iter([True, False])
        async with asyncio.timeout(DEADLINE_S):
            answer = await machine.sleeper(link, is_wanted=lambda: next(wanted))
        assert isinstance(answer, m.Spawned)
        assert answer.exit.reason == "spawner_lost"
        await events.aclose()


async def test_one_that_stands_still_is_ended_sooner_where_somebody_waits(machine):
    async with await machine.link(pulse=Pulse(ask_after_s=600, stuck_after_s=600, late_after_s=0.3)) as link:
        events = link.events()
        first = await anext(events)
        link.hurry()  # it answers
        assert await link.list() == ()
        os.kill(first.spawner_pid, signal.SIGSTOP)
        link.hurry()
        async with asyncio.timeout(DEADLINE_S):
            again = await anext(events)
        assert again.spawner_pid != first.spawner_pid
        await events.aclose()


async def test_an_idle_spawner_is_asked_and_goes_on(machine):
    async with await machine.link(pulse=Pulse(ask_after_s=0.01, stuck_after_s=30.0)) as link:
        first = await anext(link.events())
        for _ in range(10):
            await asyncio.sleep(0.02)
        assert await link.list() == ()
        assert machine.state.holder("spawner").pid == first.spawner_pid


async def test_only_the_process_that_wrote_itself_down_is_ended(machine):
    async with await machine.link() as link:
        first = await anext(link.events())
        lock = machine.folder / "spawner.lock"
        lock.write_text(lock.read_text().replace(f'"spawner": {first.spawner_pid},', f'"spawner": {os.getpid()},', 1))
        assert not end_stuck_spawner(machine.state)
        assert await link.list() == ()
    assert not end_stuck_spawner(StateDir(str(machine.work / "none")))


def test_silence_counts_from_the_question_and_in_turns_of_waiting():
    pulse = Pulse()
    for _ in range(10):
        assert not pulse.should_ask
        pulse.waited(pulse.turn_s)
    assert pulse.should_ask
    pulse.asked()
    for _ in range(30):
        assert not pulse.is_stuck
        pulse.waited(pulse.turn_s)
    assert pulse.is_stuck
    pulse.heard()
    assert not pulse.is_stuck
    assert not pulse.should_ask


def test_one_that_was_slow_once_is_not_late_ever_after():
    pulse = Pulse()
    pulse.asked()
    pulse.is_hurried = True
    for _ in range(3):
        assert not pulse.is_late
        pulse.waited(pulse.turn_s)
    assert pulse.is_late
    assert not pulse.is_stuck
    pulse.heard()
    pulse.asked()
    for _ in range(3):
        pulse.waited(pulse.turn_s)
    assert not pulse.is_late


# Versions -------------------------------------------------------------------------------------------------------------


class OldSpawner:
    """Speaks version 1 alone, and has one job; what a new agent, which speaks 1 and 2, meets after an upgrade."""

    def __init__(self, folder, *, is_running):
        self.state = StateDir(str(folder))
        self.state.prepare()
        self.lock = self.state.lock()
        record = None if is_running else m.ExitRecord("1.0", 5, None, "exited", "", 0, 0, True, True)
        self.row = m.Row("1.0", "running" if is_running else "ended", os.getpid(), 0, 0, None, record)
        self.heard = []

    async def __aenter__(self):
        self.server = await asyncio.start_unix_server(self.answer, sock=self.state.listen())
        return self

    async def __aexit__(self, *_):
        self.server.close()
        if self.lock is not None:
            os.close(self.lock)

    async def answer(self, reader, writer):
        while line := await reader.readline():
            message = m.decode(line)
            self.heard.append(message)
            match message:
                case m.Hello(protocol=1):
                    writer.write(m.encode(m.Welcome(1, os.getpid(), None, "old")))
                case m.Hello(protocol=other):
                    text = m.version_mismatch(agent=other, spawner=1)
                    writer.write(m.encode(m.Failed(0, "protocol", text, speaks=1)))
                    break
                case m.ListJobs():
                    writer.write(m.encode(m.Table(message.id, (self.row,))))
                case m.Kill():
                    writer.write(m.encode(m.Done(message.id)))
                case m.Shutdown():
                    self.server.close()
                    self.state.remove_socket()
                    os.close(self.lock)
                    self.lock = None
                    writer.write(m.encode(m.Done(message.id)))
                    break
        writer.close()


async def test_a_new_agent_speaks_an_old_spawners_version_while_jobs_run_under_it(machine):
    async with OldSpawner(machine.folder, is_running=True) as old:
        async with await machine.link(speaks=(1, 2)) as link:
            attached = await anext(link.events())
            assert (attached.instance, [row.key for row in attached.rows]) == ("old", ["1.0"])
            await link.kill("1.0")
        assert [one.protocol for one in old.heard if isinstance(one, m.Hello)] == [2, 1]
        assert isinstance(old.heard[-1], m.Kill)


async def test_an_old_spawner_under_which_nothing_runs_makes_way_for_a_new_one(machine):
    async with OldSpawner(machine.folder, is_running=False) as old:
        async with await machine.link(speaks=(1, 2)) as link:
            attached = await anext(link.events())
            assert attached.instance != "old"
            assert attached.spawner_pid == machine.state.holder("spawner").pid
        assert [type(one) for one in old.heard] == [m.Hello, m.Hello, m.ListJobs, m.Shutdown]


async def test_a_spawner_of_an_unknown_version_is_an_error_that_names_both(machine):
    async with OldSpawner(machine.folder, is_running=True):
        with pytest.raises(ProtocolError, match=r"protocol 3.*protocol 1"):
            await machine.link(speaks=(2, 3))
