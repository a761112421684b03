"""The other commands against a scripted control plane, and what belongs to later versions."""

import json
import os
import subprocess
import sys
from importlib import import_module

import pytest
import typer

from gpulayer.cli.app import COMMANDS
from gpulayer.cli.console import columns
from gpulayer.cli.later import LATER_COMMANDS, LATER_FLAGS
from gpulayer.cli.quick import _UNKNOWN, cast
from gpulayer.cli.records import waiting_text
from gpulayer.server.folder import locked
from gpulayer.server.settings import Layout


@pytest.mark.parametrize(("command", "flag"), [(c, f) for c, flags in LATER_FLAGS.items() for f in sorted(flags)])
def test_a_flag_of_a_later_version_is_refused_by_name(cli, command, flag):
    said = cli(*command.split(), flag, "1", "--", "true")
    assert said.code == 2
    assert said.err.splitlines()[0] == f"error: {flag} comes with a later version"
    assert said.out == b""


@pytest.mark.parametrize("command", sorted(LATER_COMMANDS))
def test_a_command_of_a_later_version_is_refused_by_name(cli, command):
    said = cli(*command.split(), "--anything")
    assert said.code == 2
    assert said.err.splitlines()[0] == f"error: gpulayer {command} comes with a later version"


@pytest.mark.parametrize("command", sorted(LATER_COMMANDS))
def test_what_is_there_already_is_not_kept_for_later(command):
    noun, _, verb = command.partition(" ")
    if not verb:
        assert noun not in COMMANDS
        return
    group = typer.main.get_command(import_module(COMMANDS[noun][0]).app)
    assert verb not in group.commands


@pytest.mark.parametrize(("command", "flag"), [(c, f) for c, flags in LATER_FLAGS.items() for f in sorted(flags)])
def test_a_flag_that_is_there_already_is_not_kept_for_later(command, flag):
    known = typer.main.get_command(import_module(COMMANDS[command][0]).app)
    command_itself = getattr(known, "commands", {}).get(command, known)
    assert flag not in {name for parameter in command_itself.params for name in parameter.opts}


@pytest.mark.parametrize("command", ["", *COMMANDS, "job list", "job logs", "job result", "worker list"])
def test_every_command_has_help(cli, command):
    said = cli(*command.split(), "--help")
    assert said.code == 0
    assert said.out.startswith(b"Usage: gpulayer")
    assert said.err == ""


def test_the_programs_help_fits_one_screen(cli):
    assert len(cli("--help").out.splitlines()) <= 24


def test_the_version_is_printed(cli):
    assert cli("--version").out == b"gpulayer 0.1.0\n"


def test_an_unknown_command_gets_the_nearest_one_as_a_hint(cli):
    said = cli("sumbit")
    assert (said.code, said.err.splitlines()[1]) == (2, " hint: did you mean gpulayer submit?")
    assert cli("job", "lst").code == 2


def test_every_listing_and_record_is_one_json_document(cli, plane, parts):
    event = {"seq": 1, "at": "2026-11-30T05:00:00.000Z", "event": "submitted", "details": {}}
    plane.on("GET", "/v1/jobs", {"jobs": [parts.job()], "next": None})
    plane.on("GET", "/v1/jobs/{ref}", parts.job())
    plane.on("GET", "/v1/jobs/{ref}/events", [{"events": [event], "next": 1}, {"events": [], "next": 1}])
    plane.on("POST", "/v1/jobs/{ref}:cancel", parts.job(state="cancelled"))
    plane.on("POST", "/v1/jobs/{ref}:retry", parts.job())
    plane.on("GET", "/v1/workers", {"workers": [parts.worker()], "next": None})
    plane.on("GET", "/v1/workers/{ref}", parts.worker())
    for verb in ("drain", "resume", "remove"):
        plane.on("POST", f"/v1/workers/{{ref}}:{verb}", parts.worker(state="draining"))
    plane.on("GET", "/v1/plane", parts.plane())
    plane.on("POST", "/v1/explain", {"request": "1 cpu", "choice": None, "verdicts": []})
    for command in (
        ["job", "list"],
        ["job", "show", "7f"],
        ["job", "wait", "7f"],
        ["job", "cancel", "7f"],
        ["job", "retry", "7f"],
        ["job", "result", "7f"],
        ["job", "events", "7f"],
        ["worker", "list"],
        ["worker", "show", "box"],
        ["worker", "drain", "box"],
        ["worker", "resume", "box"],
        ["worker", "remove", "box"],
        ["resources"],
        ["resources", "list"],
        ["status"],
        ["explain"],
    ):
        said = cli(*command, "--json", plane=plane)
        assert (said.code, said.err) == (0, ""), command
        assert isinstance(json.loads(said.out), dict), command
        plain = cli(*command, plane=plane)
        assert plain.code == 0, command
        assert b"\x1b" not in plain.out


def test_a_list_of_jobs_is_plain_columns_where_nobody_looks(cli, plane, parts):
    jobs = [parts.job(name="first", command=["echo", "a b"]), parts.job(id="b" * 16, state="running")]
    plane.on("GET", "/v1/jobs", [{"jobs": jobs[:1], "next": "c"}, {"jobs": jobs[1:], "next": None}])
    lines = cli("job", "list", plane=plane).out.decode().splitlines()
    assert lines[0].split() == ["JOB", "STATE", "NAME", "WORKER", "WHO", "SUBMITTED", "COMMAND"]
    assert lines[1].startswith("7f3a000000000001  succeeded  first  laptop  owner  ")
    assert lines[1].endswith("echo 'a b'")
    assert len(lines) == 3


def test_nothing_to_list_is_said_on_stderr(cli, plane):
    plane.on("GET", "/v1/jobs", {"jobs": [], "next": None})
    said = cli("job", "list", plane=plane)
    assert (said.code, said.out, said.err) == (0, b"", "no jobs\n")


def test_an_ambiguous_reference_lists_what_it_could_be(cli, plane, parts):
    answer = parts.error(
        409, "conflict", "7f is the beginning of 2 jobs", "give more", {"candidates": ["7f01", "7f02"]}
    )
    plane.on("GET", "/v1/jobs/{ref}", answer)
    said = cli("job", "show", "7f", plane=plane)
    assert said.code == 2
    assert said.err.split() == [
        "error:",
        "7f",
        "is",
        "the",
        "beginning",
        "of",
        "2",
        "jobs",
        "hint:",
        "give",
        "more",
        "7f01",
        "7f02",
    ]


def test_several_jobs_of_a_name_are_listed(cli, plane, parts):
    plane.on("GET", "/v1/jobs/{ref}", parts.error(404, "not_found", "several jobs have the name 'nap'"))
    jobs = [parts.job(id=f"{number:016x}", state="running" if number else "failed") for number in range(6)]
    plane.on("GET", "/v1/jobs", {"jobs": jobs, "next": None})
    for command in (["job", "show"], ["job", "logs"], ["job", "wait"], ["job", "cancel"], ["job", "result"]):
        said = cli(*command, "nap", plane=plane)
        assert said.code == 2
        first, hint, *candidates = said.err.splitlines()
        assert (first, hint) == ("error: several jobs have the name 'nap'", " hint: say which by its id")
        assert candidates[0].split()[:3] == ["0000000000000000", "failed", "submitted"]
        assert len(candidates) == 6
        assert candidates[-1].strip() == "and older ones: gpulayer job list --name nap"


def test_cancelling_what_has_ended_says_so(cli, plane, parts):
    plane.on("GET", "/v1/jobs/{ref}", parts.job())
    said = cli("job", "cancel", "7f", plane=plane)
    assert (said.code, said.out) == (0, b"job 7f3a000000000001 had already ended: succeeded\n")
    assert not [asked for asked in plane.asked if asked.method == "POST"]


def test_events_are_plain_words(cli, plane, parts):
    details = {
        "attempt": 1, "nodes": ["a", "b"], "reason": None, "evidence": "first\nsecond", "note": "", "empty": [],
        "is_stub": False, "change": {"from": "x", "to": None},
    }  # fmt: skip
    event = {"seq": 1, "at": "2026-11-30T05:00:00.000Z", "event": "ended", "details": details}
    plane.on("GET", "/v1/jobs/{ref}", parts.job())
    plane.on("GET", "/v1/jobs/{ref}/events", [{"events": [event], "next": 1}, {"events": [], "next": 1}])
    line = cli("job", "events", "7f", plane=plane).out.decode().splitlines()[1]
    assert line.endswith("ended  attempt 1, nodes a b, evidence first, is stub no, change from=x")


def test_wait_exits_like_the_first_job_that_failed(cli, plane, parts):
    plane.on("GET", "/v1/jobs/good", parts.job())
    plane.on("GET", "/v1/jobs/bad", parts.job(state="failed", exit_code=9))
    plane.on("GET", "/v1/jobs/{ref}", lambda asked: parts.job(state="failed", exit_code=9))
    assert cli("job", "wait", "good", "bad", plane=plane).code == 9


def test_wait_says_when_time_is_up(cli, plane, parts):
    plane.on("GET", "/v1/jobs/{ref}", parts.job(state="running"))
    said = cli("job", "wait", "--timeout", "0s", "7f", plane=plane)
    assert said.code == 8
    assert "is still running" in said.err


def test_a_result_of_a_running_job_says_to_wait(cli, plane, parts):
    plane.on("GET", "/v1/jobs/{ref}", parts.job(state="running"))
    said = cli("job", "result", "7f", plane=plane)
    assert said.code == 2
    assert "gpulayer job wait 7f3a000000000001" in said.err


def test_logs_print_the_tail_and_go_on_from_there(cli, job_plane):
    job_plane.log = b"a\nb\nc\n"
    assert cli("job", "logs", "7f", plane=job_plane).out == b"a\nb\nc\n"
    assert cli("job", "logs", "--tail", "2", "7f", plane=job_plane).out == b"b\nc\n"
    assert cli("job", "logs", "--tail", "1", "--follow", "7f", plane=job_plane).out == b"c\n"
    assert cli("job", "logs", "--follow", "7f", plane=job_plane).out == b"a\nb\nc\n"


def test_an_explanation_names_the_choice_first_and_exits_with_3_where_none_can(cli, plane):
    def verdict(worker, kind, **more):
        blank = {"reasons": [], "busy_with": [], "until": None, "fits_with": {}, "score": None}
        return {"worker": worker, "verdict": kind, **blank, **more}

    reason = {"code": "framework_unusable", "message": "torch 2.6.0 is a CPU build", "wanted": "", "has": ""}
    far = verdict("far", "ineligible", reasons=[reason], fits_with={"device_model": ""})
    reply = {"request": "1 × cuda", "choice": "near", "verdicts": [far, verdict("near", "eligible")]}
    plane.on("POST", "/v1/explain", [reply, {**reply, "choice": None, "verdicts": [far]}])
    said = cli("explain", "--accelerator", "cuda", plane=plane)
    assert said.code == 0
    assert said.out.decode().splitlines() == [
        "1 × cuda: would run on near",
        "  near    fits",
        "  far     framework    torch 2.6.0 is a CPU build    fits without --device-model",
    ]
    assert cli("explain", "--accelerator", "cuda", plane=plane).code == 3
    marks = [
        {**reason, "code": "plugin_marked", "message": f"scorer {name} marks it 0.8"} for name in ("cheap", "green")
    ]
    plane.on("POST", "/v1/explain", [{**reply, "verdicts": [verdict("near", "eligible", reasons=marks, score=0.8)]}])
    said = cli("explain", "--accelerator", "cuda", plane=plane)
    assert said.out.decode().splitlines()[1:] == [
        "  near    fits    scorer cheap marks it 0.8; scorer green marks it 0.8"
    ]


def test_an_explanation_says_what_is_waited_for_that_nobody_has_to_leave(cli, plane):
    reason = {"code": "framework_unchecked", "message": "torch is not checked yet", "wanted": "torch", "has": ""}
    lost = {**reason, "code": "device_unhealthy", "message": "device 0 is unhealthy: GPU is lost"}
    blank = {"busy_with": [], "until": None, "fits_with": {}, "score": None, "verdict": "busy"}
    verdicts = [{"worker": "a", "reasons": [reason], **blank}, {"worker": "b", "reasons": [lost], **blank}]
    reply = {"request": "1 × cuda, torch", "choice": None, "verdicts": verdicts}
    busy = {"worker": "c", "reasons": [{**reason, "code": "devices_busy", "message": "0 of 1 devices free"}], **blank}
    plane.on("POST", "/v1/explain", [reply, {**reply, "verdicts": [*verdicts, busy]}])
    said = cli("explain", "--accelerator", "cuda", plane=plane)
    assert said.code == 0
    assert said.out.decode().splitlines() == [
        "1 × cuda, torch: would wait, a device is unhealthy and a framework is not checked yet",
        "  a    framework    torch is not checked yet",
        "  b    devices      device 0 is unhealthy: GPU is lost",
    ]
    head, *_, last = cli("explain", "--accelerator", "cuda", plane=plane).out.decode().splitlines()
    assert head == "1 × cuda, torch: would wait, all workers that fit are busy"
    assert last == "  c    busy         0 of 1 devices free"


def test_status_and_down_start_nothing(cli, away):
    said = cli("status")
    assert (said.code, said.out[:27]) == (0, b"no control plane runs here;")
    assert json.loads(cli("status", "--json").out)["running"] is False
    assert cli("down").code == 0
    assert not (away.parent / "state").exists()


@pytest.mark.parametrize("is_standing", [False, True])
def test_status_says_that_a_control_plane_has_died_and_is_not_to_be_taken_for_none(cli, away, is_standing):
    state = away.parent / "state"
    state.mkdir()
    document = {"schema": 1, "url": "http://127.0.0.1:9", "token": "t", "pid": os.getpid(), "version": "0.1.0"}
    (state / "endpoint.json").write_text(json.dumps({**document, "embedded": not is_standing}))
    said = cli("status")
    assert (said.code, said.out[:46]) == (0, b"the control plane of this machine has died; th")
    assert json.loads(cli("status", "--json").out) == {"running": False, "state_dir": str(state), "has_died": True}
    with locked(Layout(state)):
        (state / "endpoint.json").unlink()
        assert b"is starting" in cli("status").out


def test_status_waits_for_the_own_worker_of_a_control_plane_that_has_just_started(cli, plane, parts):
    plane.on("GET", "/v1/plane", [parts.plane(workers={"silent": 1}), parts.plane(workers={"ready": 1})])
    plane.on("GET", "/v1/workers", {"workers": [parts.worker()], "next": None})
    assert "workers          1 ready\n" in cli("status", plane=plane).out.decode()
    plane.on("GET", "/v1/plane", parts.plane(workers={"ready": 2, "silent": 1}))
    assert "workers          2 ready, 1 silent\n" in cli("status", plane=plane).out.decode()


def test_a_port_in_use_is_one_line_and_a_hint(cli, plane):
    said = cli("up", "--port", plane.port)
    assert said.code == 2
    assert said.err == (
        f"error: port {plane.port} can't be used: address already in use\n"
        " hint: choose another with --port N, or end what listens there\n"
    )


def test_a_fault_of_ours_becomes_a_line_a_file_and_70(cli, away, plane, monkeypatch):
    monkeypatch.setattr("gpulayer.sdk.client.Client.workers", lambda self: {}["unexpected"])
    said = cli("worker", "list", plane=plane)
    assert said.code == 70
    assert said.err.startswith("error: internal error: KeyError: ")
    assert "Traceback" not in said.err
    (log,) = (away.parent / "state").glob("error-*.log")
    assert "Traceback" in log.read_text()
    monkeypatch.setenv("GPULAYER_DEBUG", "1")
    assert "Traceback" in cli("worker", "list", plane=plane).err


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")
@pytest.mark.parametrize(
    ("redirection", "code"), [("> /dev/full", 6), (">&-", 0), ("2>&-", 0), ("<&- >&- 2>&-", 0), ("> /dev/null", 0)]
)
def test_standard_streams_that_are_closed_or_full_are_no_fault_of_ours(redirection, code):
    command = f'"{sys.executable}" -m gpulayer.cli --version {redirection}'
    done = subprocess.run(["sh", "-c", command], capture_output=True, timeout=30, check=False)
    assert done.returncode == code
    assert b"Traceback" not in done.stderr
    assert b"internal" not in done.stderr


def test_completion_prints_a_script_and_completes_commands(cli, monkeypatch):
    assert b"_GPULAYER_COMPLETE" in cli("completion", "bash").out
    assert cli("completion", "tcsh").code == 2
    monkeypatch.setenv("_GPULAYER_COMPLETE", "complete_bash")
    for words, index, expected in (("gpulayer jo", "1", [b"job", b"join"]), ("gpulayer job ca", "2", [b"cancel"])):
        monkeypatch.setenv("COMP_WORDS", words)
        monkeypatch.setenv("COMP_CWORD", index)
        assert cli().out.split() == expected


@pytest.mark.parametrize(
    ("annotation", "value", "is_many", "expected"),
    [
        (str, "x", False, "x"),
        (int, "7", False, 7),
        (int, 7, False, 7),
        (int, "x", False, _UNKNOWN),
        (int, True, False, _UNKNOWN),
        (float, "1.5", False, _UNKNOWN),
        (list[str], ("a", "b"), True, ["a", "b"]),
        (list[int], ("1",), True, _UNKNOWN),
        (str, None, False, None),
        (list[str], None, True, ()),
        (bool, True, False, _UNKNOWN),
    ],
)
def test_plain_values_are_cast_here_and_all_others_by_typer(annotation, value, is_many, expected):
    found = cast(annotation, value, is_many=is_many)
    assert found is expected or found == expected


def test_columns_count_wide_characters_twice():
    assert columns([["日本", "x"], ["ab", "y"]]) == ["日本  x", "ab    y"]


def test_who_goes_first_because_he_has_less_is_named():
    waits = {"ahead": 2, "first_ahead": "7f3a", "starts_by": None}
    assert waiting_text(waits) == "2 jobs are ahead (first: 7f3a)"
    shares = {"owner": "ann", "share": 0.375, "owner_ahead": "ben", "share_ahead": 0.125}
    said = waiting_text({**waits, "by_share": shares})
    assert said == "2 jobs are ahead (first: 7f3a of ben, who uses 12% of the fleet, ann 38%)"
