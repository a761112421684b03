"""One bad implementation a promise: ``CAUGHT`` names the test of the contract that has to fail for it.

The good ones beside them pass everything. Run by ``test_contracts_catch.py``, in a pytest of its own.
"""

import itertools
import os
import sys
import threading
import time
import types
from dataclasses import replace
from pathlib import Path

import pytest

from gpulayer.plugins import (
    CheckScript,
    Environment,
    EnvironmentPlan,
    Findings,
    Launched,
    Mark,
    Offer,
    ProcessOnDevice,
    ProvidedMachine,
    Refusal,
    StageFailed,
    hookimpl,
)
from gpulayer.plugins.builtin.file import FileStager
from gpulayer.plugins.builtin.process import ProcessLauncher
from gpulayer.plugins.contracts.environment import ENVIRONMENT_PLAN_DEADLINE_S
from gpulayer.plugins.contracts.provider import MachineState, ProviderRefused
from gpulayer.spec.machine import Device
from gpulayer.spec.request import Accelerator
from gpulayer.testing import (
    EnvironmentBuilderContract,
    EventSinkContract,
    FrameworkCheckContract,
    JobCheckContract,
    LauncherContract,
    PluginContract,
    ProbeContract,
    ProviderContract,
    ScorerContract,
    StagerContract,
    machine_facts,
)

CAUGHT = {}


# Of these, which never answer, every test is run; with pieces of the names of those that ask nothing of them.
HANGING = {}


def given(contract, fixture, test="", **attributes):
    """Make a test class of what the decorated class makes; ``test``: a piece of the name of the one that must fail;
    empty: it is good. attributes: of the class, such as the deadlines that it has of its own."""

    def make(bad):
        def give(self):
            return bad()

        name = f"Test{bad.__name__}"
        give.__name__ = fixture
        body = {fixture: pytest.fixture(give), "deadline_s": 0.5, **attributes}
        globals()[name] = types.new_class(name, (contract,), exec_body=lambda space: space.update(body))
        CAUGHT[name] = test
        return bad

    return make


def hanging(contract, fixture, *unasked, **attributes):
    """The same of one that never answers."""

    def make(bad):
        HANGING[f"Test{bad.__name__}"] = ("plain_", *unasked)
        return given(contract, fixture, "test", **{"deadline_s": 0.05, **attributes})(bad)

    return make


def for_ever(*args, **options):
    threading.Event().wait()


def probe(test):
    return given(ProbeContract, "probe", test)


@given(ProbeContract, "probe")
class GoodProbe:
    name = "good"

    def look(self, site):
        return Findings(resources=(("licence", 1),))


@probe("plain_name")
class ProbeOfNoName(GoodProbe):
    name = "My Probe"


@probe("gives_findings")
class ProbeOfADictionary(GoodProbe):
    def look(self, site):
        return {"cpus": 4}


@probe("within_its_deadline")
class ProbeThatHangs(GoodProbe):
    def look(self, site):
        if threading.current_thread() is not threading.main_thread():
            time.sleep(2)
        return Findings()


@probe("can_be_reported")
class ProbeOfNames(GoodProbe):
    def look(self, site):
        return Findings(addresses=("box.local",))


@probe("can_be_reported")
class ProbeOfNumbers(GoodProbe):
    def look(self, site):
        return Findings(labels=(("rack", 7),))


@probe("can_be_reported")
class ProbeOfTwoRacks(GoodProbe):
    def look(self, site):
        return Findings(labels=(("rack", "7"), ("rack", "8")))


@probe("told_apart")
class ProbeOfTwins(GoodProbe):
    def look(self, site):
        return Findings(devices=(Device("GPU-1", 0, Accelerator.CUDA, "x"), Device("GPU-1", 1, Accelerator.CUDA, "x")))


@probe("counted_by_plain_names")
class ProbeOfNone(GoodProbe):
    def look(self, site):
        return Findings(resources=(("licence", 0),))


@probe("finds_the_same")
class ProbeThatCounts(GoodProbe):
    count = itertools.count(1)

    def look(self, site):
        return Findings(resources=(("licence", next(self.count)),))


@probe("finds_the_same")
class ProbeOfTheHour(GoodProbe):
    count = itertools.count(1)

    def look(self, site):
        return Findings(labels=(("looked", str(next(self.count))),))


@given(ProbeContract, "probe")
class ProbeOfWhatFlows(GoodProbe):
    """Others use the machine, too: that what is free differs is no fault."""

    count = itertools.count(1)

    def look(self, site):
        free = next(self.count)
        device = Device("GPU-1", 0, Accelerator.CUDA, "x", memory_free_bytes=free)
        return Findings(disk_bytes=free, devices=(device,), processes=(ProcessOnDevice("GPU-1", free),))


@probe("processes_are_on_devices_that_it_finds")
class ProbeOfProcessesElsewhere(GoodProbe):
    def look(self, site):
        return Findings(processes=(ProcessOnDevice("GPU-9", 7),))


@hanging(ProbeContract, "probe")
class ProbeForEver(GoodProbe):
    look = for_ever


@probe("empty_environment")
class ProbeThatNeedsAPath(GoodProbe):
    def look(self, site):
        return Findings(labels=(("path", site.environment["PATH"]),))


@probe("changes_nothing_where_it_looks")
class ProbeThatLeavesFiles(GoodProbe):
    def look(self, site):
        (site.work_dir / "cache").write_text("x")
        return Findings()


@probe("prints_nothing")
class ProbeThatTalks(GoodProbe):
    def look(self, site):
        print("looking")
        return Findings()


@probe("prints_nothing")
class ProbeThatTalksBelow(GoodProbe):
    def look(self, site):
        os.write(2, b"looking\n")
        return Findings()


@probe("whole_process_shares")
class ProbeThatMoves(GoodProbe):
    def look(self, site):
        os.environ["LOOKS"] = str(int(os.environ.get("LOOKS", "0")) + 1)
        return Findings()


@probe("whole_process_shares")
class ProbeThatLeavesThreads(GoodProbe):
    def look(self, site):
        threading.Thread(target=time.sleep, args=(1,), daemon=True).start()
        return Findings()


@probe("several_threads")
class ProbeOfOneThread(GoodProbe):
    def __init__(self):
        self.busy = threading.Lock()

    def look(self, site):
        if not self.busy.acquire(blocking=False):
            raise RuntimeError("one at a time")
        time.sleep(0.05)
        self.busy.release()
        return Findings()


@probe("within_its_deadline")
class ProbeThatExits(GoodProbe):
    def look(self, site):
        sys.exit(1)


def check(test):
    return given(FrameworkCheckContract, "check", test)


@given(FrameworkCheckContract, "check")
class GoodCheck:
    name = "nothing"
    accelerators = (Accelerator.CPU,)
    source = "print('{\"version\": null}')"

    def script(self):
        return CheckScript(self.source)


@check("plain_name")
class CheckOfNoName(GoodCheck):
    name = "Nothing 2"


@check("which_accelerators")
class CheckOfAny(GoodCheck):
    accelerators = (Accelerator.ANY,)


@check("same_script")
class CheckOfMany(GoodCheck):
    count = itertools.count()

    def script(self):
        return CheckScript(f"{self.source} # {next(self.count)}")


@check("whole_modules")
class CheckOfPieces(GoodCheck):
    def script(self):
        return CheckScript(self.source, modules=("nothing.core",))


@check("python_3_9")
class CheckOfToday(GoodCheck):
    source = "match 1:\n    case _: print('{\"version\": null}')"


@check("says_so")
class CheckOfWhatIsNotThere(GoodCheck):
    source = 'import torch\nprint(\'{"version": "1"}\')'


@check("says_what_there_is")
class CheckOfOthers(GoodCheck):
    source = 'print(\'{"version": "1", "devices": {"cuda": ""}}\')'


@hanging(FrameworkCheckContract, "check", "which_accelerators")
class CheckForEver(GoodCheck):
    script = for_ever


def builder(test):
    return given(EnvironmentBuilderContract, "builder", test)


@given(EnvironmentBuilderContract, "builder")
class GoodBuilder:
    name = "good"

    def plan(self, request):
        return EnvironmentPlan("all", ())

    def build(self, plan, site):
        return Environment({"PATH": "/bin"})


@builder("plain_name")
class BuilderOfNoName(GoodBuilder):
    name = ""


@given(EnvironmentBuilderContract, "builder", "within_its_deadline", deadline_s=EnvironmentBuilderContract.deadline_s)
class BuilderThatPonders(GoodBuilder):
    """A build may take that long, a plan may not."""

    def plan(self, request):
        time.sleep(ENVIRONMENT_PLAN_DEADLINE_S + 1)
        return super().plan(request)


@hanging(EnvironmentBuilderContract, "builder")
class BuilderThatPlansForEver(GoodBuilder):
    plan = for_ever


PLANS = ("it_answers", "prints", "whole_process", "equal_plans", "a_plan", "empty_work_folder")


@hanging(EnvironmentBuilderContract, "builder", *PLANS, deadline_s=0.5, build_deadline_s=0.05)
class BuilderForEver(GoodBuilder):
    build = for_ever


@builder("equal_plans")
class BuilderByPlace(GoodBuilder):
    def plan(self, request):
        return EnvironmentPlan(str(request.work_dir), ())


@builder("changes_nothing_in_the_work_folder")
class BuilderThatLocks(GoodBuilder):
    def plan(self, request):
        (request.work_dir / "lock").touch()
        return EnvironmentPlan("all", ())


@builder("empty_work_folder")
class BuilderThatReads(GoodBuilder):
    def plan(self, request):
        return EnvironmentPlan(next(request.work_dir.iterdir()).name, ())


@builder("environment_for_programs")
class BuilderOfNumbers(GoodBuilder):
    def build(self, plan, site):
        return Environment({"OMP_NUM_THREADS": 1})


@builder("may_be_repeated")
class BuilderOfFirsts(GoodBuilder):
    def __init__(self):
        self.built = set()

    def build(self, plan, site):
        if plan.key not in self.built:
            self.built.add(plan.key)
            (site.folder / "venv").mkdir()
        return Environment({"PATH": ":".join(map(str, site.folder.iterdir()))})


@builder("nothing_to_keep")
class BuilderInTheWorkFolder(GoodBuilder):
    def plan(self, request):
        return EnvironmentPlan()

    def build(self, plan, site):
        (site.folder / "venv").mkdir()
        return Environment({})


@builder("credentials")
class BuilderThatTellsAll(GoodBuilder):
    def build(self, plan, site):
        return Environment(dict(site.environment))


@builder("changes_nothing_of_the_workers")
class BuilderThatTakes(GoodBuilder):
    def build(self, plan, site):
        site.environment.pop("HOME", None)
        return Environment({})


@builder("cancelled")
class BuilderThatStops(GoodBuilder):
    def build(self, plan, site):
        return None if site.is_cancelled() else Environment({})


def launcher(test):
    return given(LauncherContract, "launcher", test)


@given(LauncherContract, "launcher")
class GoodLauncher:
    name = "good"

    def plan(self, attempt, site, machine):
        return ProcessLauncher().plan(attempt, site, machine)


@launcher("plain_name")
class LauncherOfNoName(GoodLauncher):
    name = None


@launcher("plans_a_program")
class LauncherOfNothing(GoodLauncher):
    def plan(self, attempt, site, machine):
        return replace(super().plan(attempt, site, machine), argv=())


@launcher("equal_arguments")
class LauncherOfPorts(GoodLauncher):
    count = itertools.count(1024)

    def plan(self, attempt, site, machine):
        plan = super().plan(attempt, site, machine)
        return replace(plan, env={**plan.env, "MASTER_PORT": str(next(self.count))})


@launcher("none_of_its_arguments")
class LauncherThatWrites(GoodLauncher):
    def plan(self, attempt, site, machine):
        machine.variables["MINE"] = "1"
        return super().plan(attempt, site, machine)


@launcher("no_environment_but")
class LauncherOfHere(GoodLauncher):
    def plan(self, attempt, site, machine):
        plan = super().plan(attempt, site, machine)
        return replace(plan, env={**plan.env, "HOME": os.environ.get("HOME", "")})


@launcher("touches_no_disk")
class LauncherThatPrepares(GoodLauncher):
    def plan(self, attempt, site, machine):
        site.work_dir.mkdir(parents=True, exist_ok=True)
        return super().plan(attempt, site, machine)


@launcher("plans_a_program")
class LauncherOfAnotherKey(GoodLauncher):
    def plan(self, attempt, site, machine):
        return replace(super().plan(attempt, site, machine), key="mine")


@launcher("plans_a_program")
class LauncherElsewhere(GoodLauncher):
    def plan(self, attempt, site, machine):
        return replace(super().plan(attempt, site, machine), cwd=Path("/"))


@launcher("stay_apart")
class LauncherOfOneStream(GoodLauncher):
    def plan(self, attempt, site, machine):
        return replace(super().plan(attempt, site, machine), err_path=None)


@launcher("its_own_variables")
class LauncherOfItsOwnVariables(GoodLauncher):
    def plan(self, attempt, site, machine):
        return replace(super().plan(attempt, site, machine), env={"PATH": "/bin"})


@launcher("many_devices")
class LauncherOfOneDevice(GoodLauncher):
    def plan(self, attempt, site, machine):
        assert len(attempt.devices) <= 1
        return super().plan(attempt, site, machine)


@launcher("any_language")
class LauncherOfAShell(GoodLauncher):
    def plan(self, attempt, site, machine):
        return replace(super().plan(attempt, site, machine), argv=("sh", "-c", " ".join(attempt.command)))


@launcher("act_may_be_repeated")
class LauncherThatActsOnce(GoodLauncher):
    def __init__(self):
        self.done = set()

    def act(self, plan, starter):
        if plan.key in self.done:
            raise RuntimeError("started already")
        self.done.add(plan.key)
        return starter.start(plan)


@launcher("act_may_be_repeated")
class LauncherThatBoasts(GoodLauncher):
    def act(self, plan, starter):
        return Launched(1)


@hanging(LauncherContract, "launcher", act_deadline_s=0.05)
class LauncherForEver(GoodLauncher):
    plan = act = for_ever


@given(LauncherContract, "launcher", "act_may_be_repeated", act_deadline_s=0.05)
class LauncherThatActsForEver(GoodLauncher):
    act = for_ever


class StagerContractHere(StagerContract):
    @pytest.fixture
    def uri(self, tmp_path):
        (tmp_path / "data").write_text("x")
        return (tmp_path / "data").as_uri()

    @pytest.fixture
    def missing_uri(self, tmp_path):
        return (tmp_path / "nowhere").as_uri()


def stager(test):
    return given(StagerContractHere, "stager", test)


@stager("plain_scheme")
class StagerOfColons(FileStager):
    scheme = "file:"


@stager("can_be_read")
class StagerOfPromises(FileStager):
    def fetch(self, uri, site):
        return Path("relative")


@stager("same_content")
class StagerThatCounts(FileStager):
    count = itertools.count()

    def fetch(self, uri, site):
        super().fetch(uri, site)
        (site.folder / "data").write_text(str(next(self.count)))
        return site.folder / "data"


@stager("in_its_own_folder")
class StagerOfSharedFolders(FileStager):
    def fetch(self, uri, site):
        (site.folder.parent / "cache").mkdir(exist_ok=True)
        return super().fetch(uri, site)


@stager("users_mistake")
class StagerThatBlamesMachines(FileStager):
    def fetch(self, uri, site):
        try:
            return super().fetch(uri, site)
        except StageFailed as failed:
            raise StageFailed(failed.message, is_users=False) from None


@stager("makes_no_sense")
class StagerThatTrusts(FileStager):
    def fetch(self, uri, site):
        path = Path(uri.removeprefix("file://"))
        if not path.exists():
            raise StageFailed(f"{path} is not there") if "nowhere" in uri else FileNotFoundError(uri)
        return path


@hanging(StagerContractHere, "stager")
class StagerForEver(FileStager):
    fetch = for_ever


def scorer(test):
    return given(ScorerContract, "scorer", test)


@given(ScorerContract, "scorer")
class GoodScorer:
    name = "good"
    lifetime_s = 60.0

    def score(self, batch):
        return [Mark(0.5) for _ in batch.pairs]


@scorer("plain_name")
class ScorerOfNoName(GoodScorer):
    name = "-"


@scorer("not_for_ever")
class ScorerForEver(GoodScorer):
    lifetime_s = float("inf")


@scorer("every_pair")
class ScorerOfMachines(GoodScorer):
    def score(self, batch):
        return [Mark(0.5) for _ in batch.machines]


@scorer("every_pair")
class ScorerOfNumbers(GoodScorer):
    def score(self, batch):
        return [0.5 for _ in batch.pairs]


@scorer("every_pair")
class ScorerThatRefusesSilently(GoodScorer):
    def score(self, batch):
        return [Refusal("") for _ in batch.pairs]


@scorer("empty_batch")
class ScorerOfMost(GoodScorer):
    def score(self, batch):
        return [Mark(1 / len(batch.pairs)) for _ in batch.pairs] if batch.pairs else [Mark(1 / len(batch.pairs or "x"))]


@scorer("of_the_pair")
class ScorerByPlace(GoodScorer):
    def score(self, batch):
        return [Mark(place / len(batch.pairs)) for place in range(len(batch.pairs))]


@scorer("asked_about_alone")
class ScorerOfTheBest(GoodScorer):
    """Turned, the batch has the same best one."""

    def score(self, batch):
        most = max((machine.cpus for machine in batch.machines), default=1)
        return [Mark(batch.machines[pair.machine].cpus / most) for pair in batch.pairs]


@given(ScorerContract, "scorer")
class ScorerThatRounds(GoodScorer):
    def score(self, batch):
        return [Mark(0.5 + 1e-12 * len(batch.pairs)) for _ in batch.pairs]


@hanging(ScorerContract, "scorer", "not_for_ever")
class ScorerThatNeverAnswers(GoodScorer):
    score = for_ever


@scorer("same_answer")
class ScorerByChance(GoodScorer):
    count = itertools.count()

    def score(self, batch):
        return [Mark(next(self.count) % 7 / 7) for _ in batch.pairs]


@scorer("any_hour")
class ScorerOfTheMorning(GoodScorer):
    def score(self, batch):
        hour = batch.wall_ms // 3_600_000 % 24
        return [Mark((12 - hour) / 12) for _ in batch.pairs]


@scorer("thousand_machines")
class ScorerThatAsksEach(GoodScorer):
    def score(self, batch):
        time.sleep(len(batch.pairs) / 1000)
        return super().score(batch)


@scorer("every_pair")
class ScorerOfDevices(GoodScorer):
    def score(self, batch):
        return [Mark(0.5 if batch.machines[pair.machine].devices[0] else 0) for pair in batch.pairs]


def provider(test):
    return given(ProviderContract, "provider", test)


@given(ProviderContract, "provider")
class GoodProvider:
    name = "good"

    def __init__(self):
        self.machines = {}
        self.lock = threading.Lock()

    def offers(self, request):
        return [Offer("small", machine_facts(), 0.0)] if not request.devices else []

    def create(self, request_id, offer, start, *, owner):
        if offer != "small":
            raise ProviderRefused(f"there is no {offer}")
        with self.lock:
            return self.machines.setdefault((owner, request_id), self.made(request_id, offer, start))

    def made(self, request_id, offer, start):
        return ProvidedMachine(request_id, offer, MachineState.STARTING)

    def list(self, *, owner):
        with self.lock:
            return [machine for (of, _), machine in self.machines.items() if of == owner]

    def destroy(self, request_id, *, owner):
        with self.lock:
            self.machines.pop((owner, request_id), None)


@provider("plain_name")
class ProviderOfNoName(GoodProvider):
    name = "Good Cloud"


@provider("new_control_plane")
class ProviderOfOneMachine(GoodProvider):
    def list(self, *, owner):
        return [ProvidedMachine("somebodys", "small", MachineState.RUNNING)]


@provider("is_listed")
class ProviderThatForgets(GoodProvider):
    def list(self, *, owner):
        return []


@provider("told_apart_by_name")
class ProviderOfEqualOffers(GoodProvider):
    def offers(self, request):
        return [Offer("small", machine_facts()), Offer("small", machine_facts())]


@provider("nothing_fits")
class ProviderThatExpects(GoodProvider):
    def offers(self, request):
        if request.devices > 8:
            raise ValueError("too many")
        return super().offers(request)


@provider("one_machine_however_often")
class ProviderOfMany(GoodProvider):
    count = itertools.count()

    def create(self, request_id, offer, start, *, owner):
        made = self.made(request_id, offer, start)
        self.machines[owner, next(self.count)] = made
        return made

    def destroy(self, request_id, *, owner):
        self.machines.clear()


@provider("several_threads")
class ProviderOfRaces(GoodProvider):
    def create(self, request_id, offer, start, *, owner):
        if not any(made.request_id == request_id for made in self.list(owner=owner)):
            time.sleep(0.05)
            self.machines[owner, threading.get_ident()] = self.made(request_id, offer, start)
        return self.made(request_id, offer, start)

    def destroy(self, request_id, *, owner):
        self.machines.clear()


@provider("goes")
class ProviderThatKeeps(GoodProvider):
    def destroy(self, request_id, *, owner):
        pass


@provider("never_was")
class ProviderThatMisses(GoodProvider):
    def destroy(self, request_id, *, owner):
        del self.machines[owner, request_id]


@provider("none_of_ours")
class ProviderOfAll(GoodProvider):
    def list(self, *, owner):
        return list(self.machines.values())


@provider("refused_by_name")
class ProviderThatMakesAnything(GoodProvider):
    def create(self, request_id, offer, start, *, owner):
        return super().create(request_id, "small", start, owner=owner)


@provider("shown_nowhere")
class ProviderThatTells(GoodProvider):
    def made(self, request_id, offer, start):
        return ProvidedMachine(request_id, offer, MachineState.STARTING, details={"start": start.token})


@hanging(ProviderContract, "provider")
class ProviderForEver(GoodProvider):
    offers = create = list = destroy = for_ever


def module(**contents):
    made = types.ModuleType("gpulayer_mine")
    vars(made).update({"GPULAYER_API": "1.0", **contents})
    return made


def job_check(test):
    return given(JobCheckContract, "plugin", test)


@job_check("list_of_problems")
def CheckOfNothing():  # noqa: N802 - it stands beside the classes
    @hookimpl
    def gpulayer_check_job(spec):
        return None

    return module(gpulayer_check_job=gpulayer_check_job)


@job_check("list_of_problems")
def CheckOfWords():  # noqa: N802
    @hookimpl
    def gpulayer_check_job(spec, ctx):
        return ["it has no team"]

    return module(gpulayer_check_job=gpulayer_check_job)


@job_check("any_legal_job")
def CheckOfTeams():  # noqa: N802
    @hookimpl
    def gpulayer_check_job(spec):
        return list(dict(spec.tags)["team"][:0])

    return module(gpulayer_check_job=gpulayer_check_job)


@hanging(JobCheckContract, "plugin")
def CheckOfJobsForEver():  # noqa: N802
    @hookimpl
    def gpulayer_check_job(spec):
        for_ever()

    return module(gpulayer_check_job=gpulayer_check_job)


def event_sink(test):
    return given(EventSinkContract, "sink", test)


def event_hook(test):
    return given(EventSinkContract, "plugin", test)


@given(EventSinkContract, "sink")
class GoodSink:
    name = "good"
    kinds = None

    def tell(self, event):
        pass


@event_sink("plain_name")
class SinkOfNoName(GoodSink):
    name = "Good Sink"


@event_sink("which_kinds")
class SinkOfWords(GoodSink):
    kinds = frozenset({"job.ended"})


@event_sink("every_kind")
class SinkOfJobsAlone(GoodSink):
    def tell(self, event):
        event.job.id  # noqa: B018


@event_sink("nothing_of_the_event")
class SinkThatNotes(GoodSink):
    def tell(self, event):
        event.job.tags["told"] = "yes"


@hanging(EventSinkContract, "sink", "which_kinds")
class SinkForEver(GoodSink):
    tell = for_ever


@event_hook("does_not_know")
def SinkOfKnownKinds():  # noqa: N802
    @hookimpl
    def gpulayer_on_event(event):
        if "blessed" in event.kind:
            raise ValueError(event.kind)

    return module(gpulayer_on_event=gpulayer_on_event)


@event_hook("may_be_lacking")
def SinkOfJobs():  # noqa: N802
    @hookimpl
    def gpulayer_on_event(event, ctx):
        if event.kind == "job.ended":
            assert event.job.id

    return module(gpulayer_on_event=gpulayer_on_event)


@event_hook("same_event_twice")
def SinkOfFirsts():  # noqa: N802
    known = set()

    @hookimpl
    def gpulayer_on_event(event):
        if event.id in known:
            raise ValueError("told already")
        known.add(event.id)

    return module(gpulayer_on_event=gpulayer_on_event)


@event_hook("any_language")
def SinkOfAscii():  # noqa: N802
    @hookimpl
    def gpulayer_on_event(event):
        str(event.job and event.job.name).encode("ascii")

    return module(gpulayer_on_event=gpulayer_on_event)


def plugin(test):
    return given(PluginContract, "plugin", test)


def registering(things):
    @hookimpl
    def gpulayer_register_probes(ctx):
        return things()

    return {"gpulayer_register_probes": gpulayer_register_probes}


class PluginContractHere(PluginContract):
    @pytest.fixture
    def name(self, plugin):
        return getattr(plugin, "NAME", "mine")


def named_plugin(test):
    return given(PluginContractHere, "plugin", test)


@named_plugin("its_name_is_plain")
def PluginOfNoName():  # noqa: N802
    return module(NAME="My Plugin", **registering(list))


@plugin("can_be_a_plugin")
def PluginOfNoVersion():  # noqa: N802
    return module(GPULAYER_API=1.0, **registering(list))


@plugin("can_be_a_plugin")
def PluginOfLater():  # noqa: N802
    return module(GPULAYER_API="1.99", **registering(list))


@plugin("can_be_a_plugin")
def PluginOfFirstPlace():  # noqa: N802
    return module(GPULAYER_PRIORITY="first", **registering(list))


@plugin("can_be_a_plugin")
def PluginOfNothing():  # noqa: N802
    return module()


@plugin("can_be_a_plugin")
def PluginThatForgets():  # noqa: N802
    return module(gpulayer_register_probes=lambda ctx: [])


@plugin("can_be_a_plugin")
def PluginOfTomorrow():  # noqa: N802
    @hookimpl
    async def gpulayer_register_probes(ctx):
        return []

    return module(gpulayer_register_probes=gpulayer_register_probes)


@plugin("can_be_a_plugin")
def PluginOfDefaults():  # noqa: N802
    @hookimpl
    def gpulayer_register_probes(ctx=None):
        return []

    return module(gpulayer_register_probes=gpulayer_register_probes)


@plugin("hooks_promise")
def PluginOfWords():  # noqa: N802
    return module(**registering(lambda: ["a probe"]))


@plugin("hooks_promise")
def PluginOfTwins():  # noqa: N802
    return module(**registering(lambda: [GoodProbe(), GoodProbe()]))


@plugin("find_the_same")
def PluginOfWhims():  # noqa: N802
    count = itertools.count()

    def things():
        made = GoodProbe()
        made.name = f"good-{next(count)}"
        return [made]

    return module(**registering(things))


@plugin("prints_and_changes_nothing")
def PluginThatMovesIn():  # noqa: N802
    def things():
        os.environ["MINE"] = str(len(os.environ))
        return []

    return module(**registering(things))


@plugin("importing_it")
def PluginThatNobodyCanImport():  # noqa: N802
    return module(**registering(list))
