"""A job in the foreground: its bytes on stdout, everything else on stderr, Ctrl-C, and its ending.

The program's bytes pass untouched, those of a split job each on the stream it was written to. An interrupt never
loses or doubles a byte: it is held back while one is written, and what was written is counted.
"""

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from gpulayer.cli.console import print_json, say
from gpulayer.cli.exits import Exit, exit_for_job
from gpulayer.cli.logs import SideStream, follow_elements, say_gap
from gpulayer.cli.losses import LossTeller
from gpulayer.cli.progress import QueueWatch, transfer_progress
from gpulayer.cli.raw import ElementsOutput, RawOutput
from gpulayer.cli.records import ending_line, notes_on
from gpulayer.client import calls
from gpulayer.client.following import FINAL_STATES, LOST_FOR_S, FollowEvents, LogCursor, follow_logs
from gpulayer.client.transport import Transport
from gpulayer.errors import Conflict, Unreachable, UsageError
from gpulayer.faults import here
from gpulayer.ids import Digest
from gpulayer.sdk.job import RUNS_FOLDER

if TYPE_CHECKING:
    from gpulayer.wire.jobs import JobRecord

__all__ = ["Foreground"]


class Foreground:
    """Follow one job to its end. ``as_json``: logs go to stderr and the final record to stdout.

    has_ended: see ``LossTeller``.
    """

    def __init__(
        self,
        transport: Transport,
        record: "JobRecord",
        *,
        is_quiet: bool,
        as_json: bool,
        brings_outputs: bool,
        has_ended: Callable[[], bool] = lambda: False,
    ) -> None:
        self._transport = transport
        self._record = record
        self._id = record["id"]
        self._is_quiet = is_quiet
        self._as_json = as_json
        self._brings_outputs = brings_outputs
        self._is_cancelling = False
        self._losses = LossTeller(self._id, has_ended)
        transport.waiting = self._losses.waiting
        stream = sys.stderr if as_json else sys.stdout
        self._output = ElementsOutput(stream, LogCursor(index=0)) if self._is_array else RawOutput(stream, LogCursor())
        self._side: SideStream | None = None

    def run(self) -> int:
        """Returns the exit code."""
        if self._record["state"] in FINAL_STATES and not self._record["attempts"]:
            return self._finish(self._record)
        with self._output.interrupts():
            while True:
                try:
                    return self._finish(self._follow())
                except KeyboardInterrupt:
                    try:
                        code = self._interrupted()
                    except KeyboardInterrupt:
                        code = self._interrupted()  # once more, which now says cancel or give up
                    if code is not None:
                        return code
                except BrokenPipeError:
                    say(f"job {self._id} goes on: gpulayer job logs --follow {self._id}")
                    raise
                except Unreachable as error:
                    goes = "is not lost" if error.details.get("has_ended") else "goes on without this command"
                    raise Unreachable(
                        f"{error.message}; job {self._id} {goes}",
                        hint=f"go on with: gpulayer job logs --follow {self._id}",
                        details=error.details,
                    ) from None

    @property
    def _is_array(self) -> bool:
        return "array" in self._record

    def _follow(self) -> "JobRecord":
        if not self._is_array:
            return self._follow_one()
        assert isinstance(self._output, ElementsOutput)
        if self._record["split_streams"] and self._side is None:
            side = ElementsOutput(sys.stderr, LogCursor(stream="stderr", index=0))
            self._side = SideStream(lambda: follow_elements(self._transport, self._record, side))
        watch = None if self._is_quiet else QueueWatch(self._transport, self._id)
        stop = watch.stop if watch is not None else lambda: None
        events = FollowEvents(ended=self._announce_attempt, lost=self._losses.lost, dropped=say_gap)
        try:
            follow_elements(
                self._transport, self._record, self._output, events=events, begun=stop, found=self._losses.found
            )
        finally:
            stop()
        if self._side is not None:
            self._side.finish()
        while True:
            call = calls.get_job(self._id, wait_s=calls.HOLD_LIMIT_S)
            record = self._transport.send(call, retry_for_s=LOST_FOR_S)
            if record["state"] in FINAL_STATES:
                return record

    def _follow_one(self) -> "JobRecord":
        watch = None if self._is_quiet else QueueWatch(self._transport, self._id)
        cursor = self._output.cursor()
        events = FollowEvents(ended=self._announce_attempt, lost=self._losses.lost, dropped=say_gap)
        if self._record["split_streams"] and self._side is None:
            self._side = SideStream(self._follow_stderr)
        try:
            for piece in follow_logs(self._transport, self._id, lost_for_s=LOST_FOR_S, events=events, cursor=cursor):
                self._losses.found()
                if not isinstance(piece, bytes):
                    if self._side is not None:
                        self._side.finish()
                    return piece
                if watch is not None:
                    watch.stop()
                self._output.write(piece, cursor)
                here("client.following")
        finally:
            if watch is not None:
                watch.stop()
        raise AssertionError("follow_logs ends with a record")

    def _follow_stderr(self) -> None:
        output = RawOutput(sys.stderr, LogCursor(stream="stderr"))
        cursor = output.cursor()
        for piece in follow_logs(self._transport, self._id, lost_for_s=LOST_FOR_S, cursor=cursor):
            if isinstance(piece, bytes):
                output.write(piece, cursor)

    def _finish(self, record: "JobRecord") -> int:
        landed = ""
        if self._brings_outputs and record["output_tree"]:
            from gpulayer.client.download import bring_home  # noqa: PLC0415 - only where outputs come home
            from gpulayer.spec.tree import EMPTY_TREE  # noqa: PLC0415

            if record["output_tree"] != EMPTY_TREE:
                destination = Path(_working_folder(self._id), RUNS_FOLDER, self._id)
                here("client.before_home")
                with transfer_progress(is_quiet=self._is_quiet) as progress:
                    home = bring_home(self._transport, Digest(record["output_tree"]), destination, progress=progress)
                for warning in home.warnings:
                    say(f"note: {warning}")
                landed = str(Path(RUNS_FOLDER, self._id))
                here("client.after_home")
        if record["state"] == "rejected":
            from gpulayer.cli.verdicts import rejection_lines  # noqa: PLC0415 - only after a rejection

            for line in rejection_lines(record):
                say(line)
            say(f"job {self._id} was rejected; gpulayer job show {self._id}")
        elif not self._is_quiet:
            for line in notes_on(record):
                say(f"note: {line}")
            say(ending_line(record, landed, is_noted=True))
        if self._as_json:
            print_json(record)
        return exit_for_job(record)

    def _interrupted(self) -> int | None:
        """An exit code, or None to go on following until the cancelled job has ended."""
        if self._is_cancelling:
            say(f"not waiting any longer; see gpulayer job show {self._id}")
            return Exit.CANCELLED
        try:
            is_asked = not self._output.is_terminated and sys.stdin.isatty() and sys.stderr.isatty()
            is_detached = is_asked and self._wants_detach()
        except KeyboardInterrupt:
            sys.stderr.write("\n")
            is_detached = False
        if is_detached:
            say(f"job {self._id} goes on: gpulayer job logs --follow {self._id}")
            if self._brings_outputs:
                say(f"its files, once it has ended: gpulayer job result --download {self._id}")
            return Exit.OK
        self._is_cancelling = True
        say(f"cancelling job {self._id}")
        try:
            self._transport.send(calls.cancel_job(self._id))
        except Conflict:
            pass  # it ended first; following says how
        return None

    def _wants_detach(self) -> bool:
        """Enter and an end of input mean: cancel, and so does a second Ctrl-C, by its exception."""
        sys.stderr.write("\n")
        while True:
            sys.stderr.write("detach or cancel? [d/C] ")
            sys.stderr.flush()
            match sys.stdin.readline().strip().lower():
                case "d" | "detach":
                    return True
                case "" | "c" | "cancel":
                    return False

    def _announce_attempt(self, record: "JobRecord", number: int) -> None:
        attempt = record["attempts"][number - 1]
        element = f"element {record['index']} of " if "index" in record else ""
        why = (attempt["ended_by"] or "ended").replace("_", " ")
        evidence = f": {attempt['evidence'].replace(chr(10), '; ')}" if attempt["evidence"] else ""
        what = f"attempt {number} of {element}job {self._id}"
        say(f"{what} ended ({why}{evidence}); it runs again as attempt {number + 1}")


def _working_folder(job_id: str) -> str:
    try:
        return os.getcwd()
    except FileNotFoundError:
        raise UsageError(
            "the folder in which this command was started is gone: outputs can't come home to it",
            hint=f"gpulayer job result {job_id} --download --dest DIR",
        ) from None
