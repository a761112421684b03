"""Real workers with real spawners against a scripted control plane."""

import json
import os
import re
import signal
import stat

import pytest

from gpulayer.ids import Digest
from gpulayer.net.interfaces import interface_addresses
from gpulayer.spawner.state import StateDir
from gpulayer.spec.tree import Entry, EntryKind, decode_tree, digest_of, encode_tree


def outcome(item):
    fields = item["outcome"]
    return fields["ended_by"], fields["exit_code"], fields["signal"]


def test_a_job_runs_and_its_log_and_files_come_home(scene):
    async def main(plane, worker):
        big = b"x" * 1_500_000
        files = {
            "run.sh": b"#!/bin/sh\ncat data; echo made > made; echo out > $GPULAYER_OUTPUT_DIR/o\n",
            "data": b"hello\n",
            "big": big,
        }
        entries = []
        for name, content in files.items():
            digest = digest_of(content)
            plane.blobs[digest] = content
            entries.append(Entry(name, EntryKind.FILE, 0o755 if name == "run.sh" else 0o644, len(content), digest))
        tree = encode_tree(entries)
        plane.blobs[digest_of(tree)] = tree
        worker.start()
        plane.assign(1, "./run.sh", source=digest_of(tree))
        item = await plane.end_of(1)
        assert outcome(item) == ("program", 0, None)
        assert bytes(plane.logs[1]) == b"hello\n"
        assert 1 in plane.final
        assert plane.trees == [(1, item["outputs"])]
        home = decode_tree(plane.blobs[item["outputs"]])
        assert {entry.name: plane.blobs[entry.digest] for entry in home.entries} == {"made": b"made\n", "o": b"out\n"}
        assert plane.states[1][-1] == "ended"
        await plane.until(lambda: worker.attempts() == [])
        await worker.stop()
        assert plane.reports[-1]["leaving"]
        assert "HEAVY []" in worker.said
        assert not (worker.folder / "spawner" / "spawner.sock").exists()

    scene(main)


def test_exit_codes_and_signals_pass_through(scene):
    async def main(plane, worker):
        worker.start()
        codes = [0, 1, 126, 127, 200, 255]
        for epoch, code in enumerate(codes, 1):
            plane.assign(epoch, "sh", "-c", f"exit {code}")
        plane.assign(10, "sh", "-c", "kill -9 $$")
        plane.assign(11, "sh", "-c", "kill -15 $$")
        plane.assign(12, "no-such-program-here")
        plane.assign(13, "./not-executable", source=not_executable(plane))
        plane.assign(14, "true", "x" * 200_000)
        for epoch, code in enumerate(codes, 1):
            assert outcome(await plane.end_of(epoch)) == ("program", code, None)
        assert outcome(await plane.end_of(10)) == ("signal", None, 9)
        assert outcome(await plane.end_of(11)) == ("signal", None, 15)
        missing, refused = await plane.end_of(12), await plane.end_of(13)
        assert outcome(missing) == ("program", 127, None)
        assert outcome(refused) == ("program", 126, None)
        assert missing["outcome"]["blame"] == "user"
        assert "no-such-program-here" in missing["outcome"]["evidence"]
        assert "chmod +x" in refused["outcome"]["evidence"]
        too_long = await plane.end_of(14)
        assert outcome(too_long) == ("program", 126, None)
        assert "Argument list too long" in too_long["outcome"]["evidence"]
        assert "chmod" not in too_long["outcome"]["evidence"]
        await worker.stop()

    def not_executable(plane):
        content = b"#!/bin/sh\n"
        tree = encode_tree([Entry("not-executable", EntryKind.FILE, 0o644, len(content), digest_of(content))])
        plane.blobs |= {digest_of(content): content, digest_of(tree): tree}
        return digest_of(tree)

    scene(main)


def test_a_jobs_environment_is_an_allow_list(scene):
    async def main(plane, worker):
        worker.start()
        plane.assign(1, "env", env={"MINE": "1"})
        await plane.end_of(1)
        env = dict(line.split("=", 1) for line in bytes(plane.logs[1]).decode().splitlines())
        assert env["MINE"] == "1"
        assert env["HOME"] == "/nowhere"
        assert env["GPULAYER_JOB_ID"] == "job1"
        assert env["GPULAYER_ATTEMPT"] == "1"
        assert env["CUDA_VISIBLE_DEVICES"] == ""
        assert "PYTHONPATH" not in env
        assert "canary" not in str(env)
        await worker.stop()

    scene(main)


def test_a_killed_agent_finds_its_job_again_and_delivers_its_code_and_whole_log(scene):
    async def main(plane, worker):
        worker.start()
        plane.assign(1, "sh", "-c", "echo one; while [ ! -e go ]; do sleep 0.01; done; echo two; exit 200")
        await plane.until(lambda: bytes(plane.logs.get(1, b"")) == b"one\n")
        worker.kill()
        (worker.folder / "attempts" / "1.0" / "work" / "go").touch()
        first_boot = plane.reports[-1]["boot"]
        worker.start()
        item = await plane.end_of(1)
        assert outcome(item) == ("program", 200, None)
        assert bytes(plane.logs[1]) == b"one\ntwo\n"
        recovered = [report for report in plane.reports if report.get("recovered")]
        assert {tuple(report["recovered"]) for report in recovered} == {(1,)}
        assert plane.reports[-1]["boot"] > first_boot
        await worker.stop()

    scene(main)


def test_a_job_that_ends_while_the_agent_is_dead_is_delivered_by_the_next_one(scene):
    async def main(plane, worker):
        worker.start()
        plane.assign(2, "sh", "-c", "echo begun; while [ ! -e go ]; do sleep 0.01; done; exit 7")
        await plane.until(lambda: bytes(plane.logs.get(2, b"")) == b"begun\n")
        worker.kill()
        (worker.folder / "attempts" / "2.0" / "work" / "go").touch()
        await plane.until((worker.folder / "attempts" / "2.0" / "exit.json").exists)
        worker.start()
        assert outcome(await plane.end_of(2)) == ("program", 7, None)
        await worker.stop()

    scene(main)


def test_an_outage_stops_no_job_and_loses_nothing(scene):
    async def main(plane, worker):
        worker.start()
        plane.assign(1, "sh", "-c", "echo one; while [ ! -e go ]; do sleep 0.01; done; echo two; echo f > f; exit 3")
        await plane.until(lambda: bytes(plane.logs.get(1, b"")) == b"one\n")
        await plane.down()
        (worker.folder / "attempts" / "1.0" / "work" / "go").touch()
        await plane.until((worker.folder / "attempts" / "1.0" / "exit.json").exists)
        assert 1 not in plane.ended
        plane.tokens.clear()  # a control plane that was started again knows no sessions
        await plane.up()
        item = await plane.end_of(1)
        assert outcome(item) == ("program", 3, None)
        assert bytes(plane.logs[1]) == b"one\ntwo\n"
        assert item["outputs"] is not None
        await worker.stop()

    scene(main)


def test_cancel_gives_the_grace_time_and_keeps_what_is_written_in_it(scene):
    async def main(plane, worker):
        worker.start()
        plane.assign(1, "sh", "-c", "trap 'echo saved > saved; exit 5' TERM; echo ready; while :; do sleep 0.01; done")
        await plane.until(lambda: bytes(plane.logs.get(1, b"")) == b"ready\n")
        plane.stop(1)
        item = await plane.end_of(1)
        assert outcome(item) == ("cancel", 5, None)
        home = decode_tree(plane.blobs[item["outputs"]])
        assert [entry.name for entry in home.entries] == ["saved"]
        await worker.stop()

    scene(main)


def test_a_program_that_ignores_sigterm_is_killed_after_the_grace_time(scene):
    async def main(plane, worker):
        worker.start()
        plane.assign(1, "sh", "-c", "trap '' TERM; echo ready; while :; do sleep 0.01; done", timeout_ms=None)
        await plane.until(lambda: bytes(plane.logs.get(1, b"")) == b"ready\n")
        plane.stop(1, grace_ms=100)
        assert outcome(await plane.end_of(1)) == ("cancel", None, 9)
        plane.assign(2, "sleep", "60", timeout_ms=100)
        assert outcome(await plane.end_of(2)) == ("timeout", None, 15)
        await worker.stop()

    scene(main)


def test_a_void_attempt_is_killed_and_forgotten_and_nothing_of_it_is_taken(scene):
    async def main(plane, worker):
        worker.start()
        plane.assign(1, "sh", "-c", "echo $$; exec sleep 600")
        await plane.until(lambda: bytes(plane.logs.get(1, b"")).endswith(b"\n"))
        pid = int(bytes(plane.logs[1]))
        plane.void.add(1)
        await plane.until(lambda: worker.attempts() == [])
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
        assert 1 not in plane.ended
        assert plane.trees == []
        await worker.stop()

    scene(main)


def test_a_stopping_worker_ends_its_jobs_and_says_why(scene):
    async def main(plane, worker):
        worker.start()
        plane.assign(1, "sh", "-c", "echo ready; exec sleep 600")
        await plane.until(lambda: bytes(plane.logs.get(1, b"")) == b"ready\n")
        await worker.stop()
        assert outcome(plane.ended[1]) == ("worker_stopped", None, 15)
        assert plane.reports[-1]["leaving"]
        assert worker.attempts() == []

    scene(main)


def test_once_leaves_after_one_job(scene):
    async def main(plane, worker):
        worker.start(once=True)
        plane.assign(1, "true")
        assert await worker.ended() == 0
        assert outcome(plane.ended[1]) == ("program", 0, None)

    scene(main)


def test_a_bad_source_is_the_users_and_a_missing_one_is_not(scene):
    async def main(plane, worker):
        worker.start()
        plane.blobs[digest_of(b"no tree")] = b"no tree"
        plane.assign(1, "true", source=digest_of(b"no tree"))
        plane.assign(2, "true", source=Digest("0" * 64))
        bad, missing = await plane.end_of(1), await plane.end_of(2)
        assert (bad["outcome"]["ended_by"], bad["outcome"]["blame"]) == ("staging", "user")
        assert (missing["outcome"]["ended_by"], missing["outcome"]["blame"]) == ("staging", "infrastructure")
        await worker.stop()

    scene(main)


def test_the_planes_own_worker_follows_its_endpoint_file_and_uses_up_its_token(scene):
    async def main(plane, worker):
        os.makedirs(worker.folder)
        endpoint, token = worker.folder.parent / "endpoint.json", worker.folder / "join-token"
        token.write_text("gle_good\n")
        worker.start(urls=[], token="", endpoint_file=str(endpoint), token_file=str(token))
        endpoint.write_text(json.dumps({"url": plane.url}))
        await plane.until(lambda: plane.reports)
        assert not token.exists()
        identity = worker.folder / "identity.json"
        assert stat.S_IMODE(identity.stat().st_mode) == 0o600
        assert "gle_good" not in identity.read_text()
        assert (worker.folder / "agent.lock").read_text() == f"{worker.process.pid}\n"
        await plane.down()
        plane.port = 0
        await plane.up()
        endpoint.write_text(json.dumps({"url": plane.url}))
        count = len(plane.reports)
        await plane.until(lambda: len(plane.reports) > count)
        await worker.stop()

    scene(main)


def test_several_urls_are_tried_in_turn(scene):
    async def main(plane, worker):
        worker.start(urls=["http://127.0.0.1:1", plane.url])
        plane.assign(1, "true")
        assert (await plane.end_of(1))["outcome"]["exit_code"] == 0
        await worker.stop()

    scene(main)


def test_a_refused_token_and_a_taken_name_are_told_and_a_default_name_gives_way(scene):
    async def main(plane, worker):
        plane.taken_names.add("box")
        worker.start(name="box")
        assert await worker.ended() == 1
        assert "Conflict" in worker.said
        worker.start(token="gle_bad")
        assert await worker.ended() == 1
        assert "Unauthenticated" in worker.said
        worker.start(default_name="box")
        await plane.until(lambda: plane.reports)
        assert next(name for _, name, _ in plane.enrolled.values()).startswith("box-")
        worker.kill()
        worker.start()
        await plane.until(lambda: plane.reports[-1]["boot"] > 3)
        await worker.stop()

    scene(main)


def test_a_worker_that_is_not_known_any_more_says_so_or_joins_again_with_a_token(scene):
    async def main(plane, worker):
        worker.start()
        await plane.until(lambda: plane.reports)
        await worker.stop()
        plane.enrolled.clear()
        worker.start(token="")
        assert await worker.ended() == 1
        assert "does not know this worker any more" in worker.said
        count = len(plane.reports)
        worker.start()
        await plane.until(lambda: len(plane.reports) > count)
        await worker.stop()

    scene(main)


def test_a_lost_spawner_is_the_workers_loss_and_the_next_job_runs(scene):
    async def main(plane, worker):
        worker.start()
        plane.assign(1, "sh", "-c", "echo ready; exec sleep 600")
        await plane.until(lambda: bytes(plane.logs.get(1, b"")) == b"ready\n")
        os.kill(StateDir(str(worker.folder / "spawner")).read_pids()["spawner"], signal.SIGKILL)
        item = await plane.end_of(1)
        assert outcome(item) == ("worker_lost", None, None)
        assert item["outcome"]["blame"] == "infrastructure"
        assert bytes(plane.logs[1]) == b"ready\n"
        plane.assign(2, "true")
        assert outcome(await plane.end_of(2)) == ("program", 0, None)
        await worker.stop()

    scene(main)


def test_commands_of_a_later_version_are_passed_over(scene):
    async def main(plane, worker):
        plane.jobs[5] = {"type": "dance", "epoch": 5}
        plane.jobs[6] = {"type": "stop", "epoch": 6, "ended_by": "boredom", "grace_ms": 1}
        plane.unacknowledged |= {5, 6}
        worker.start()
        plane.assign(7, "true")
        assert outcome(await plane.end_of(7)) == ("program", 0, None)
        plane.unacknowledged.clear()
        await worker.stop()

    scene(main)


def test_one_agent_a_folder(scene):
    async def main(plane, worker):
        worker.start()
        await plane.until(lambda: plane.reports)
        first = worker.process
        worker.start()
        assert await worker.ended() == 1
        assert "another worker runs" in worker.said
        worker.process = first
        await worker.stop()

    scene(main)


def test_an_idle_worker_is_light(scene):
    async def main(plane, worker):
        worker.start()
        plane.assign(1, "true")
        await plane.end_of(1)
        with open(f"/proc/{worker.process.pid}/status") as status:
            rss_kib = next(int(line.split()[1]) for line in status if line.startswith("VmRSS"))
        assert rss_kib < 80 * 1024
        await worker.stop()

    scene(main)


@pytest.mark.parametrize("answer", ["404 on reports", "401 on sessions"])
def test_a_worker_that_is_removed_ends_its_jobs_says_so_and_leaves(scene, answer):
    async def main(plane, worker):
        worker.start()
        await plane.until(lambda: plane.reports)
        await worker.stop()
        worker.start(token="")
        plane.assign(1, "sh", "-c", "trap '' TERM; echo $$; while :; do sleep 0.05; done")
        await plane.until(lambda: bytes(plane.logs.get(1, b"")).endswith(b"\n"))
        pid = int(bytes(plane.logs[1]))
        if answer.startswith("404"):
            plane.is_removed = True
        else:
            plane.enrolled.clear()
            plane.tokens.clear()
        assert await worker.ended() == 1
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
        assert "does not know this worker any more" in worker.said
        assert "job job1 attempt 1 is not this worker's any more: it was ended" in worker.said
        assert worker.attempts() == []
        assert not (worker.folder / "spawner" / "spawner.sock").exists()

    scene(main)


def test_a_removed_worker_with_a_token_joins_again(scene):
    async def main(plane, worker):
        worker.start()
        await plane.until(lambda: plane.reports)
        first = plane.reports[-1]["boot"]
        plane.enrolled.clear()
        plane.tokens.clear()
        await plane.until(lambda: plane.reports[-1]["boot"] > first)
        plane.assign(7, "true")
        assert outcome(await plane.end_of(7)) == ("program", 0, None)
        await worker.stop()

    scene(main)


def test_a_worker_tells_of_its_jobs_its_connection_and_its_end(scene):
    async def main(plane, worker):
        worker.start(name="box")
        plane.assign(1, "sh", "-c", "exit 3")
        plane.assign(2, "sh", "-c", "echo ready; exec sleep 600")
        await plane.end_of(1)
        await plane.until(lambda: bytes(plane.logs.get(2, b"")) == b"ready\n")
        await plane.down()
        await plane.until(lambda: "connection lost: " in worker.said)
        await plane.up()
        await plane.until(lambda: "the connection is back" in worker.said)
        await worker.stop()
        wanted = [
            rf"joined {plane.url} as box \(\d+ cpus?, [\d.]+ GB, (no device|\d+ × .*)\)",
            r"job job1 attempt 1 started: sh -c 'exit 3'",
            r"job job1 attempt 1 ended: exit code 3 after [\d.]+ m?s",
            r"connection lost: .*; 1 job goes on; trying again",
            "the connection is back",
            "stopping; 1 job ends",
            r"job job2 attempt 1 ended: worker stopped after [\d.]+ m?s",
        ]
        for line in wanted:
            assert len(re.findall(line, worker.said)) == 1, line

    scene(main)


@pytest.mark.parametrize(("script", "end"), [(":", ["ended"]), ("echo said", ["draining", "ended"])])
def test_the_end_of_a_job_that_left_nothing_is_one_line_of_its_journal(scene, script, end):
    async def main(plane, worker):
        worker.start()
        plane.assign(1, "sh", "-c", script)
        await plane.end_of(1)
        await plane.until(lambda: list(worker.folder.glob("spare/*/phase")))  # the folder is kept for another job
        (path,) = worker.folder.glob("spare/*/phase")
        phases = [json.loads(line)["phase"] for line in path.read_text().splitlines()]
        assert phases == ["staging", "spawning", "running", *end]

    scene(main)


def test_a_report_carries_numeric_addresses_for_others_alone(scene):
    async def main(plane, worker):
        worker.start()
        await plane.until(lambda: any(report.get("facts") for report in plane.reports))
        facts = next(report["facts"] for report in plane.reports if report.get("facts"))
        assert facts["addresses"] == list(interface_addresses())
        assert "127.0.0.1" not in facts["addresses"]
        await worker.stop()

    scene(main)
