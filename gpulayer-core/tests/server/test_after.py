"""Jobs that come after others, over real HTTP: what they may name, in which order a batch begins, and what they say."""

import pytest

from gpulayer.server.tokens import Role


def run(worker, exit_code: int = 0) -> dict:
    """The next job that the worker is given, to its end."""
    (command,) = worker.commands(hold_s=5)
    worker.holding = [command["epoch"]]
    worker.report(worker.running(command["epoch"]))
    worker.holding = []
    worker.report(worker.ended(command["epoch"], exit_code))
    return command


def post(plane, *, status: int, **fields) -> dict:
    answer = plane.http.post("/v1/jobs", json={"schema": 1, "command": ["true"], **fields})
    assert answer.status_code == status, answer.text
    return plane.check_envelope(answer) if status >= 400 else answer.json()


def batch(plane, *jobs: dict, status: int = 201, key: str = "") -> dict:
    body = {"schema": 1, "jobs": [{"schema": 1, "command": ["true"], **job} for job in jobs]}
    headers = {"Idempotency-Key": key} if key else {}
    answer = plane.http.post("/v1/jobs:batch", json=body, headers=headers)
    assert answer.status_code == status, answer.text
    return plane.check_envelope(answer) if status >= 400 else answer.json()


def test_it_waits_and_says_for_what_and_begins_when_that_has_succeeded(plane) -> None:
    worker = plane.worker(cpus=4)
    worker.report()
    first = plane.submit(name="train")
    second = plane.submit(after=["train"])
    assert second["options"]["after"] == [first["id"]]
    assert second["reason"] == {"code": "after", "message": f"waits for job {first['id']} (staging)"}
    third = plane.submit(after=[f"{second['id'][:8]}:any", first["id"]])
    assert third["reason"]["message"] == f"waits for job {second['id']} (waits itself), job {first['id']} (staging)"
    assert run(worker)["job_id"] == first["id"]
    assert run(worker, 3)["job_id"] == second["id"]
    assert run(worker)["job_id"] == third["id"]
    assert plane.job(third["id"])["state"] == "succeeded"


def test_a_failure_is_told_by_the_job_that_was_to_come_after_it(plane) -> None:
    worker = plane.worker(cpus=4)
    worker.report()
    first = plane.submit()
    second = plane.submit(after=[first["id"]])
    run(worker, 3)
    ended = plane.job(second["id"])
    why = f"it was to run after the success of job {first['id']}, which failed"
    assert (ended["state"], ended["ended_by"], ended["exit_code"]) == ("cancelled", "cancel", None)
    assert ended["reason"] == {"code": "after_failed", "message": f"{why}: exit code 3"}
    # One that comes too late hears the same at once.
    late = plane.submit(after=[first["id"]])
    assert (late["state"], late["reason"]["code"], late["reason"]["message"]) == ("cancelled", "after_failed", why)
    events = plane.http.get(f"/v1/jobs/{late['id']}/events").json()["events"]
    assert [event["event"] for event in events] == ["job_submitted", "job_cancelled"]


def test_a_repetition_comes_after_the_newest_repetition_of_what_had_failed(plane) -> None:
    worker = plane.worker(cpus=4)
    worker.report()
    first = plane.submit()
    second = plane.submit(after=[first["id"]])
    run(worker, 3)
    in_vain = plane.http.post(f"/v1/jobs/{second['id']}:retry").json()
    assert in_vain["reason"]["code"] == "after_failed"
    again = plane.http.post(f"/v1/jobs/{first['id']}:retry").json()
    third = plane.http.post(f"/v1/jobs/{second['id']}:retry").json()
    assert third["options"]["after"] == [again["id"]]
    assert third["state"] == "queued"
    run(worker)
    assert run(worker)["job_id"] == third["id"]


@pytest.mark.parametrize(
    ("after", "said"),
    [
        (["nope"], "after: no job 'nope'"),
        (["abcdefabcdefabcd"], "after: no job 'abcdefabcdefabcd'"),
        (["twice"], "after: several jobs have the name 'twice'"),
        ([":any"], "after: ':any' names no job"),
        ([" x"], "after: ' x' names no job"),
    ],
)
def test_what_names_no_job_is_refused_with_an_example(shared_plane, after, said) -> None:
    for _ in range(2):
        shared_plane.submit(name="twice")
    error = post(shared_plane, status=400, after=after)
    assert error["message"] == said
    assert "--after 7f3a" in error["hint"]
    assert "--after train:any" in error["hint"]


def test_a_batch_may_name_its_own_jobs_in_any_order(plane) -> None:
    worker = plane.worker(cpus=4)
    worker.report()
    ids = batch(
        plane,
        {"name": "join", "after": ["left", "right:any"]},
        {"name": "left", "after": ["make"]},
        {"name": "right", "after": ["make"]},
        {"name": "make"},
    )["ids"]
    assert run(worker)["job_id"] == ids[3]
    sides = worker.commands(hold_s=5)
    assert [command["job_id"] for command in sides] == ids[1:3]
    left, right = (command["epoch"] for command in sides)
    worker.report(worker.ended(right, 5))
    assert plane.job(ids[0])["reason"]["message"].startswith(f"waits for job {ids[1]} (")
    worker.report(worker.ended(left))
    assert run(worker)["job_id"] == ids[0]


def test_a_job_of_the_batch_counts_before_an_older_one_of_that_name(shared_plane) -> None:
    shared_plane.submit(name="older")
    ids = batch(shared_plane, {"name": "older"}, {"after": ["older"]})["ids"]
    assert shared_plane.job(ids[1])["options"]["after"] == [ids[0]]


@pytest.mark.parametrize(
    ("jobs", "said"),
    [
        (
            [{"name": "a", "after": ["c"]}, {"name": "b", "after": ["a"]}, {"name": "c", "after": ["b"]}],
            "jobs.0.after: these jobs wait for one another: a after c after b after a",
        ),
        (
            [{"name": "a", "after": ["a:any"]}, {"name": "b"}],
            "jobs.0.after: these jobs wait for one another: a after a",
        ),
        (
            [{"name": "a"}, {"name": "a"}, {"after": ["a"]}],
            "jobs.2.after: several jobs of this batch have the name 'a'",
        ),
        ([{"name": "a"}, {"after": ["nobody"]}], "jobs.1.after: no job 'nobody'"),
    ],
)
def test_a_circle_and_what_is_not_clear_are_refused_and_nothing_of_the_batch_is_there(plane, jobs, said) -> None:
    assert batch(plane, *jobs, status=400)["message"] == said
    assert plane.http.get("/v1/jobs").json()["jobs"] == []


def test_what_a_job_of_the_batch_is_refused_for_ends_those_behind_it(plane) -> None:
    worker = plane.worker(cpus=1)
    worker.report()
    ids = batch(plane, {"after": ["big"]}, {"name": "big", "request": {"cpus": 64}}, {"after": ["big:any"]})["ids"]
    states = [plane.job(job_id)["state"] for job_id in ids]
    assert states[:2] == ["cancelled", "rejected"]
    assert run(worker)["job_id"] == ids[2]


def test_the_same_key_is_the_same_job_although_its_after_was_a_name(plane) -> None:
    plane.submit(name="train")

    def send(env: dict[str, str]) -> tuple[int, str]:
        body = {"schema": 1, "command": ["true"], "after": ["train"], "env": env}
        answer = plane.http.post("/v1/jobs", json=body, headers={"Idempotency-Key": "k"})
        return answer.status_code, answer.json()["id"]

    status, job_id = send({"PATH": "/bin"})
    assert status == 201
    assert send({"PATH": "/usr/bin"}) == (200, job_id)
    plane.submit(name="train")  # now it is not clear which is meant; the same bytes are the same job all the same
    assert send({"PATH": "/bin"}) == (200, job_id)


def test_a_restart_of_the_control_plane_forgets_nobody(make_plane) -> None:
    plane = make_plane().start()
    worker = plane.worker(cpus=4)
    worker.report()
    first = plane.submit()
    second = plane.submit(after=[first["id"]])
    plane.stop()
    plane.start()
    assert plane.job(second["id"])["reason"]["code"] == "after"
    worker = plane.worker("other", cpus=4)
    worker.report()
    plane.http.post(f"/v1/jobs/{first['id']}:cancel")
    assert plane.job(first["id"], wait_s=0)["state"] in ("cancelled", "ending")


def test_anybody_may_wait_for_anybodys_job(plane) -> None:
    first = plane.submit()
    token = plane.client_token("eve", Role.SUBMITTER)
    answer = plane.http.post(
        "/v1/jobs",
        json={"schema": 1, "command": ["true"], "after": [first["id"]]},
        headers={"Authorization": f"Bearer {token}"},
    )
    assert answer.status_code == 201
