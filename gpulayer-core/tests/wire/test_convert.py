"""Domain types to wire and back: nothing is lost, and what makes no sense is refused by name."""

import json
from dataclasses import fields, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from gpulayer.errors import BadRequest, Blame, NotSupported
from gpulayer.ids import Digest, JobId
from gpulayer.spec.after import After
from gpulayer.spec.job import Gang, JobSpec, RetryOn
from gpulayer.spec.limits import Limits
from gpulayer.spec.machine import Device, DeviceState, Framework, Locality, WorkerFacts
from gpulayer.spec.outcome import EndedBy, Outcome
from gpulayer.spec.request import DEVICE_KINDS, Accelerator, FrameworkNeed, Request
from gpulayer.spec.tree import SourceRef
from gpulayer.wire.convert import (
    SpecReader,
    check_schema,
    outcome_from_wire,
    outcome_to_wire,
    request_from_wire,
    request_to_wire,
    spec_from_wire,
    spec_to_wire,
)
from gpulayer.wire.facts import facts_from_wire, facts_to_wire
from gpulayer.wire.jobs import JobSubmission, RequestFields
from gpulayer.wire.workers import WorkerFactsFields

words = st.text(st.characters(codec="ascii", exclude_categories=["Cc"]), min_size=1, max_size=12)
labels = st.dictionaries(words, words, max_size=3).map(lambda pairs: tuple(sorted(pairs.items())))

requests = st.builds(
    Request,
    accelerators=st.lists(st.sampled_from(DEVICE_KINDS), min_size=1, max_size=3, unique=True).map(tuple),
    devices=st.integers(1, 16),
    device_models=st.lists(words, max_size=2).map(tuple),
    device_memory_bytes=st.integers(0, 2**40),
    compute_capability=st.sampled_from(["", ">=8.0", "==9.0"]),
    frameworks=st.sampled_from([(), (FrameworkNeed("torch", ">=2.4"),), (FrameworkNeed("jax"),)]),
    cpus=st.integers(1, 512),
    memory_bytes=st.integers(0, 2**40),
    disk_bytes=st.integers(0, 2**40),
    labels=labels,
    worker=st.just("") | words,
    zone=st.just("") | words,
    region=st.just("") | words,
    network_group=st.just("") | words,
    resources=st.sampled_from([(), (("licence", 2),), (("a", 1), ("b", 3))]),
    capabilities=st.sampled_from([(), ("launcher:torch",), ("environment:uv", "stager:s3")]),
)

specs = (
    st.builds(
        JobSpec,
        command=st.lists(words, min_size=1, max_size=4).map(tuple),
        request=requests | st.just(Request()),
        name=st.just("") | words,
        tags=labels,
        priority=st.integers(-5, 5),
        env=st.dictionaries(st.sampled_from(["A", "B_C"]), words).map(lambda pairs: tuple(sorted(pairs.items()))),
        source=st.none() | st.just(SourceRef(Digest("a" * 64), 3, 100, "abc", True)),
        outputs=st.lists(st.sampled_from(["*.png", "a/**", "é"]), max_size=2).map(tuple),
        keep_outputs=st.booleans(),
        retries=st.integers(0, 5),
        retry_on=st.sampled_from(RetryOn),
        timeout_ms=st.none() | st.integers(1, 10**9),
        grace_ms=st.integers(0, 10**6),
        keep_for_ms=st.integers(0, 10**8),
        exclusive=st.booleans(),
        wait=st.booleans(),
        limits=st.builds(
            Limits,
            pids=st.integers(0, 1000),
            log_bytes=st.integers(2**16, 2**40),
            nice=st.integers(0, 19),
            pin_cores=st.booleans(),
        ),
        split_streams=st.booleans(),
        secret_names=st.sampled_from([(), ("TOKEN",)]),
        grant=st.sampled_from(["", "own"]),
        launcher=st.sampled_from(["", "torch"]),
        environment=st.sampled_from(["", "uv"]),
        inputs=st.sampled_from([(), (("data", "s3://bucket/x"),)]),
        after=st.sampled_from([(), (After(JobId("7f3a")), After(JobId("train"), is_any=True))]),
    )
    .map(
        # What these need of a worker stands in the request as well.
        lambda spec: replace(
            spec,
            request=replace(
                spec.request,
                capabilities=tuple(
                    sorted(
                        {
                            *spec.request.capabilities,
                            *([f"launcher:{spec.launcher}"] if spec.launcher else []),
                            *([f"environment:{spec.environment}"] if spec.environment else []),
                            *(f"stager:{uri.split(':')[0]}" for _, uri in spec.inputs),
                        }
                    )
                ),
            ),
        )
    )
    .map(
        # A number that the request names is also a limit; one core, the default, is only if it was named.
        lambda spec: replace(
            spec,
            limits=replace(
                spec.limits,
                cpus=spec.request.cpus if spec.request.cpus > 1 or spec.wait else 0,
                memory_bytes=spec.request.memory_bytes,
                disk_bytes=spec.request.disk_bytes,
            ),
        )
    )
)


@given(specs)
def test_a_spec_survives_the_wire(spec):
    sent = json.loads(json.dumps(spec_to_wire(spec)))
    assert spec_from_wire(TypeAdapter(JobSubmission).validate_python(sent)) == spec


@given(requests)
def test_a_request_survives_the_wire(request_):
    sent = json.loads(json.dumps(request_to_wire(request_)))
    assert request_from_wire(TypeAdapter(RequestFields).validate_python(sent)) == request_


@pytest.mark.parametrize(("kind", "drawn"), [(Request, requests), (JobSpec, specs)])
def test_what_is_drawn_above_has_every_field_that_could_be_lost(kind, drawn):
    seen: set[str] = set()
    plain = kind() if kind is Request else kind(("true",))

    @given(drawn)
    @settings(max_examples=300)
    def look(value):
        seen.update(field.name for field in fields(kind) if getattr(value, field.name) != getattr(plain, field.name))

    look()
    assert {field.name for field in fields(kind)} - seen <= {"kind", "shape"}  # the only ones that can't be sent yet


def test_defaults_are_not_sent():
    assert spec_to_wire(JobSpec(("true",))) == {"schema": 1, "command": ["true"]}


def test_naming_an_accelerator_asks_for_one_device_and_cpu_for_none():
    assert request_from_wire({"accelerators": ["cuda"]}).devices == 1
    assert request_from_wire({"accelerators": ["cuda", "cpu"]}).devices == 1
    assert request_from_wire({"accelerators": ["cpu"]}).devices == 0
    assert request_from_wire({}).devices == 0
    assert request_from_wire({"devices": 2}).accelerators == (Accelerator.ANY,)


@pytest.mark.parametrize(
    "wanted", [{"device_models": ["H100"]}, {"device_memory_bytes": 10**9}, {"compute_capability": ">=8.0"}]
)
def test_naming_what_a_device_has_asks_for_one(wanted):
    assert request_from_wire(wanted).devices == 1
    assert request_from_wire({**wanted, "accelerators": ["any"]}).devices == 1
    assert request_from_wire({**wanted, "devices": 2}).devices == 2


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"accelerators": ["gpu"]}, "request.accelerators: 'gpu' is unknown"),
        ({"accelerators": ["cpu"], "devices": 2}, "cpu has no devices"),
        ({"device_memory_bytes": 10**9, "devices": 0}, "asks for no device"),
        ({"device_models": ["H100"], "accelerators": ["cpu"]}, "asks for no device"),
        ({"accelerators": ["cuda"], "compute_capability": "8 or so"}, "compute_capability: '8 or so'"),
        ({"frameworks": ["torch >> 2"]}, "request.frameworks: 'torch >> 2'"),
        ({"frameworks": ["torch[extra]"]}, "request.frameworks"),
        ({"frameworks": ["torch @ file:///x"]}, "request.frameworks"),
    ],
)
def test_a_request_without_sense_is_refused_by_the_name_of_its_field(fields, words):
    with pytest.raises(BadRequest) as caught:
        request_from_wire(fields)
    assert words in caught.value.message
    assert caught.value.hint


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        ({"schema": 2}, BadRequest, "schema version 2 is unknown"),
        ({"kind": "function"}, NotSupported, "kind function is not supported"),
        ({"kind": "poem"}, BadRequest, "kind: 'poem' is unknown"),
        ({"command": [""]}, BadRequest, "name is empty"),
        ({"command": ["a\0b"]}, BadRequest, "NUL"),
        ({"env": {"A=B": "x"}}, BadRequest, "can't name a variable"),
        ({"env": {"A": "x\0"}}, BadRequest, "env.A"),
        ({"outputs": ["*", "/etc/passwd"]}, BadRequest, "outputs: '/etc/passwd' must be relative"),
        ({"outputs": ["a\0"]}, BadRequest, "outputs: "),
        ({"outputs": ["[z-a]"]}, BadRequest, "outputs: [z-a]: not a pattern"),
        ({"inputs": {"a": "file:///x", "A": "file:///x"}}, BadRequest, "a and A would both be GPULAYER_INPUT_A"),
        ({"inputs": {"a": "file:///x"}, "env": {"GPULAYER_INPUT_A": ""}}, BadRequest, "which env sets, too"),
        ({"inputs": {"a": "file:///x\ny"}}, BadRequest, "inputs.a: 'file:///x\\ny' has a control character"),
        ({"inputs": {"a": " file:///x"}}, BadRequest, "or a blank at its ends"),
        ({"retry_on": "never"}, BadRequest, "retry_on: 'never' is unknown"),
        ({"source": {"digest": "G" * 64, "files": 1, "size_bytes": 1}}, BadRequest, "source.digest"),
    ],
)
def test_a_submission_without_sense_is_refused(change, error, words):
    with pytest.raises(error) as caught:
        spec_from_wire({"schema": 1, "command": ["true"], **change})
    assert words in caught.value.message


@pytest.mark.parametrize("extra", [{"nodes": 2}, {"request": {"cpux": 1}}, {"source": {"path": "/"}}])
def test_a_submission_may_not_carry_what_is_not_understood(extra):
    with pytest.raises(ValidationError):
        TypeAdapter(JobSubmission).validate_python({"schema": 1, "command": ["true"], **extra})


def test_a_shape_without_a_wire_form_is_not_silently_dropped():
    with pytest.raises(NotSupported):
        spec_to_wire(JobSpec(("true",), shape=Gang(2)))


FACTS = WorkerFacts(
    platform="linux-x86_64",
    version="0.1.0",
    cpus=8,
    memory_bytes=2**34,
    disk_bytes=None,
    devices=(
        Device("GPU-1", 0, Accelerator.CUDA, "NVIDIA H100", 80 * 10**9, None, "9.0", links=(("GPU-2", "NV18"),)),
        Device("GPU-2", 1, Accelerator.CUDA, "NVIDIA H100", None, state=DeviceState.UNHEALTHY, reason="Xid 79"),
    ),
    frameworks=(
        Framework("torch", "2.13.0", Accelerator.CUDA, True, build="cuda 12.6", architectures=("sm_80", "sm_90")),
        Framework("jax", "0.10", Accelerator.CUDA, True, failed_on=(("GPU-1", "no kernel image"),)),
        Framework("cupy", "", Accelerator.CUDA, False, is_pending=True),
        Framework("jax", "0.10.2", Accelerator.CPU, True),
    ),
    labels=(("room", "cellar"),),
    locality=Locality(zone="a"),
)


def test_facts_survive_the_wire():
    sent = json.loads(json.dumps(facts_to_wire(FACTS)))
    assert facts_from_wire(TypeAdapter(WorkerFactsFields).validate_python(sent)) == FACTS


def test_a_device_that_stands_twice_is_refused():
    fields = facts_to_wire(FACTS)
    fields["devices"][1]["uuid"] = "GPU-1"
    with pytest.raises(BadRequest, match="stands twice"):
        facts_from_wire(fields)


def test_readers_ignore_fields_they_do_not_know():
    fields = {**facts_to_wire(FACTS), "colour": "green"}
    assert facts_from_wire(TypeAdapter(WorkerFactsFields).validate_python(fields)) == FACTS


@given(
    st.builds(
        Outcome, st.sampled_from(EndedBy), st.none() | st.integers(0, 255), st.none(), words, st.sampled_from(Blame)
    )
)
def test_an_outcome_survives_the_wire(outcome):
    assert outcome_from_wire(outcome_to_wire(outcome)) == outcome


def test_the_schema_check_names_both_versions():
    with pytest.raises(BadRequest, match="version 7 is unknown here; this control plane reads version 1"):
        check_schema(7, "job")


@given(st.lists(specs, max_size=6))
def test_a_batch_is_read_as_its_submissions_one_by_one(batch):
    submissions = [spec_to_wire(spec) for spec in batch]
    # Neighbours that differ in their command alone, as in most batches.
    submissions += [{**submission, "command": ["other", "words"]} for submission in submissions[-1:]]
    reader = SpecReader()
    assert [reader.read(submission) for submission in submissions] == [spec_from_wire(each) for each in submissions]


def test_a_bad_command_is_refused_in_a_batch_of_equal_jobs_too():
    reader = SpecReader()
    reader.read({"schema": 1, "command": ["true"]})
    with pytest.raises(BadRequest, match="NUL"):
        reader.read({"schema": 1, "command": ["true", "\0"]})


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"secrets": {f"S{number}": "x" * 60_000 for number in range(64)}}, "env and secrets: 3,840,"),
        ({"env": {f"E{number}": "x" * 100_000 for number in range(8)}, "secrets": {"A": "x" * 65_536}}, ""),
        ({"env": {f"E{number}": "x" * 100_000 for number in range(10)}, "secrets": {"A": "x" * 65_536}}, "1 MiB"),
        ({"env": {"A": "ä" * 65_536}}, "env: A has 131,075 bytes with its name; a variable can have 128 KiB"),
    ],
)
def test_more_variables_than_a_program_can_be_started_with_are_no_submission_but_can_be_read(change, words):
    submission = {"schema": 1, "command": ["true"], **change}
    assert spec_from_wire(submission).env == tuple(sorted(change.get("env", {}).items()))
    if not words:
        assert SpecReader().read(submission) == spec_from_wire(submission)
        return
    with pytest.raises(BadRequest) as caught:
        SpecReader().read(submission)
    assert words in caught.value.message
    assert caught.value.hint
