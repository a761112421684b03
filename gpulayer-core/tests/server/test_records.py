"""Why a job waits, as it is told to people."""

import pytest

from gpulayer.clock import Instant
from gpulayer.server.records import held_reason, waiting_reason
from gpulayer.spec.verdict import Reason, ReasonCode, Verdict, VerdictKind


class _Held:
    reason_code, reason_message = "exclusive_held", "it may still run"


def verdict(worker: str, kind: VerdictKind, *codes: ReasonCode) -> Verdict:
    return Verdict(worker, kind, reasons=tuple(Reason(code, str(code)) for code in codes))


AWAY = verdict("a", VerdictKind.BUSY, ReasonCode.OFFLINE)
DRAINING = verdict("b", VerdictKind.BUSY, ReasonCode.DRAINING)
FULL = verdict("c", VerdictKind.BUSY, ReasonCode.CPUS_BUSY)
FITS = verdict("d", VerdictKind.ELIGIBLE)


@pytest.mark.parametrize(
    ("verdicts", "code", "named"),
    [
        ((AWAY, DRAINING, FULL), "cpus_busy", "c: "),
        ((AWAY, DRAINING), "offline", "a: "),
        ((FITS, AWAY, FULL), "waiting", "d fits"),
    ],
    ids=["one of them is there", "none is there", "one fits"],
)
def test_the_worker_that_is_waited_for_is_one_that_is_there(verdicts, code, named) -> None:
    reason = waiting_reason(verdicts)
    assert reason["code"] == code
    assert named in reason["message"]


def test_how_long_a_held_job_waits_is_told_in_seconds_and_to_the_second() -> None:
    reason = held_reason(_Held(), until_ms=33_400, now=Instant(1_000, 1_780_000_000_740))
    assert reason["message"] == "it may still run: it goes to nobody for 33 s, until 2026-05-28 20:27:13 UTC"


def test_a_worker_tells_which_of_its_devices_which_job_has_as_long_as_it_has_them(plane) -> None:
    blank = {"memory_bytes": None, "memory_free_bytes": None, "compute_capability": "", "reason": "", "links": {}}
    named = {"kind": "cuda", "model": "A100", "state": "usable"}
    devices = [{"uuid": f"GPU-{index}", "index": index, **named, **blank} for index in range(3)]
    worker = plane.worker("one", devices=devices)

    def has() -> dict[str, str]:
        (listed,) = plane.http.get("/v1/workers").json()["workers"]
        shown = plane.http.get("/v1/workers/one").json()
        assert listed["device_jobs"] == shown["device_jobs"]
        return shown["device_jobs"]

    worker.report()
    assert has() == {}
    two, one, none = (
        plane.submit("true", request={"accelerators": ["cuda"], "devices": count} if count else {})["id"]
        for count in (2, 1, 0)
    )
    commands = [command for command in worker.commands(hold_s=5) if command["type"] == "assign"]
    lent = {uuid: command["job_id"] for command in commands for uuid in command["devices"]}
    assert sorted(lent.values()) == sorted([two, two, one])
    assert has() == lent
    assert none not in has().values()
    plane.restart()
    assert has() == lent, "it is known again after a restart"
    worker.open_session()
    worker.report(*(worker.ended(command["epoch"]) for command in commands if command["job_id"] == two))
    assert has() == {uuid: job for uuid, job in lent.items() if job == one}
