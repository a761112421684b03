"""From a launcher's plan to a program: what a plan may say, what is set over it, and what becomes of an act."""

import asyncio
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from gpulayer.clock import SystemClock
from gpulayer.errors import Blame, PluginResting, Unreachable
from gpulayer.ids import Epoch, JobId
from gpulayer.plugins import Launched, LaunchRefused, LaunchSite, Machine, NotLaunched
from gpulayer.plugins.builtin.process import ProcessLauncher
from gpulayer.spec.assignment import Assignment, NodeKey
from gpulayer.spec.limits import Limits
from gpulayer.spec.machine import Device, WorkerFacts
from gpulayer.spec.outcome import EndedBy
from gpulayer.spec.request import Accelerator
from gpulayer.worker import launching
from gpulayer.worker.devices import device_variables
from gpulayer.worker.launching import launch, plan_launch
from gpulayer.worker.patience import Patience
from gpulayer.worker.plans import checked_plan, checked_variables, with_secrets
from gpulayer.worker.unready import Unready

SITE = LaunchSite(Path("/w/work"), Path("/w/out"), Path("/w/log"), Path("/w/exit.json"))
JOB = Assignment(key=NodeKey(Epoch(7), 0), job_id=JobId("abc"), attempt=2, command=("echo", "a b"))
FACTS = WorkerFacts(
    platform="linux-x86_64",
    version="0",
    cpus=8,
    memory_bytes=1,
    devices=(
        Device("GPU-1", 0, Accelerator.CUDA, "H100"),
        Device("GPU-2", 1, Accelerator.CUDA, "H100"),
        Device("AMD-1", 0, Accelerator.ROCM, "MI300"),
        Device("XPU-1", 3, Accelerator.XPU, "Max"),
    ),
)
MACHINE = Machine(FACTS, {"PATH": "/bin"})
PLAN = ProcessLauncher().plan(JOB, SITE, MACHINE)
HIDDEN = {
    "CUDA_VISIBLE_DEVICES": "",
    "ROCR_VISIBLE_DEVICES": "",
    "HIP_VISIBLE_DEVICES": "-1",
    "ZE_AFFINITY_MASK": "255",
}
OURS = {"GPULAYER_JOB_ID": "abc", "GPULAYER_ATTEMPT": "2", "GPULAYER_OUTPUT_DIR": "/w/out"}


def checked(plan=PLAN, job=JOB, site=SITE):
    return checked_plan(plan, job, site, MACHINE)


def test_who_the_job_is_and_where_its_inputs_lie_is_set_over_any_plan():
    forged = dict.fromkeys((*OURS, "GPULAYER_INPUT_DATA"), "forged")
    site = replace(SITE, inputs=(("data", Path("/d")),))
    env = checked(replace(PLAN, env={"MINE": "1", **forged}), site=site).env
    assert env == {"MINE": "1", "GPULAYER_INPUT_DATA": "/d", **OURS, **HIDDEN}


def test_devices_are_handed_over_by_uuid_and_the_others_hidden_whatever_was_planned():
    job = replace(JOB, devices=("GPU-2", "GPU-1"))
    shown = {"CUDA_VISIBLE_DEVICES": "GPU-1,GPU-2", "ROCR_VISIBLE_DEVICES": "AMD-1", "GPU_DEVICE_ORDINAL": "0"}
    env = checked(replace(PLAN, env={**shown, "ZE_AFFINITY_MASK": "3"}), job).env
    assert env["CUDA_VISIBLE_DEVICES"] == "GPU-1,GPU-2"
    assert env["ROCR_VISIBLE_DEVICES"] == ""
    assert env["HIP_VISIBLE_DEVICES"] == "-1"
    assert env["ZE_AFFINITY_MASK"] == "255"
    assert "GPU_DEVICE_ORDINAL" not in env


def test_rocm_and_xpu_devices_use_their_vendors_variables():
    assert device_variables([FACTS.devices[2]]) == {"ROCR_VISIBLE_DEVICES": "AMD-1", "ZE_AFFINITY_MASK": "255"}
    nameless = Device("ROCM-0000:03:00.0", 2, Accelerator.ROCM, "Radeon 780M")
    assert device_variables([FACTS.devices[2], nameless])["ROCR_VISIBLE_DEVICES"] == "AMD-1,2"
    xpu = device_variables([FACTS.devices[3]])
    assert xpu["ZE_AFFINITY_MASK"] == "3"
    assert (xpu["ZE_ENABLE_PCI_ID_DEVICE_ORDER"], xpu["ZE_FLAT_DEVICE_HIERARCHY"]) == ("1", "COMPOSITE")
    assert device_variables([]) == HIDDEN


def test_a_plan_may_start_deeper_in_the_work_folder_and_the_log_is_as_long_as_the_job_may_make_it():
    job = replace(JOB, limits=Limits(log_bytes=10))
    plan = checked(replace(PLAN, cwd=Path("/w/work/deep"), log_bytes=10**12), job)
    assert (plan.cwd, plan.log_bytes) == (Path("/w/work/deep"), 10)


@pytest.mark.parametrize(
    "change",
    [
        {"key": "8.0"},
        {"key": 7},
        {"argv": ()},
        {"argv": "echo"},
        {"argv": ("echo", 7)},
        {"argv": ("echo", "a\0b")},
        {"argv": ("\ud800",)},
        {"cwd": "/w/work"},
        {"cwd": Path("/w")},
        {"cwd": Path("/w/work/../../etc")},
        {"log_path": Path("/etc/passwd")},
        {"exit_path": Path("/w/other.json")},
        {"err_path": Path("/w/log.err")},
        {"env": None},
        {"env": [("A", "b")]},
        {"env": {"A": 1}},
        {"env": {"A=": "1"}},
        {"env": {"": "1"}},
        {"env": {"A": "\0"}},
        {"env": {str(number): "" for number in range(20_001)}},
    ],
    ids=str,
)
def test_a_plan_of_something_else_is_none(change):
    with pytest.raises((TypeError, ValueError)):
        checked(replace(PLAN, **change))


def test_a_key_that_is_no_text_is_told_from_one_that_looks_the_same():
    with pytest.raises(ValueError, match=r"has the key a NodeKey, where str\(attempt\.key\) is due: '7\.0'"):
        checked(replace(PLAN, key=JOB.key))


def test_secrets_are_set_over_a_plan_but_never_over_what_gpulayer_says():
    site = replace(SITE, inputs=(("data", Path("/d")),))
    plan = checked(replace(PLAN, env={"HF_TOKEN": "of the job"}), site=site)
    forged = dict.fromkeys((*OURS, *HIDDEN, "GPU_DEVICE_ORDINAL", "GPULAYER_INPUT_DATA"), "forged")
    env = with_secrets(plan, {"HF_TOKEN": "secret", "GPULAYER_TOKEN": "of the job", **forged})
    assert env == {**plan.env, "HF_TOKEN": "secret", "GPULAYER_TOKEN": "of the job"}


class Starts:
    """Stands for the spawner: says this of every start."""

    def __init__(self, says=None):
        self.says = says or Launched(77)
        self.plans = []

    async def start(self, plan):
        self.plans.append(plan)
        await asyncio.sleep(0)
        if isinstance(self.says, Exception):
            raise self.says
        return self.says


class Launches:
    """A launcher out of two functions."""

    name = "mine"

    def __init__(self, plan=lambda plan: plan):
        self._plan = plan

    def plan(self, attempt, site, machine):
        return self._plan(ProcessLauncher().plan(attempt, site, machine))


class Acts(Launches):
    def __init__(self, act):
        super().__init__()
        self._act = act

    def act(self, plan, starter):
        return self._act(plan, starter)


@pytest.fixture
def launched(host_of):
    """``launched(launcher, starter)``: a job that names it, planned and carried out."""

    def run(launcher, starter=None, job=JOB, **others):
        async def main():
            host = host_of(launchers=[launcher])
            attempt = replace(job, launcher=job.launcher or "mine")
            patience = Patience(host, SystemClock(), pauses_ms=(0,))
            planned = await plan_launch(host, patience, attempt, SITE, MACHINE)
            told = {"site": SITE, "machine": MACHINE, **others}
            return await launch(host, patience, attempt, planned, starter or Starts(), **told)

        return asyncio.run(main())

    return run


def refusing(*words):
    def act(*_):
        raise LaunchRefused(*words, hint="ask otherwise")

    return act


def test_a_refusal_is_told_to_the_user_and_a_failure_is_the_plugins(launched):
    with pytest.raises(Unready) as refused:
        launched(Launches(refusing("needs two nodes")))
    assert (refused.value.ended_by, refused.value.blame) == (EndedBy.ENVIRONMENT, Blame.USER)
    assert "needs two nodes\nask otherwise" in refused.value.evidence
    for wrong in (lambda _: 1 / 0, lambda _: None, lambda plan: replace(plan, key="1.1")):
        with pytest.raises(Unready) as failed:
            launched(Launches(wrong))
        assert (failed.value.ended_by, failed.value.blame) == (EndedBy.ENVIRONMENT, Blame.PLUGIN)


def test_a_launcher_that_is_not_here_is_nobodys_fault_but_this_workers(launched):
    with pytest.raises(Unready) as unknown:
        launched(Launches(), job=replace(JOB, launcher="other"))
    assert unknown.value.blame is Blame.INFRASTRUCTURE


def test_a_command_that_no_program_can_have_is_its_users_and_no_fault_of_the_launcher(launched):
    for job in (replace(JOB, command=("a\0",)), replace(JOB, env=(("A", "\ud800"),))):
        with pytest.raises(Unready) as wrong:
            launched(Launches(), job=job)
        assert wrong.value.blame is Blame.USER


def test_an_acting_launcher_starts_its_plan_or_another_within_bounds(launched):
    def act(plan, starter):
        return starter.start(replace(plan, argv=("mpirun", *plan.argv), env={"CUDA_VISIBLE_DEVICES": "0"}))

    starter = Starts()
    assert launched(Acts(act), starter) is None
    (plan,) = starter.plans
    assert plan.argv == ("mpirun", "echo", "a b")
    assert plan.env == {**OURS, **HIDDEN}


def test_an_act_that_names_another_attempt_starts_nothing(launched):
    starter = Starts()
    with pytest.raises(Unready) as failed:
        launched(Acts(lambda plan, starter: starter.start(replace(plan, key="1.1"))), starter)
    assert failed.value.blame is Blame.PLUGIN
    assert starter.plans == []


def test_what_an_act_has_started_runs_whatever_it_does_then(launched):
    def breaks(plan, starter):
        starter.start(plan)
        raise RuntimeError("after the start")

    def denies(plan, starter):
        starter.start(plan)
        return NotLaunched(None, "no")

    def refuses(plan, starter):
        starter.start(plan)
        raise LaunchRefused("no")

    for act in (breaks, denies, refuses):
        assert launched(Acts(act)) is None


def test_an_act_that_hangs_after_its_start_runs_and_one_that_starts_too_late_does_not(launched, monkeypatch):
    monkeypatch.setattr(launching, "ACT_DEADLINE_S", 0.2)
    go, told = threading.Event(), []

    def hangs(plan, starter):
        found = starter.start(plan)
        go.wait(30)
        return found

    assert launched(Acts(hangs), begun=lambda: told.append("it runs")) is None
    assert told == ["it runs"]
    told.clear()
    go.set()
    late, done = threading.Event(), threading.Event()

    class Late(Starts):
        async def start(self, plan):
            told.append(plan)
            return await super().start(plan)

    def too_late(plan, starter):
        late.wait(30)
        try:
            return starter.start(plan)
        finally:
            done.set()

    with pytest.raises(Unready) as failed:
        launched(Acts(too_late), Late())
    assert failed.value.blame is Blame.PLUGIN
    late.set()
    assert done.wait(30)
    assert told == []


def test_a_program_runs_as_soon_as_its_start_is_told_whatever_its_launcher_still_does(launched):
    runs, told = threading.Event(), []

    def begun():
        told.append("it runs")
        runs.set()

    def lasts(plan, starter):
        found = starter.start(plan)
        told.append("known in time" if runs.wait(30) else "not known")
        starter.start(plan)  # once more: nothing new
        return found

    assert launched(Acts(lasts), begun=begun) is None
    assert told == ["it runs", "known in time"]
    assert launched(Launches(), begun=begun) is None
    assert told[2:] == ["it runs"]
    assert launched(Launches(), Starts(NotLaunched(127, "no such file")), begun=begun).exit_code == 127
    assert len(told) == 3


def test_what_the_starter_said_of_a_program_that_is_not_there_is_told(launched):
    failed = launched(Acts(lambda plan, starter: starter.start(plan)), Starts(NotLaunched(127, "no such file", "hint")))
    assert (failed.exit_code, failed.evidence) == (127, "no such file\nhint")

    def breaks(plan, starter):
        starter.start(plan)
        raise RuntimeError("it can't bear that")

    assert launched(Acts(breaks), Starts(NotLaunched(127, "no such file"))).exit_code == 127


def test_a_spawner_that_is_lost_is_not_the_launchers_fault(launched):
    with pytest.raises(Unreachable):
        launched(Acts(lambda plan, starter: starter.start(plan)), Starts(Unreachable("the spawner is gone")))


def test_an_act_that_says_what_is_not_so_is_a_fault(launched):
    for act in (
        lambda plan, starter: Launched(1),
        lambda plan, starter: None,
        lambda plan, starter: NotLaunched(3, "three"),
    ):
        with pytest.raises(Unready) as failed:
            launched(Acts(act))
        assert failed.value.blame is Blame.PLUGIN


def test_what_a_launcher_is_shown_of_an_environment_can_not_be_changed():
    shown = checked_variables({"A": "b"})
    with pytest.raises(TypeError):
        shown["A"] = "c"


def test_what_an_act_says_to_a_user_holds_no_secret_of_its_plugin_and_nothing_that_a_terminal_acts_on(host_of):
    said = NotLaunched(None, "the scheduler refused hunter2hunter2\nall\u202eof it", "hunter2hunter2")
    launcher = Acts(lambda plan, starter: said)
    host = host_of(launchers=[launcher], options={"mine": {"token": "hunter2hunter2"}})

    async def main():
        patience, attempt = Patience(host, SystemClock()), replace(JOB, launcher="mine")
        planned = await plan_launch(host, patience, attempt, SITE, MACHINE)
        return await launch(host, patience, attempt, planned, Starts(), site=SITE, machine=MACHINE)

    assert asyncio.run(main()).evidence == "the scheduler refused ***\nall of it\n***"


def test_a_launcher_that_has_just_failed_is_not_asked_and_nothing_is_started(host_of):
    def act(plan, starter):
        raise ConnectionError("no route to host")

    host, starter = host_of(launchers=[Acts(act)]), Starts()

    async def main():
        patience, attempt = Patience(host, SystemClock()), replace(JOB, launcher="mine")
        planned = await plan_launch(host, patience, attempt, SITE, MACHINE)
        with pytest.raises(Unready):
            await launch(host, patience, attempt, planned, starter, site=SITE, machine=MACHINE)
        with pytest.raises(PluginResting):
            await launch(host, patience, attempt, planned, starter, site=SITE, machine=MACHINE)
        with pytest.raises(PluginResting):
            await plan_launch(host, patience, attempt, SITE, MACHINE)
        assert starter.plans == []

    asyncio.run(main())


def test_an_overloaded_machine_is_no_fault_of_the_process_launcher(host_of, monkeypatch):
    monkeypatch.setattr(launching, "PLAN_DEADLINE_S", 0.01)

    class Stalls(ProcessLauncher):
        def plan(self, attempt, site, machine):
            threading.Event().wait(0.1)
            return super().plan(attempt, site, machine)

    host = host_of(launchers=[Stalls()])

    async def main():
        patience = Patience(host, SystemClock())
        for _ in range(3):
            assert (await plan_launch(host, patience, JOB, SITE, MACHINE)).plan == checked()

    asyncio.run(main())
