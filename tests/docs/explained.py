"""``gpulayer explain`` on a fleet that is not here: `python -m tests.docs.explained` renews the page.

Of the NVIDIA machines the devices are what the program finds on recorded ones (``machine_shapes``), of the Mac what was
recorded of one; cores, memory, disks, frameworks, labels and the jobs that run are made up, and said to be on the page.
The command, and what answers it, are the real ones: but for the control plane in between.
"""

import contextlib
import io
import json
import os
import re
import shlex
import time
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, Final, Self
from unittest import mock

import typer

from gpulayer.cli import explain as command
from gpulayer.engine.standing import Standing
from gpulayer.ids import JobId, WorkerId
from gpulayer.placement.capacity import allocate, usable_capacity
from gpulayer.placement.ends import Held
from gpulayer.placement.explain import WorkerView, explain
from gpulayer.sdk.options import plan_request
from gpulayer.server.records import explain_reply
from gpulayer.spec.machine import Device, Framework, Locality, WorkerFacts
from gpulayer.spec.request import Accelerator, Request
from gpulayer.spec.worker import WorkerState
from gpulayer.wire.convert import request_from_wire
from gpulayer.wire.facts import facts_from_wire
from tests.docs.machine_shapes import DATA, SHAPES, detected

__all__ = ["PAGE", "commands", "fleet", "request_of", "rewritten", "shown"]

PAGE: Final = Path(__file__).parents[2] / "docs/explain-examples.md"
GB: Final = 10**9
_BLOCK: Final = re.compile(r"(<!-- not run: [^\n]*-->\n```console\n\$ (gpulayer explain[^\n]*)\n).*?```\n", re.DOTALL)
_TORCH: Final = "2.9.0+cu128"
_RUNS: Final = JobId("7f3a9c2e41d05b68")
_ENDS_MS: Final = 1_796_135_520_000  # 2026-12-01 14:32 UTC


@cache
def fleet() -> tuple[WorkerView, ...]:
    """A DGX of which a job has four devices until 14:32, an H100 in slices, a box with one of two cards lost, a Mac and
    a server without a device."""
    dgx = _nvidia("dgx-h100", cpus=224, memory_bytes=2160 * GB, labels=(("team", "vision"),), zone="a")
    mig = _nvidia("h100-mig", cpus=64, memory_bytes=270 * GB, zone="b")
    attic = _nvidia("one-lost", cpus=32, memory_bytes=135 * GB, zone="b")
    busy = _worker("dgx", dgx)
    taken = allocate(Request((Accelerator.CUDA,), 4, cpus=32), busy.id, dgx, busy.free)
    assert taken is not None
    busy = replace(
        busy,
        free=busy.free.less(taken),
        holders=tuple((uuid, _RUNS) for uuid in taken.devices),
        jobs=(_RUNS,),
        held=(Held(_RUNS, taken, _ENDS_MS),),
    )
    return busy, _worker("mig", mig), _worker("attic", attic), _worker("mac", _mac()), _worker("cpus", _processors())


def shown(line: str) -> str:
    """What this command prints, in UTC."""
    words = shlex.split(line)[2:]
    out = io.StringIO()
    run = typer.main.get_command(command.app)
    with mock.patch.object(command, "open_client", return_value=_Client()), _utc(), contextlib.redirect_stdout(out):
        run.main(words, standalone_mode=False)
    return out.getvalue()


def request_of(line: str) -> Request:
    """What this command asks for."""
    asked: list[Request] = []
    with mock.patch.object(_Client, "asked", asked.append):
        shown(line)
    return asked[0]


def commands(page: str) -> list[str]:
    return [block[2] for block in _BLOCK.finditer(page)]


def rewritten(page: str) -> str:
    return _BLOCK.sub(lambda found: f"{found[1]}{shown(found[2])}```\n", page)


class _Client:
    """Of a control plane that knows this fleet and has nobody waiting."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        return None

    def explain(self, **options: Any) -> Any:  # Any: as the client's own
        request = request_from_wire(plan_request(options))  # type: ignore[arg-type] # the same keywords
        self.asked(request)
        return explain_reply(request, explain(request, fleet()), standing=Standing("you", 0.0))

    def asked(self, request: Request) -> None:
        """For whoever wants to know."""


def _worker(name: str, facts: WorkerFacts) -> WorkerView:
    return WorkerView(WorkerId(name), name, WorkerState.READY, facts, usable_capacity(facts))


def _nvidia(
    shape: str, *, cpus: int, memory_bytes: int, zone: str, labels: tuple[tuple[str, str], ...] = ()
) -> WorkerFacts:
    facts = facts_from_wire(json.loads(detected(SHAPES[shape], "--json")))
    return replace(
        facts,
        cpus=cpus,
        memory_bytes=memory_bytes,
        disk_bytes=2000 * GB,
        frameworks=tuple(Framework("torch", _TORCH, kind, usable=True) for kind in (Accelerator.CUDA, Accelerator.CPU)),
        labels=labels,
        locality=Locality(zone=zone),
        missing=(),
    )


def _mac() -> WorkerFacts:
    (display,) = json.loads((DATA / "apple/m3-pro.json").read_text(encoding="utf-8"))["SPDisplaysDataType"]
    device = Device("apple-0", 0, Accelerator.MPS, display["_name"], None, is_memory_shared=True)
    torch = (Framework("torch", "2.9.0", kind, usable=True) for kind in (Accelerator.MPS, Accelerator.CPU))
    return _plain(12, 36, devices=(device,), frameworks=tuple(torch), platform="macos-arm64")


def _processors() -> WorkerFacts:
    torch = Framework("torch", "2.6.0+cpu", Accelerator.CPU, usable=True)
    return _plain(64, 256, frameworks=(torch,), platform="linux-x86_64")


def _plain(cpus: int, memory_gb: int, *, platform: str, **more: Any) -> WorkerFacts:  # Any: other fields
    return WorkerFacts(
        platform, "0.1.0", cpus=cpus, memory_bytes=memory_gb * GB, disk_bytes=500 * GB, locality=Locality("b"), **more
    )


@contextlib.contextmanager
def _utc() -> Iterator[None]:
    try:
        with mock.patch.dict(os.environ, {"TZ": "UTC"}):
            time.tzset()
            yield
    finally:
        time.tzset()


if __name__ == "__main__":
    PAGE.write_text(rewritten(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
