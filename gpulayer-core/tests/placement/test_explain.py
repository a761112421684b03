"""Eligibility, verdicts and the smallest change, as tables."""

from dataclasses import replace

import pytest

from gpulayer.ids import JobId, WorkerId
from gpulayer.placement.capacity import Free, allocate, usable_capacity
from gpulayer.placement.change import smallest_change
from gpulayer.placement.eligibility import awaits_checks, is_eligible, why_ineligible, why_not_now
from gpulayer.placement.explain import WorkerView, choice, explain
from gpulayer.spec.machine import Device, DeviceState, Framework, Locality, WorkerFacts
from gpulayer.spec.opinion import Mark, Refusal
from gpulayer.spec.request import FRAMEWORKS, Accelerator, FrameworkNeed, Request
from gpulayer.spec.units import parse_bytes
from gpulayer.spec.verdict import FieldChange, Reason, ReasonCode, VerdictKind
from gpulayer.spec.worker import WorkerState

GB = 10**9
CUDA = (Accelerator.CUDA,)


def gpu(index, memory=24 * GB, model="NVIDIA RTX 4090", capability="8.9", kind=Accelerator.CUDA, **more):
    return Device(f"GPU-{index}", index, kind, model, memory, compute_capability=capability, **more)


def machine(*devices, frameworks=(), **more):
    defaults = {"cpus": 8, "memory_bytes": 64 * GB, "disk_bytes": 100 * GB}
    return WorkerFacts("linux-x86_64", "0.1.0", devices=devices, frameworks=frameworks, **{**defaults, **more})


def torch(version="2.6.0", accelerator=Accelerator.CUDA, usable=True, reason=""):
    return Framework("torch", version, accelerator, usable, reason)


BOX = machine(gpu(0), gpu(1), frameworks=(torch(),), labels=(("team", "vision"),), locality=Locality(zone="a"))
MAC = machine(gpu(0, kind=Accelerator.MPS, model="Apple M3", capability=""))
LAPTOP = machine()
UNKNOWN_MEMORY = machine(gpu(0, memory=None, model="NVIDIA GB10"))


@pytest.mark.parametrize(
    ("request_", "facts", "codes"),
    [
        (Request(), LAPTOP, []),
        (Request(accelerators=CUDA, devices=2), BOX, []),
        (Request(accelerators=CUDA, devices=1), LAPTOP, [ReasonCode.NO_CUDA_DEVICE]),
        (Request(accelerators=CUDA, devices=1), MAC, [ReasonCode.NO_CUDA_DEVICE]),
        (Request(accelerators=(Accelerator.CUDA, Accelerator.ROCM), devices=1), MAC, [ReasonCode.NO_ACCELERATOR]),
        (Request(accelerators=(Accelerator.CUDA, Accelerator.MPS), devices=1), MAC, []),
        (Request(devices=1), MAC, []),
        (Request(accelerators=(Accelerator.CPU,)), MAC, []),
        (Request(accelerators=CUDA, devices=3), BOX, [ReasonCode.TOO_FEW_DEVICES]),
        (Request(accelerators=CUDA, devices=1, device_memory_bytes=40 * GB), BOX, [ReasonCode.DEVICE_MEMORY]),
        (Request(accelerators=CUDA, devices=1, device_memory_bytes=40 * GB), UNKNOWN_MEMORY, []),
        (Request(accelerators=CUDA, devices=1, device_models=("H100",)), BOX, [ReasonCode.DEVICE_MODEL]),
        (Request(accelerators=CUDA, devices=1, device_models=("H100", "4090")), BOX, []),
        (Request(accelerators=CUDA, devices=1, compute_capability=">=9.0"), BOX, [ReasonCode.COMPUTE_CAPABILITY]),
        (Request(accelerators=CUDA, devices=1, compute_capability=">=8.0"), BOX, []),
        (Request(frameworks=(FrameworkNeed("jax"),)), BOX, [ReasonCode.FRAMEWORK_MISSING]),
        (
            Request(accelerators=CUDA, devices=1, frameworks=(FrameworkNeed("torch", ">=2.7"),)),
            BOX,
            [ReasonCode.FRAMEWORK_VERSION],
        ),
        (Request(accelerators=CUDA, devices=1, frameworks=(FrameworkNeed("torch", ">=2.4"),)), BOX, []),
        (Request(cpus=9), LAPTOP, [ReasonCode.CPUS]),
        (Request(memory_bytes=65 * GB), LAPTOP, [ReasonCode.MEMORY]),
        (Request(disk_bytes=101 * GB), LAPTOP, [ReasonCode.DISK]),
        (Request(disk_bytes=101 * GB), machine(disk_bytes=None), []),
        (Request(labels=(("team", "vision"),)), BOX, []),
        (Request(labels=(("team", "nlp"),)), BOX, [ReasonCode.LABEL]),
        (Request(zone="b"), BOX, [ReasonCode.LOCALITY]),
        (Request(worker="other"), BOX, [ReasonCode.WORKER_NAME]),
        (Request(cpus=99, memory_bytes=99 * GB, zone="x"), LAPTOP, ["cpus", "memory", "locality"]),
    ],
)
def test_a_machine_is_refused_for_exactly_these_reasons(request_, facts, codes):
    assert [reason.code for reason in why_ineligible(request_, facts, name="box")] == codes
    assert is_eligible(request_, facts, name="box") is (not codes)


def test_mlx_and_what_computes_with_it_run_on_the_one_device_of_a_mac():
    mac = replace(MAC, frameworks=(Framework("mlx", "0.30", Accelerator.MLX, usable=True),))
    for accelerators in ((Accelerator.MLX,), (Accelerator.MPS,)):
        assert is_eligible(Request(accelerators, devices=1, frameworks=(FrameworkNeed("mlx"),)), mac)
    assert not is_eligible(Request((Accelerator.MLX,), devices=1), BOX)


def test_where_there_should_be_a_device_it_is_said_why_there_is_none():
    facts = machine(missing=(("cuda", "nvidia-smi did not answer within 6 s"), ("rocm", "no permission")))
    (reason,) = why_ineligible(Request(accelerators=CUDA, devices=1), facts)
    assert reason.message == "has no accelerator (cuda: nvidia-smi did not answer within 6 s)"


@pytest.mark.parametrize("memory", [None, 12 * GB])
def test_p1_memory_that_is_shared_with_the_machine_is_bounded_by_that_and_never_0(memory):
    facts = machine(gpu(0, memory=memory, model="NVIDIA GB10", is_memory_shared=True))
    asked = Request(accelerators=CUDA, devices=1, device_memory_bytes=70 * GB)
    (reason,) = why_ineligible(asked, facts)
    assert reason.message == f"largest is {12 if memory else 64} GB, which it shares with the machine"
    assert why_ineligible(replace(asked, device_memory_bytes=12 * GB), facts) == ()


def test_p1_the_smallest_change_of_two_devices_one_of_unknown_memory_is_to_that_one():
    facts = machine(gpu(0, memory=None), gpu(1, memory=16 * GB))
    change = smallest_change(Request(accelerators=CUDA, devices=2, device_memory_bytes=40 * GB), facts, name="box")
    assert change == (FieldChange("devices", "1"),)


def verdict_of(request, facts, *, leased=()):
    (verdict,) = explain(request, [view_of(facts, leased=leased)])
    return verdict


def test_an_unhealthy_device_is_waited_for_and_named_with_its_reason():
    facts = machine(gpu(0), gpu(1, state=DeviceState.UNHEALTHY, reason="Xid 79: fell off the bus"))
    request = Request(accelerators=CUDA, devices=2)
    assert why_ineligible(request, facts) == (), "it comes back by itself"
    assert allocate(request, WorkerId("w1"), facts, usable_capacity(facts)) is None
    verdict = verdict_of(request, facts, leased=("GPU-0",))
    (reason,) = verdict.reasons
    assert (verdict.kind, reason.code) == (VerdictKind.BUSY, ReasonCode.DEVICE_UNHEALTHY)
    assert reason.message == "device 1 (NVIDIA RTX 4090) is unhealthy: Xid 79: fell off the bus; 1 of 2 can be used"
    assert [change.flag for change in verdict.fits_with] == ["--devices 1"]
    assert verdict.busy_with == (), "nobody's end would help"


@pytest.mark.parametrize(
    "wanted",
    [
        Request(accelerators=CUDA, devices=1, device_models=("A100",)),
        Request(accelerators=CUDA, devices=1, device_memory_bytes=40 * GB),
        Request(accelerators=CUDA, devices=1, compute_capability=">=8.0"),
        Request(accelerators=CUDA, devices=2, device_memory_bytes=10 * GB),
    ],
)
def test_an_unhealthy_device_that_would_do_is_named_though_others_are_enough_in_number(wanted):
    lost = gpu(0, 80 * GB, "NVIDIA A100", "8.0", state=DeviceState.UNHEALTHY, reason="GPU is lost")
    facts = machine(lost, gpu(1, 16 * GB, "Tesla T4", "7.5"), gpu(2, 8 * GB, "Tesla P4", "6.1"))
    assert is_eligible(wanted, facts)
    (reason,) = why_not_now(wanted, facts)
    assert reason.code is ReasonCode.DEVICE_UNHEALTHY
    assert reason.message.startswith("device 0 (NVIDIA A100) is unhealthy: GPU is lost")


def test_an_unhealthy_device_that_would_not_do_either_is_not_in_the_way_of_the_reason():
    asked = Request(accelerators=CUDA, devices=1, device_models=("A100",))
    lost = gpu(0, 16 * GB, "Tesla T4", state=DeviceState.UNHEALTHY, reason="GPU is lost")
    (reason,) = why_ineligible(asked, machine(lost, gpu(1)))
    assert reason.code is ReasonCode.DEVICE_MODEL
    unread = machine(gpu(0, None, "", "", state=DeviceState.UNHEALTHY, reason="it can't be read"), gpu(1))
    assert is_eligible(asked, unread), "it may be one"
    assert [reason.message for reason in why_not_now(asked, unread)] == ["device 0 is unhealthy: it can't be read"]


def test_one_reason_of_several_unhealthy_devices_is_said_once():
    facts = machine(
        *(gpu(index, state=DeviceState.UNHEALTHY, reason="the driver hangs", model="") for index in range(4))
    )
    asked = Request(accelerators=CUDA, devices=1)
    assert [reason.message for reason in why_not_now(asked, facts)] == [
        "each of devices 0-3 is unhealthy: the driver hangs"
    ]
    assert verdict_of(asked, facts).fits_with == ()


def test_of_many_unhealthy_devices_as_much_is_said_as_people_read():
    lost = {"state": DeviceState.UNHEALTHY, "reason": "GPU is lost"}
    asked = Request(accelerators=CUDA, devices=1024)
    (reason,) = why_not_now(asked, machine(*(gpu(index, **(lost if index % 2 else {})) for index in range(1024))))
    assert len(reason.message) < 150
    assert "and 500 more (NVIDIA RTX 4090) is unhealthy" in reason.message
    (reason,) = why_not_now(asked, machine(*(gpu(n, **{**lost, "reason": f"Xid {n}"}) for n in range(1024))))
    assert len(reason.message) < 300
    assert reason.message.endswith("; and 1020 more reasons")
    mixed = machine(gpu(0, **lost), gpu(1, model="Tesla T4", **lost), gpu(2, **lost))
    (reason,) = why_not_now(Request(accelerators=CUDA, devices=3), mixed)
    assert reason.message == "each of devices 0, 2 (NVIDIA RTX 4090), 1 (Tesla T4) is unhealthy: GPU is lost"


def test_what_would_not_fit_either_when_all_is_healthy_is_refused_for_that_alone():
    facts = machine(gpu(0), gpu(1, state=DeviceState.UNHEALTHY, reason="GPU is lost"))
    verdict = verdict_of(Request(accelerators=CUDA, devices=3), facts)
    assert (verdict.kind, [reason.message for reason in verdict.reasons]) == (VerdictKind.INELIGIBLE, ["has 2 devices"])


PENDING = Framework("torch", "", Accelerator.CUDA, usable=False, is_pending=True)
PENDING_CPU = replace(PENDING, accelerator=Accelerator.CPU)


@pytest.mark.parametrize(
    ("request_", "facts", "message"),
    [
        (Request(frameworks=(FrameworkNeed("torch"),)), machine(frameworks=(PENDING_CPU,)), "torch is not checked yet"),
        (
            Request(accelerators=CUDA, devices=1, frameworks=(FrameworkNeed("torch", ">=2.4"),)),
            machine(gpu(0), frameworks=(PENDING, torch(accelerator=Accelerator.CPU))),
            "torch is not checked yet",
        ),
        (
            Request(accelerators=CUDA, devices=1, frameworks=(FrameworkNeed("torch", ">=2.4"),)),
            machine(gpu(0), frameworks=(replace(PENDING, version="2.6.0", reason="all devices are busy"),)),
            "torch 2.6.0 is not checked yet: all devices are busy",
        ),
    ],
)
def test_a_framework_that_is_not_checked_yet_is_waited_for(request_, facts, message):
    assert why_ineligible(request_, facts) == ()
    assert allocate(request_, WorkerId("w1"), facts, usable_capacity(facts)) is None
    verdict = verdict_of(request_, facts)
    assert verdict.kind is VerdictKind.BUSY
    assert [(reason.code, reason.message) for reason in verdict.reasons] == [(ReasonCode.FRAMEWORK_UNCHECKED, message)]
    ended = (replace(one, version="2.6.0", is_pending=False, usable=True) for one in facts.frameworks)
    checked = replace(facts, frameworks=tuple(ended))
    assert verdict_of(request_, checked).kind is VerdictKind.ELIGIBLE


def test_a_pending_check_does_not_keep_what_needs_no_framework_or_has_another_device():
    facts = machine(gpu(0), gpu(0, kind=Accelerator.ROCM), frameworks=(PENDING, torch(accelerator=Accelerator.ROCM)))
    assert verdict_of(Request(accelerators=CUDA, devices=1), facts).kind is VerdictKind.ELIGIBLE
    either = Request(accelerators=(*CUDA, Accelerator.ROCM), devices=1, frameworks=(FrameworkNeed("torch"),))
    assert verdict_of(either, facts).kind is VerdictKind.ELIGIBLE


def test_a_pending_check_does_not_hide_what_is_known_to_be_wrong():
    old = replace(PENDING, version="1.0")
    asked = Request(accelerators=CUDA, devices=1, frameworks=(FrameworkNeed("torch", ">=2.4"),))
    assert [reason.code for reason in why_ineligible(asked, machine(gpu(0), frameworks=(old,)))] == [
        ReasonCode.FRAMEWORK_VERSION
    ]


def test_of_two_accelerators_the_one_that_lacks_less_gives_the_reasons():
    facts = machine(
        gpu(0, state=DeviceState.UNHEALTHY, reason="GPU is lost"),
        replace(gpu(0, kind=Accelerator.ROCM), uuid="ROCM-0"),
        frameworks=(PENDING, replace(PENDING, accelerator=Accelerator.ROCM)),
    )
    either = Request(accelerators=(*CUDA, Accelerator.ROCM), devices=1, frameworks=(FrameworkNeed("torch"),))
    assert [reason.code for reason in why_not_now(either, facts)] == [ReasonCode.FRAMEWORK_UNCHECKED]


OLD = (("GPU-1", "no kernel image is available"),)


def test_a_framework_that_fails_on_some_devices_gets_only_those_on_which_it_computes():
    facts = machine(gpu(0), gpu(1, model="Tesla K80"), frameworks=(replace(torch(), failed_on=OLD),))
    asked = Request(accelerators=CUDA, devices=1, frameworks=(FrameworkNeed("torch"),))
    allocation = allocate(asked, WorkerId("w1"), facts, usable_capacity(facts))
    assert allocation is not None
    assert allocation.devices == ("GPU-0",)
    verdict = verdict_of(asked, facts, leased=("GPU-0",))
    assert verdict.kind is VerdictKind.BUSY
    assert verdict.reasons[0].message.endswith("; torch 2.6.0 on device 1 (Tesla K80): no kernel image is available")
    assert verdict_of(replace(asked, frameworks=()), facts, leased=("GPU-0",)).kind is VerdictKind.ELIGIBLE
    refused = verdict_of(replace(asked, devices=2), facts)
    assert refused.kind is VerdictKind.INELIGIBLE
    assert [reason.message for reason in refused.reasons] == [
        "1 of 2 devices can be used; torch 2.6.0 on device 1 (Tesla K80): no kernel image is available"
    ]
    assert [change.flag for change in refused.fits_with] == ["--devices 1"]


def test_a_device_on_which_a_framework_is_to_be_tried_again_is_waited_for_and_not_used():
    facts = machine(gpu(0), gpu(1), frameworks=(replace(torch(), failed_on=(("GPU-1", ""),)),))
    asked = Request(accelerators=CUDA, devices=2, frameworks=(FrameworkNeed("torch"),))
    verdict = verdict_of(asked, facts)
    assert (verdict.kind, awaits_checks(asked, facts)) == (VerdictKind.BUSY, True)
    assert [(reason.code, reason.message) for reason in verdict.reasons] == [
        (ReasonCode.FRAMEWORK_UNCHECKED, "torch 2.6.0 is not checked yet on device 1")
    ]
    assert allocate(asked, WorkerId("w1"), facts, usable_capacity(facts)) is None
    one = replace(asked, devices=1)
    assert not awaits_checks(one, facts)
    assert verdict_of(one, facts, leased=("GPU-0",)).kind is VerdictKind.BUSY
    assert verdict_of(replace(asked, devices=3), facts).kind is VerdictKind.INELIGIBLE


def test_a_device_on_which_a_framework_fails_is_no_help_when_it_is_the_only_healthy_one():
    lost = gpu(0, state=DeviceState.UNHEALTHY, reason="GPU is lost")
    facts = machine(lost, gpu(1), frameworks=(replace(torch(), failed_on=OLD),))
    asked = Request(accelerators=CUDA, devices=1, frameworks=(FrameworkNeed("torch"),))
    assert is_eligible(asked, facts)
    assert [reason.code for reason in why_not_now(asked, facts)] == [ReasonCode.DEVICE_UNHEALTHY]


ANN = "python (pid 4711, user ann) computes on it"
TAKEN = machine(gpu(0, state=DeviceState.BUSY, reason=ANN), gpu(1))


def view_of(facts, *, leased=()):
    free = usable_capacity(facts)
    free = Free(free.cpus, free.memory_bytes, free.devices - set(leased), free.resources)
    holders = tuple((uuid, JobId("7f3a")) for uuid in leased)
    return WorkerView(WorkerId("w1"), "box", WorkerState.READY, facts, free, holders=holders)


def test_what_a_stranger_computes_on_is_waited_for_and_named_and_never_lent():
    request = Request(accelerators=CUDA, devices=2)
    assert is_eligible(request, TAKEN)
    assert allocate(request, WorkerId("w1"), TAKEN, usable_capacity(TAKEN)) is None
    (verdict,) = explain(request, [view_of(TAKEN)])
    assert verdict.kind is VerdictKind.BUSY
    assert [reason.code for reason in verdict.reasons] == [ReasonCode.DEVICES_BUSY]
    assert verdict.reasons[0].message == f"1 of 2 devices free; device 0 is busy: {ANN}"
    one = allocate(Request(accelerators=CUDA, devices=1), WorkerId("w1"), TAKEN, usable_capacity(TAKEN))
    assert one is not None
    assert one.devices == ("GPU-1",)
    (verdict,) = explain(Request(accelerators=CUDA, devices=1), [view_of(TAKEN, leased=("GPU-1",))])
    assert "(job 7f3a uses the rest); device 0 is busy" in verdict.reasons[0].message


def test_an_array_that_holds_much_of_a_worker_is_named_once():
    full = Free(0, 64 * GB, frozenset())
    jobs = (JobId("7f3a"), JobId("7f3a"), JobId("8b4c"), JobId("8b4c"), JobId("9c5d"))
    for taken, said in ((jobs[:2], "job 7f3a uses the rest"), (jobs, "jobs 7f3a, 8b4c and 1 more use the rest")):
        view = WorkerView(WorkerId("w1"), "box", WorkerState.READY, LAPTOP, full, (), jobs=taken)
        (verdict,) = explain(Request(), [view])
        assert verdict.reasons[0].message == f"0 of 8 cpus free ({said})"


def test_what_programs_that_draw_have_of_a_device_is_not_there_for_jobs():
    desktop = machine(gpu(0, memory_taken_bytes=GB))
    asked = Request(accelerators=CUDA, devices=1, device_memory_bytes=24 * GB)
    (reason,) = why_ineligible(asked, desktop)
    assert (reason.code, reason.message) == (ReasonCode.DEVICE_MEMORY, "largest is 23 GB")
    assert [change.flag for change in smallest_change(asked, desktop, name="box")] == ["--device-memory 23GB"]
    assert is_eligible(replace(asked, device_memory_bytes=23 * GB), desktop)


L40S = {"memory": 46068 * 2**20, "model": "NVIDIA L40S", "capability": "8.9"}
A4000 = {"memory": 16376 * 2**20, "model": "NVIDIA RTX A4000", "capability": "8.6"}
MIXED = machine(gpu(0, **L40S), gpu(1, **L40S), gpu(2, **A4000))


@pytest.mark.parametrize(
    ("wanted", "message", "change"),
    [
        ({"devices": 2, "device_models": ("A4000",)}, "1 of 3 devices has the model A4000", "--devices 1"),
        (
            {"devices": 3, "device_memory_bytes": 40 * GB},
            "2 of 3 devices have 40 GB of memory",
            "--devices 2",
        ),
        ({"devices": 3, "compute_capability": ">=8.9"}, "2 of 3 devices have compute capability >=8.9", "--devices 2"),
        (
            {"devices": 4, "device_models": ("L40S",)},
            "has 3 devices; 2 of 3 devices have the model L40S",
            "--devices 2",
        ),
        (
            {"devices": 2, "device_models": ("A4000",), "compute_capability": ">=8.9"},
            "1 of 3 devices has the model A4000; 0 of 3 devices have all of it",
            "without --device-model",
        ),
        ({"devices": 1, "device_models": ("H100",)}, "has NVIDIA L40S, NVIDIA RTX A4000", "without --device-model"),
        ({"devices": 2, "device_memory_bytes": 80 * GB}, "largest is 48.3 GB", "--device-memory 48.3GB"),
    ],
)
def test_too_few_that_have_it_is_told_apart_from_none_has_it(wanted, message, change):
    verdict = verdict_of(Request(accelerators=CUDA, **wanted), MIXED)
    assert [reason.message for reason in verdict.reasons] == [message]
    assert [one.flag for one in verdict.fits_with] == ([change] if change else [])


def test_devices_that_are_not_meant_do_not_count_as_free_nor_their_jobs_as_in_the_way():
    asked = Request(accelerators=CUDA, devices=2, device_models=("L40S",))
    free = usable_capacity(MIXED)
    free = Free(free.cpus, free.memory_bytes, frozenset({"GPU-0"}), free.resources)
    holders = (("GPU-1", JobId("7f3a")), ("GPU-2", JobId("8b4c")))
    (verdict,) = explain(
        asked, [WorkerView(WorkerId("w1"), "box", WorkerState.READY, MIXED, free, holders, jobs=("7f3a", "8b4c"))]
    )
    (reason,) = verdict.reasons
    assert reason.message == "1 of 2 such devices free (job 7f3a uses the rest)"
    assert (reason.wanted, reason.has, verdict.busy_with) == ("2", "1", ("7f3a",))
    lost = replace(MIXED, devices=(gpu(0, **L40S, state=DeviceState.UNHEALTHY, reason="lost"), *MIXED.devices[1:]))
    (verdict,) = explain(replace(asked, devices=1), [view_of(lost, leased=("GPU-1",))])
    assert verdict.reasons[0].message == "0 of 1 such devices free (job 7f3a uses the rest)"


def test_what_is_busy_fits_with_as_many_as_are_free_like_what_is_broken():
    asked = Request(accelerators=CUDA, devices=2)
    assert [change.flag for change in verdict_of(asked, TAKEN).fits_with] == ["--devices 1"]
    assert [change.flag for change in verdict_of(asked, BOX, leased=("GPU-0",)).fits_with] == ["--devices 1"]
    assert verdict_of(asked, BOX, leased=("GPU-0", "GPU-1")).fits_with == ()
    assert verdict_of(replace(asked, devices=1), TAKEN, leased=("GPU-1",)).fits_with == ()
    cpus = Free(0, 64 * GB, frozenset({"GPU-1"}))
    (verdict,) = explain(asked, [WorkerView(WorkerId("w1"), "box", WorkerState.READY, BOX, cpus)])
    assert verdict.fits_with == (), "cores are short as well"


def test_a_size_is_told_as_it_stands_beside_it_where_that_fits():
    for memory, flag in ((46068 * 2**20, "48.3GB"), (80 * 2**30, "80GiB"), (24 * GB, "24GB")):
        facts = machine(gpu(0, memory=memory))
        asked = Request(accelerators=CUDA, devices=1, device_memory_bytes=200 * GB)
        (change,) = smallest_change(asked, facts, name="box")
        assert change.value == flag
        assert is_eligible(replace(asked, device_memory_bytes=parse_bytes(change.value)), facts)


def test_a_framework_of_a_name_that_nothing_checks_by_itself_is_refused_with_those_names():
    (known,) = why_ineligible(Request(frameworks=(FrameworkNeed("torch"),)), LAPTOP)
    assert known.message == "torch is not installed"
    for facts in (LAPTOP, BOX):
        asked = Request(accelerators=CUDA, devices=1, frameworks=(FrameworkNeed("pytorch"),))
        message = why_ineligible(asked, facts)[-1].message
        assert message == f"pytorch is not installed; by themselves workers check {', '.join(FRAMEWORKS)}"


def test_an_unusable_framework_gives_its_own_words():
    facts = machine(gpu(0), frameworks=(torch(usable=False, reason="a CPU build: torch.cuda cannot run"),))
    request = Request(accelerators=CUDA, devices=1, frameworks=(FrameworkNeed("torch"),))
    (reason,) = why_ineligible(request, facts)
    assert reason.code is ReasonCode.FRAMEWORK_UNUSABLE
    assert "a CPU build: torch.cuda cannot run" in reason.message


def test_an_unusable_framework_that_could_not_say_its_version_is_no_other_version():
    facts = machine(gpu(0), frameworks=(torch(version="", usable=False, reason="its check did not end within 60 s"),))
    request = Request(accelerators=CUDA, devices=1, frameworks=(FrameworkNeed("torch", ">=2.4"),))
    (reason,) = why_ineligible(request, facts)
    assert (reason.code, reason.message) == (
        ReasonCode.FRAMEWORK_UNUSABLE,
        "torch: its check did not end within 60 s",
    )


def test_properties_that_no_single_device_has_together_are_not_enough():
    facts = machine(gpu(0, memory=80 * GB, capability="7.0"), gpu(1, memory=16 * GB, capability="9.0"))
    request = Request(accelerators=CUDA, devices=1, device_memory_bytes=40 * GB, compute_capability=">=8.0")
    (reason,) = why_ineligible(request, facts)
    assert reason.code is ReasonCode.TOO_FEW_DEVICES
    assert reason.message == "0 of 2 devices have all of it"


@pytest.mark.parametrize(
    ("request_", "facts", "change"),
    [
        (Request(accelerators=CUDA, devices=2, device_memory_bytes=40 * GB), BOX, [("device_memory", "24GB")]),
        (Request(accelerators=CUDA, devices=3), BOX, [("devices", "2")]),
        (Request(cpus=16), LAPTOP, [("cpus", "8")]),
        (Request(cpus=16, memory_bytes=99 * GB), LAPTOP, [("cpus", "8"), ("memory", "64GB")]),
        (Request(accelerators=CUDA, devices=1, device_models=("H100",)), BOX, [("device_model", "")]),
        (Request(accelerators=CUDA, devices=1), LAPTOP, []),
        (Request(zone="b"), BOX, [("zone", "")]),
    ],
)
def test_the_smallest_change_makes_the_machine_fit(request_, facts, change):
    assert smallest_change(request_, facts, name="box") == tuple(FieldChange(*pair) for pair in change)


def test_a_change_is_told_as_the_flag_to_type():
    assert FieldChange("device_memory", "24GB").flag == "--device-memory 24GB"
    assert FieldChange("device_model", "").flag == "without --device-model"
    assert FieldChange("resources", "licence=1").flag == "--resource licence=1"


def view(name, facts, *, state=WorkerState.READY, free=None, **more):
    return WorkerView(WorkerId(name), name, state, facts, free or usable_capacity(facts), **more)


def test_verdicts_tell_eligible_busy_and_ineligible_apart_best_first():
    # A2: an idle CPU worker and a busy GPU worker are two reasons, and the whole is "waiting", not "none matches".
    busy = view(
        "gpu-box",
        BOX,
        free=Free(8, 64 * GB, frozenset({"GPU-1"})),
        holders=(("GPU-0", JobId("7f3a")),),
        jobs=(JobId("7f3a"),),
    )
    verdicts = explain(Request(accelerators=CUDA, devices=2), [view("laptop", LAPTOP), busy])
    assert [(verdict.worker, verdict.kind) for verdict in verdicts] == [
        ("gpu-box", VerdictKind.BUSY),
        ("laptop", VerdictKind.INELIGIBLE),
    ]
    assert verdicts[0].reasons[0].message == "1 of 2 devices free (job 7f3a uses the rest)"
    assert verdicts[0].busy_with == ("7f3a",)
    assert choice(verdicts) is None


@pytest.mark.parametrize(
    ("state", "code"),
    [
        (WorkerState.SILENT, ReasonCode.OFFLINE),
        (WorkerState.JOINING, ReasonCode.OFFLINE),
        (WorkerState.DRAINING, ReasonCode.DRAINING),
    ],
)
def test_known_workers_that_take_no_work_now_count_as_busy(state, code):
    (verdict,) = explain(Request(), [view("w", LAPTOP, state=state)])
    assert verdict.kind is VerdictKind.BUSY
    assert verdict.reasons[0].code is code


def test_gone_workers_are_not_mentioned():
    assert explain(Request(), [view("w", LAPTOP, state=WorkerState.GONE)]) == ()


def test_the_choice_packs():
    roomy, tight = view("roomy", machine(cpus=64)), view("tight", machine(cpus=2))
    verdicts = explain(Request(), [roomy, tight])
    assert choice(verdicts) == "tight"
    assert all(verdict.kind is VerdictKind.ELIGIBLE for verdict in verdicts)


def test_the_named_first_accelerator_is_preferred():
    mixed = machine(gpu(0, kind=Accelerator.ROCM, model="MI300"), gpu(1))
    allocation = allocate(
        Request(accelerators=(Accelerator.CUDA, Accelerator.ROCM), devices=1),
        WorkerId("w"),
        mixed,
        usable_capacity(mixed),
    )
    assert allocation is not None
    assert allocation.devices == ("GPU-1",)


def test_an_earlier_model_is_preferred():
    mixed = machine(gpu(0, model="NVIDIA A100"), gpu(1, model="NVIDIA H100"))
    request = Request(accelerators=CUDA, devices=1, device_models=("H100", "A100"))
    allocation = allocate(request, WorkerId("w"), mixed, usable_capacity(mixed))
    assert allocation is not None
    assert allocation.devices == ("GPU-1",)


def test_nothing_is_allocated_beyond_what_is_free():
    free = replace(usable_capacity(BOX), cpus=0)
    assert allocate(Request(), WorkerId("w"), BOX, free) is None
    assert allocate(Request(memory_bytes=65 * GB), WorkerId("w"), BOX, usable_capacity(BOX)) is None


def test_a_refusal_by_a_scorer_makes_a_machine_ineligible_and_says_who_and_why():
    opinions = (("night", Refusal("too dear until 22:00")), ("green", Mark(1.0)))
    (verdict,) = explain(Request(), [view("box", BOX, opinions=opinions)])
    assert verdict.kind is VerdictKind.INELIGIBLE
    assert verdict.reasons == (Reason(ReasonCode.PLUGIN_REJECTED, "scorer night: too dear until 22:00"),)
    assert verdict.fits_with == ()


def test_what_does_not_fit_by_its_facts_says_that_and_not_what_scorers_think():
    (verdict,) = explain(Request(cpus=99), [view("box", BOX, opinions=(("night", Refusal("no")),))])
    assert [reason.code for reason in verdict.reasons] == [ReasonCode.CPUS]


def test_the_mark_is_the_score_where_there_is_any_and_decides_the_order():
    views = [
        view("a", LAPTOP, opinions=(("night", Mark(0.2)), ("green", None))),
        view("b", LAPTOP, opinions=(("night", None), ("green", None))),
        view("c", LAPTOP, opinions=(("night", Mark(1.0)), ("green", Mark(0.6)))),
    ]
    verdicts = explain(Request(), views)
    assert [(verdict.worker, verdict.score) for verdict in verdicts] == [("c", 0.8), ("b", 0.5), ("a", 0.35)]
    assert choice(verdicts) == "c"
    assert [[reason.message for reason in verdict.reasons] for verdict in verdicts] == [
        ["scorer night marks it 1", "scorer green marks it 0.6"],
        [],
        ["scorer night marks it 0.2"],
    ]


def test_silence_of_all_scorers_changes_no_score():
    (silent,) = explain(Request(), [view("box", BOX, opinions=(("night", None),))])
    (without,) = explain(Request(), [view("box", BOX)])
    assert silent == without
