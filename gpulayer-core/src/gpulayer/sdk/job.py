"""``gl.Job``: one job of a control plane. Blocks; ``AsyncJob`` has the same methods, awaited."""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from gpulayer.client import calls
from gpulayer.client.following import FINAL_STATES, LOST_FOR_S, LogCursor, follow_logs, read_logs
from gpulayer.client.transport import Transport
from gpulayer.errors import JobEnded, NoWorkerFits, TimedOut, UsageError
from gpulayer.ids import Digest
from gpulayer.spec.units import format_duration

if TYPE_CHECKING:
    import os
    from datetime import datetime

    from gpulayer.wire.jobs import ElementRecord, EventRecord, JobRecord, OutputRecord, ProblemRecord, WhyReply

__all__ = ["RUNS_FOLDER", "Asking", "Job", "log_cursor", "raise_unless_succeeded", "still_runs"]

RUNS_FOLDER: Final = "gpulayer_runs"
_LAST_S: Final = 5.0  # for the answer that is on its way when the time of a wait is over


class Job:
    """Made by ``submit`` and ``Client.job``. Nothing else is cached but the id: every method asks the control plane."""

    def __init__(
        self, transport: Transport, record: "JobRecord | str", *, warnings: "Sequence[ProblemRecord]" = ()
    ) -> None:
        self._transport = transport
        self._id = record if isinstance(record, str) else record["id"]
        self._warnings = tuple(warnings if isinstance(record, str) else record.get("warnings", ()))

    @property
    def id(self) -> str:
        return self._id

    @property
    def warnings(self) -> "tuple[ProblemRecord, ...]":
        """What plugins said of it, where this object was made by submitting it; of a batch: of any of its jobs."""
        return self._warnings

    @property
    def state(self) -> str:
        """What the control plane says now."""
        return self.record()["state"]

    def record(self, *, index: int | None = None) -> "JobRecord":
        """Asked for anew each time. index: of that element of an array alone."""
        return self._transport.send(calls.get_job(self._id, index=index))

    def wait(self, *, timeout: float | None = None) -> "JobRecord":
        """Block until the job has ended, whatever its end. Raises TimedOut after ``timeout`` s; the job goes on. Raises
        Unreachable when nothing answers for a minute, or until ``timeout`` s are over and 5 s more for the last answer.
        """
        ends = None if timeout is None else time.monotonic() + timeout
        while True:
            left_s = None if ends is None else max(0.0, ends - time.monotonic())
            ask = Asking.within(left_s)
            call = calls.get_job(self._id, wait_s=ask.hold_s)
            record = self._transport.send(call, retry_for_s=ask.retry_for_s, within_s=ask.within_s)
            if record["state"] in FINAL_STATES:
                return record
            if ends is not None and time.monotonic() >= ends:
                raise still_runs(record, timeout or 0.0)

    def result(self, *, timeout: float | None = None) -> "JobRecord":
        """Like ``wait``, but raises JobEnded (NoWorkerFits when rejected) unless the job succeeded."""
        return raise_unless_succeeded(self.wait(timeout=timeout))

    def logs(
        self,
        *,
        follow: bool = False,
        attempt: int | None = None,
        stream: str = "stdout",
        rank: int = 0,
        since: "str | datetime | None" = None,
        index: int | None = None,
    ) -> Iterator[bytes]:
        """The output as it was written, in pieces of any size.

        follow: as it comes, over all attempts until the job has ended, or until ``attempt`` has; else what there is
        of the latest attempt, or of ``attempt``. stream: ``stderr`` of a job that was submitted with
        ``split_streams``; else both are in ``stdout``. since: only what came to the control plane then or later, as a
        time or as text: ``10m``, ``14:30``. Where bytes are missing, a line says so. Raises NotFound for a log that
        was removed and for a rank that is not there, BadRequest for a stream that is not. index: of an array, whose log
        it is; without it that of element 0.
        """
        cursor = log_cursor(follow=follow, attempt=attempt, stream=stream, rank=rank, since=since, index=index)
        if not follow:
            yield from read_logs(self._transport, self._id, cursor=cursor)
            return
        for piece in follow_logs(self._transport, self._id, cursor=cursor):
            if isinstance(piece, bytes):
                yield piece

    def events(self) -> "list[EventRecord]":
        """What happened to the job, in order."""
        found: list[EventRecord] = []
        after = 0
        while True:
            page = self._transport.send(calls.list_events(self._id, after=after))
            found += page["events"]
            if not page["events"] or page["next"] == after:
                return found
            after = page["next"]

    def why(self) -> "WhyReply":
        """What was weighed when it was placed; while it is queued, what it waits for; of a rejected one, why."""
        return self._transport.send(calls.get_why(self._id))

    def elements(self, *, failed: bool = False) -> "Iterator[ElementRecord]":
        """Of an array, by number. failed: only those that are done and have not succeeded."""
        after: int | None = 0
        while after is not None:
            page = self._transport.send(calls.list_elements(self._id, after=after, failed=failed))
            yield from page["elements"]
            after = page["next"]

    def cancel(self, *, grace: float | None = None) -> "JobRecord":
        """Ask for its end; returns at once. May be repeated. grace: seconds between SIGTERM and SIGKILL."""
        return self._transport.send(calls.cancel_job(self._id, grace_ms=None if grace is None else int(grace * 1000)))

    def retry(self) -> "Job":
        """Submit the same again, as a new job. Raises Conflict while this one lives."""
        import secrets  # noqa: PLC0415 - seldom used

        return Job(self._transport, self._transport.send(calls.retry_job(self._id, key=secrets.token_hex(16))))

    def outputs(self, *, index: int | None = None) -> "list[OutputRecord]":
        """Paths, sizes and digests of what has come home; empty until then. index: of that element of an array."""
        return (self._transport.send(calls.list_outputs(self._id, index=index)))["outputs"]

    def download(self, dest: "str | os.PathLike[str] | None" = None, *, index: int | None = None) -> Path:
        """Bring its outputs to ``dest`` (default ``gpulayer_runs/<id>``) and return that. May be repeated. index: those
        of that element of an array alone (default ``gpulayer_runs/<id>/<index>``)."""
        from gpulayer.client.download import bring_home  # noqa: PLC0415 - only where outputs come home

        of_element = [] if index is None else [str(index)]
        destination = Path(RUNS_FOLDER, self._id, *of_element) if dest is None else Path(dest)
        tree = self._transport.send(calls.list_outputs(self._id, index=index))["tree"]
        if tree is None:
            destination.mkdir(parents=True, exist_ok=True)
        else:
            bring_home(self._transport, Digest(tree), destination)
        return destination

    def __repr__(self) -> str:
        return f"Job({self._id!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Job) and other._id == self._id

    def __hash__(self) -> int:
        return hash(self._id)


@dataclass(frozen=True, slots=True)
class Asking:
    """How a wait asks once more. hold_s: for how long the answer may be held. retry_for_s: None: as any call.
    within_s: after which it has failed."""

    hold_s: float
    retry_for_s: float | None
    within_s: float | None

    @classmethod
    def within(cls, left_s: float | None) -> "Asking":
        """left_s: until the wait is over; None: it has no end of its own."""
        if left_s is None:
            return cls(calls.HOLD_LIMIT_S, LOST_FOR_S, None)
        retry_for_s = min(left_s, LOST_FOR_S) if left_s > _LAST_S else None
        return cls(min(left_s, calls.HOLD_LIMIT_S), retry_for_s, left_s + _LAST_S)


def log_cursor(
    *,
    follow: bool,
    attempt: int | None,
    stream: str,
    rank: int,
    since: "str | datetime | None",
    index: int | None = None,
) -> LogCursor:
    """Where the options of ``logs`` begin to read. Raises UsageError."""
    if stream not in ("stdout", "stderr"):
        raise UsageError(f"stream: {stream!r} is unknown", hint="stdout or stderr")
    since_ms = None
    if since is not None:
        from datetime import UTC, datetime  # noqa: PLC0415 - seldom used

        from gpulayer.client.since import parse_since  # noqa: PLC0415

        if isinstance(since, str):
            since_ms = parse_since(since, now=datetime.now(UTC).astimezone())
        else:
            since_ms = int(since.timestamp() * 1000)
    begins = attempt or (1 if follow else None)
    return LogCursor(begins, stream=stream, rank=rank, since_ms=since_ms, is_single=attempt is not None, index=index)


def still_runs(record: "JobRecord", timeout: float) -> TimedOut:
    """The error of a wait that ran out after ``timeout`` seconds; the job goes on."""
    return TimedOut(
        f"job {record['id']} is still {record['state']} after {format_duration(int(timeout * 1000))}",
        hint="it goes on; wait again, or cancel it",
        details={"job": record},
    )


def raise_unless_succeeded(record: "JobRecord") -> "JobRecord":
    """The record again where the job succeeded. Raises NoWorkerFits when it was rejected, else JobEnded."""
    state = record["state"]
    if state == "succeeded":
        return record
    reason = record["reason"]
    what = f": {reason['message']}" if reason and reason["message"] else ""
    if state == "rejected":
        raise NoWorkerFits(
            f"job {record['id']} was rejected{what}",
            hint="see details['verdicts'] for every worker's reasons",
            details={"job": record, "verdicts": record["verdicts"]},
        )
    code = f" with exit code {record['exit_code']}" if record["exit_code"] is not None else ""
    raise JobEnded(
        f"job {record['id']} {state.replace('_', ' ')}{code}{what}",
        hint=f"see its output: gpulayer job logs {record['id']}",
        details={"job": record},
    )
