"""Why a job waits, and until when: through a real control plane."""

from datetime import datetime

from gpulayer.server.tokens import Role

CUDA = {"accelerators": ["cuda"], "devices": 1}
BLANK = {"memory_bytes": None, "memory_free_bytes": None, "compute_capability": "", "reason": "", "links": {}}
A100 = {"kind": "cuda", "model": "A100", "state": "usable", **BLANK}


def busy_box(plane, *, timeout_ms):
    """A worker whose one device a running job has."""
    worker = plane.worker("box", devices=[{"uuid": "GPU-0", "index": 0, **A100}])
    worker.report()
    job = plane.submit("train", request=CUDA, timeout_ms=timeout_ms, grace_ms=30_000)
    (command,) = worker.commands(hold_s=5)
    worker.holding = [command["epoch"]]
    worker.report(worker.running(command["epoch"]))
    return plane.job(job["id"])


def later_s(record, moment):
    started = datetime.fromisoformat(record["started_at"])
    return (datetime.fromisoformat(moment) - started).total_seconds()


def test_a_busy_worker_says_with_whom_and_until_when_its_limit_and_grace_are_over(plane) -> None:
    running = busy_box(plane, timeout_ms=600_000)
    reply = plane.http.post("/v1/explain", json={"request": CUDA}).json()
    (verdict,) = reply["verdicts"]
    assert (verdict["verdict"], verdict["busy_with"]) == ("busy", [running["id"]])
    assert later_s(running, verdict["until"]) == 630
    assert reply["waits"] == {"ahead": 0, "first_ahead": None, "starts_by": verdict["until"]}


def test_where_no_limit_is_known_no_time_is_told(plane) -> None:
    busy_box(plane, timeout_ms=None)
    reply = plane.http.post("/v1/explain", json={"request": CUDA}).json()
    assert reply["verdicts"][0]["until"] is None
    assert reply["waits"]["starts_by"] is None


def test_a_queued_job_tells_its_place_and_a_time_only_where_nobody_is_ahead(plane) -> None:
    running = busy_box(plane, timeout_ms=600_000)
    first = plane.submit("a", request=CUDA)
    second = plane.submit("b", request={**CUDA, "cpus": 2})
    urgent = plane.submit("c", request=CUDA, priority=5)
    waits = {name: plane.job(job["id"])["waits"] for name, job in (("1", first), ("2", second), ("c", urgent))}
    assert later_s(running, waits["c"].pop("starts_by")) == 630
    assert waits["c"] == {"ahead": 0, "first_ahead": None}
    assert waits["1"] == {"ahead": 1, "first_ahead": urgent["id"], "starts_by": None}
    assert waits["2"] == {"ahead": 2, "first_ahead": urgent["id"], "starts_by": None}
    assert "waits" not in plane.job(running["id"])
    assert plane.http.post("/v1/explain", json={"request": CUDA}).json()["waits"]["ahead"] == 3


def test_a_queued_job_says_that_another_owner_who_has_less_is_first(plane) -> None:
    running = busy_box(plane, timeout_ms=600_000)
    own = plane.submit("a", request=CUDA)
    header = {"Authorization": f"Bearer {plane.client_token('ben', Role.SUBMITTER)}"}
    other = plane.http.post("/v1/jobs", json={"schema": 1, "command": ["b"], "request": CUDA}, headers=header).json()
    waits = plane.job(own["id"])["waits"]
    owner = plane.http.get(f"/v1/jobs/{running['id']}/why").json()["owner"]
    shares = {"owner": owner, "share": 1.0, "owner_ahead": "ben", "share_ahead": 0.0}
    assert waits == {"ahead": 1, "first_ahead": other["id"], "starts_by": None, "by_share": shares}
    assert "by_share" not in plane.job(other["id"])["waits"]
    explained = plane.http.post("/v1/explain", json={"request": CUDA}, headers=header).json()
    assert explained["waits"]["ahead"] == 1
    assert plane.http.post("/v1/explain", json={"request": CUDA}).json()["waits"]["ahead"] == 2


def test_a_job_that_does_not_wait_is_told_until_when_the_worker_is_busy(plane) -> None:
    running = busy_box(plane, timeout_ms=600_000)
    rejected = plane.submit("d", request=CUDA, wait=False)
    assert rejected["state"] == "rejected"
    assert later_s(running, rejected["verdicts"][0]["until"]) == 630


def why(plane, job):
    return plane.http.get(f"/v1/jobs/{job['id']}/why").json()


def test_what_was_weighed_when_it_was_placed_is_told_as_it_was_also_after_a_restart(plane) -> None:
    plane.worker("small", cpus=2).report()
    plane.worker("large", cpus=8).report()
    plane.worker("tiny", cpus=1).report()
    job = plane.submit("true", request={"cpus": 2})
    told = why(plane, job)
    (decision,) = told["decisions"]
    assert (decision["workers"], told["verdicts"], told["waits"]) == (["small"], [], None)
    assert decision["why"] == "small: of 2 that fit and are free, it leaves the fewest cpus free"
    best = decision["considered"].pop("best")
    assert decision["considered"] == {"fitting": 2, "busy": 0, "ineligible": 1, "refused": 0, "away": 0}
    assert [(place["worker"], place["cpus_left"]) for place in best] == [("small", 0), ("large", 6)]
    plane.restart()
    assert why(plane, job)["decisions"][0]["considered"]["best"] == best


def test_of_a_queued_job_the_verdicts_of_now_and_its_place_are_told(plane) -> None:
    running = busy_box(plane, timeout_ms=600_000)
    waiting = plane.submit("a", request=CUDA, priority=3)
    told = why(plane, waiting)
    assert (told["state"], told["priority"], told["decisions"]) == ("queued", 3, [])
    assert told["verdicts"][0]["busy_with"] == [running["id"]]
    assert told["waits"]["starts_by"] == told["verdicts"][0]["until"]


def test_of_a_rejected_job_the_verdicts_of_then_are_told(plane) -> None:
    plane.worker("box").report()
    rejected = plane.submit("a", request=CUDA)
    plane.worker("other", devices=[{"uuid": "GPU-0", "index": 0, **A100}]).report()
    told = why(plane, rejected)
    assert [verdict["worker"] for verdict in told["verdicts"]] == ["box"]
    assert told["reason"]["code"] == "no_worker_fits"


def test_of_many_workers_twenty_are_told_and_the_rest_counted_by_reason(plane) -> None:
    for number in range(24):
        plane.worker(f"w{number:02}", cpus=1).report()
    told = why(plane, plane.submit("a", request={"cpus": 2}))
    assert (len(told["verdicts"]), told["others"]) == (20, {"cpus": 4})
    placed = why(plane, plane.submit("a"))["decisions"][0]["considered"]
    assert (placed["fitting"], len(placed["best"])) == (24, 8)


def test_a_job_that_is_kept_off_says_for_whom_and_how_to_go_first(plane) -> None:
    """Two devices, one of which is in use for 10 minutes more; who wants both was there first."""
    worker = plane.worker("box", devices=[{"uuid": f"GPU-{n}", "index": n, **A100} for n in range(2)])
    worker.report()
    running = plane.submit("train", request=CUDA, timeout_ms=600_000, grace_ms=0)
    (command,) = worker.commands(hold_s=5)
    worker.holding = [command["epoch"]]
    worker.report(worker.running(command["epoch"]))
    wide = plane.submit("wide", request={**CUDA, "devices": 2})
    small = plane.submit("small", request=CUDA)
    for where in (plane.job(small["id"]), plane.http.get(f"/v1/jobs/{small['id']}/why").json()):
        assert where["reason"]["code"] == "reserved"
        assert f"kept for job {wide['id']}, which begins there within" in where["reason"]["message"]
        assert "--timeout" in where["reason"]["message"]
    (verdict,) = plane.http.post("/v1/explain", json={"request": CUDA}).json()["verdicts"]
    assert (verdict["verdict"], verdict["busy_with"]) == ("busy", [wide["id"]])
    why = plane.http.get(f"/v1/jobs/{wide['id']}/why").json()
    assert [verdict["busy_with"] for verdict in why["verdicts"]] == [[running["id"]]]
    quick = plane.submit("quick", request=CUDA, timeout_ms=300_000, grace_ms=0)
    assert plane.job(quick["id"])["state"] == "staging"
