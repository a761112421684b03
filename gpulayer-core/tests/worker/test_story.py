"""What a worker says of its connection: once for each kind of trouble, and what to do where that is known."""

import logging
from dataclasses import replace

from gpulayer.errors import Unreachable, UntrustedServer
from gpulayer.spec.machine import Device, DeviceState, WorkerFacts
from gpulayer.spec.request import Accelerator
from gpulayer.worker.story import Story, machine_text

MINUTE = 60_000


def test_each_kind_of_trouble_is_told_once_and_again_after_ten_minutes(caplog):
    caplog.set_level(logging.INFO, "gpulayer")
    story, away = Story(), Unreachable("nobody there")
    other = UntrustedServer("not the pinned one", hint="take the new fingerprint")
    for minute in range(9):
        story.lost(away, jobs=1, now_ms=minute * MINUTE)
        story.lost(other, jobs=1, now_ms=minute * MINUTE)
    assert caplog.messages == [
        "connection lost: nobody there; 1 job goes on; trying again",
        "connection lost: not the pinned one; 1 job goes on; trying again",
        "take the new fingerprint",
    ]
    story.lost(away, jobs=0, now_ms=11 * MINUTE)
    assert caplog.messages[3:] == ["connection lost: nobody there; trying again"]
    story.back()
    story.back()
    assert caplog.messages[4:] == ["the connection is back"]


def test_what_a_machine_has_is_told_apart_from_what_of_it_is_broken():
    works = Device("GPU-0", 0, Accelerator.CUDA, "NVIDIA L40S")
    lost = [replace(works, uuid=f"GPU-{n}", index=n, state=DeviceState.UNHEALTHY, reason="gone") for n in (1, 2)]
    facts = WorkerFacts("linux-x86_64", "0", 2, 10**9, devices=(works, *lost))
    assert machine_text(facts) == "2 cpus, 1 GB, 1 × NVIDIA L40S, 2 × NVIDIA L40S (unhealthy)"
    assert machine_text(replace(facts, devices=())) == "2 cpus, 1 GB, no device"
