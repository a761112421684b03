"""Keywords to submissions: a table, and what is refused."""

from pathlib import Path

import pytest

from gpulayer.client.connect import Settings
from gpulayer.client.location import Local
from gpulayer.errors import GpulayerError, NotSupported, UsageError
from gpulayer.sdk.client import local_job_env, plan_batch
from gpulayer.sdk.options import LATER_OPTIONS, plan_job, plan_request


def planned(command=("true",), base_env=None, **options):
    return plan_job(command, options, base_env=base_env or {}).submission


@pytest.mark.parametrize(
    ("options", "fields"),
    [
        ({}, {}),
        ({"accelerator": "cuda"}, {"accelerators": ["cuda"]}),
        ({"accelerator": ["cuda", "mps"], "devices": 2}, {"accelerators": ["cuda", "mps"], "devices": 2}),
        ({"accelerator": "cuda, mps"}, {"accelerators": ["cuda", "mps"]}),
        ({"device_model": "H100,A100"}, {"device_models": ["H100", "A100"]}),
        ({"device_memory": "24GB"}, {"device_memory_bytes": 24_000_000_000}),
        ({"memory": 5_000_000, "disk": "1KiB"}, {"memory_bytes": 5_000_000, "disk_bytes": 1024}),
        ({"frameworks": {"torch": ">=2.4", "jax": ""}}, {"frameworks": ["torch>=2.4", "jax"]}),
        ({"frameworks": ["torch>=2.4"]}, {"frameworks": ["torch>=2.4"]}),
        ({"frameworks": "torch"}, {"frameworks": ["torch"]}),
        ({"labels": {"a": "b"}, "zone": "z"}, {"labels": {"a": "b"}, "zone": "z"}),
        ({"resources": {"licence": 2}}, {"resources": {"licence": 2}}),
    ],
)
def test_what_it_needs_becomes_request_fields(options, fields):
    assert plan_request(options) == fields
    assert planned(**options).get("request", {}) == fields


@pytest.mark.parametrize(
    ("options", "field", "value"),
    [
        ({"timeout": "2h"}, "timeout_ms", 7_200_000),
        ({"timeout": 1.5}, "timeout_ms", 1500),
        ({"grace": 0}, "grace_ms", 0),
        ({"keep_for": "1m"}, "keep_for_ms", 60_000),
        ({"retries": 0}, "retries", 0),
        ({"keep_outputs": False}, "keep_outputs", False),
        ({"wait": False}, "wait", False),
        ({"env": {"A": "1"}}, "env", {"A": "1"}),
        ({"outputs": ["*.png"]}, "outputs", ["*.png"]),
        ({"launcher": "torch"}, "launcher", "torch"),
        ({"environment": "uv"}, "environment", "uv"),
        ({"inputs": {"data": "s3://b/x"}}, "inputs", {"data": "s3://b/x"}),
    ],
)
def test_how_it_runs_becomes_submission_fields(options, field, value):
    assert planned(**options)[field] == value


def test_what_runs_a_job_is_a_capability_where_nothing_is_submitted():
    assert plan_request({"launcher": "torch", "environment": "uv"}) == {
        "capabilities": ["launcher:torch", "environment:uv"]
    }
    assert plan_request({"launcher": "process", "environment": "system"}) == {}
    assert plan_request({"inputs": {"a": "S3://b/x", "b": "s3://b/y"}}) == {"capabilities": ["stager:s3"]}
    assert "request" not in planned(launcher="torch", inputs={"a": "s3://b/x"})
    with pytest.raises(UsageError, match="launcher"):
        plan_request({"launcher": "My Launcher"})


def test_defaults_are_left_out_so_that_they_are_the_control_planes():
    assert planned() == {"schema": 1, "command": ["true"]}
    assert planned(timeout=None, wait=True, keep_outputs=True, name="", tags={}) == planned()


def test_the_jobs_own_variables_win_over_the_submitters():
    assert planned(base_env={"PATH": "/a", "X": "1"}, env={"PATH": "/b"})["env"] == {"PATH": "/b", "X": "1"}


def test_a_key_is_made_once_a_plan_and_a_given_one_is_kept():
    assert plan_job(["a"], {}, base_env={}).key != plan_job(["a"], {}, base_env={}).key
    assert plan_job(["a"], {"idempotency_key": "k"}, base_env={}).key == "k"


@pytest.mark.parametrize("name", sorted(LATER_OPTIONS))
def test_a_keyword_of_a_later_version_is_refused_by_name(name):
    with pytest.raises(NotSupported, match=f"{name}= comes with a later version"):
        planned(**{name: 1})


@pytest.mark.parametrize(
    "options",
    [
        {"accelerator": "gpu"},
        {"devices": -1},
        {"cpus": 0},
        {"memory": "much"},
        {"timeout": 0},
        {"timeout": "soon"},
        {"retries": -1},
        {"resources": {"licence": 0}},
        {"resources": {"a licence": 1}},
        {"resources": ["licence"]},
        {"inputs": {"data": "./here"}},
        {"inputs": {"da-ta": "file:///x"}},
        {"inputs": {"data": Path("/etc")}},
        {"inputs": {"data": 1}},
        {"inputs": {"data": None}},
        {"inputs": {"data": b"file:///x"}},
        {"inputs": {1: "file:///x"}},
        {"inputs": ["data=file:///x"]},
        {"inputs": {"data": "file:///x", "Data": "file:///y"}},
        {"inputs": {"data": "file:///x"}, "env": {"GPULAYER_INPUT_DATA": "/y"}},
        {"idempotency_key": "a\nb"},
        {"idempotency_key": "\N{SNOWMAN}"},
        {"idempotency_key": " padded "},
        {"idempotency_key": ""},
    ],
)
def test_a_value_that_can_not_be_meant_is_refused(options):
    with pytest.raises(UsageError):
        planned(**options)


@pytest.mark.parametrize(
    "uri",
    [
        "file:///a\nb",
        "file:///a\tb",
        "\r\nfile:///a",
        " file:///a",
        "file:///a ",
        "s3://b/\0",
        "\x1bs3://b",
        "s3://\x85",
    ],
)
def test_what_readers_of_uris_leave_out_without_a_word_is_refused(uri):
    for plan in (lambda options: planned(**options), plan_request):
        with pytest.raises(UsageError, match="control character, or a blank at its ends"):
            plan({"inputs": {"data": uri}})


def test_an_unknown_keyword_is_a_type_error():
    with pytest.raises(TypeError, match="unexpected keyword argument 'devises'"):
        planned(devises=1)


@pytest.mark.parametrize("command", ["ls -la", [], ()])
def test_a_command_is_a_list_of_words(command):
    with pytest.raises(GpulayerError) as caught:
        planned(command)
    assert caught.value.hint


def test_a_batch_is_planned_as_its_items_one_by_one():
    items = [["a"], ["b"], {"command": ["c"], "cpus": 2}, {"command": ["d"], "cpus": 2}, ["e"]]
    planned_together = [plan.submission for plan in plan_batch(items, base_env={"PATH": "/bin"})]
    options = [{}, {}, {"cpus": 2}, {"cpus": 2}, {}]
    commands = [["a"], ["b"], ["c"], ["d"], ["e"]]
    assert planned_together == [
        plan_job(command, given, base_env={"PATH": "/bin"}).submission
        for command, given in zip(commands, options, strict=True)
    ]


@pytest.mark.parametrize(
    ("command", "options", "where"),
    [
        (("cat", "caf\udce9.txt"), {}, "command"),
        (("true",), {"env": {"A": "\udcff"}}, "env.A"),
        (("true",), {"env": {"\udcff": "A"}}, "env"),
        (("true",), {"name": "\udcff"}, "name"),
        (("true",), {"tags": {"k": "\udcff"}}, "tags.k"),
        (("true",), {"outputs": ["\udcff*"]}, "outputs"),
        (("true",), {"labels": {"k": "\udcff"}}, "request.labels.k"),
    ],
)
def test_bytes_that_are_no_text_are_refused_by_the_name_of_their_place(command, options, where):
    with pytest.raises(UsageError, match=f"^{where}: .* is not UTF-8 text"):
        planned(command, **options)


def test_a_folder_on_the_path_that_is_no_text_keeps_no_job_from_being_sent(tmp_path):
    environment = {"PATH": "/caf\udce9:/usr/bin", "VIRTUAL_ENV": "/\udce9"}
    sent = local_job_env(Settings(Local(tmp_path), environment, "0.1.0", "test"))
    assert sent == {"PATH": "/usr/bin"}
    planned(base_env=sent)


@pytest.mark.parametrize(("options", "least"), [({"memory": "5"}, "1 MB"), ({"log_limit": "10KB"}, "65.5 kB")])
def test_a_size_that_forgot_its_unit_is_no_limit(options, least):
    with pytest.raises(UsageError, match=f"is less than {least}"):
        plan_job(["true"], options, base_env={})


def test_what_a_job_comes_after_may_be_an_object_or_a_name():
    class Other:
        id = "7f3a"

    def after(value):
        return plan_job(["true"], {"after": value}, base_env={}).submission["after"]

    assert after(Other()) == after("7f3a") == after([Other()]) == ["7f3a"]
    assert after([Other(), "train:any"]) == ["7f3a", "train:any"]
    with pytest.raises(UsageError, match="3 is no job"):
        after([3])
    with pytest.raises(UsageError, match="names no job"):
        after([":any"])
    with pytest.raises(UsageError, match="257 jobs; 256 at most"):
        after(["x"] * 257)
