"""The driver: replies after commit, one commit for many, and what happens when a commit fails."""

import asyncio
import contextlib
import json
import threading
from collections import Counter
from collections.abc import AsyncIterator

import pytest

from gpulayer.clock import ManualClock, SystemClock
from gpulayer.engine import check
from gpulayer.engine.effects import Assign, Notify, Void
from gpulayer.engine.events import CancelRequested, JobSubmitted, WorkerJoined, WorkerReported
from gpulayer.errors import InternalError, StorageUnavailable
from gpulayer.ids import Digest, JobId, WorkerId
from gpulayer.server.driver import Driver
from gpulayer.server.store import Batch, JobRow, Side, Store
from gpulayer.spec.job import JobEntry, JobSpec
from gpulayer.spec.machine import WorkerFacts
from gpulayer.spec.worker import WorkerState
from gpulayer.wire.convert import spec_to_wire

FACTS = WorkerFacts("linux", "1", 4, 2**33)
BOX = WorkerId("box")


class Committer:
    """The real store, in whose way a test can stand."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.batches: list[Batch] = []
        self.failing: Exception | None = None
        self.gate = threading.Event()
        self.gate.set()
        self.probes = 0

    def commit(self, batch: Batch) -> None:
        assert self.gate.wait(10)
        if self.failing is not None:
            raise self.failing
        self.store.commit(batch)
        self.batches.append(batch)

    def probe(self) -> None:
        self.probes += 1
        if self.failing is not None:
            raise self.failing
        self.store.probe()

    def load_live(self):
        return self.store.load_live()


class Watcher:
    def __init__(self) -> None:
        self.effects = []

    def committed(self, state, records, effects) -> None:
        check(state)
        self.effects.extend(effects)

    def annotate(self, state, rejected):
        return {}


@pytest.fixture
def committer(tmp_path):
    store = Store(str(tmp_path / "store.db"))
    yield Committer(store)
    store.close()


@contextlib.asynccontextmanager
async def driving(committer: Committer, clock=None, watcher=None) -> AsyncIterator[Driver]:
    driver = Driver(store=committer, clock=clock or SystemClock(), observer=watcher or Watcher())
    await driver.load()
    running = asyncio.create_task(driver.run())
    try:
        yield driver
    finally:
        driver.close()
        await running


def job(number: int) -> JobRow:
    spec = JobSpec(command=("run", str(number)))
    return JobRow(JobId(f"{number:016x}"), "o", "me", "test", 1, spec, spec_to_wire(spec))


async def submit(driver: Driver, *numbers: int):
    rows = [job(number) for number in numbers]
    makes = [(lambda at, row=row: JobSubmitted(at, JobEntry.of(row.id, "o", row.spec))) for row in rows]
    return await driver.submit(*makes, side=Side(jobs=tuple(rows)))


def join(at):
    return WorkerJoined(at, BOX, "box", FACTS, Digest("f" * 64))


def heartbeat(seq: int, **fields):
    return lambda at: WorkerReported(at, BOX, 1, seq, **fields)


def jobs_of(state):
    return len(state.jobs)


def test_many_waiting_submits_share_one_commit(committer) -> None:
    async def main() -> None:
        async with driving(committer) as driver:
            committer.gate.clear()
            first = asyncio.create_task(submit(driver, 0))
            await asyncio.sleep(0.01)
            others = [asyncio.create_task(submit(driver, n)) for n in range(1, 101)]
            await asyncio.sleep(0.01)
            assert not first.done()  # a reply means durable
            committer.gate.set()
            await asyncio.gather(first, *others)
            assert len(committer.batches) == 2

    asyncio.run(main())


def test_effects_are_released_only_after_the_commit(committer) -> None:
    async def main() -> None:
        watcher = Watcher()
        async with driving(committer, watcher=watcher) as driver:
            await driver.submit(join)
            await driver.submit(heartbeat(1))
            committer.gate.clear()
            waiting = asyncio.create_task(submit(driver, 1))
            await asyncio.sleep(0.02)
            assert not any(isinstance(effect, Assign) for effect in watcher.effects)
            reading = asyncio.create_task(driver.read(jobs_of))
            await asyncio.sleep(0.01)
            assert not reading.done()  # nobody sees what is not committed
            committer.gate.set()
            effects = await waiting
            assert [type(effect) for effect in effects if not isinstance(effect, Notify)] == [Assign]
            assert any(isinstance(effect, Assign) for effect in watcher.effects)
            assert await reading == 1

    asyncio.run(main())


def test_a_heartbeat_that_changes_nothing_is_neither_logged_nor_committed(committer) -> None:
    async def main() -> None:
        async with driving(committer) as driver:
            await driver.submit(join)
            await driver.submit(heartbeat(1))
            before = len(committer.batches)
            assert await driver.submit(heartbeat(2)) == (Void(BOX, ()),)
            assert len(committer.batches) == before

    asyncio.run(main())


def test_heartbeats_are_answered_between_the_slices_of_a_long_batch(committer) -> None:
    async def main() -> None:
        async with driving(committer) as driver:
            await driver.submit(join)
            await driver.submit(heartbeat(1))
            committer.gate.clear()
            batch = asyncio.create_task(submit(driver, *range(3000)))
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            await asyncio.wait_for(driver.submit(heartbeat(2)), 5)
            assert not batch.done()
            committer.gate.set()
            await batch
            assert await driver.read(jobs_of) == 3000

    asyncio.run(main())


def test_a_failed_commit_answers_503_discards_and_recovers(committer) -> None:
    async def main() -> None:
        async with driving(committer) as driver:
            await submit(driver, 1)
            committer.failing = StorageUnavailable("disk full")
            answers = await asyncio.gather(*(submit(driver, n) for n in (2, 3)), return_exceptions=True)
            assert [type(answer) for answer in answers] == [StorageUnavailable] * 2
            assert driver.is_read_only
            assert await driver.read(jobs_of) == 1  # reads go on, of what is durable
            with pytest.raises(StorageUnavailable, match="disk full"):
                await submit(driver, 4)
            committer.failing = None
            while driver.is_read_only:
                await asyncio.sleep(0.01)
            await submit(driver, 2)  # the same job, sent again
            assert await driver.read(jobs_of) == 2
            await driver.read(check)

    asyncio.run(main())


def test_a_read_that_fails_once_when_writes_succeed_again_ends_nothing(committer) -> None:
    real, loads = committer.load_live, []

    def load():
        loads.append(1)
        if len(loads) == 3:  # at the start, for readers, and after the probe
            raise StorageUnavailable("a read failed, once")
        return real()

    committer.load_live = load

    async def main() -> None:
        async with driving(committer) as driver:
            committer.failing = StorageUnavailable("disk full")
            with pytest.raises(StorageUnavailable, match="disk full"):
                await submit(driver, 1)
            committer.failing = None
            while driver.is_read_only:
                await asyncio.sleep(0.01)
            await submit(driver, 1)
            assert len(loads) > 3
            assert await driver.read(jobs_of) == 1

    asyncio.run(main())


def test_a_full_disk_refuses_and_loses_nothing(tmp_path) -> None:
    """SQLite itself says that the disk is full: the writer's file may not grow past a number of pages."""
    store = Store(str(tmp_path / "store.db"))
    committer = Committer(store)

    def set_limit(pages: int) -> None:
        with store._writing.connect() as connection:  # the limit is one of the connection
            connection.exec_driver_sql(f"PRAGMA max_page_count = {pages}")

    async def main() -> None:
        async with driving(committer) as driver:
            await submit(driver, *range(50))
            set_limit(1)  # SQLite takes the present size instead
            accepted, refusal = 50, None
            while refusal is None:
                assert accepted < 5_000, "the limit does not hold"
                try:
                    await submit(driver, *range(accepted, accepted + 50))
                    accepted += 50
                except StorageUnavailable as error:
                    refusal = error
            assert "full" in refusal.message
            assert await driver.read(jobs_of) == accepted
            set_limit(1_000_000)
            while driver.is_read_only:
                await asyncio.sleep(0.01)
            await submit(driver, 9999)
            assert await driver.read(jobs_of) == accepted + 1

    asyncio.run(main())
    with store.reading() as connection:
        assert connection.exec_driver_sql("PRAGMA integrity_check").scalar() == "ok"
    store.close()


def test_a_fault_in_one_event_refuses_it_alone_and_the_state_is_loaded_anew(committer) -> None:
    def broken(at):
        raise ZeroDivisionError

    async def main() -> None:
        async with driving(committer) as driver:
            await driver.submit(join)
            good = [asyncio.create_task(submit(driver, n)) for n in range(5)]
            bad = asyncio.create_task(driver.submit(broken))
            more = [asyncio.create_task(submit(driver, n)) for n in range(5, 10)]
            with pytest.raises(InternalError):
                await bad
            await asyncio.gather(*good, *more)
            assert await driver.read(jobs_of) == 10
            await driver.read(check)

    asyncio.run(main())


def test_a_batch_that_can_not_be_stored_refuses_only_its_own_caller(committer) -> None:
    async def main() -> None:
        async with driving(committer) as driver:
            await submit(driver, 1)
            answers = await asyncio.gather(
                submit(driver, 2), submit(driver, 1), submit(driver, 3), return_exceptions=True
            )
            assert isinstance(answers[1], InternalError)  # an id that is there already: a fault of ours
            assert not any(isinstance(answers[n], Exception) for n in (0, 2))
            assert not driver.is_read_only
            assert await driver.read(jobs_of) == 3

    asyncio.run(main())


def test_deadlines_pass_by_themselves_and_stand_in_the_log(committer) -> None:
    async def main() -> None:
        clock = ManualClock()
        async with driving(committer, clock=clock) as driver:
            await driver.submit(join)
            await driver.submit(heartbeat(1))
            clock.advance(32_000)
            driver.poke()
            await asyncio.sleep(0.02)
            assert await driver.read(lambda state: state.workers[BOX].state) is WorkerState.READY
            clock.advance(1_500)
            driver.poke()
            while await driver.read(lambda state: state.workers[BOX].state) is not WorkerState.SILENT:
                await asyncio.sleep(0.01)
        assert [row.kind for row in committer.batches[-1].events] == ["worker_went_silent"]

    asyncio.run(main())


def test_a_heartbeat_goes_ahead_between_what_has_become_due_at_once_and_what_it_says_counts(committer) -> None:
    boxes = [WorkerId(f"box{number}") for number in range(200)]

    def joins(box):
        return lambda at: WorkerJoined(at, box, box, FACTS, Digest("f" * 64))

    def beats(box, seq):
        return lambda at: WorkerReported(at, box, 1, seq)

    async def main() -> None:
        clock = ManualClock()
        async with driving(committer, clock=clock) as driver:
            await driver.submit(*(joins(box) for box in boxes))
            await driver.submit(*(beats(box, 1) for box in boxes))
            clock.advance(60_000)
            driver.poke()
            await driver.submit(beats(boxes[-1], 2))
            silent = {WorkerState.SILENT: 199, WorkerState.READY: 1}
            while await driver.read(lambda state: Counter(one.state for one in state.workers.values())) != silent:
                await asyncio.sleep(0.01)
        rows = [row for batch in committer.batches for row in batch.events if row.kind == "worker_went_silent"]
        assert [row.worker for row in rows] == boxes[:-1]

    asyncio.run(main())


def test_a_driver_that_was_stopped_takes_nobody_for_silent_when_it_goes_on(committer) -> None:
    async def main() -> None:
        clock = ManualClock()
        async with driving(committer, clock=clock) as driver:
            await driver.submit(join)
            await driver.submit(heartbeat(1))
            clock.advance(3_600_000)  # nobody looked meanwhile: it was stopped, or its machine slept
            await driver.submit(lambda at: CancelRequested(at, JobId("f" * 16)))
            assert await driver.read(lambda state: state.workers[BOX].state) is WorkerState.READY
            clock.advance(33_500)  # and from then on silence counts as ever
            driver.poke()
            while await driver.read(lambda state: state.workers[BOX].state) is not WorkerState.SILENT:
                await asyncio.sleep(0.01)

    asyncio.run(main())


def test_time_goes_on_after_a_restart_and_nobody_looks_silent(committer) -> None:
    async def main() -> None:
        clock = ManualClock(now_ms=50_000)
        async with driving(committer, clock=clock) as driver:
            await driver.submit(join)
            clock.advance(10_000)
            await driver.submit(heartbeat(1))
            assert driver.now().ms == 10_000
        later = ManualClock(now_ms=7)  # another boot of the machine
        async with driving(committer, clock=later) as driver:
            assert driver.now().ms == 10_000
            later.advance(30_000)
            driver.poke()
            await asyncio.sleep(0.02)
            assert await driver.read(lambda state: state.workers[BOX].state) is WorkerState.READY

    asyncio.run(main())


def test_closing_commits_what_waits_and_refuses_what_comes(committer) -> None:
    async def main() -> None:
        async with driving(committer) as driver:
            waiting = asyncio.create_task(submit(driver, 1))
            await asyncio.sleep(0)
            driver.close()
            await waiting
            with pytest.raises(StorageUnavailable, match="shutting down"):
                await submit(driver, 2)
        assert len(committer.store.load_live().all_jobs()) == 1

    asyncio.run(main())


def test_cancelling_what_is_unknown_changes_nothing(committer) -> None:
    async def main() -> None:
        async with driving(committer) as driver:
            assert await driver.submit(lambda at: CancelRequested(at, JobId("x"))) == ()

    asyncio.run(main())


def test_the_log_tells_what_a_report_said(committer) -> None:
    async def main() -> None:
        async with driving(committer) as driver:
            await driver.submit(join)
            await driver.submit(heartbeat(1, recovered=()))
        row = committer.batches[-1].events[0]
        assert (row.kind, row.worker) == ("worker_reported", BOX)
        assert json.loads(row.body)["seq"] == 1

    asyncio.run(main())
