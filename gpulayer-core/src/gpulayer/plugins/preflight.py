"""Imports are tried in a child first: whatever an import does to its process, it does not do it to ours.

One child is started for all; it forks once a plugin, so that Python and gpulayer are loaded once, and each plugin is
alone in a process that has nothing to lose. There it is imported and inspected, with /dev/null for its input and
output, and told of in a line of JSON. It is killed at its deadline, or when it takes too much memory, with everything
that it has started. Some are tried at a time, but those that only wait, or have had a second, are in nobody's way: all
that hang take about one deadline together. Where the child itself came to an end, each plugin has one of its own, and
where there is no fork.

What would keep our processes from working or from ending is refused: a change of what the process shares that can't be
put back, a copy of the process, a thread that is no daemon, an end of the process that does not end.

``python -m gpulayer.plugins.preflight`` is that child: it reads one JSON line (``_Order``) and writes one a plugin.
"""

import atexit
import json
import math
import os
import select
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from typing import Any, Final

from gpulayer.hiding import hide_process
from gpulayer.plugins.ambient import Ambient
from gpulayer.plugins.descendants import adopt_orphans, end_with, kill_all_below, listed
from gpulayer.plugins.discovery import Found
from gpulayer.plugins.importing import IMPORT_HINT, import_plugin, inspected_of, why_not_imported
from gpulayer.plugins.inspection import Inspected
from gpulayer.plugins.record import LEFT_RUNNING, PluginStatus
from gpulayer.plugins.settings import IMPORT_S

__all__ = ["Tried", "try_imports"]

_SIDE_BY_SIDE: Final = 8
_MOST_AT_ONCE: Final = 128
_IN_THE_WAY_S: Final = 1.0
_WAITS_AFTER_S: Final = 0.2
_LOOK_S: Final = 0.05
_COPY_S: Final = 0.3
_END_S: Final = 2.0
_UNENDING: Final = "what its import has asked for at the end of the process (atexit) does not end well"
_START_S: Final = 30.0
_MOST_MEMORY: Final = 8 << 30
_LEAST_MEMORY: Final = 1 << 30
_ANSWER_BYTES: Final = 64 << 10
_SAID_BYTES: Final = 8000  # who shows it hides secrets first, and cuts it then
_BEGUN: Final = b"begun "

# sys.path as it is here, whatever made it so, and none of the variables that plugins see changed for that.
_BOOT: Final = (
    "import sys, json; order = json.loads(sys.stdin.readline()); sys.path[:] = order['path']; "
    "from gpulayer.plugins.preflight import serve; serve(order)"
)


@dataclass(frozen=True, slots=True)
class Tried:
    """What became of one. ``faults``: what it did besides: processes that it left running. is_late: it was given up at
    its deadline."""

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
    told: Callable[[str, Tried], None] = lambda name, tried: None,
) -> dict[str, Tried]:
    """By name, for all of them. Blocks for about ``deadline_s`` where any of them hangs. Starts nothing for none.

    memory_bytes: how much each may take, None: half of what is free. told: called with each as soon as it is known.
    """
    tried: dict[str, Tried] = {}

    def tell(name: str, one: Tried) -> None:
        tried[name] = one
        told(name, one)

    groups = [list(plugins)] if can_fork else [[found] for found in plugins]
    while groups:
        group = groups.pop()
        if not group:
            continue
        begun, failed = _ask(group, python, deadline_s, memory_bytes, is_forking=can_fork, tell=tell)
        left = [found for found in group if found.name not in tried]
        # One of those that ran when the child ended has ended it, so each of them gets one of its own.
        suspects = [found for found in left if found.name in begun]
        if len(group) == 1 or not suspects:
            for found in left:
                tell(found.name, failed)
        else:
            groups += [[found for found in left if found not in suspects], *([found] for found in suspects)]
    return tried


def _ask(
    plugins: Sequence[Found],
    python: str,
    deadline_s: float,
    memory_bytes: int | None,
    *,
    is_forking: bool,
    tell: Callable[[str, Tried], None],
) -> tuple[set[str], Tried]:
    """Which of them one child has begun with, and what became of those that it said nothing of."""
    order = {
        "path": [entry for entry in sys.path if type(entry) is str],
        "plugins": [asdict(found) for found in plugins],
        "deadline_s": deadline_s,
        "memory_bytes": memory_bytes,
        "is_forking": is_forking,
    }
    rounds = len(plugins) // _MOST_AT_ONCE + 1 if is_forking else 1
    limit_s = rounds * deadline_s + len(plugins) / _SIDE_BY_SIDE * _IN_THE_WAY_S + _START_S
    begun: set[str] = set()
    wanted = {found.name for found in plugins}
    is_over = threading.Event()
    with tempfile.TemporaryFile() as complaint:
        try:
            child = subprocess.Popen(
                [python, "-P", "-c", _BOOT],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=complaint,
                start_new_session=True,
            )
        except OSError as error:
            return set(), _failed(f"its import can't be tried: {python}: {error.strerror}")

        def give_up() -> None:
            is_over.set()
            _kill_group(child.pid)
            child.kill()

        assert child.stdin is not None, "it is a pipe"
        assert child.stdout is not None, "it is a pipe"
        timer = threading.Timer(limit_s, give_up)
        timer.daemon = True
        timer.start()
        try:
            with child.stdout, suppress(BrokenPipeError), child.stdin:
                child.stdin.write(json.dumps(order).encode() + b"\n")
                child.stdin.flush()
                for line in child.stdout:
                    if line.startswith(_BEGUN):
                        begun.add(line[len(_BEGUN) :].decode().strip())
                    for name, tried in _answers(line):
                        if name in wanted:
                            wanted.remove(name)
                            tell(name, tried)
                child.wait()
        finally:
            timer.cancel()
            _kill_group(child.pid)
            child.kill()
            child.wait()
        if is_over.is_set():
            return begun, _late(deadline_s)
        complaint.seek(0)
        return begun, _failed(_how_ended(child.returncode, complaint.read()[-_SAID_BYTES:]))


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
    import psutil  # noqa: F401, PLC0415 - once for all that are forked

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
    own = os.getpid()
    before, threads = Ambient(), set(threading.enumerate())
    ours, its = os.pipe()
    result: list[Inspected] = []

    def work() -> None:
        try:
            inspected = import_plugin(found.module)[1]
        except BaseException as error:
            inspected = why_not_imported(found, error)
        if os.getpid() != own:  # a copy comes back from the import, too
            os.write(its, b"c")
            os._exit(0)
        result.append(inspected)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(deadline_s)
    if not result:
        return _late(deadline_s or 0.0)
    before.put_back()
    lasting = before.lasting()
    os.close(its)
    has_copy = hasattr(os, "fork") and _is_held(ours)
    os.close(ours)
    left = [] if lasting or has_copy else kill_all_below()
    faults = (f"{LEFT_RUNNING} ({listed(left)})",) if left else ()
    why = ""
    if has_copy:
        why = "its import makes a copy of the process (os.fork), which would go on as if it were ours"
    elif lasting:
        why = f"its import changes {', '.join(lasting)}, which all of the process share, so that it can't be put back"
    elif any(not one.daemon for one in set(threading.enumerate()) - threads):
        why = "its import leaves a thread running that is no daemon: our process can't end"
    return Tried(_failed(why).inspected if why else result[0], faults)


def _is_held(pipe: int) -> bool:
    """Whether a copy of this process has the other end, or has said so: a program that was started has not."""
    ready, _, _ = select.select([pipe], [], [], _COPY_S)
    return not ready or os.read(pipe, 1) != b""


def _ends() -> bool:
    """Whether what is to be run at the end of the process, which is near, comes to an end itself."""
    run: Callable[[], None] = vars(atexit)["_run_exitfuncs"]  # the only way to know
    ends = threading.Thread(target=run, daemon=True)
    ends.start()
    ends.join(_END_S)
    return not ends.is_alive()


def _bearable() -> int:
    import psutil  # noqa: PLC0415 - only the child needs it

    return max(_LEAST_MEMORY, min(_MOST_MEMORY, psutil.virtual_memory().available // 2))


@dataclass(slots=True)
class _Trial:
    found: Found
    pid: int
    answer: int
    began_s: float
    said: bytes = b""


class _Trials:
    """Some at a time, each in a process group of its own."""

    def __init__(self, answers: int, deadline_s: float, memory_bytes: int) -> None:
        self._answers = answers
        self._deadline_s = deadline_s
        self._memory_bytes = memory_bytes
        self._running: list[_Trial] = []

    def run(self, plugins: Sequence[Found]) -> None:
        adopt_orphans()
        waiting = list(plugins)
        while waiting or self._running:
            while waiting and self._has_room():
                found = waiting.pop(0)
                _write(self._answers, _BEGUN + found.name.encode() + b"\n")
                self._running.append(self._start(found))
            self._read()
            for trial in list(self._running):
                tried = self._end(trial)
                if tried is not None:
                    self._running.remove(trial)
                    _write(self._answers, _line(trial.found.name, tried))
        kill_all_below()

    def _has_room(self) -> bool:
        if len(self._running) >= _MOST_AT_ONCE:
            return False
        return len(self._running) < _SIDE_BY_SIDE or sum(map(_is_in_the_way, self._running)) < _SIDE_BY_SIDE

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
                adopt_orphans()
                vars(atexit)["_clear"]()  # what is ours
                tried = _try(found)
                is_good = tried.inspected.status is PluginStatus.OK
                if is_good:
                    _write(write, _line(found.name, _failed(_UNENDING)))  # unless more is said
                if not is_good or _ends():
                    _write(write, _line(found.name, tried))
            finally:
                os._exit(0)
        os.close(write)
        os.set_blocking(read, False)
        return _Trial(found, pid, read, time.monotonic())

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
        if not pid and time.monotonic() > trial.began_s + self._deadline_s:
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
        if trial.found.name not in answers:
            return failed or _failed(_how_ended(os.waitstatus_to_exitcode(status)))
        tried = answers[trial.found.name]
        return replace(tried, faults=(*tried.faults, LEFT_RUNNING)) if left else tried


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


def _is_in_the_way(trial: _Trial) -> bool:
    """Whether others would be slower beside it, and have not waited for it for long."""
    import psutil  # noqa: PLC0415 - only the child needs it

    age_s = time.monotonic() - trial.began_s
    if age_s > _IN_THE_WAY_S:
        return False
    try:
        spent = psutil.Process(trial.pid).cpu_times()
    except psutil.Error:
        return False
    return age_s < _WAITS_AFTER_S or spent.user + spent.system > age_s / 2


def _memory_of(pid: int) -> int:
    """Resident, in bytes. A limit of addresses would not do: CUDA and its like reserve more of those than there are."""
    import psutil  # noqa: PLC0415 - only the child needs it

    try:
        return int(psutil.Process(pid).memory_info().rss)
    except psutil.Error:
        return 0


def _end_with(parent: int, deadline_s: float) -> None:
    """Should the one who keeps the deadline be gone, this process ends all the same."""
    signal.alarm(math.ceil(deadline_s) + 1)
    end_with(parent)


def _be_first_to_go() -> None:
    """When memory runs out, this is what the kernel should end."""
    try:
        with open("/proc/self/oom_score_adj", "w", encoding="ascii") as score:
            score.write("1000")
    except OSError:
        pass


if __name__ == "__main__":
    serve(json.loads(sys.stdin.readline()))
