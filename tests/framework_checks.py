"""Framework checks made up, a GPU that is none, and a Python of jobs that tells how often it was started."""

import asyncio
import json
import sys
from dataclasses import replace
from pathlib import Path

from gpulayer.plugins.builtin.system import SystemEnvironment
from gpulayer.plugins.contracts.framework import CheckScript
from gpulayer.spec.machine import Device, Framework, WorkerFacts
from gpulayer.spec.request import Accelerator
from gpulayer.worker.frameworks import FrameworkChecks

__all__ = [
    "ANSWER",
    "BOTH",
    "COMPUTES",
    "CPU",
    "CUDA",
    "FACTS",
    "GOOD",
    "GPU",
    "NOT_YET",
    "SECOND",
    "WITH_GPU",
    "Check",
    "Found",
    "Site",
    "checks_of",
    "found",
    "is_alive",
    "life_of",
    "watched",
]


CPU, CUDA = Accelerator.CPU, Accelerator.CUDA
FACTS = WorkerFacts(platform="linux-x86_64", version="0", cpus=8, memory_bytes=1)
NOT_YET = Framework("torch", "", CUDA, usable=False, is_pending=True)
GOOD = 'print("hello"); print(\'{"version": "2.4.0", "devices": {"cpu": "", "cuda": "no driver"}}\')'


class Check:
    def __init__(self, source, name="torch", accelerators=(CUDA, CPU)):
        self.source, self.name, self.accelerators = source, name, accelerators

    def script(self):
        if isinstance(self.source, Exception):
            raise self.source
        return CheckScript(self.source)


def checks_of(host_of, folder):
    """``make(*registered, …)``: checks by this Python, with these variables."""

    def make(*registered, deadline_s=30.0, **environment):
        host = host_of(environments=[SystemEnvironment()], framework_checks=registered)
        return FrameworkChecks(host, folder, environment=environment, python=sys.executable, deadline_s=deadline_s)

    return make


def is_alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def found(checks):
    asyncio.run(checks.run(FACTS))
    return checks.found


GPU = Device("GPU-1", 0, CUDA, "NVIDIA H100", driver="550.54.15")
WITH_GPU = replace(FACTS, devices=(GPU,))


class Site:
    """A Python of jobs that has what is in a folder, and tells how often it was started."""

    def __init__(self, folder):
        self.folder = folder / "site"
        self.folder.mkdir()
        self.starts = folder / "starts"
        self.python = folder / "python"
        self.python.write_text(
            f"#!/bin/sh\necho >> {self.starts}\nPYTHONDONTWRITEBYTECODE=1 PYTHONPATH={self.folder} "
            f'exec {sys.executable} -S "$@"\n'
        )
        self.python.chmod(0o755)
        self.add("torch")

    def add(self, module):
        (self.folder / f"{module}.py").touch()

    def count(self):
        """Since it was asked last."""
        count = len(self.starts.read_text().splitlines()) if self.starts.exists() else 0
        self.starts.unlink(missing_ok=True)
        return count


class Found(Check):
    """One that says which modules it needs."""

    modules = ("torch",)

    def script(self):
        return CheckScript(self.source, modules=self.modules)


ANSWER = {"version": "2.4.0", "build": "cuda 12.4", "architectures": ["sm_90"], "devices": {"cuda": "", "cpu": ""}}
COMPUTES = f"print({json.dumps(ANSWER)!r})"
BOTH = (
    Framework("torch", "2.4.0", CUDA, usable=True, build="cuda 12.4", architectures=("sm_90",)),
    Framework("torch", "2.4.0", CPU, usable=True, build="cuda 12.4"),
)


def life_of(host_of, folder, site):
    """``life(*registered, …)``: what a worker finds at its start, and how many programs it ran for that."""

    def life(*registered, facts=WITH_GPU):
        host = host_of(environments=[SystemEnvironment()], framework_checks=registered or [Found(COMPUTES)])
        checks = FrameworkChecks(host, folder, environment={}, python=str(site.python))
        asyncio.run(checks.run(facts))
        return checks.found, site.count()

    return life


def watched(checks, *, until, facts=WITH_GPU):
    """Until that is so, or half a minute has gone."""

    async def main():
        watching = asyncio.create_task(checks.watch(lambda: facts, tell=lambda: None))
        async with asyncio.timeout(30):
            while not until():
                await asyncio.sleep(0.01)
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)

    asyncio.run(main())


SECOND = replace(GPU, uuid="GPU-2", index=1)
