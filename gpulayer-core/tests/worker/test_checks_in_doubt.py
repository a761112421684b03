"""What is in doubt refuses nothing: what an earlier life found, and what failed for no doing of its own."""

import asyncio
import errno
import json
import os
from dataclasses import replace

import pytest

from gpulayer.placement.eligibility import why_ineligible, why_not_now
from gpulayer.plugins.builtin.system import SystemEnvironment
from gpulayer.spec.request import FrameworkNeed, Request
from gpulayer.spec.verdict import ReasonCode
from gpulayer.worker.frameworks import FrameworkChecks
from tests.framework_checks import (
    ANSWER,
    BOTH,
    COMPUTES,
    CPU,
    CUDA,
    NOT_YET,
    SECOND,
    WITH_GPU,
    Found,
    Site,
    watched,
)

TWO = replace(WITH_GPU, devices=(*WITH_GPU.devices, SECOND))


@pytest.fixture
def site(tmp_path):
    return Site(tmp_path)


@pytest.fixture
def starts(host_of, tmp_path, site):
    """``starts(check, facts=…)``: the checks of a worker that has just begun, after whatever lives there were."""

    def make(check=None, *, facts=WITH_GPU):
        host = host_of(environments=[SystemEnvironment()], framework_checks=[check or Found(COMPUTES)])
        checks = FrameworkChecks(host, tmp_path, environment={}, python=str(site.python), again_s=(0.01,))
        asyncio.run(checks.begin(facts))
        return checks

    return make


FAILS = f"print({json.dumps(ANSWER | {'devices': {'cuda': 'no driver', 'cpu': ''}})!r})"


def absent(site):
    (site.folder / "torch.py").unlink()
    return Found(COMPUTES)


def failing(_site):
    return Found(FAILS)


def upgraded(site):
    (site.folder / "torch-2.5.0.dist-info").mkdir()


@pytest.mark.parametrize(
    ("before", "change", "at_once"),
    [
        (absent, lambda site: site.add("torch"), (NOT_YET, replace(NOT_YET, accelerator=CPU))),
        (failing, lambda site: None, (NOT_YET, BOTH[1])),
        (lambda site: Found(COMPUTES), lambda site: None, BOTH),
        (lambda site: Found(COMPUTES), upgraded, (NOT_YET, replace(NOT_YET, accelerator=CPU))),
        (lambda site: Found(COMPUTES), absent, ()),
    ],
)
def test_what_a_start_says_of_an_earlier_life_refuses_nothing_that_may_compute_now(
    starts, site, before, change, at_once
):
    first = starts(before(site))
    asyncio.run(first.run(WITH_GPU))
    change(site)
    checks = starts()
    told = checks.found
    assert tuple(replace(one, architectures=(), build="") for one in told) == tuple(
        replace(one, architectures=(), build="") for one in at_once
    )
    seen = []
    asyncio.run(checks.run(WITH_GPU, tell=lambda: seen.append(checks.found)))
    assert seen[0] == told, "it is told of at once, not when the first check has ended"
    assert checks.found == (BOTH if at_once else ())


@pytest.mark.parametrize("end", ["os.kill(os.getpid(), 9)", "os.kill(os.getpid(), 15)", "os._exit(137)"])
def test_a_check_that_somebody_kills_is_run_again_and_says_nothing(starts, site, tmp_path, end):
    source = f"import os\nif not os.path.exists({str(tmp_path / 'room')!r}): {end}\n{COMPUTES}"
    checks = starts(Found(source))
    asyncio.run(checks.run(WITH_GPU))
    assert [(one.usable, one.is_pending) for one in checks.found] == [(False, True)] * 2
    assert "its check failed" in checks.found[0].reason
    assert not checks.is_fresh
    (tmp_path / "room").touch()
    watched(checks, until=lambda: checks.found == BOTH)


def test_a_check_that_hangs_says_nothing_but_that_and_is_run_again(starts, tmp_path):
    """A first import from a far disk may be slow, and the next one quick."""
    source = f"import os, time\nwhile not os.path.exists({str(tmp_path / 'warm')!r}): time.sleep(0.01)\n{COMPUTES}"
    checks = starts(Found(source))
    checks._deadline_s = 0.3
    asyncio.run(checks.run(WITH_GPU))
    words = "its check did not end within 0.3 s"
    assert checks.found == tuple(replace(NOT_YET, accelerator=kind, reason=words) for kind in (CUDA, CPU))
    told = replace(WITH_GPU, frameworks=checks.found)
    request = Request((CUDA,), devices=1, frameworks=(FrameworkNeed("torch"),))
    assert why_ineligible(request, told) == ()
    (reason,) = why_not_now(request, told)
    assert (reason.code, reason.message) == (ReasonCode.FRAMEWORK_UNCHECKED, f"torch is not checked yet: {words}")
    checks._deadline_s = 30.0
    (tmp_path / "warm").touch()
    watched(checks, until=lambda: checks.found == BOTH)


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EAGAIN, errno.ENOMEM])
def test_where_the_worker_has_no_room_to_run_a_check_what_was_found_stands(starts, monkeypatch, number):
    checks = starts()
    asyncio.run(checks.run(WITH_GPU))

    def fail(*_):
        raise OSError(number, os.strerror(number))

    with monkeypatch.context() as patch:
        patch.setattr("gpulayer.worker.check_script._prepare", fail)
        checks.renew(WITH_GPU, TWO)
        asyncio.run(checks.run(TWO))
        assert checks.found == BOTH
        assert not checks.is_fresh
        first = starts(Found(COMPUTES, "jax"))
        asyncio.run(first.run(TWO))
        told = {one.name: (one.is_pending, one.reason) for one in first.found if one.name == "jax"}
        assert told["jax"][0]
        assert os.strerror(number) in told["jax"][1]
    watched(checks, until=lambda: checks.is_fresh, facts=TWO)
    assert checks.found == BOTH
