"""submit against a scripted control plane: exit codes, bytes, messages."""

import json

import pytest

from gpulayer.cli.command import check_command, default_source, left_behind, read_env
from gpulayer.cli.progress import waiting_line
from gpulayer.errors import UsageError


@pytest.mark.parametrize(
    ("record", "code"),
    [
        ({}, 0),
        ({"state": "failed", "exit_code": 1}, 1),
        ({"state": "failed", "exit_code": 126}, 126),
        ({"state": "failed", "exit_code": 127}, 127),
        ({"state": "failed", "exit_code": 200}, 200),
        ({"state": "failed", "exit_code": 255}, 255),
        ({"state": "failed", "exit_code": None, "signal": 11, "ended_by": "signal"}, 139),
        ({"state": "failed", "exit_code": None, "signal": 9, "ended_by": "out_of_memory"}, 137),
        ({"state": "failed", "exit_code": None, "ended_by": "out_of_memory"}, 137),
        ({"state": "failed", "exit_code": None, "ended_by": "staging"}, 6),
        ({"state": "failed", "exit_code": 1, "ended_by": "disk_full"}, 6),
        ({"state": "lost", "exit_code": None, "ended_by": "worker_lost"}, 6),
        ({"state": "cancelled", "exit_code": None, "ended_by": "cancel"}, 7),
        ({"state": "timed_out", "exit_code": None, "ended_by": "timeout"}, 8),
        ({"state": "rejected", "exit_code": None, "ended_by": None, "attempts": []}, 3),
    ],
)
def test_the_exit_code_is_the_programs_or_says_what_ended_it(cli, job_plane, parts, record, code):
    job_plane.record = parts.job(**record)
    assert cli("submit", "--", "true", plane=job_plane).code == code


def test_the_programs_bytes_pass_untouched(cli, job_plane):
    job_plane.log = bytes(range(256)) + b"\r\n\x1b[31mred" + "é".encode("latin-1")
    said = cli("submit", "--", "cat", plane=job_plane)
    assert said.out == job_plane.log
    assert "succeeded in 2.4 s on laptop" in said.err


def test_quiet_says_nothing_of_its_own(cli, job_plane):
    job_plane.log = b"hello\n"
    said = cli("submit", "--quiet", "--", "true", plane=job_plane)
    assert (said.out, said.err) == (b"hello\n", "")


def test_json_gives_one_document_and_the_log_goes_to_stderr(cli, job_plane):
    job_plane.log = b"hello\n"
    said = cli("submit", "--json", "--", "true", plane=job_plane)
    assert json.loads(said.out)["id"] == job_plane.record["id"]
    assert "hello\n" in said.err


def test_detach_prints_the_id_alone(cli, job_plane, parts):
    job_plane.record = parts.job(state="queued", attempts=[])
    said = cli("submit", "--detach", "--", "true", plane=job_plane)
    assert (said.code, said.out, said.err) == (0, f"{parts.JOB_ID}\n".encode(), "")


def test_a_job_that_is_rejected_prints_the_table_and_exits_with_3_also_when_detached(cli, job_plane, parts):
    verdicts = [
        {
            "worker": "gpu-box-1",
            "verdict": "busy",
            "reasons": [
                {
                    "code": "devices_busy",
                    "message": "1 of 2 devices free (job 7f3a uses the other)",
                    "wanted": "2",
                    "has": "1",
                }
            ],
            "busy_with": ["7f3a"],
            "until": None,
            "fits_with": {},
            "score": None,
        },
        {
            "worker": "gpu-box-2",
            "verdict": "ineligible",
            "reasons": [{"code": "device_memory", "message": "largest is 24 GB", "wanted": "", "has": ""}],
            "busy_with": [],
            "until": None,
            "fits_with": {"device_memory": "24GB"},
            "score": None,
        },
        {
            "worker": "mac-studio",
            "verdict": "ineligible",
            "reasons": [{"code": "no_accelerator", "message": "has mps, not cuda", "wanted": "", "has": ""}],
            "busy_with": [],
            "until": None,
            "fits_with": {},
            "score": None,
        },
    ]
    job_plane.record = parts.job(state="rejected", attempts=[], verdicts=verdicts[1:], exit_code=None, ended_by=None)
    arguments = [
        "submit",
        "--accelerator",
        "cuda",
        "--devices",
        "2",
        "--device-memory",
        "40GB",
        "--framework",
        "torch>=2.4",
    ]
    for extra in ([], ["--detach"]):
        said = cli(*arguments, *extra, "--", "true", plane=job_plane)
        assert said.code == 3
        assert said.out == b""
        assert said.err == (
            "no worker fits: 2 × cuda, 40 GB each, torch>=2.4\n"
            "  gpu-box-2     device memory    largest is 24 GB     fits with --device-memory 24GB\n"
            "  mac-studio    accelerator      has mps, not cuda\n"
            "job 7f3a000000000001 was rejected; gpulayer job show 7f3a000000000001\n"
        )
    job_plane.record = parts.job(state="rejected", attempts=[], verdicts=verdicts, exit_code=None, ended_by=None)
    said = cli(*arguments, "--no-wait", "--", "true", plane=job_plane)
    assert said.code == 3
    assert "gpu-box-1     busy             1 of 2 devices free (job 7f3a uses the other)" in said.err
    assert job_plane.of("POST", "/v1/jobs")[-1].json["wait"] is False


def test_a_job_that_is_rejected_for_its_launcher_says_what_it_needed(cli, job_plane, parts):
    options = {"launcher": "torch", "environment": "uv", "inputs": {"data": "s3://bucket/x"}}
    gone = {"state": "rejected", "attempts": [], "exit_code": None, "ended_by": None}
    job_plane.record = parts.job(request={"cpus": 1}, options=options, verdicts=[], **gone)
    said = cli("submit", "--launcher", "torch", "--", "true", plane=job_plane)
    assert said.err.splitlines()[0] == "no worker fits: 1 cpu, environment uv, launcher torch, stager s3"


def test_a_job_with_a_launcher_does_not_need_nothing(cli, job_plane, parts):
    job_plane.record = parts.job(request={}, options={"launcher": "torch"})
    shown = cli("job", "show", "7f3a", plane=job_plane).out.decode()
    assert "nothing in particular" not in shown
    assert "launcher torch" in shown
    job_plane.record = parts.job(request={}, options={"timeout_ms": 1000})
    assert "nothing in particular" in cli("job", "show", "7f3a", plane=job_plane).out.decode()


def test_every_flag_reaches_the_submission(cli, job_plane, away):
    (away / "env").write_text("# a comment\nFROM_FILE=1\nB=file\n\n")
    said = cli(
        *[
            "submit",
            "--accelerator",
            "cuda,mps",
            "--devices",
            "2",
            "--device-model",
            "H100,A100",
            "--device-memory",
            "24GB",
        ],
        *("--compute-capability", ">=8.0", "--framework", "torch>=2.4", "--framework", "jax"),
        *[
            "--cpus",
            "4",
            "--memory",
            "16GiB",
            "--disk",
            "50GB",
            "--label",
            "a=b",
            "--label",
            "c=d=e",
            "--worker",
            "box",
            "--zone",
            "z",
            "--region",
            "r",
        ],
        *[
            "--network-group",
            "g",
            "--output",
            "*.png",
            "--env",
            "A=1",
            "--env",
            "B=",
            "--env",
            "PATH",
            "--env-file",
            "env",
            "--name",
            "n",
            "--tag",
            "t=1",
        ],
        *[
            "--priority",
            "-3",
            "--retries",
            "0",
            "--retry-on",
            "any",
            "--timeout",
            "2h",
            "--grace",
            "5s",
            "--keep-for",
            "1m",
            "--exclusive",
            "--no-wait",
        ],
        *["--no-outputs", "--idempotency-key", "once", "--"],
        *("prog", "--flag", "", "a b"),
        plane=job_plane,
    )
    assert said.code == 0
    (asked,) = job_plane.of("POST", "/v1/jobs")
    assert asked.headers["idempotency-key"] == "once"
    body = asked.json
    assert body["env"].pop("PATH")
    assert body == {
        "schema": 1,
        "command": ["prog", "--flag", "", "a b"],
        "request": {
            "accelerators": ["cuda", "mps"],
            "devices": 2,
            "device_models": ["H100", "A100"],
            "device_memory_bytes": 24_000_000_000,
            "compute_capability": ">=8.0",
            "frameworks": ["torch>=2.4", "jax"],
            "cpus": 4,
            "memory_bytes": 16 * 2**30,
            "disk_bytes": 50_000_000_000,
            "labels": {"a": "b", "c": "d=e"},
            "worker": "box",
            "zone": "z",
            "region": "r",
            "network_group": "g",
        },
        "env": {"A": "1", "B": "", "FROM_FILE": "1"},
        "name": "n",
        "tags": {"t": "1"},
        "priority": -3,
        "outputs": ["*.png"],
        "keep_outputs": False,
        "retries": 0,
        "retry_on": "any",
        "timeout_ms": 7_200_000,
        "grace_ms": 5_000,
        "keep_for_ms": 60_000,
        "exclusive": True,
        "wait": False,
    }


def test_options_after_the_command_are_the_commands(cli, job_plane):
    assert cli("submit", "ls", "--detach", "-la", "--", "x", plane=job_plane).code == 0
    assert job_plane.of("POST", "/v1/jobs")[0].json["command"] == ["ls", "--detach", "-la", "--", "x"]


@pytest.mark.parametrize(
    ("arguments", "words", "hint"),
    [
        (["submit"], "no command to run", "-- COMMAND"),
        (["submit", "--", ""], "name is empty", "quotes"),
        (["submit", "--", "echo hi there"], "one word with spaces", "bash -c 'echo hi there'"),
        (["submit", "--sorce", "x", "--", "true"], "no such option: --sorce", "--help"),
        (["submit", "--gpus", "2", "--", "true"], "no such option: --gpus", "--devices N"),
        (["submit", "--gpu", "2", "--", "true"], "no such option: --gpu", "--devices N"),
        (["explain", "--num-gpus", "2"], "no such option: --num-gpus", "--devices N"),
        (["submit", "--dry-run", "--", "true"], "no such option: --dry-run", "gpulayer explain"),
        (["submit", "--devices", "two", "--", "true"], "'--devices'", "--help"),
        (["submit", "--devices"], "--devices", "--help"),
        (["submit", "--source", "nowhere", "--", "true"], "source folder nowhere does not exist", "--source"),
        (["submit", "--accelerator", "gpu", "--", "true"], "'gpu' is unknown", "cuda"),
        (["submit", "--memory", "lots", "--", "true"], "'lots' is not a size", "24GB"),
        (["submit", "--timeout", "soon", "--", "true"], "'soon' is not a duration", "90s"),
        (["submit", "--label", "x", "--", "true"], "--label x", "key=value"),
        (["submit", "--env", "NOT_SET_ANYWHERE", "--", "true"], "is not set here", "--env"),
        (["submit", "--env-file", "nofile", "--", "true"], "nofile can't be read", "K=V"),
        (["submit", "--retry-on", "never", "--", "true"], "--retry-on never", "infrastructure, any"),
        (["submit", "--include", "x", "--", "true"], "there is none", "--source"),
        (["submit", "--target", "cluster", "--", "true"], "no context 'cluster'", "gpulayer context add"),
        (["submit", "--retries", "-1", "--", "true"], "--retries", ""),
        (["submit", "--keep-for", "abc", "--", "true"], "--keep-for", ""),
        (["submit", "--grace", "abc", "--", "true"], "--grace", ""),
    ],
)
def test_a_wrong_use_is_one_line_that_says_what_and_one_that_says_what_next(cli, job_plane, arguments, words, hint):
    said = cli(*arguments, plane=job_plane)
    assert said.code == 2
    what, next_ = said.err.splitlines()
    assert what.startswith("error: ")
    assert words in what
    assert next_.startswith(" hint: ")
    assert hint in next_
    assert said.out == b""
    assert job_plane.asked == []


@pytest.mark.parametrize(
    ("status", "code", "exit_code"),
    [
        (400, "bad_request", 2),
        (400, "not_supported", 2),
        (401, "unauthenticated", 4),
        (403, "forbidden", 4),
        (404, "not_found", 2),
        (409, "conflict", 2),
        (413, "too_large", 2),
        (422, "idempotency_mismatch", 2),
        (507, "disk_full", 6),
        (500, "internal", 70),
    ],
)
def test_a_refusal_keeps_its_words_and_gets_the_code_of_its_blame(cli, plane, parts, status, code, exit_code):
    plane.on("POST", "/v1/jobs", parts.error(status, code, "what happened", "what next"))
    said = cli("submit", "--", "true", plane=plane)
    assert (said.code, said.err) == (exit_code, "error: what happened\n hint: what next\n")


def test_a_control_plane_that_does_not_answer_is_5(cli, plane, monkeypatch):
    monkeypatch.setattr("gpulayer.cli.nouns.RETRY_FOR_S", 0.0)
    monkeypatch.setenv("GPULAYER_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("GPULAYER_TOKEN", "glc_x")
    said = cli("submit", "--", "true")
    assert said.code == 5
    assert said.err.startswith("error: no control plane answers at http://127.0.0.1:9: connection refused\n hint: ")


def test_why_an_attempt_ended_is_told_once_while_its_job_is_queued_again(parts):
    why = "device 0 (GPU-a) is unhealthy: the driver does not answer"
    reason = {"code": "retry", "message": f"attempt 1 ended: drift: {why}"}
    queued = parts.job(state="queued", reason=reason, attempts=[parts.attempt(ended_by="drift", evidence=why)])
    assert waiting_line(queued) == f"job {queued['id']} is queued again after attempt 1"
    assert why in waiting_line({**queued, "reason": {"code": "device_unhealthy", "message": f"box: {why}"}})


def test_what_ended_an_attempt_is_shown_once_and_of_each_attempt_that_ended_otherwise(cli, job_plane, parts):
    seen = "its process was killed\nthe kernel says: out of memory"
    reason = {"code": "out_of_memory", "message": f"killed by signal 9 (SIGKILL)\n{seen}"}
    lost = parts.attempt(ended_by="worker_lost", evidence="silent for 33 s")
    attempts = [lost, parts.attempt(number=2, ended_by="out_of_memory", evidence=seen)]
    job_plane.record = parts.job(state="failed", reason=reason, attempts=attempts)
    shown = cli("job", "show", "7f3a", plane=job_plane).out.decode()
    assert shown.count("its process was killed") == shown.count("the kernel says") == 1, shown
    assert shown.count("silent for 33 s") == 1


def test_an_attempt_that_runs_again_is_announced(cli, job_plane, parts):
    lost = parts.attempt(ended_by="worker_lost", evidence="silent for 33 s")
    job_plane.record = parts.job(attempts=[lost, parts.attempt(number=2)])
    said = cli("submit", "--", "true", plane=job_plane)
    assert (
        "attempt 1 of job 7f3a000000000001 ended (worker lost: silent for 33 s); it runs again as attempt 2" in said.err
    )


def test_outputs_that_did_not_come_home_are_told_beside_the_programs_own_end(cli, job_plane, parts):
    lost = "outputs could not be brought home: the output has 100,001 files"
    job_plane.record = parts.job(attempts=[parts.attempt(evidence=f"{lost}\nsecond")])
    said = cli("submit", "--", "true", plane=job_plane)
    assert said.code == 0
    assert f"note: {lost}\nnote: second\n" in said.err


def test_control_characters_of_others_do_not_reach_the_terminal(cli, plane, parts):
    plane.on("POST", "/v1/jobs", parts.error(400, "bad_request", "evil \x1b[2J\x07 name", "hint\u202e"))
    said = cli("submit", "--", "true", plane=plane)
    assert "\x1b" not in said.err
    assert "\x07" not in said.err
    assert "\u202e" not in said.err


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        (["python", "train.py", "--lr", "1"], (".", ["python", "train.py", "--lr", "1"])),
        (["python3.11", "-u", "app/train.py"], ("app", ["python3.11", "-u", "train.py"])),
        (
            ["/usr/bin/python3", "-W", "error", "/abs/train.py"],
            ("/abs", ["/usr/bin/python3", "-W", "error", "train.py"]),
        ),
        (["python", "-m", "train"], None),
        (["python", "-c", "1", "train.py"], None),
        (["python"], None),
        (["python", "missing.py"], None),
        (["./train.py"], None),
        (["pythonic", "train.py"], None),
        (["true"], None),
    ],
)
def test_only_python_with_a_script_brings_its_folder(command, expected):
    files = {"train.py", "app/train.py", "/abs/train.py"}
    assert default_source(command, is_file=files.__contains__) == expected


def test_a_program_with_a_space_in_its_name_is_a_program():
    check_command(["my program"], is_file=lambda name: name == "my program")
    with pytest.raises(UsageError):
        check_command(["my program"], is_file=lambda _: False)


def test_flags_win_over_the_file_and_a_bare_name_hands_the_own_value_on():
    text = "export A=1\nB=2 # kept\n"
    assert read_env(["B=3", "HOME"], text, environment={"HOME": "/me"}) == {"A": "1", "B": "3", "HOME": "/me"}


NOTHING_SHIPS = "{} is here, but no folder ships with this command; --source . sends this one"


@pytest.mark.parametrize(
    ("command", "folder", "note"),
    [
        ("./run.sh", None, NOTHING_SHIPS.format("run.sh")),
        ("bash run.sh", None, NOTHING_SHIPS.format("run.sh")),
        ("python -m tool --config=conf/a.yaml", None, NOTHING_SHIPS.format("conf/a.yaml")),
        ("run.sh", None, ""),  # a program on the path
        ("bash missing.sh", None, ""),
        ("cat /etc/hosts", None, ""),
        ("cat ../up", None, ""),
        ("echo -n --flag= ''", None, ""),
        (
            "python scripts/t.py conf/a.yaml",
            "scripts",
            "conf/a.yaml is outside the folder that ships (scripts/); --source . sends this one",
        ),
        (
            "python scripts/t.py scripts/t.py",
            "scripts",
            "the job starts in scripts/ and so does not find scripts/t.py; --source . keeps paths as they are here",
        ),
        ("python scripts/t.py", "scripts", ""),
        ("python t.py conf/a.yaml", ".", ""),
        ("python /abs/t.py conf/a.yaml", "/abs", ""),
    ],
)
def test_a_file_that_stays_behind_is_noted(command, folder, note):
    files = {"run.sh", "./run.sh", "conf/a.yaml", "scripts/t.py", "t.py", "/etc/hosts", "../up", "/abs/t.py"}
    assert left_behind(command.split(), folder, is_file=files.__contains__) == note


def test_the_note_comes_before_the_job_and_quiet_leaves_it_out(cli, job_plane, away):
    (away / "run.sh").write_text("true")
    said = cli("submit", "--", "bash", "run.sh", plane=job_plane)
    assert said.err.splitlines()[0] == f"note: {NOTHING_SHIPS.format('run.sh')}"
    assert cli("submit", "--quiet", "--", "bash", "run.sh", plane=job_plane).err == ""
    assert "note" not in cli("submit", "--source", ".", "--quiet", "--", "bash", "run.sh", plane=job_plane).err


def test_a_death_by_signal_is_said_once(cli, job_plane, parts):
    job_plane.record = parts.job(state="failed", exit_code=None, signal=9, ended_by="signal")
    said = cli("submit", "--", "true", plane=job_plane)
    assert said.err == "job 7f3a000000000001 failed (killed by signal 9 (SIGKILL)) in 2.4 s on laptop\n"


def problem(plugin, message, *, severity="warning", field="", hint=""):
    return {"plugin": plugin, "severity": severity, "field": field, "message": message, "hint": hint}


WARNED = [
    problem("care", "it may be slow", field="request.cpus", hint="ask for more"),
    problem("rude", "\x1b[2J\nwarning: plugin care: it is cheap"),
]


def test_what_plugins_warn_of_is_said_on_stderr_and_drives_no_terminal(cli, job_plane, parts):
    job_plane.on("POST", "/v1/jobs", parts.Answer(201, json=parts.job(warnings=WARNED)))
    job_plane.log = b"hello\n"
    said = cli("submit", "--", "true", plane=job_plane)
    assert (said.code, said.out) == (0, b"hello\n")
    assert said.err.splitlines()[:3] == [
        "warning: plugin care: request.cpus: it may be slow",
        " hint: ask for more",
        "warning: plugin rude: [2J warning: plugin care: it is cheap",
    ]
    said = cli("submit", "--detach", "--", "true", plane=job_plane)
    assert said.out == f"{parts.JOB_ID}\n".encode()
    assert said.err.startswith("warning: plugin care")


def test_quiet_says_no_warning_either(cli, job_plane, parts):
    job_plane.on("POST", "/v1/jobs", parts.Answer(201, json=parts.job(warnings=WARNED)))
    assert cli("submit", "--quiet", "--", "true", plane=job_plane).err == ""


def test_a_retry_is_warned_of_too(cli, job_plane, parts):
    job_plane.on("POST", "/v1/jobs/{ref}:retry", parts.Answer(201, json=parts.job(warnings=WARNED)))
    said = cli("job", "retry", "7f", plane=job_plane)
    assert (said.code, said.out) == (0, f"{parts.JOB_ID}\n".encode())
    assert "warning: plugin care: request.cpus: it may be slow" in said.err


def refused(parts, *problems):
    message = f"plugin {problems[0]['plugin']} refuses it: {problems[0]['message']}"
    details = {"problems": list(problems)}
    return parts.error(422, "job_refused", message, hint="ask for fewer", details=details)


def test_a_job_that_a_plugin_refuses_is_an_error_of_whoever_submits(cli, job_plane, parts):
    job_plane.on("POST", "/v1/jobs", refused(parts, problem("quota", "over your quota", severity="error")))
    said = cli("submit", "--", "true", plane=job_plane)
    assert said.code == 2
    assert said.err == "error: plugin quota refuses it: over your quota\n hint: ask for fewer\n"


def test_of_several_problems_each_is_said(cli, job_plane, parts):
    errors = [problem("quota", "over your quota", severity="error"), problem("names", "no\x1b", severity="error")]
    rubbish = [7, {"plugin": None, "message": ["?"]}]
    job_plane.on("POST", "/v1/jobs", refused(parts, *errors, *WARNED[:1], *rubbish))
    said = cli("submit", "--", "true", plane=job_plane)
    assert said.code == 2
    assert said.err.splitlines()[2:] == [
        "       plugin quota: over your quota",
        "       plugin names: no\ufffd",
        "       warning: plugin care: request.cpus: it may be slow",
        "       plugin : ['?']",
    ]


def test_jobs_that_it_comes_after_are_sent_as_they_were_named(cli, job_plane):
    assert cli("submit", "--after", "7f3a", "--after", "train:any", "--", "true", plane=job_plane).code == 0
    assert job_plane.of("POST", "/v1/jobs")[-1].json["after"] == ["7f3a", "train:any"]


def test_an_after_that_names_nothing_is_refused_before_anything_is_sent(cli, job_plane):
    said = cli("submit", "--after", ":any", "--", "true", plane=job_plane)
    assert said.code == 2
    assert "names no job" in said.err
    assert "--after train:any" in said.err


def test_a_job_that_came_too_late_for_what_it_was_to_follow_is_told_also_when_detached(cli, job_plane, parts):
    why = "it was to run after the success of job 7f3a, which failed"
    reason = {"code": "after_failed", "message": why}
    job_plane.record = parts.job(state="cancelled", attempts=[], exit_code=None, ended_by="cancel", reason=reason)
    said = cli("submit", "--detach", "--after", "7f3a", "--", "true", plane=job_plane)
    assert said.code == 7
    assert why in said.err
