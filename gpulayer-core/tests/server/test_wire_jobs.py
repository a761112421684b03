"""Jobs over real HTTP, with a scripted worker."""

import json
import threading
from concurrent.futures import ThreadPoolExecutor

from gpulayer.server.tokens import TokenKind
from gpulayer.spec.tree import Entry, EntryKind, digest_of, encode_tree


def test_a_job_goes_to_a_worker_and_its_log_and_outputs_come_home(plane) -> None:
    worker = plane.worker()
    worker.report()
    job = plane.submit("make", "it", name="first", tags={"k": "v"}, env={"A": "1"}, request={"cpus": 2})
    assert job["state"] in ("queued", "staging", "provisioning", "running")
    (command,) = worker.commands(hold_s=5)
    assert command["type"] == "assign"
    assert command["command"] == ["make", "it"]
    assert command["env"] == {"A": "1"}
    assert (command["job_id"], command["attempt"], command["cpus"]) == (job["id"], 1, 2)
    epoch = command["epoch"]
    worker.holding = [epoch]
    worker.report({"epoch": epoch, "node": 0, "state": "staging"})
    worker.report(worker.running(epoch))
    assert plane.job("first")["state"] == "running"
    assert worker.put_log(epoch, 0, b"hello\n").json() == {"offset": 6}
    assert worker.put_log(epoch, 6, b"", final=True).json() == {"offset": 6}
    content = b"result"
    digest = plane.put_blob(content)
    tree = plane.put_blob(encode_tree([Entry("out.txt", EntryKind.FILE, 0o644, len(content), digest)]))
    assert worker.put_outputs(epoch, tree).json() == {"files": 1, "size_bytes": 6}
    worker.report(worker.ended(epoch, outputs=tree))
    done = plane.job(job["id"][:6])
    assert done["state"] == "succeeded"
    assert (done["exit_code"], done["signal"], done["ended_by"]) == (0, None, "program")
    assert done["outputs"] == [{"path": "out.txt", "size": 6, "digest": digest}]
    assert done["output_tree"] == tree
    assert done["attempts"][0]["nodes"][0]["worker"] == "box"
    assert done["placement"]
    assert done["submitted_by"]["name"] == "test"
    assert plane.http.get(f"/v1/jobs/{job['id']}/logs").content == b"hello\n"
    assert plane.http.get(f"/v1/jobs/{job['id']}/outputs").json()["tree"] == tree
    kinds = [event["event"] for event in plane.http.get(f"/v1/jobs/{job['id']}/events").json()["events"]]
    assert kinds == [
        "job_submitted",
        "attempt_assigned",
        "attempt_staging",
        "attempt_running",
        "attempt_ended",
        "job_succeeded",
    ]


def test_a_repeated_ended_report_changes_nothing_and_voids_the_epoch(plane) -> None:
    worker = plane.worker()
    worker.report()
    plane.submit()
    (command,) = worker.commands(hold_s=5)
    epoch = command["epoch"]
    assert worker.report(worker.ended(epoch, 3))["void"] == [epoch]
    assert worker.report(worker.ended(epoch, 0))["void"] == [epoch]
    job = plane.job(command["job_id"])
    assert (job["state"], job["exit_code"]) == ("failed", 3)


def test_an_ended_item_with_an_unknown_output_tree_is_recorded_without_outputs_and_says_so(plane) -> None:
    worker = plane.worker()
    worker.report()
    job = plane.submit()
    (command,) = worker.commands(hold_s=5)
    worker.report(worker.ended(command["epoch"], outputs="ab" * 32))
    done = plane.job(job["id"])
    assert done["state"] == "succeeded"
    assert done["output_tree"] is None
    assert "its outputs were not kept" in done["attempts"][0]["evidence"]


def test_waiting_for_a_job_answers_when_it_ends(plane) -> None:
    worker = plane.worker()
    worker.report()
    job = plane.submit()
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(lambda: plane.job(job["id"], wait_s=20))
        (command,) = worker.commands(hold_s=5)
        worker.report(worker.ended(command["epoch"]))
        assert waiting.result(10)["state"] == "succeeded"


def test_waiting_ends_with_its_time(plane) -> None:
    job = plane.submit()
    assert plane.job(job["id"], wait_s=0.05)["state"] == "queued"


def test_a_queued_job_says_why_it_waits(plane) -> None:
    assert plane.submit()["reason"]["code"] == "no_worker"
    worker = plane.worker(cpus=1)
    worker.report()
    worker.commands(hold_s=5)
    waiting = plane.submit()
    assert waiting["state"] == "queued"
    assert waiting["reason"]["code"] == "cpus_busy"
    assert "box" in waiting["reason"]["message"]


def test_a_job_that_fits_nowhere_is_rejected_with_verdicts_that_stay(plane) -> None:
    worker = plane.worker()
    worker.report()
    job = plane.submit(request={"accelerators": ["cuda"]})
    assert job["state"] == "rejected"
    assert job["reason"]["code"] == "no_worker_fits"
    assert job["verdicts"][0]["worker"] == "box"
    assert job["verdicts"][0]["verdict"] == "ineligible"
    plane.restart()
    assert plane.job(job["id"])["verdicts"] == job["verdicts"]


def test_explain_submits_nothing(plane) -> None:
    worker = plane.worker()
    worker.report()
    reply = plane.http.post("/v1/explain", json={"request": {"cpus": 2}}).json()
    assert reply["choice"] == "box"
    assert reply["verdicts"][0]["verdict"] == "eligible"
    assert plane.http.get("/v1/jobs").json() == {"jobs": [], "next": None}


def test_a_batch_is_accepted_as_a_whole_and_paged_newest_first(plane) -> None:
    jobs = [{"schema": 1, "command": ["echo", str(n)], "name": f"n{n % 3}"} for n in range(25)]
    answer = plane.http.post("/v1/jobs:batch", json={"schema": 1, "jobs": jobs})
    assert answer.status_code == 201
    ids = answer.json()["ids"]
    seen: list[str] = []
    cursor = ""
    while cursor is not None:
        page = plane.http.get("/v1/jobs", params={"limit": 10, "cursor": cursor}).json()
        seen += [job["id"] for job in page["jobs"]]
        cursor = page["next"]
    assert seen == ids[::-1]
    assert len(plane.http.get("/v1/jobs", params={"name": "n1"}).json()["jobs"]) == 8
    assert plane.http.get("/v1/jobs", params={"state": "succeeded,failed"}).json()["jobs"] == []
    assert len(plane.http.get("/v1/jobs", params={"state": "queued"}).json()["jobs"]) == 25


def test_a_fault_in_one_job_of_a_batch_refuses_all_and_names_it(plane) -> None:
    jobs = [{"schema": 1, "command": ["true"]} for _ in range(300)]
    jobs[250] = {"schema": 1, "command": ["true"], "retries": -1}
    error = plane.check_envelope(plane.http.post("/v1/jobs:batch", json={"schema": 1, "jobs": jobs}))
    assert error["message"].startswith("jobs.250.retries")
    jobs[250] = {"schema": 1, "command": ["true"], "request": {"accelerators": ["gpu"]}}
    error = plane.check_envelope(plane.http.post("/v1/jobs:batch", json={"schema": 1, "jobs": jobs}))
    assert error["message"].startswith("jobs.250.request.accelerators")
    assert plane.http.get("/v1/jobs").json()["jobs"] == []


def test_one_key_and_one_body_give_one_job_also_across_a_restart(plane) -> None:
    body = {"schema": 1, "command": ["true"]}
    headers = {"Idempotency-Key": "k1"}
    first = plane.http.post("/v1/jobs", json=body, headers=headers)
    again = plane.http.post("/v1/jobs", json=body, headers=headers)
    assert (first.status_code, again.status_code) == (201, 200)
    assert first.json()["id"] == again.json()["id"]
    other = plane.http.post("/v1/jobs", json={**body, "command": ["false"]}, headers=headers)
    assert other.status_code == 422
    assert plane.check_envelope(other)["code"] == "idempotency_mismatch"
    assert "another body: not the same: command" in other.json()["error"]["message"]
    assert plane.http.post("/v1/jobs", json={**body, "retries": 2}, headers=headers).json()["id"] == first.json()["id"]
    plane.restart()
    after = plane.http.post("/v1/jobs", json=body, headers=headers)
    assert after.status_code == 200
    assert after.json()["id"] == first.json()["id"]
    assert plane.http.post("/v1/jobs", json={**body, "command": ["x"]}, headers=headers).status_code == 422


def test_simultaneous_submits_with_one_key_give_one_job(plane) -> None:
    body = {"schema": 1, "command": ["true"]}
    gate = threading.Barrier(8)

    def submit(key: str) -> str:
        gate.wait()
        answer = plane.http.post("/v1/jobs", json=body, headers={"Idempotency-Key": key})
        assert answer.status_code in (200, 201)
        return answer.json()["id"]

    with ThreadPoolExecutor(8) as pool:
        for key in ("a", "b", "c"):
            assert len(set(pool.map(submit, [key] * 8))) == 1
    assert len(plane.http.get("/v1/jobs").json()["jobs"]) == 3


def test_a_key_belongs_to_its_token(plane) -> None:
    body, other = {"schema": 1, "command": ["true"]}, plane.new_token(TokenKind.CLIENT)
    one = plane.http.post("/v1/jobs", json=body, headers={"Idempotency-Key": "k"}).json()["id"]
    headers = {"Idempotency-Key": "k", "Authorization": f"Bearer {other}"}
    assert plane.http.post("/v1/jobs", json=body, headers=headers).json()["id"] != one


def test_cancelling_a_queued_job_ends_it_at_once_and_again_changes_nothing(plane) -> None:
    job = plane.submit()
    assert plane.http.post(f"/v1/jobs/{job['id']}:cancel").json()["state"] == "cancelled"
    assert plane.http.post(f"/v1/jobs/{job['id']}:cancel", json={"grace_ms": 1}).json()["state"] == "cancelled"


def test_cancelling_a_running_job_sends_stop_and_it_ends_as_cancelled(plane) -> None:
    worker = plane.worker()
    worker.report()
    job = plane.submit()
    (command,) = worker.commands(hold_s=5)
    epoch = command["epoch"]
    worker.holding = [epoch]
    worker.report(worker.running(epoch))
    assert plane.http.post(f"/v1/jobs/{job['id']}:cancel", json={"grace_ms": 70}).json()["state"] == "ending"
    (stop,) = worker.commands(hold_s=5)
    assert stop == {"type": "stop", "epoch": epoch, "ended_by": "cancel", "grace_ms": 70, "node": 0}
    by = {"user-agent": "somebody/else"}
    assert plane.http.post(f"/v1/jobs/{job['id']}:cancel", json={"grace_ms": 10}, headers=by).status_code == 200
    outcome = {"ended_by": "cancel", "exit_code": None, "signal": 15, "evidence": "", "blame": "user"}
    worker.report({"epoch": epoch, "node": 0, "state": "ended", "outcome": outcome})
    ended = plane.job(job["id"])
    client = plane.http.headers["user-agent"]
    assert (ended["state"], ended["reason"]["message"]) == ("cancelled", f"cancelled by test ({client})")
    assert ended["attempts"][0]["evidence"] == f"cancelled by test ({client})"
    events = plane.http.get(f"/v1/jobs/{job['id']}/events").json()["events"]
    asked = [event["details"] for event in events if event["event"] == "cancel_requested"]
    assert asked == [
        {"by": f"test ({client})", "grace_ms": 70},
        {"by": "test (somebody/else)", "grace_ms": 10},
    ]


def test_retry_makes_a_new_job_of_the_same_spec_once_the_old_one_has_ended(plane) -> None:
    job = plane.submit("echo", "x", name="r", tags={"a": "b"})
    assert plane.http.post(f"/v1/jobs/{job['id']}:retry").status_code == 409
    plane.http.post(f"/v1/jobs/{job['id']}:cancel")
    again = plane.http.post(f"/v1/jobs/{job['id']}:retry")
    assert again.status_code == 201
    assert again.json()["id"] != job["id"]
    assert (again.json()["command"], again.json()["tags"]) == (["echo", "x"], {"a": "b"})
    assert plane.http.get("/v1/jobs/r").status_code == 404  # two jobs have the name


def test_a_job_is_found_by_prefix_and_unique_name_and_not_by_pattern(plane) -> None:
    job = plane.submit(name="only")
    assert plane.job("only")["id"] == plane.job(job["id"][:4])["id"] == job["id"]
    for ref in ("%25", "_", job["id"].upper() if job["id"].upper() != job["id"] else "X", "zzz"):
        assert plane.http.get(f"/v1/jobs/{ref}").status_code == 404


def test_a_source_must_be_complete(plane) -> None:
    content = b"print()"
    digest = digest_of(content)
    tree = encode_tree([Entry("main.py", EntryKind.FILE, 0o644, len(content), digest)])
    root = digest_of(tree)
    body = {"schema": 1, "command": ["true"], "source": {"digest": root, "files": 1, "size_bytes": 7}}
    answer = plane.http.post("/v1/jobs", json=body)
    assert answer.status_code == 404
    assert root in plane.check_envelope(answer)["message"]
    plane.put_blob(tree)
    answer = plane.http.post("/v1/jobs", json=body)
    assert answer.status_code == 404
    assert digest in plane.check_envelope(answer)["message"]
    plane.put_blob(content)
    assert plane.http.post("/v1/jobs", json=body).status_code == 201


def test_a_hostile_source_is_refused(plane) -> None:
    rows = [["l", "up", "../../etc/passwd"]]
    tree = plane.put_blob(json.dumps({"v": 1, "entries": rows}, separators=(",", ":")).encode())
    body = {"schema": 1, "command": ["true"], "source": {"digest": tree, "files": 1, "size_bytes": 0}}
    answer = plane.http.post("/v1/jobs", json=body)
    assert answer.status_code == 400
    assert "leaves the folder" in plane.check_envelope(answer)["message"]


def test_a_manifest_of_a_million_entries_is_too_large(plane) -> None:
    blob = plane.put_blob(b"")
    level = encode_tree([Entry(f"f{n:04}", EntryKind.FILE, 0o644, 0, blob) for n in range(1000)])
    folder = plane.put_blob(level)
    root = plane.put_blob(encode_tree([Entry(f"d{n:04}", EntryKind.DIRECTORY, 0o755, 0, folder) for n in range(1000)]))
    body = {"schema": 1, "command": ["true"], "source": {"digest": root, "files": 1, "size_bytes": 0}}
    answer = plane.http.post("/v1/jobs", json=body)
    assert answer.status_code == 413
    assert plane.check_envelope(answer)["code"] == "too_large"


def test_accepted_jobs_survive_a_restart_and_are_assigned_again(plane) -> None:
    worker = plane.worker()
    worker.report()
    job = plane.submit()
    (command,) = worker.commands(hold_s=5)
    plane.restart()
    assert plane.http.get("/v1/plane").json()["workers"] == {"silent": 1}
    worker.live = plane
    refused = worker.try_report()
    assert refused.status_code == 401  # sessions live in memory
    worker.open_session()
    worker.report()
    (again,) = worker.commands(hold_s=5)
    assert (again["epoch"], again["job_id"]) == (command["epoch"], job["id"])
    worker.report(worker.ended(again["epoch"]))
    assert plane.until(lambda: plane.job(job["id"])["state"] == "succeeded")


def test_submission_waits_for_the_local_workers_first_report(make_plane) -> None:
    live = make_plane(has_local_worker=True, local_worker_wait_s=20.0).start()
    token = live.new_token(TokenKind.JOIN, is_local=True)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(lambda: live.submit(request={"accelerators": ["cuda"]}))
        worker = live.worker("local", join_token=token)
        assert not waiting.done()
        worker.report()
        assert waiting.result(10)["state"] == "rejected"


def test_a_token_of_odd_bytes_gets_an_answer_and_not_a_crash(plane) -> None:
    answer = plane.bare.get(plane.url + "/v1/jobs", headers={b"Authorization": b"Bearer glc_\xff\xfe"})
    assert answer.status_code == 401
    plane.check_envelope(answer)


def test_two_jobs_share_one_licence_and_everybody_is_told_who_has_it(plane) -> None:
    worker = plane.worker(resources={"licence": 1}, capabilities=["launcher:torch", "stager:file"], cpus=8)
    worker.report()
    wants = {"cpus": 1, "resources": {"licence": 1}}
    inputs = {"data": "file:///mnt/data"}
    first = plane.submit("true", request=wants, launcher="torch", inputs=inputs)
    second = plane.submit("true", request=wants)
    (command,) = worker.commands(hold_s=5)
    assert (command["job_id"], command["resources"]) == (first["id"], {"licence": 1})
    assert (command["launcher"], command["environment"], command["inputs"]) == ("torch", "", inputs)
    worker.holding = [command["epoch"]]
    worker.report(worker.running(command["epoch"]))
    record = plane.http.get("/v1/workers/box").json()
    assert (record["resources"], record["resources_free"]) == ({"licence": 1}, {"licence": 0})
    assert record["capabilities"] == ["launcher:torch", "stager:file"]
    (verdict,) = plane.http.post("/v1/explain", json={"request": wants}).json()["verdicts"]
    assert (verdict["verdict"], verdict["busy_with"]) == ("busy", [first["id"]])
    assert verdict["reasons"][0]["code"] == "resource_busy"
    waits = plane.job(second["id"])
    assert (waits["state"], waits["reason"]["code"]) == ("queued", "resource_busy")
    assert waits["request"]["resources"] == {"licence": 1}
    plane.restart()
    worker.open_session()
    worker.report(recovered=[command["epoch"]])
    assert plane.http.get("/v1/workers/box").json()["resources_free"] == {"licence": 0}
    assert plane.job(second["id"])["state"] == "queued"
    worker.holding = []
    worker.report(worker.ended(command["epoch"]))
    assert plane.job(first["id"])["options"] == {"launcher": "torch", "inputs": inputs}
    plane.until(lambda: plane.job(second["id"])["state"] == "staging")  # once the plugins are loaded again


def test_what_no_worker_has_is_a_reason_and_the_change_that_helps_is_named(plane) -> None:
    plane.worker(resources={"licence": 1}, capabilities=["stager:file"]).report()
    more = plane.submit("true", request={"resources": {"licence": 2}})
    assert more["state"] == "rejected"
    (verdict,) = more["verdicts"]
    reason = {"code": "resource", "message": "has 1 × licence", "wanted": "licence=2", "has": "licence=1"}
    assert (verdict["reasons"], verdict["fits_with"]) == ([reason], {"resources": "licence=1"})
    (verdict,) = plane.submit("true", inputs={"data": "s3://bucket/data"})["verdicts"]
    assert (verdict["reasons"][0]["code"], verdict["fits_with"]) == ("capability", {})
    assert verdict["reasons"][0]["message"] == "can't fetch s3: URIs"
    (verdict,) = plane.submit("true", environment="uv")["verdicts"]
    assert verdict["reasons"][0]["message"] == "has no environment uv"


def test_a_record_has_the_request_that_was_placed(plane) -> None:
    plane.worker(capabilities=["launcher:torch", "stager:file"]).report()
    inputs = {"data": "file:///mnt/data", "more": "S3://bucket/x"}
    own = {"cpus": 1, "capabilities": ["stager:git", "launcher:process"]}
    record = plane.submit("true", request=own, launcher="torch", environment="system", inputs=inputs)
    placed = {"cpus": 1, "capabilities": ["launcher:torch", "stager:file", "stager:git", "stager:s3"]}
    assert (record["request"], plane.job(record["id"])["request"]) == (placed, placed)
    assert record["reason"]["message"].endswith("stager s3")
    plain = plane.submit("true", request={"cpus": 1}, environment="system")
    assert (plain["request"], plain["state"]) == ({"cpus": 1}, "staging")


def test_what_every_worker_can_do_is_never_asked_for(plane) -> None:
    plane.worker().report()
    everybodys = {"capabilities": ["launcher:process", "environment:system"]}
    record = plane.submit("true", request=everybodys)
    assert (record["state"], record["request"]) == ("staging", {})
    assert plane.http.post("/v1/explain", json={"request": everybodys}).json()["choice"] == "box"
