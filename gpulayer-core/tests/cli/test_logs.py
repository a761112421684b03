"""``job logs`` and what a foreground submit shows: flags, streams, gaps. Against a scripted control plane."""

import json
import time
from datetime import datetime

import pytest


@pytest.fixture
def logs(plane, parts):
    """One job whose logs are ``logs.out`` and ``logs.err``; ``logs.start``: what its log no longer holds before."""

    class Logs:
        out = b"one\ntwo\nthree\n"
        err = b"warning\n"
        start = 0
        record = parts.job()

        def answer(self, asked):
            content = self.err if asked.query.get("stream") == "stderr" else self.out
            offset = max(int(asked.query.get("offset", 0)), self.start)
            if "tail_bytes" in asked.query:
                offset = max(offset, len(content) - int(asked.query["tail_bytes"]))
            if asked.query.get("node"):
                return parts.error(404, "not_found", "attempt 1 ran on 1 node: there is no rank 1")
            return parts.Answer(
                body=content[offset:], headers={"X-Gpulayer-Log-Start": offset, "X-Gpulayer-Attempt": 1}
            )

    found = Logs()
    plane.on("GET", "/v1/jobs/{ref}", lambda asked: found.record)
    plane.on("GET", "/v1/jobs/{ref}/logs", found.answer)
    plane.on("POST", "/v1/jobs", lambda asked: parts.Answer(201, json=found.record))
    return found


@pytest.fixture
def split(logs, parts):
    logs.record = parts.job(split_streams=True)
    return logs


FOLLOW = pytest.mark.parametrize("follow", [[], ["--follow"]])


@FOLLOW
def test_grep_shows_the_lines_in_which_it_is_found(cli, plane, logs, follow):
    assert cli("job", "logs", *follow, "--grep", "^t", "7f", plane=plane).out == b"two\nthree\n"
    assert cli("job", "logs", *follow, "--grep", "e$", "--tail", "1", "7f", plane=plane).out == b"three\n"
    assert cli("job", "logs", *follow, "--grep", "o", "--tail", "1", "7f", plane=plane).out == b"two\n"
    logs.out = b"\r1%\r2%\nno\nend%"
    assert cli("job", "logs", *follow, "--grep", "%", "7f", plane=plane).out == b"2%\nend%"


@FOLLOW
def test_tail_counts_lines_from_the_end(cli, plane, logs, follow):
    for count, expected in ((0, b""), (1, b"three\n"), (2, b"two\nthree\n"), (9, logs.out)):
        assert cli("job", "logs", *follow, "--tail", count, "7f", plane=plane).out == expected


@FOLLOW
def test_since_and_attempt_reach_the_control_plane(cli, plane, logs, follow):
    said = cli("job", "logs", *follow, "--since", "10m", "--attempt", "1", "7f", plane=plane)
    assert (said.code, said.out) == (0, logs.out)
    asked = next(asked for asked in plane.asked if asked.path.endswith("/logs"))
    assert asked.query["attempt"] == "1"
    assert abs(int(asked.query["since_ms"]) - (time.time() - 600) * 1000) < 60_000
    at = "2026-11-30T05:00:00+00:00"
    cli("job", "logs", *follow, "--since", at, "7f", plane=plane)
    asked = [asked for asked in plane.asked if asked.path.endswith("/logs")][1]
    assert int(asked.query["since_ms"]) == datetime.fromisoformat(at).timestamp() * 1000


@pytest.mark.parametrize("wrong", [["--grep", "a(b"], ["--since", "yesterday"], ["--tail", "-1"], ["--rank", "x"]])
def test_a_flag_that_can_not_be_read_is_a_usage_error_and_nothing_is_asked(cli, plane, logs, wrong):
    said = cli("job", "logs", *wrong, "7f", plane=plane)
    assert (said.code, said.out) == (2, b"")
    assert said.err.startswith("error: ")
    assert plane.asked == []


def test_a_rank_that_is_not_there_is_said(cli, plane, logs):
    said = cli("job", "logs", "--rank", "1", "7f", plane=plane)
    assert (said.code, said.out) == (2, b"")
    assert "there is no rank 1" in said.err


@FOLLOW
def test_a_gap_is_in_the_bytes_and_said_once(cli, plane, logs, follow):
    logs.start = 4
    said = cli("job", "logs", *follow, "7f", plane=plane)
    assert said.out == b"[gpulayer: 4 bytes of the log are missing here]\ntwo\nthree\n"
    assert said.err == "note: 4 bytes of the log are missing\n"


@FOLLOW
def test_a_split_job_comes_out_on_its_two_streams(cli, plane, split, follow):
    said = cli("job", "logs", *follow, "7f", plane=plane)
    assert (said.code, said.out, said.err) == (0, b"one\ntwo\nthree\n", "warning\n")
    said = cli("job", "logs", *follow, "--tail", "1", "--grep", "e|w", "7f", plane=plane)
    assert (said.out, said.err) == (b"three\n", "warning\n")


def test_a_foreground_submit_shows_both_streams(cli, plane, split):
    said = cli("submit", "--quiet", "--split-streams", "--", "true", plane=plane)
    assert (said.code, said.out, said.err) == (0, b"one\ntwo\nthree\n", "warning\n")
    assert plane.of("POST", "/v1/jobs")[0].json["split_streams"] is True


def test_with_json_both_streams_go_to_stderr_and_the_record_alone_to_stdout(cli, plane, split):
    said = cli("submit", "--quiet", "--json", "--split-streams", "--", "true", plane=plane)
    assert json.loads(said.out)["split_streams"] is True
    assert sorted(said.err.splitlines()) == ["one", "three", "two", "warning"]


def test_what_goes_wrong_with_the_second_stream_is_said(cli, plane, parts, split):
    def logs(asked):
        if asked.query.get("stream") == "stderr":
            return parts.error(404, "not_found", "the log of job 7f3a was removed on 2026-12-30")
        return split.answer(asked)

    plane.on("GET", "/v1/jobs/{ref}/logs", logs)
    said = cli("job", "logs", "--follow", "7f", plane=plane)
    assert (said.code, said.out) == (2, split.out)
    assert "was removed on 2026-12-30" in said.err


HOSTILE = "\x1b]0;owned\x07\x1b[2J\u202e\x9b31m\x00"


def test_no_text_of_a_record_drives_a_terminal(cli, plane, parts):
    """Evidence, names and reasons come from other machines; logs alone are passed on as they are."""
    attempt = parts.attempt(evidence=f"line {HOSTILE}\nmore {HOSTILE}", ended_by="worker_lost")
    attempt["nodes"][0]["worker"] = HOSTILE
    record = parts.job(
        state="lost",
        ended_by="worker_lost",
        attempts=[attempt],
        name=HOSTILE,
        command=["echo", HOSTILE],
        tags={HOSTILE: HOSTILE},
        placement=HOSTILE,
        reason={"code": "x", "message": HOSTILE},
        outputs=[{"path": HOSTILE, "size": 1, "digest": "0" * 64}],
    )
    event = {"seq": 1, "at": record["ended_at"], "event": HOSTILE, "details": {HOSTILE: HOSTILE, "evidence": HOSTILE}}
    plane.on("GET", "/v1/jobs/{ref}", record)
    plane.on("GET", "/v1/jobs", {"jobs": [record], "next": None})
    plane.on("GET", "/v1/jobs/{ref}/events", lambda asked: {"events": [] if asked.query else [event], "next": 1})
    plane.on("GET", "/v1/jobs/{ref}/logs", parts.Answer(body=b""))
    plane.on("POST", "/v1/jobs", parts.Answer(201, json=record))
    plane.on("GET", "/v1/workers", {"workers": [parts.worker(name=HOSTILE, labels={HOSTILE: HOSTILE})], "next": None})
    shown = 0
    for words in (
        ["submit", "--no-outputs", "--", "true"],
        *(["job", verb, "7f"] for verb in ("show", "wait", "result", "events")),
        ["job", "list"],
        ["worker", "list"],
        ["resources"],
    ):
        said = cli(*words, plane=plane)
        text = said.out.decode() + said.err
        assert not set(text) & set("\x1b\x07\x9b\x00\u202e"), words
        shown += "\N{REPLACEMENT CHARACTER}" in text
    assert shown >= 7


@pytest.mark.parametrize(
    "argv", [("job", "logs", "--follow", "--since", "10m", "7f"), ("submit", "--", "true")], ids=["logs", "submit"]
)
def test_a_job_that_waits_is_followed_until_it_runs(cli, plane, logs, parts, argv):
    """No attempt yet, three times: the control plane holds a follower for a while, and lets it ask again."""
    record, waits = parts.job(), [True] * 3 + [False]

    def answer(asked):
        if waits.pop(0):
            return parts.Answer(body=b"", headers={"X-Gpulayer-Log-Start": 0, "X-Gpulayer-Attempt": 0})
        return logs.answer(asked)

    queued = parts.job(state="queued", attempts=[], started_at=None, ended_at=None)
    plane.on("GET", "/v1/jobs/{ref}", lambda asked: queued if waits else record)
    plane.on("POST", "/v1/jobs", lambda asked: parts.Answer(201, json=queued))
    plane.on("GET", "/v1/jobs/{ref}/logs", answer)
    said = cli(*argv, plane=plane)
    assert (said.code, said.out) == (0, logs.out)
    asked = [asked.query.get("since_ms") for asked in plane.asked if asked.path.endswith("/logs")]
    assert len(asked) == 4
    assert len(set(asked)) == 1  # still asked for when there is a log at last
