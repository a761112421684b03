"""Imports are tried in a child first: whatever an import does to its process, it does not do it to ours.

One child is started for all; it forks once a plugin, so that Python and gpulayer are loaded once, and each plugin is
alone in a process that has nothing to lose. There it is imported and inspected, with /dev/null for its input and
output, and told of in a line of JSON. It is killed at its deadline, or when it takes too much memory, with everything
that it has started. Where the child itself came to an end, each plugin has one of its own, and where there is no fork.

``python -m gpulayer.plugins.preflight`` is that child: it reads one JSON line (``_Order``) and writes one a plugin.
"""

import json
import math
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Final

from gpulayer.hiding import hide_process
from gpulayer.plugins.discovery import Found
from gpulayer.plugins.importing import IMPORT_HINT, import_plugin, inspected_of, why_not_imported
from gpulayer.plugins.inspection import Inspected
from gpulayer.plugins.record import PluginStatus
from gpulayer.plugins.settings import IMPORT_S

__all__ = ["Tried", "try_imports"]

_SIDE_BY_SIDE: Final = 8
_LOOK_S: Final = 0.05
_START_S: Final = 30.0
_MOST_MEMORY: Final = 8 << 30
_LEAST_MEMORY: Final = 1 << 30
_ANSWER_BYTES: Final = 64 << 10
_SAID_BYTES: Final = 8000  # who shows it hides secrets first, and cuts it then
_BEGUN: Final = b"begun "
_PR_SET_PDEATHSIG: Final = 1
_PR_SET_CHILD_SUBREAPER: Final = 36

# sys.path as it is here, whatever made it so, and none of the variables that plugins see changed for that.
_BOOT: Final = (
    "import sys, json; order = json.loads(sys.stdin.readline()); sys.path[:] = order['path']; "
    "from gpulayer.plugins.preflight import serve; serve(order)"
)


@dataclass(frozen=True, slots=True)
class Tried:
    """What became of one. ``faults``: what it did besides: processes and threads that it left running. is_late: it was
    given up at its deadline."""

    inspected: Inspected
    faults: tuple[str, ...] = ()
    is_late: bool = False


def try_imports(
    plugins: Sequence[Found],
    *,
    python: str,
    deadline_s: float = IMPORT_S,
    memory_bytes: int | None = None,
    can_fork: bool = hasattr(os, "fork"),
) -> dict[str, Tried]:
    """By name, for all of them. Blocks for about ``deadline_s`` where any of them hangs. Starts nothing for none.

    memory_bytes: how much each may take, None: half of what is free.
    """
    tried: dict[str, Tried] = {}
    groups = [list(plugins)] if can_fork else [[found] for found in plugins]
    while groups:
        group = groups.pop()
        if not group:
            continue
        said, begun, failed = _ask(group, python, deadline_s, memory_bytes, is_forking=can_fork)
        tried |= said
        left = [found for found in group if found.name not in tried]
        # One of those that ran when the child ended has ended it, so each of them gets one of its own.
        suspects = [found for found in left if found.name in begun]
        if len(group) == 1 or not suspects:
            tried |= {found.name: failed for found in left}
        else:
            groups += [[found for found in left if found not in suspects], *([found] for found in suspects)]
    return tried


def _ask(
    plugins: Sequence[Found], python: str, deadline_s: float, memory_bytes: int | None, *, is_forking: bool
) -> tuple[dict[str, Tried], set[str], Tried]:
    """What one child says of them; which it has begun with; and what became of those that it said nothing of."""
    order = {
        "path": [str(entry) for entry in sys.path],
        "plugins": [asdict(found) for found in plugins],
        "deadline_s": deadline_s,
        "memory_bytes": memory_bytes,
        "is_forking": is_forking,
    }
    rounds = -(-len(plugins) // _SIDE_BY_SIDE) if is_forking else 1
    try:
        child = subprocess.Popen(
            [python, "-P", "-c", _BOOT],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
    except OSError as error:
        return {}, set(), _failed(f"its import can't be tried: {python}: {error.strerror}")
    limit_s = rounds * deadline_s + _START_S
    failed = _late(deadline_s)
    with child:
        try:
            said, complaint = child.communicate(json.dumps(order).encode() + b"\n", timeout=limit_s)
            failed = _failed(_how_ended(child.returncode, complaint))
        except subprocess.TimeoutExpired:
            _kill_group(child.pid)
            said, _ = child.communicate()
    _kill_group(child.pid)
    begun = {line[len(_BEGUN) :].decode() for line in said.splitlines() if line.startswith(_BEGUN)}
    return dict(_answers(said)), begun, failed


def _answers(said: bytes) -> Iterator[tuple[str, Tried]]:
    for line in said.splitlines():
        try:
            fields = json.loads(line)
            faults = tuple(str(fault)[:_SAID_BYTES] for fault in fields["faults"])
            yield str(fields["name"]), Tried(inspected_of(fields["inspected"]), faults, fields["is_late"] is True)
        except (ValueError, KeyError, TypeError):
            continue  # cut off: then nothing was said of it


def _how_ended(code: int, complaint: bytes = b"") -> str:
    if code < 0:
        return f"its import ended the process ({_signal(-code)})"
    said = complaint.decode("utf-8", "replace").strip().splitlines()[-1:]
    return f"its import ended the process (exit {code}){''.join(f': {line}' for line in said)}"[:_SAID_BYTES]


def _failed(error: str) -> Tried:
    return Tried(Inspected(status=PluginStatus.BROKEN, error=error, hint=IMPORT_HINT))


def _late(deadline_s: float) -> Tried:
    return replace(_failed(f"its import takes longer than {deadline_s:g} s"), is_late=True)


def _signal(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _kill_group(pid: int) -> bool:
    """Whether there was still anything of it."""
    if not hasattr(os, "killpg"):
        return False
    try:
        os.killpg(pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        return False
    return True


# In the child, from here on.


def serve(order: Mapping[str, Any]) -> None:  # Any: JSON
    """Try what is asked for, and end the process."""
    _be_first_to_go()
    hide_process()
    answers = os.dup(1)
    nowhere = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(nowhere, stream)
    plugins = [Found(**fields) for fields in order["plugins"]]
    if order["is_forking"]:
        _Trials(answers, order["deadline_s"], order["memory_bytes"] or _bearable()).run(plugins)
    else:
        for found in plugins:
            _write(answers, _line(found.name, _try(found, order["deadline_s"])))
    os._exit(0)


def _line(name: str, tried: Tried) -> bytes:
    fields = {"name": name, "inspected": asdict(tried.inspected), "faults": tried.faults, "is_late": tried.is_late}
    return json.dumps(fields).encode() + b"\n"


def _write(file: int, content: bytes) -> None:
    while content:
        content = content[os.write(file, content) :]


def _try(found: Found, deadline_s: float | None = None) -> Tried:
    """In a thread, since that is where the real import is, too. deadline_s: where nobody else looks after it."""
    before = set(threading.enumerate())
    result: list[Inspected] = []

    def work() -> None:
        try:
            result.append(import_plugin(found.module)[1])
        except BaseException as error:
            result.append(why_not_imported(found, error))

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(deadline_s)
    if not result:
        return _late(deadline_s or 0.0)
    if any(not one.daemon for one in set(threading.enumerate()) - before):
        return Tried(result[0], ("its import left a thread running that is no daemon: our process can't end",))
    return Tried(result[0])


def _bearable() -> int:
    import psutil  # noqa: PLC0415 - only the child needs it

    return max(_LEAST_MEMORY, min(_MOST_MEMORY, psutil.virtual_memory().available // 2))


@dataclass(slots=True)
class _Trial:
    found: Found
    pid: int
    answer: int
    ends_s: float
    said: bytes = b""


class _Trials:
    """Some at a time, each in a process group of its own."""

    def __init__(self, answers: int, deadline_s: float, memory_bytes: int) -> None:
        self._answers = answers
        self._deadline_s = deadline_s
        self._memory_bytes = memory_bytes
        self._running: list[_Trial] = []

    def run(self, plugins: Sequence[Found]) -> None:
        _adopt()
        waiting = list(plugins)
        while waiting or self._running:
            while waiting and len(self._running) < _SIDE_BY_SIDE:
                found = waiting.pop(0)
                _write(self._answers, _BEGUN + found.name.encode() + b"\n")
                self._running.append(self._start(found))
            self._read()
            for trial in list(self._running):
                tried = self._end(trial)
                if tried is not None:
                    self._running.remove(trial)
                    _write(self._answers, _line(trial.found.name, tried))
        _kill_all_below()

    def _start(self, found: Found) -> _Trial:
        read, write = os.pipe()
        parent = os.getpid()
        pid = os.fork()
        if pid == 0:
            try:
                os.setsid()
                _end_with(parent, self._deadline_s)
                os.close(self._answers)
                os.close(read)
                _write(write, _line(found.name, _try(found)))
            finally:
                os._exit(0)
        os.close(write)
        os.set_blocking(read, False)
        return _Trial(found, pid, read, time.monotonic() + self._deadline_s)

    def _read(self) -> None:
        ready, _, _ = select.select([trial.answer for trial in self._running], [], [], _LOOK_S)
        for trial in self._running:
            if trial.answer in ready:
                piece = _read_some(trial.answer)
                trial.said = (trial.said + piece)[:_ANSWER_BYTES]
                if not piece:
                    time.sleep(_LOOK_S / 10)  # it has closed its end, and ends in a moment

    def _end(self, trial: _Trial) -> Tried | None:
        """None while it runs. It has ended with its line, whoever else holds the other end of the pipe."""
        pid, status = os.waitpid(trial.pid, os.WNOHANG)
        failed: Tried | None = None
        if not pid and time.monotonic() > trial.ends_s:
            failed = _late(self._deadline_s)
        if not pid and _memory_of(trial.pid) > self._memory_bytes:
            failed = _failed(f"its import takes more than {self._memory_bytes >> 20:,} MiB of memory")
        if not pid and failed is None:
            return None
        if not pid:
            _kill_group(trial.pid)
            os.kill(trial.pid, signal.SIGKILL)  # it may not have a group of its own yet
            _, status = os.waitpid(trial.pid, 0)
        _reap(trial.pid)
        left = _kill_group(trial.pid)
        while piece := _read_some(trial.answer):
            trial.said = (trial.said + piece)[:_ANSWER_BYTES]
        os.close(trial.answer)
        answers = dict(_answers(trial.said))
        if failed is not None or trial.found.name not in answers:
            return failed or _failed(_how_ended(os.waitstatus_to_exitcode(status)))
        tried = answers[trial.found.name]
        return replace(tried, faults=(*tried.faults, "its import left a process running")) if left else tried


def _reap(group: int) -> None:
    """Adopted ones of this group that have ended."""
    try:
        while os.waitpid(-group, os.WNOHANG) != (0, 0):
            pass
    except ChildProcessError:
        pass


def _read_some(file: int) -> bytes:
    try:
        return os.read(file, 1 << 16)
    except BlockingIOError:
        return b""


def _memory_of(pid: int) -> int:
    """Resident, in bytes. A limit of addresses would not do: CUDA and its like reserve more of those than there are."""
    import psutil  # noqa: PLC0415 - only the child needs it

    try:
        return int(psutil.Process(pid).memory_info().rss)
    except psutil.Error:
        return 0


def _adopt() -> None:
    """Orphans of what is tried come to this process, so that it can end them."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def _end_with(parent: int, deadline_s: float) -> None:
    """Should the one who keeps the deadline be gone, this process ends all the same."""
    signal.alarm(math.ceil(deadline_s) + 1)
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def _prctl(option: int, value: int) -> None:
    """prctl(2); nothing where there is none."""
    if sys.platform == "linux":
        import ctypes  # noqa: PLC0415 - half a megabyte, and only Linux needs it

        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


def _be_first_to_go() -> None:
    """When memory runs out, this is what the kernel should end."""
    try:
        with open("/proc/self/oom_score_adj", "w", encoding="ascii") as score:
            score.write("1000")
    except OSError:
        pass


def _kill_all_below() -> None:
    """What has left its process group and is still there."""
    import psutil  # noqa: PLC0415 - only the child needs it

    for _ in range(3):
        below = psutil.Process().children(recursive=True)
        for process in below:
            try:
                process.kill()
            except psutil.Error:
                pass
        if not below or not psutil.wait_procs(below, timeout=1)[1]:
            return


if __name__ == "__main__":
    serve(json.loads(sys.stdin.readline()))
