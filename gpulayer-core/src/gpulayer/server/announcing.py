"""Telling event sinks what happened: after the commit, at least once, each sink in order and at its own pace.

What is told is read from the log in the store, so nothing is lost with this process, and nobody who commits waits for
a sink. Each sink has a loop and a cursor: where in the log it stands. Cursors are written some seconds or some events
later, and at the end; what came after the last one written is told again by the next start. Without a sink there is
no loop and no read; sinks that stand at the same place are told from one read.
"""

import asyncio
import logging
from collections.abc import Coroutine
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

from gpulayer.errors import GpulayerError, PluginFault, PluginResting
from gpulayer.faults import here
from gpulayer.plugins.contracts.event import EVENT_DEADLINE_S, EventRefused, EventSink, PlaneEvent
from gpulayer.server.history import RESTORED
from gpulayer.server.store import LogPage, LogRow, Side, log
from gpulayer.server.telling import LEAVING, TOLD, event_of

if TYPE_CHECKING:
    from gpulayer.plugins.host import Host
    from gpulayer.plugins.registry import Registered
    from gpulayer.server.plane import Plane

__all__ = ["LOGGED", "Announcer", "Pace"]

LOGGED: Final = "logged"
"""The key of the hub that is woken when there may be more in the log."""

_METHOD: Final = "EventSink.tell"
_CLOSE_S: Final = 5.0
_LAST_CALL_S: Final = 1.0
_LONGEST_SLEEP_S: Final = 60.0

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Pace:
    """rows: read at a time. gather_s: from news to the look at the log, so that a busy plane is not asked for each
    commit. save_s, save_rows: how old, and how far behind, a cursor that is written down may be. wait_first_ms to
    wait_last_ms: before an event is told again, doubled each time; tries: calls that failed or were late, before it is
    passed over. deadline_s: of one call."""

    rows: int = 200
    gather_s: float = 0.05
    save_s: float = 2.0
    save_rows: int = 2_000
    wait_first_ms: int = 1_000
    wait_last_ms: int = 300_000
    tries: int = 20
    deadline_s: float = EVENT_DEADLINE_S


@dataclass(slots=True, eq=False)
class _Told:
    """One sink. cursor: the last row that it is done with; saved: as the store has it."""

    sink: "Registered[EventSink]"
    cursor: int = 0
    saved: int = 0
    has_news: bool = False  # it was told something since the cursor was saved
    is_called: bool = False
    task: "asyncio.Task[None] | None" = None

    @property
    def key(self) -> str:
        return f"{self.sink.plugin}/{self.sink.name}"

    def wants(self, event: PlaneEvent) -> bool:
        return self.sink.kinds is None or event.kind in self.sink.kinds


class _Try:
    """One call of a sink, which may go on after its deadline. ``ended`` is set when it has returned, and whether it was
    told is known."""

    def __init__(self, event: PlaneEvent) -> None:
        self.ended = asyncio.Event()
        self.is_told = False
        self._event = event
        self._loop = asyncio.get_running_loop()

    def tell(self, sink: EventSink) -> None:
        """In the plugin's thread."""
        try:
            sink.tell(self._event)
            self.is_told = True
        finally:
            with suppress(RuntimeError):  # the loop has gone
                self._loop.call_soon_threadsafe(self.ended.set)


@dataclass(slots=True)
class _Waits:
    pace: Pace
    next_ms: int = field(init=False)

    def __post_init__(self) -> None:
        self.next_ms = self.pace.wait_first_ms

    def grow(self) -> int:
        """How long to wait now."""
        now_ms, self.next_ms = self.next_ms, min(self.next_ms * 2, self.pace.wait_last_ms)
        return now_ms


class Announcer:
    """``start`` it when the plane's driver runs, ``close`` it before that ends."""

    def __init__(self, plane: "Plane", host: "Host", *, pace: Pace | None = None, after: int | None = None) -> None:
        """after: number of the event after which sinks begin that the store does not know; None: the newest."""
        self._plane = plane
        self._after = after
        self._host = host
        self._pace = pace or Pace()
        self._sinks: list[_Told] = []
        self._store_id = ""
        self._poked = asyncio.Event()
        self._news = asyncio.Event()
        self._saving = asyncio.Lock()
        self._reading = asyncio.Lock()
        self._page = LogPage(())  # the last one with rows
        self._page_after = 0
        self._tasks: list[asyncio.Task[None]] = []
        self._is_closing = False

    async def start(self) -> None:
        """Begin to tell. A sink that the store does not know begins ``after``; where the store can't be used now, all
        begin when it can."""
        sinks: dict[str, _Told] = {}
        for sink in self._host.registry.event_sinks:
            told = _Told(sink)
            if sinks.setdefault(told.key, told) is not told:
                self._note(told, "left out: another sink of the plugin has its name")
        if not sinks or self._is_closing:
            return
        has_tried = asyncio.Event()
        self._keep(self._begin(sinks, has_tried), "event sinks")
        await has_tried.wait()

    async def _begin(self, sinks: dict[str, _Told], has_tried: asyncio.Event) -> None:
        waits = _Waits(self._pace)
        while not self._sinks:
            try:
                await self._place(sinks)
                self._sinks = list(sinks.values())
            except GpulayerError as error:
                _log.warning("event sinks are told later: %s", error.message)
                has_tried.set()
                await self._wait(waits.grow())
            except BaseException:
                has_tried.set()
                raise
        for told in self._sinks:
            told.task = self._keep(self._keep_telling(told), f"sink {told.key}")
        self._keep(self._keep_saving(), "sink cursors")
        has_tried.set()

    async def _place(self, sinks: dict[str, _Told]) -> None:
        """Where each goes on. Raises StorageUnavailable."""
        self._store_id = await self._plane.query(log.read_store_id)
        cursors = await self._plane.query(log.read_sink_cursors)
        newest = await self._plane.query(log.last_seq)
        begins = newest if self._after is None else min(self._after, newest)
        for key, told in sinks.items():
            told.cursor = told.saved = cursors.get(key, begins)
        new = tuple((key, begins) for key in sinks if key not in cursors)
        if new:
            await self._plane.driver.submit(side=Side(sink_cursors=new))

    def _keep(self, work: Coroutine[None, None, None], name: str) -> "asyncio.Task[None]":
        task = asyncio.create_task(work, name=name)
        task.add_done_callback(_ended)
        self._tasks.append(task)
        return task

    async def close(self) -> None:
        """Stop telling, and write down how far each sink is. May be repeated; takes some seconds at most."""
        self._is_closing = True
        tasks, self._tasks = self._tasks, []
        if not tasks:
            return
        calling = {told.task for told in self._sinks if told.is_called and told.task is not None}
        for task in tasks:
            if task not in calling:
                task.cancel()
        if calling:  # a sink that takes its event just now need not be told it again
            await asyncio.wait(calling, timeout=_LAST_CALL_S)
        for task in calling:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        with suppress(TimeoutError):
            async with asyncio.timeout(_CLOSE_S):
                await self._save(is_last=True)

    def poke(self) -> None:
        """Look at the time again; for whoever moves the clock."""
        self._poked.set()

    async def _keep_telling(self, told: _Told) -> None:
        """Until cancelled. The store may be away for a while; then the log waits."""
        waits = _Waits(self._pace)
        with self._plane.hub.watching(LOGGED) as watch:
            while not self._is_closing:
                watch.clear()
                try:
                    page = await self._read(told)
                except Exception as error:
                    story = None if isinstance(error, GpulayerError) else error
                    _log.warning("the event log can't be read for %s: %s", told.key, error, exc_info=story)
                    await self._wait(waits.grow())
                    continue
                waits = _Waits(self._pace)
                if page.rows:
                    await self._tell_page(told, page)
                else:
                    await watch.wait()
                    await asyncio.sleep(self._pace.gather_s)

    async def _read(self, told: _Told) -> LogPage:
        async with self._reading:
            rows = self._page.rows
            if rows and self._page_after <= told.cursor < rows[-1].seq:
                page = replace(self._page, rows=[row for row in rows if row.seq > told.cursor])
            else:
                page = await self._plane.query(
                    log.read_log, after=told.cursor, limit=self._pace.rows, kinds=TOLD, leaving=LEAVING
                )
                if page.rows:
                    self._page, self._page_after = page, told.cursor
        # Rows are numbered without gaps, but for the one where the log of a restored store goes on.
        if page.rows and page.rows[0].seq > told.cursor + 1 and page.rows[0].kind != RESTORED:
            first, last = told.cursor + 1, page.rows[0].seq - 1
            self._note(told, f"it has missed events {first} to {last}: they are no longer kept")
        return page

    async def _tell_page(self, told: _Told, page: LogPage) -> None:
        for row in page.rows:
            event = self._event_of(told, row, page)
            if event is not None and told.wants(event):
                if not await self._tell(told, event):
                    return
                told.has_news = True
            told.cursor = row.seq
            if told.has_news and not self._news.is_set():
                self._news.set()
            if self._is_closing:
                return
        if told.cursor - told.saved >= self._pace.save_rows:
            await self._save()

    def _event_of(self, told: _Told, row: LogRow, page: LogPage) -> PlaneEvent | None:
        try:
            return event_of(row, page, store_id=self._store_id)
        except Exception:  # a row that we do not understand must not stand in the way of all others
            _log.exception("row %d of the event log (%s) can't be told of", row.seq, row.kind)
            self._note(told, f"it has missed event {row.seq} ({row.kind}), which can't be told of; plane.log says why")
            return None

    async def _tell(self, told: _Told, event: PlaneEvent) -> bool:
        """Until it is told, refused or given up; False where it is none of these and the plane closes. Never returns
        True while a call of the sink runs."""
        waits, tries = _Waits(self._pace), 0
        here("sinks.before_telling")
        while True:
            trying = _Try(event)
            try:
                told.is_called = True
                await self._host.acall(
                    told.sink, _METHOD, trying.tell, deadline_s=self._pace.deadline_s, passes=(EventRefused,)
                )
                break
            except EventRefused as refusal:
                self._note(told, f"event {event.seq} ({event.kind}) was refused: {refusal}")
                break
            except PluginResting as resting:
                _log.info("event %d is told later: %s", event.seq, resting.message)
            except PluginFault as fault:
                _log.info("event %d is told again: %s", event.seq, fault.message)
                told.is_called = False
                await trying.ended.wait()  # a call that is late may go on for as long as it likes
                if trying.is_told:
                    break  # it was late, not lost
                tries += 1
                if tries >= self._pace.tries:
                    self._note(told, f"event {event.seq} ({event.kind}) was given up after {tries} tries")
                    return True
            finally:
                told.is_called = False
            if self._is_closing:
                return False
            await self._wait(waits.grow())
        here("sinks.after_telling")
        return True

    async def _wait(self, wait_ms: int) -> None:
        clock = self._plane.clock
        until_ms = clock.monotonic_ms() + wait_ms
        while (rest_ms := until_ms - clock.monotonic_ms()) > 0:
            self._poked.clear()
            with suppress(TimeoutError):
                await asyncio.wait_for(self._poked.wait(), min(rest_ms / 1000, _LONGEST_SLEEP_S))

    async def _keep_saving(self) -> None:
        while True:
            await self._news.wait()
            await asyncio.sleep(self._pace.save_s)
            await self._save()

    async def _save(self, *, is_last: bool = False) -> None:
        """Write down the cursors that have moved, all in one commit. What can't be written now is the next time."""
        async with self._saving:
            self._news.clear()
            moved = [
                (told, told.cursor)
                for told in self._sinks
                if told.cursor > told.saved
                and (is_last or told.has_news or told.cursor - told.saved >= self._pace.save_rows)
            ]
            for told, _ in moved:
                told.has_news = False
            if not moved:
                return
            try:
                await self._plane.driver.submit(
                    side=Side(sink_cursors=tuple((told.key, cursor) for told, cursor in moved))
                )
            except GpulayerError as error:
                _log.warning("how far event sinks are was not saved: %s", error.message)
                for told, _ in moved:
                    told.has_news = True
                self._news.set()
                return
            for told, cursor in moved:
                told.saved = cursor

    def _note(self, told: _Told, message: str) -> None:
        _log.warning("event sink %s: %s", told.key, message)
        self._host.note(told.sink.plugin, _METHOD, message)


def _ended(task: "asyncio.Task[None]") -> None:
    if not task.cancelled() and task.exception() is not None:
        _log.critical("%s has ended", task.get_name(), exc_info=task.exception())
