"""The flags for what workers differ in: resources counted by name, launchers, environments, inputs."""

import pytest

from gpulayer.cli.needs import counts
from gpulayer.cli.records import job_fields, resources_text, worker_fields
from gpulayer.errors import UsageError


@pytest.mark.parametrize(
    ("texts", "found"),
    [
        (["licence"], {"licence": 1}),
        (["licence=2"], {"licence": 2}),
        (["licence=2", "seat"], {"licence": 2, "seat": 1}),
        (["licence=2,seat=1"], {"licence": 2, "seat": 1}),
    ],
)
def test_resources_are_names_with_or_without_a_number(texts, found):
    assert counts(texts, "--resource") == found


@pytest.mark.parametrize(
    "text", ["", "=1", "licence=", "licence=two", "licence=-1", "licence=1.5", "licence=²", "a,a=2"]
)
def test_what_is_no_name_and_number_is_refused(text):
    with pytest.raises(UsageError, match="--resource") as caught:
        counts([text], "--resource")
    assert caught.value.hint


@pytest.mark.parametrize("command", ["explain", "submit"])
@pytest.mark.parametrize(("flag", "number"), [("--devices", "-1"), ("--cpus", "0")])
def test_a_number_that_is_too_small_is_refused_by_its_flag_with_one_that_is_not(cli, command, flag, number):
    said = cli(command, flag, number, *["--", "true"][: 2 * (command == "submit")])
    assert said.code == 2
    assert f"{flag} {number}" in said.err
    assert f"hint: write {flag} 1" in said.err


def test_submit_sends_what_is_needed_and_what_runs_it(cli, job_plane):
    sent = []
    submit = job_plane.record

    def answer(asked):
        sent.append(asked.json)
        return submit

    job_plane.on("POST", "/v1/jobs", answer)
    flags = ["--resource", "licence=2", "--resource", "seat", "--launcher", "torch", "--environment", "uv"]
    inputs = ["--input", "data=s3://bucket/a=b", "--input", "more=file:///mnt/more"]
    assert cli("submit", *flags, *inputs, "--", "true", plane=job_plane).code == 0
    (body,) = sent
    assert body["request"] == {"resources": {"licence": 2, "seat": 1}}
    assert (body["launcher"], body["environment"]) == ("torch", "uv")
    assert body["inputs"] == {"data": "s3://bucket/a=b", "more": "file:///mnt/more"}


def test_explain_asks_for_the_same_as_capabilities(cli, plane):
    sent = []

    def answer(asked):
        sent.append(asked.json)
        return {"request": "1 cpu", "choice": None, "verdicts": []}

    plane.on("POST", "/v1/explain", answer)
    cli("explain", "--resource", "licence", "--launcher", "torch", "--environment", "uv", plane=plane)
    cli("explain", "--launcher", "process", "--environment", "system", plane=plane)
    cli("explain", "--input", "data=s3://bucket/a=b", "--input", "more=file:///mnt/more", plane=plane)
    assert sent == [
        {"request": {"resources": {"licence": 1}, "capabilities": ["launcher:torch", "environment:uv"]}},
        {"request": {}},
        {"request": {"capabilities": ["stager:s3", "stager:file"]}},
    ]


@pytest.mark.parametrize("command", ["submit", "explain"])
@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--input", "a=file:///x", "--input", "a=file:///y"], "--input a=file:///y: a is given twice"),
        (["--input", "a=file:///x", "--input", "A=file:///y"], "inputs: a and A would both be GPULAYER_INPUT_A"),
        (["--input", "a"], "--input a: not of the form KEY=VALUE"),
        (["--input", "a= file:///x"], "inputs.a: ' file:///x' has a control character, or a blank at its ends"),
    ],
)
def test_two_inputs_of_one_name_or_one_that_would_name_something_else_are_refused(cli, job_plane, command, flags, said):
    ended = cli(command, *flags, *(["--", "true"] if command == "submit" else []), plane=job_plane)
    assert (ended.code, ended.err.splitlines()[0].partition(": ")[2]) == (2, said)
    assert job_plane.created == []


@pytest.mark.parametrize("path", ["./data", "data.csv", "/mnt/data", "C:\\data"])
def test_a_path_is_no_input_yet_and_the_message_says_what_is(cli, job_plane, path):
    said = cli("submit", "--input", f"data={path}", "--", "true", plane=job_plane)
    assert said.code == 2
    first, hint = said.err.splitlines()
    assert first.endswith("is a path, and a file of this machine can't be sent in this way yet")
    assert hint == " hint: ship it with --source; a file that the worker has is written file:///mnt/data"
    assert job_plane.created == []


def test_a_job_and_a_worker_show_what_they_need_and_what_they_have(parts):
    options = {"launcher": "torch", "inputs": {"data": "s3://b/x"}}
    fields = dict(job_fields(parts.job(request={"resources": {"licence": 2}}, options=options)))
    assert fields["needs"] == "resources licence=2"
    assert fields["runs with"] == "launcher torch, inputs data=s3://b/x"
    worker = parts.worker(
        resources={"licence": 2, "seat": 1},
        resources_free={"licence": 1, "seat": 0},
        capabilities=["launcher:torch", "stager:s3"],
    )
    fields = dict(worker_fields(worker))
    assert fields["resources"] == resources_text(worker) == "licence 1 of 2 free, seat 0 of 1 free"
    assert fields["can also"] == "launcher torch, stager s3"
    assert resources_text(parts.worker()) == ""  # as a control plane of before answers


@pytest.mark.parametrize("command", [["worker", "list"], ["resources"]])
def test_listings_have_a_column_of_resources_where_a_worker_counts_any(cli, plane, parts, command):
    plain = parts.worker(name="plain")
    counting = parts.worker(resources={"licence": 2}, resources_free={"licence": 1})
    plane.on("GET", "/v1/workers", [{"workers": [plain], "next": None}, {"workers": [plain, counting], "next": None}])
    assert b"RESOURCES" not in cli(*command, plane=plane).out
    said = cli(*command, plane=plane).out
    assert b"RESOURCES" in said
    assert b"licence 1 of 2 free" in said
