"""Which frameworks compute on this machine: the scripts of framework checks, run by the Python that jobs use.

Each runs in a session of its own, in an empty folder, with the variables that a job gets, and is killed with all that
stayed in its session when it is done, too late or too loud. What it found is kept on disk, so that a worker that is
started again says at once what it knew, while the checks run anew; only the first start of all has to wait for them:
a control plane refuses at once what no worker that it knows can run.
"""

import asyncio
import json
import logging
import os
import shutil
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import IO, Final

from gpulayer.errors import PluginFault
from gpulayer.plugins.contracts.environment import (
    BuildSite,
    Environment,
    EnvironmentBuilder,
    EnvironmentRequest,
)
from gpulayer.plugins.contracts.framework import CHECK_DEADLINE_S, CheckScript, FrameworkCheck
from gpulayer.plugins.host import Host
from gpulayer.plugins.registry import Registered
from gpulayer.plugins.results import instance_of, list_of
from gpulayer.spec.capabilities import DEFAULT_ENVIRONMENT, is_plain_name
from gpulayer.spec.machine import Framework, WorkerFacts
from gpulayer.spec.request import Accelerator
from gpulayer.whole import write_whole
from gpulayer.worker.findings import checked_text
from gpulayer.worker.plans import checked_variables
from gpulayer.worker.unready import OWN_DEADLINE_S

__all__ = ["FrameworkChecks", "jobs_python", "read_answer", "run_script"]

_log: Final = logging.getLogger(__name__)
_SCRIPT_DEADLINE_S: Final = 5.0
_SIDE_BY_SIDE: Final = 4
_SCRIPT_LIMIT: Final = 1 << 20
_OUTPUT_LIMIT: Final = 16 << 20
_KEPT_BYTES: Final = 64 << 10
_REASON_LIMIT: Final = 2_000
_VERSION_LIMIT: Final = 100
_AGAIN_S: Final = (10.0, 60.0, 600.0)  # by tries in a row that not all checks answered
_LOOK_S: Final = 0.1  # how often its output is measured
_TOLD_BYTES: Final = 2_000
_PRELUDE: Final = """
import sys
try:
    import ctypes
    ctypes.CDLL(None).prctl(1, 9)  # PR_SET_PDEATHSIG: a check that hangs does not outlive its worker
except Exception:
    pass  # not Linux
with open(sys.argv[1], encoding="utf-8") as file:
    source = file.read()
exec(compile(source, sys.argv[1], "exec"), {"__name__": "__main__"})
"""


@dataclass(frozen=True, slots=True)
class _Check:
    name: str
    accelerators: tuple[Accelerator, ...]
    source: str


@dataclass(frozen=True, slots=True)
class _Ran:
    """failure: what kept it from ending well; empty where nothing did."""

    out: bytes
    err: bytes
    failure: str = ""


class FrameworkChecks:
    """Of one worker. ``found``: by the last run of each check, or by an earlier life of this worker. is_fresh: all
    ran in this one, and the machine has not changed since."""

    def __init__(
        self,
        host: Host,
        work_dir: Path,
        *,
        environment: Mapping[str, str],
        python: str = "",
        deadline_s: float = CHECK_DEADLINE_S,
        again_s: Sequence[float] = _AGAIN_S,
    ) -> None:
        """environment: the worker's. python: that of the jobs; empty: what they find on their ``PATH``. again_s: until
        what could not be asked is asked again, by tries in a row."""
        self._host = host
        self._work_dir = work_dir
        self._environment = MappingProxyType(dict(environment))
        self._python = python
        self._deadline_s = deadline_s
        self._again_s = again_s
        self.is_fresh = not host.registry.framework_checks
        self._is_stale = asyncio.Event()
        self._by_check: dict[int, tuple[Framework, ...]] = {}
        self._remembered = _remembered(work_dir / "frameworks.json") if host.registry.framework_checks else None

    @property
    def is_known(self) -> bool:
        """Whether anything is known without a run: there are no checks, or they ran in an earlier life."""
        return not self._host.registry.framework_checks or self._remembered is not None

    @property
    def found(self) -> tuple[Framework, ...]:
        """The first check that knows a framework on an accelerator is believed."""
        known: dict[tuple[str, Accelerator], Framework] = {}
        checks = range(len(self._host.registry.framework_checks))
        fresh = [framework for number in checks for framework in self._by_check.get(number, ())]
        older = () if len(self._by_check) == len(checks) else self._remembered or ()
        for framework in (*fresh, *older):
            known.setdefault((framework.name, framework.accelerator), framework)
        return tuple(known.values())

    def renew(self) -> None:
        """The devices are not what they were: ``watch`` has all checks run anew."""
        self._is_stale.set()

    async def watch(self, facts: Callable[[], WorkerFacts], *, tell: Callable[[], None]) -> None:
        """Until cancelled. What was found before holds until the checks have run anew; ``tell``: as of ``run``. What
        could not be asked, because a plugin failed, is asked again."""
        tries = 0
        while True:
            if not self.is_fresh:
                await self.run(facts(), tell=tell)
            tries = 0 if self.is_fresh else tries + 1
            try:
                async with asyncio.timeout(self._again_s[min(tries, len(self._again_s)) - 1] if tries else None):
                    await self._is_stale.wait()
            except TimeoutError:
                continue
            self._is_stale.clear()
            self.is_fresh = False

    async def run(self, facts: WorkerFacts, *, tell: Callable[[], None] = lambda: None) -> None:
        """All of them, a few side by side. ``tell`` is called whenever ``found`` may have changed."""
        try:
            variables = await self._variables(facts)
        except PluginFault as fault:
            _log.warning("frameworks are not checked: %s", fault.message)
            return
        python = self._python or jobs_python(variables, otherwise=sys.executable)
        slots = asyncio.Semaphore(_SIDE_BY_SIDE)
        unasked: list[int] = []

        async def run(number: int, registered: Registered[FrameworkCheck]) -> None:
            async with slots:
                try:
                    self._by_check[number] = await self._run_one(number, registered, python, variables)
                except PluginFault as fault:  # then it is not even known what it would have been about
                    _log.warning("%s", fault.message)
                    unasked.append(number)
            tell()

        async with asyncio.TaskGroup() as group:
            for number, registered in enumerate(self._host.registry.framework_checks):
                group.create_task(run(number, registered))
        self.is_fresh = not unasked
        if self.is_fresh or self.found:  # that nothing could be asked is no knowledge of the next start
            await asyncio.to_thread(self._remember)

    async def _variables(self, facts: WorkerFacts) -> Mapping[str, str]:
        """Those of a job in the environment that all have who ask for none."""
        site = BuildSite(self._work_dir, facts, self._environment, log=lambda _line: None, is_cancelled=lambda: False)

        def ask(thing: EnvironmentBuilder) -> Mapping[str, str]:
            plan = thing.plan(EnvironmentRequest(DEFAULT_ENVIRONMENT, self._work_dir))
            return checked_variables(instance_of(Environment, thing.build(plan, site)).variables)

        builder = self._host.registry.environments[DEFAULT_ENVIRONMENT]
        return await self._host.acall(builder, "EnvironmentBuilder.build", ask, deadline_s=OWN_DEADLINE_S)

    async def _run_one(
        self, number: int, registered: Registered[FrameworkCheck], python: str, variables: Mapping[str, str]
    ) -> tuple[Framework, ...]:
        check = await self._host.acall(
            registered, "FrameworkCheck.script", _checked_check, deadline_s=_SCRIPT_DEADLINE_S
        )
        folder = self._work_dir / "checks" / str(number)
        ran = await run_script(check.source, folder, python=python, variables=variables, deadline_s=self._deadline_s)
        _tell(check.name, ran)
        if ran.failure:
            return _unusable(check.name, check.accelerators, ran.failure)
        try:
            return read_answer(check.name, check.accelerators, ran.out)
        except ValueError as error:
            return _unusable(check.name, check.accelerators, f"its check can't be understood: {error}")

    def _remember(self) -> None:
        if not self._host.registry.framework_checks:
            return
        rows = [[one.name, one.version, str(one.accelerator), one.usable, one.reason] for one in self.found]
        try:
            write_whole(self._work_dir / "frameworks.json", json.dumps(rows).encode())
        except OSError as error:
            _log.warning("what the framework checks found can't be kept: %s", error)


def jobs_python(variables: Mapping[str, str], *, otherwise: str) -> str:
    """The Python that a job finds on its ``PATH``; the worker's own where there is none."""
    path = variables.get("PATH", os.defpath)
    return shutil.which("python3", path=path) or shutil.which("python", path=path) or otherwise


def read_answer(name: str, accelerators: Sequence[Accelerator], out: bytes) -> tuple[Framework, ...]:
    """What a script printed on its last line, as ``CheckScript`` says. Raises ValueError for anything else. Pure."""
    lines = [line for line in out.splitlines() if line.strip()]
    if not lines:
        raise ValueError("it printed nothing")
    try:
        answer = json.loads(lines[-1])
    except (ValueError, RecursionError):
        raise ValueError(f"its last line is no JSON: {_cut(lines[-1].decode(errors='replace'), 100)!r}") from None
    if not isinstance(answer, dict) or "version" not in answer:
        raise ValueError("its last line is no object with a version")
    version, devices = answer["version"], answer.get("devices", {})
    if version is None:
        return ()
    if not isinstance(devices, dict):
        raise ValueError("devices is no object")
    version = _text("version", version, limit=_VERSION_LIMIT)
    unknown = set(devices).difference(accelerators)
    if unknown:
        raise ValueError(f"it speaks of {min(unknown)[:40]!r}, which it is not registered for")
    found: list[Framework] = []
    for accelerator in accelerators:
        reason = _text("a reason", devices.get(accelerator, "its check says nothing of it"), limit=_REASON_LIMIT)
        found.append(Framework(name, version, accelerator, usable=not reason, reason=reason))
    return tuple(found)


async def run_script(
    source: str, folder: Path, *, python: str, variables: Mapping[str, str], deadline_s: float = CHECK_DEADLINE_S
) -> _Ran:
    """Run it in an empty folder below ``folder``, which goes with it. Never raises but when it is cancelled."""
    failure = ""
    try:
        # Files, not pipes: whoever keeps a pipe open would be waited for, also when all of the session is dead.
        with await asyncio.to_thread(_prepared, folder, source) as out, open(folder / "err", "w+b") as err:  # noqa: ASYNC230
            process = await asyncio.create_subprocess_exec(
                python,
                "-c",
                _PRELUDE,
                str(folder / "run" / "check.py"),
                cwd=folder / "run",
                env=dict(variables),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                start_new_session=True,
            )
            ran = asyncio.ensure_future(process.wait())
            try:
                failure = await _watch(ran, (out, err), deadline_s)
            finally:
                _kill_session(process.pid)
                code = await ran
            ended = _Ran(_tail(out), _tail(err), failure)
    except OSError as error:
        return _Ran(b"", b"", f"its check can't be run by {python}: {error.strerror}")
    finally:
        await asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True)
    if not failure and code:
        ending = f"exit code {code}" if code > 0 else f"signal {-code}"
        said = _said_at_the_end(ended.err) or "it said nothing"
        return replace(ended, failure=f"its check failed ({ending}): {said}")
    return ended


async def _watch(ran: "asyncio.Future[int]", files: Sequence[IO[bytes]], deadline_s: float) -> str:
    """Until it has ended, or has to be: then, why."""
    loop = asyncio.get_running_loop()
    ends_s = loop.time() + deadline_s
    while not ran.done():
        await asyncio.wait((ran,), timeout=max(0.0, min(_LOOK_S, ends_s - loop.time())))
        if any(os.fstat(file.fileno()).st_size > _OUTPUT_LIMIT for file in files):
            return f"its check printed more than {_OUTPUT_LIMIT >> 20} MiB"
        if not ran.done() and loop.time() >= ends_s:
            return f"its check did not end within {deadline_s:g} s"
    return ""


def _tail(file: IO[bytes]) -> bytes:
    size = os.fstat(file.fileno()).st_size
    return os.pread(file.fileno(), _KEPT_BYTES, max(0, size - _KEPT_BYTES))


def _prepared(folder: Path, source: str) -> IO[bytes]:
    """The file for what it prints."""
    shutil.rmtree(folder, ignore_errors=True)
    (folder / "run").mkdir(mode=0o700, parents=True)
    (folder / "run" / "check.py").write_text(source, encoding="utf-8")
    return open(folder / "out", "w+b")


def _kill_session(pid: int) -> None:
    try:
        os.killpg(pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        pass  # it has gone, and nobody stayed behind


def _checked_check(check: FrameworkCheck) -> _Check:
    name = instance_of(str, check.name)
    if not is_plain_name(name):
        raise ValueError(f"{name[:63]!r} can't name a framework")
    accelerators = list_of(Accelerator, check.accelerators, at_most=len(Accelerator))
    if Accelerator.ANY in accelerators:
        raise ValueError("any is no accelerator to compute on")
    source = checked_text("source", instance_of(CheckScript, check.script()).source, at_most=_SCRIPT_LIMIT)
    return _Check(str(name), tuple(dict.fromkeys(accelerators)), source)


def _unusable(name: str, accelerators: Sequence[Accelerator], reason: str) -> tuple[Framework, ...]:
    text = _cut(reason, _REASON_LIMIT)
    return tuple(Framework(name, "", accelerator, usable=False, reason=text) for accelerator in accelerators)


def _text(name: str, value: object, *, limit: int) -> str:
    try:
        return _cut(checked_text(name, value), limit)
    except TypeError:
        raise ValueError(f"{name} is no text") from None


def _tell(name: str, ran: _Ran) -> None:
    if ran.failure:
        _log.warning("%s is unusable here: %s", name, ran.failure)
    said = b"\n".join(part.strip() for part in (ran.out, ran.err) if part.strip())
    if said:
        _log.debug("check of %s:\n%s", name, said[-_TOLD_BYTES:].decode(errors="replace"))


def _said_at_the_end(err: bytes) -> str:
    lines = [line.strip() for line in err.decode(errors="replace").replace("\0", "").splitlines() if line.strip()]
    return _cut(lines[-1], _REASON_LIMIT // 2) if lines else ""


def _cut(text: str, limit: int) -> str:
    return text if len(text) <= limit else text[: limit - 1] + "…"


def _remembered(path: Path) -> tuple[Framework, ...] | None:
    """None where no check has ended here yet."""
    try:
        rows = json.loads(path.read_bytes())
        return tuple(
            Framework(
                checked_text("name", name),
                checked_text("version", version),
                Accelerator(accelerator),
                usable=instance_of(bool, usable),
                reason=checked_text("reason", reason),
            )
            for name, version, accelerator, usable, reason in rows
        )
    except (OSError, ValueError, TypeError):
        return None
