"""The child of ``plugins.trial``: a JSON object a line into the file that it is given, as it goes.

A step is told of before it is taken, so that one that never returns, or ends the process, is known by its name.
"""

import importlib
import json
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any, Final

import gpulayer
from gpulayer.clock import SystemClock
from gpulayer.plugins.ambient import Ambient
from gpulayer.plugins.builtin import BUILTINS
from gpulayer.plugins.conformance import job_check_misfits, misfits
from gpulayer.plugins.contracts.context import Context, Where
from gpulayer.plugins.descendants import adopt_orphans, end_with, kill_all_below, listed
from gpulayer.plugins.discovery import Found, discover
from gpulayer.plugins.hiding import SecretsHider
from gpulayer.plugins.hooks import DEPRECATED
from gpulayer.plugins.host import load_plugins
from gpulayer.plugins.inspection import deprecation, hooks_of, inspect_plugin, parameters_of
from gpulayer.plugins.record import PluginStatus
from gpulayer.plugins.registering import KINDS, MOST_THINGS, Kind, things_of
from gpulayer.plugins.reporting import plugin_to_wire
from gpulayer.plugins.results import list_of
from gpulayer.plugins.settings import PluginSettings
from gpulayer.spec.job import JobSpec
from gpulayer.spec.plain import plain_text

__all__ = ["main"]

_JOB_CHECK: Final = "gpulayer_check_job"
# Hooks that are what they provide.
_ASKED: Final = {_JOB_CHECK: "job check", "gpulayer_on_event": "event sink"}
_SAID: Final = 8000
# Frames that only lead to the plugin.
_OURS: Final = tuple(f"{Path(file).parent}{os.sep}" for file in (gpulayer.__file__, importlib.__file__))


def main(argv: list[str]) -> None:
    """``FILE BYTES records``, or ``FILE BYTES check NAME``; no file becomes larger than BYTES. Ends the process."""
    file, most_written, work, *rest = argv
    _limit_files(int(most_written))
    _watch_over_a_fork()
    # Whatever a plugin does to os.environ or to streams: this has been read and opened before.
    # Never strict: what is wrong is to be told, of all of them.
    settings = replace(PluginSettings.of(os.environ), strict=False)
    with open(file, "a", encoding="utf-8", buffering=1) as stream:
        write = stream.write
        if work == "records":
            host = load_plugins(Where.CHECK, settings, clock=SystemClock(), version=gpulayer.__version__)
            write(json.dumps({"records": [plugin_to_wire(record) for record in host.records()]}) + "\n")
        else:
            _Check(rest[0], settings, write).run()
    for printed in (sys.stdout, sys.stderr):
        try:
            printed.flush()
        except (OSError, ValueError):
            pass  # no more fits in, or a plugin has closed it
    os._exit(0)  # a thread of a plugin that does not end must not hold this up


def _watch_over_a_fork() -> None:
    """Comes back in a fork alone. This process stays to end whatever that leaves behind, then ends as that has."""
    if not hasattr(os, "fork"):
        return
    adopt_orphans()
    parent = os.getpid()
    pid = os.fork()
    if pid == 0:
        end_with(parent)
        adopt_orphans()
        return
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    kill_all_below()
    if code < 0:
        if -code not in (signal.SIGKILL, signal.SIGSTOP):
            signal.signal(-code, signal.SIG_DFL)
        os.kill(parent, -code)
    os._exit(max(0, code))


def _limit_files(most: int) -> None:
    try:
        import resource  # noqa: PLC0415 - Windows has none
    except ImportError:
        return
    _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    soft = most if hard == resource.RLIM_INFINITY else min(most, hard)
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))  # Python ignores SIGXFSZ: a write too many is an OSError


class _Check:
    def __init__(self, name: str, settings: PluginSettings, write: Callable[[str], object]) -> None:
        self._name = name
        self._write = write
        found = discover()
        self._all = found
        options = settings.options_of(name, [each.name for each in found])
        self._hide = SecretsHider({name: options})
        self._flaws = 0
        self._context = Context(Where.CHECK, name, gpulayer.__version__, options)

    def run(self) -> None:
        found = [each for each in self._all if each.name == self._name]
        if self._name in BUILTINS:
            found.insert(0, Found(self._name, BUILTINS[self._name], "gpulayer-core", gpulayer.__version__))
        if not found:
            known = sorted({*BUILTINS, *(each.name for each in self._all)})
            self._say({"is_known": False, "known": known})
            self._say({"done": True})
            return
        for one in found:
            self._look(one, others=[each for each in found if each is not one])
        self._say({"done": True})

    def _look(self, found: Found, *, others: list[Found]) -> None:
        self._say({"distribution": found.distribution, "version": found.version, "target": found.module})
        self._say({"options": sorted(self._context.options)})
        if others:
            rivals = " and ".join(f"{each.distribution} {each.version}" for each in (found, *others))
            self._flaw("entry point", f"{rivals} have a plugin of that name", "uninstall one of them")
        if found.error:
            self._flaw("entry point", found.error, found.hint)
            return
        before, threads = Ambient(), set(threading.enumerate())
        module = self._import(found.module)
        if module is None:
            self._processes()
            return
        with self._step("API and hooks"):
            inspected = inspect_plugin(module)
            self._say({"api": inspected.api, "hooks": list(inspected.hooks)})
            if inspected.status is not PluginStatus.OK:
                self._flaw("API and hooks", inspected.error, inspected.hint)
        if note := deprecation(inspected.hooks, DEPRECATED):
            self._flaw("API and hooks", note, kind="warning")
        if inspected.status is PluginStatus.OK:
            self._register(hooks_of(module))
        self._changes(before, threads)

    def _register(self, hooks: Mapping[str, Callable[..., object]]) -> None:
        before, provides = self._flaws, list[str]()
        for kind in KINDS:
            if kind.hook in hooks:
                provides += self._registered(kind, hooks[kind.hook])
        if _JOB_CHECK in hooks:
            self._check_jobs(hooks[_JOB_CHECK])
        provides += [word for hook, word in _ASKED.items() if hook in hooks]
        if self._flaws == before:  # else nothing of it is used
            self._say({"provides": provides})

    def _check_jobs(self, function: Callable[..., object]) -> None:
        names = parameters_of(function)

        def check(spec: JobSpec) -> object:
            given = {"spec": spec, "ctx": self._context}
            return function(*[given[name] for name in names])

        with self._step(_JOB_CHECK):
            for each in job_check_misfits(check):
                self._flaw(each.what, each.message, each.hint)

    def _import(self, name: str) -> ModuleType | None:
        imported: list[ModuleType] = []
        with self._step("import"):
            imported.append(importlib.import_module(name))
        return imported[0] if imported else None

    def _registered(self, kind: Kind, function: Callable[..., object]) -> list[str]:
        things: list[object] = []
        with self._step(kind.hook):
            given = function(*[self._context for _ in parameters_of(function)])
            things = self._things(kind, given)
        before = self._flaws
        for thing in things:
            with self._step(f"{kind.word} {type(thing).__name__}"):
                for each in misfits(kind, thing):
                    self._flaw(each.what, each.message, each.hint)
        provides: list[str] = []
        if self._flaws == before:
            try:
                provides = [f"{kind.word} {one.name}" for one in things_of(kind, things)]
            except (TypeError, ValueError) as error:  # two of one name
                self._flaw(kind.hook, str(error), "one object for each thing that has a name")
        return provides

    def _things(self, kind: Kind, given: object) -> list[object]:
        """All, where it is a list of so many that could be registered."""
        things: list[object] = []
        try:
            things = list_of(object, given, at_most=MOST_THINGS, what=kind.contract.__name__)
        except (TypeError, ValueError) as error:
            self._flaw(kind.hook, str(error), f"return a list of {kind.contract.__name__}", story=_story(error))
        return things

    def _changes(self, before: Ambient, threads: set[threading.Thread]) -> None:
        for what in before.put_back():
            hint = "it is shared by the whole process: leave it as it is, or do this in a child process"
            self._flaw("process", f"it changed {what}", hint)
        started = [thread.name for thread in threading.enumerate() if thread not in threads]
        if started:
            hint = "start threads when they are needed, as daemons"
            self._flaw("process", f"it started {', '.join(started)} on being loaded", hint, kind="warning")
        self._processes()

    def _processes(self) -> None:
        """What runs below this process is the plugin's, and is ended."""
        if left := kill_all_below():
            hint = "start processes when they are needed, and end them: here they were killed"
            self._flaw("process", f"it left a process running ({listed(left)})", hint, kind="warning")

    @contextmanager
    def _step(self, name: str) -> Iterator[None]:
        self._say({"begin": name})
        started = time.perf_counter()
        try:
            yield
        except (Exception, SystemExit) as error:
            ends = isinstance(error, SystemExit)
            message = f"it ends the program (SystemExit: {_text(error)})" if ends else _raised(error)
            self._flaw(name, message, _advice(error), story=_story(error))
        self._say({"end": name, "took_s": time.perf_counter() - started})

    def _flaw(self, what: str, message: str, hint: str = "", *, story: str = "", kind: str = "flaw") -> None:
        self._flaws += kind == "flaw"
        self._say({kind: {"what": what, "message": message, "hint": hint, "story": story}})

    def _say(self, answer: dict[str, Any]) -> None:  # Any: JSON
        self._write(json.dumps(self._hidden(answer)) + "\n")

    def _hidden(self, value: Any) -> Any:  # Any: JSON
        match value:
            case str():
                return plain_text(self._hide(self._name, value), _SAID)
            case list():
                return [self._hidden(each) for each in value]
            case dict():
                return {name: self._hidden(each) for name, each in value.items()}
        return value


def _raised(error: BaseException) -> str:
    return f"it raised {type(error).__name__}: {_text(error)}"


def _text(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:  # it is the plugin's code
        return "(it can't say what)"


def _advice(error: BaseException) -> str:
    match error:
        case ModuleNotFoundError(name=str(name)) if name.partition(".")[0] != "gpulayer":
            return f"install what has the module {name}, and name it among the plugin's dependencies"
        case ImportError():
            return "was it written for another version of what it imports?"
        case SystemExit():
            return "raise an exception instead"
    return ""


def _story(error: BaseException) -> str:
    """Its traceback without the frames of gpulayer and of the import system, which lead to the plugin."""
    try:
        told = traceback.TracebackException.from_exception(error)
        own = [frame for frame in told.stack if not frame.filename.startswith((*_OURS, "<frozen importlib"))]
        told.stack = traceback.StackSummary.from_list(own)
        told.__context__ = None
        return "".join(told.format())
    except Exception:  # see _text
        return ""


if __name__ == "__main__":
    main(sys.argv[1:])
