"""The plugins of this Python tried out in a child process, so that nothing they do happens here.

``installed_plugins`` says what a control plane or a worker of this Python would make of them; ``check_plugin`` looks at
one of them step by step. Both end in time, whatever a plugin does: what still runs then is killed.
"""

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from gpulayer.plugins.descendants import kill_all_below
from gpulayer.plugins.hiding import SecretsHider
from gpulayer.plugins.record import PluginRecord
from gpulayer.plugins.reporting import plugin_to_wire
from gpulayer.plugins.settings import PluginSettings
from gpulayer.spec.plain import plain_line, plain_text
from gpulayer.variables import background_variables

__all__ = ["CHECK_DEADLINE_S", "LIST_DEADLINE_S", "CheckReport", "Flaw", "Step", "check_plugin", "installed_plugins"]

LIST_DEADLINE_S: Final = 120.0
CHECK_DEADLINE_S: Final = 60.0
_CHILD: Final = "gpulayer.plugins.trial_child"
_QUIET_S: Final = 1.5
_OUTPUT: Final = 4000  # characters of what a plugin printed
_LINE: Final = 400
_MOST_ANSWERS: Final = 2**24
# Of a file that a plugin writes: what it prints lies in one, and must not fill the disk.
_MOST_WRITTEN: Final = 2**28


@dataclass(frozen=True, slots=True)
class Step:
    """``took_s``: None where it did not end."""

    name: str
    took_s: float | None = None
    is_good: bool = True


@dataclass(frozen=True, slots=True)
class Flaw:
    """``what``: where: a step, an object, a method. ``story``: the plugin's own frames, where something was raised."""

    what: str
    message: str
    hint: str = ""
    story: str = ""


@dataclass(slots=True)
class CheckReport:
    """``is_known`` is False where no plugin has that name; then ``known`` has the names there are. ``warnings``: it
    works, and may be in others' way. ``options``: names of those that it is given. ``output``: the end of
    what it printed."""

    name: str
    is_known: bool = True
    known: list[str] = field(default_factory=list)
    distribution: str = ""
    version: str = ""
    target: str = ""
    api: str = ""
    hooks: list[str] = field(default_factory=list)
    provides: list[str] = field(default_factory=list)
    options: list[str] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)
    flaws: list[Flaw] = field(default_factory=list)
    warnings: list[Flaw] = field(default_factory=list)
    output: str = ""

    @property
    def is_good(self) -> bool:
        return self.is_known and not self.flaws


def installed_plugins(
    environment: Mapping[str, str],
    *,
    python: str = sys.executable,
    deadline_s: float = LIST_DEADLINE_S,
    waiting: Callable[[], None] = lambda: None,
) -> tuple[list[dict[str, Any]], str]:
    """Their records as ``wire.plugins.PluginFields``, core's own too, and why there are none, else empty.

    environment: of this process. waiting: called once where it takes longer than one would think. Blocks. Raises
    UsageError for variables that make no sense.
    """
    # Any: JSON objects of our own child.
    variables = PluginSettings.of(environment).variables
    answers, ended, output = _child(["records"], environment, python=python, deadline_s=deadline_s, waiting=waiting)
    for answer in answers:
        match answer:
            case {"records": list(records)} if all(map(_is_record, records)):
                return records, ""
    said = SecretsHider({"": variables})("", output).strip().rpartition("\n")[2]
    return [], f"trying them {ended}" + (f": {plain_line(said, _LINE)}" if said else "")


def check_plugin(
    name: str,
    environment: Mapping[str, str],
    *,
    python: str = sys.executable,
    deadline_s: float = CHECK_DEADLINE_S,
    waiting: Callable[[], None] = lambda: None,
    most_written: int = _MOST_WRITTEN,
) -> CheckReport:
    """See ``CheckReport``. ``environment`` and ``waiting`` as for ``installed_plugins``. Blocks.

    most_written: bytes that any file may have that the plugin writes, also what it prints.
    """
    options = PluginSettings.of(environment).options_of(name)
    answers, ended, output = _child(
        ["check", name],
        environment,
        python=python,
        deadline_s=deadline_s,
        waiting=waiting,
        most_written=most_written,
    )
    report = CheckReport(name, output=_plain_end(SecretsHider({name: options})(name, output)))
    step, flaws_before = "start", 0
    for answer in answers:
        match answer:
            case {"begin": str(step)}:
                flaws_before = len(report.flaws)
            case {"end": str(step), "took_s": float(took_s)}:
                report.steps.append(Step(step, took_s, is_good=len(report.flaws) == flaws_before))
            case {"flaw": {"what": str(what), "message": str(message), "hint": str(hint), "story": str(story)}}:
                report.flaws.append(Flaw(what, message, hint, story))
            case {"warning": {"what": str(what), "message": str(message), "hint": str(hint)}}:
                report.warnings.append(Flaw(what, message, hint))
            case {"provides": list(names)}:
                report.provides = list(map(str, names))
            case {"options": list(names)}:
                report.options = list(map(str, names))
            case {"api": str(api), "hooks": list(hooks)}:
                report.api, report.hooks = api, list(map(str, hooks))
            case {"distribution": str(distribution), "version": str(version), "target": str(target)}:
                report.distribution, report.version, report.target = distribution, version, target
            case {"known": list(known)}:
                report.is_known, report.known = False, list(map(str, known))
            case {"done": True}:
                return report
    report.steps.append(Step(step, is_good=False))
    report.flaws.append(Flaw(step, f"it {ended}", _mend(ended)))
    return report


def _mend(ended: str) -> str:
    if ended.startswith("still ran"):
        return "what may block belongs into the methods that may, as their contracts say"
    if ended.startswith("was ended"):
        return "native code crashed: what it printed may say where"
    return "raise an exception instead of ending the process"


def _child(
    words: Sequence[str],
    environment: Mapping[str, str],
    *,
    python: str,
    deadline_s: float,
    waiting: Callable[[], None],
    most_written: int = _MOST_WRITTEN,
) -> tuple[list[dict[str, Any]], str, str]:
    """What it answered, how it ended, what was printed."""
    # Files, not pipes: a program that a plugin left behind can't hold them open against us.
    with tempfile.TemporaryDirectory(prefix="gpulayer-plugins-", ignore_cleanup_errors=True) as folder:
        answers, printed = Path(folder) / "answers", Path(folder) / "printed"
        answers.touch()
        with printed.open("wb") as stream:
            # -P: the folder a command is typed in must never decide what is imported.
            process = subprocess.Popen(
                # faulthandler: says where native code crashed.
                [python, "-P", "-X", "faulthandler", "-m", _CHILD, str(answers), str(most_written), *words],
                stdin=subprocess.DEVNULL,
                stdout=stream,
                stderr=stream,
                start_new_session=True,
                env=background_variables(environment),
            )
            try:
                ended = _wait(process, deadline_s, waiting)
            finally:
                _kill(process)
        return _documents(answers), ended, _end_of(printed, 16 * _OUTPUT)


def _wait(process: "subprocess.Popen[bytes]", deadline_s: float, waiting: Callable[[], None]) -> str:
    try:
        code = process.wait(min(_QUIET_S, deadline_s))
    except subprocess.TimeoutExpired:
        waiting()
        try:
            code = process.wait(max(0.0, deadline_s - _QUIET_S))
        except subprocess.TimeoutExpired:
            return f"still ran after {deadline_s:g} s"
    if code < 0:
        return f"was ended by {_signal_name(-code)}"
    return f"ended the process with exit code {code}"


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _kill(process: "subprocess.Popen[bytes]") -> None:
    """With all that it started: it keeps its orphans as long as it runs, and ends them itself before it ends."""
    if process.poll() is None:
        kill_all_below(process.pid)
    if hasattr(os, "killpg"):
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            pass
    elif process.poll() is None:
        process.kill()
    process.wait()


def _plain_end(output: str) -> str:
    return plain_text(output[-_OUTPUT:], _OUTPUT)


def _end_of(path: Path, size: int) -> str:
    with path.open("rb") as stream:
        stream.seek(max(0, stream.seek(0, os.SEEK_END) - size))
        return stream.read(size).decode("utf-8", "replace")


def _documents(path: Path) -> list[dict[str, Any]]:
    """Any: as they stand there; whoever uses one looks at it first, for a plugin may have written, too."""
    found = []
    with path.open("rb") as stream:
        content = stream.read(_MOST_ANSWERS)
    for line in content.splitlines():
        try:
            document = json.loads(line)
        except ValueError:
            continue  # it ended while it wrote, or it is none of ours
        if isinstance(document, dict):
            found.append(document)
    return found


def _is_record(value: object) -> bool:
    """Whether it is what ``reporting.plugin_to_wire`` makes."""
    if not isinstance(value, dict) or not all(type(value.get(name)) is kind for name, kind in _RECORD.items()):
        return False
    return all(type(one) is str for name in ("hooks", "provides") for one in value[name]) and all(
        isinstance(one, dict) and all(type(one.get(name)) is str for name in ("at", "hook", "message"))
        for one in value["last_faults"]
    )


_RECORD: Final = {name: type(value) for name, value in plugin_to_wire(PluginRecord("")).items()}
