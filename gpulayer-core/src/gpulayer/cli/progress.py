"""What a person sees on stderr while something takes long. For quick things nothing, and rich is not loaded."""

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from gpulayer.cli.console import is_fancy, safe, say
from gpulayer.client import calls
from gpulayer.client.following import FINAL_STATES
from gpulayer.client.transport import Transport
from gpulayer.errors import GpulayerError
from gpulayer.spec.units import format_bytes

if TYPE_CHECKING:
    from gpulayer.client.upload import Transfer
    from gpulayer.wire.jobs import JobRecord

__all__ = ["QueueWatch", "start_progress", "transfer_progress", "waiting_line"]

_PATIENCE_S: Final = 0.7
_LOOK_S: Final = 1.0
_STARTS_WITHIN_S: Final = 2.0
_LOOK_AT_START_S: Final = 0.1  # the line goes as soon as the job runs


@contextmanager
def transfer_progress(*, is_quiet: bool) -> "Iterator[Callable[[Transfer], None]]":
    """A bar on a terminal once a transfer lasts; elsewhere nothing."""
    started = time.monotonic()
    bar: Any = None  # Any: rich is imported only when it shows something
    task: Any = None

    def advance(transfer: "Transfer") -> None:
        nonlocal bar, task
        if is_quiet or not is_fancy(sys.stderr):
            return
        if bar is None:
            if time.monotonic() - started < _PATIENCE_S:
                return
            from rich.console import Console  # noqa: PLC0415
            from rich.progress import BarColumn, DownloadColumn, Progress, TransferSpeedColumn  # noqa: PLC0415

            bar = Progress(
                "{task.description}", BarColumn(), DownloadColumn(), TransferSpeedColumn(),
                console=Console(stderr=True), transient=True,
            )  # fmt: skip
            bar.start()
            task = bar.add_task(transfer.what, total=transfer.total_bytes)
        bar.update(task, completed=transfer.done_bytes, total=transfer.total_bytes, description=transfer.what)

    try:
        yield advance
    finally:
        if bar is not None:
            bar.stop()


@contextmanager
def start_progress(transport: Transport, *, is_quiet: bool) -> Iterator[None]:
    """Says what a submission waits for where the control plane has only just been started and that takes long."""
    ended = threading.Event()

    def watch() -> None:
        said = ""
        wait_s = _STARTS_WITHIN_S
        while not ended.wait(wait_s):
            wait_s = _LOOK_S
            try:
                text = transport.send(calls.get_plane()).get("starting", "")
            except GpulayerError:
                continue  # the submission itself says that the connection is lost
            if text and text != said and not ended.is_set():
                said = text
                say(f"waiting for the control plane: {safe(text)}")

    if not is_quiet:
        threading.Thread(target=watch, name="gpulayer-start-watch", daemon=True).start()
    try:
        yield
    finally:
        ended.set()


class QueueWatch:
    """Says why a job waits, until it runs. A thread that only asks and shows; ``stop`` before anything else is shown.

    On a terminal one line that changes, elsewhere a line whenever the reason changes.
    """

    def __init__(self, transport: Transport, job_id: str) -> None:
        self._transport = transport
        self._job_id = job_id
        self._ended = threading.Event()
        self._lock = threading.Lock()
        self._status: Any = None  # Any: rich is imported only when it shows something
        self._last = ""
        self._thread = threading.Thread(target=self._watch, name="gpulayer-queue-watch", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Returns at once; the line is gone when it does. May be repeated."""
        self._ended.set()
        with self._lock:
            if self._status is not None:
                self._status.stop()
                self._status = None

    def _watch(self) -> None:
        wait_s = _PATIENCE_S
        while not self._ended.wait(wait_s):
            wait_s = _LOOK_S
            try:
                record = self._transport.send(calls.get_job(self._job_id))
            except GpulayerError:
                continue  # whoever reads the log says that the connection is lost
            if record["state"] in FINAL_STATES or record["state"] == "running":
                self.stop()
                return
            is_starting = record["state"] == "staging" and not record["reason"]
            if is_starting:
                wait_s = _LOOK_AT_START_S
            if not is_starting or record["source"] or is_fancy(sys.stderr):
                self._show(waiting_line(record))

    def _show(self, text: str) -> None:
        with self._lock:
            if self._ended.is_set() or text == self._last:
                return
            self._last = text
            if not is_fancy(sys.stderr):
                say(text)
                return
            from rich.text import Text  # noqa: PLC0415

            if self._status is None:
                from rich.console import Console  # noqa: PLC0415
                from rich.status import Status  # noqa: PLC0415

                self._status = Status("", console=Console(stderr=True))
                self._status.start()
            self._status.update(Text(safe(text)))  # a plain text would be read as markup


def waiting_line(record: "JobRecord") -> str:
    """Why it does not run yet."""
    reason = record["reason"]
    match record["state"]:
        case "staging" if not reason:
            source = record["source"]
            if not source:
                return f"job {record['id']} is starting"
            return f"job {record['id']}: the worker gets the source ({format_bytes(source['size_bytes'])})"
        case "queued" if reason and reason["code"] == "retry" and record["attempts"]:
            number = record["attempts"][-1]["number"]  # why that ended is told when it ends
            return f"job {record['id']} is queued again after attempt {number}"
        case state:
            return f"job {record['id']} is {state}" + (f": {reason['message']}" if reason and reason["message"] else "")
