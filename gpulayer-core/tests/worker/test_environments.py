"""Environments: planned, built once for each key, shared, kept; and who is to blame when one can't be made."""

import asyncio
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from gpulayer.clock import ManualClock, SystemClock
from gpulayer.errors import Blame, DiskFull, PluginResting
from gpulayer.ids import Digest, Epoch, JobId
from gpulayer.plugins import BuildFailed, Environment, EnvironmentPlan
from gpulayer.plugins.builtin.system import SystemEnvironment
from gpulayer.spec.assignment import Assignment, NodeKey
from gpulayer.spec.machine import WorkerFacts
from gpulayer.spec.outcome import EndedBy
from gpulayer.worker import environments as module
from gpulayer.worker.environments import Builds, Environments
from gpulayer.worker.patience import Patience
from gpulayer.worker.unready import Unready

FACTS = WorkerFacts(platform="linux-x86_64", version="0", cpus=8, memory_bytes=1)
SOURCE = Digest("0" * 64)
WAIT_S = 30


def job(epoch=1, name="mine", *, source=SOURCE):
    return Assignment(
        key=NodeKey(Epoch(epoch), 0),
        job_id=JobId("j"),
        attempt=1,
        command=("true",),
        source=source,
        environment=name,
    )


class Builder:
    """Its plan's key is what ``key`` in the work folder says; counts its calls."""

    name = "mine"

    def __init__(self, build=lambda plan, site: {"BUILT": plan.key}):
        self._build = build
        self.planned = []
        self.built = []

    def plan(self, request):
        self.planned.append(request.work_dir)
        file = request.work_dir / "key"
        return EnvironmentPlan(key=file.read_text() if file.exists() else "")

    def build(self, plan, site):
        self.built.append((site.folder, sorted(path.name for path in site.folder.iterdir())))
        return Environment(self._build(plan, site))


@pytest.fixture
def folder(tmp_path):
    made = tmp_path / "work"
    made.mkdir()
    (made / "key").write_text("k1")
    return made


@pytest.fixture
def world(host_of, tmp_path):
    """``world(main, builder, …)``: ``main`` gets a function that makes environments, as each life of a worker does."""

    def run(main, *builders, **environment):
        async def play():
            lives, builds = [], Builds()

            def life():
                host = host_of(environments=builders)
                patience = Patience(host, SystemClock(), pauses_ms=(0,))
                lives.append(Environments(host, patience, builds, tmp_path / "w", environment=environment, start=start))
                return lives[-1]

            def start(work, name):
                return asyncio.create_task(work, name=name)

            try:
                await main(life)
            finally:
                for one in lives:
                    one.close()

        asyncio.run(play())

    return run


def test_equal_keys_share_one_build_and_it_is_used_again_in_the_next_life(world, folder):
    builder = Builder()

    async def main(life):
        one = life()
        made = await asyncio.gather(*(one.of(job(epoch), folder, FACTS) for epoch in range(5)))
        assert [dict(each.variables) for each in made] == [{"BUILT": "k1"}] * 5
        assert len(builder.built) == 1
        assert dict((await life().of(job(9), folder, FACTS)).variables) == {"BUILT": "k1"}
        assert len(builder.built) == 1
        (folder / "key").write_text("k2")
        assert dict((await one.of(job(10), folder, FACTS)).variables) == {"BUILT": "k2"}
        assert len({where for where, _ in builder.built}) == 2

    world(main, builder)


def test_one_attempt_has_one_environment_until_it_is_forgotten(world, folder):
    builder = Builder()

    async def main(life):
        one = life()
        first = await one.of(job(), folder, FACTS)
        (folder / "key").write_text("k2")
        assert await one.of(job(), folder, FACTS) is first
        one.forget(job().key)
        assert await one.of(job(), folder, FACTS) is not first

    world(main, builder)


def test_a_half_built_folder_is_emptied_and_built_again(world, folder):
    def build(plan, site):
        (site.folder / "half").touch()
        if len(builder.built) == 1:
            raise BuildFailed("the index is away", is_users=False)
        return {}

    builder = Builder(build)

    async def main(life):
        one = life()
        with pytest.raises(Unready) as failed:
            await one.of(job(), folder, FACTS)
        assert (failed.value.ended_by, failed.value.blame) == (EndedBy.ENVIRONMENT, Blame.INFRASTRUCTURE)
        await one.of(job(), folder, FACTS)
        assert [found for _, found in builder.built] == [[], []]

    world(main, builder)


def test_another_path_of_the_worker_is_another_build(world, folder):
    builder = Builder()

    async def main(life):
        await life().of(job(), folder, FACTS)

    world(main, builder, PATH="/one", INVOCATION_ID="1")
    world(main, builder, PATH="/one", INVOCATION_ID="2")
    world(main, builder, PATH="/two")
    assert len(builder.built) == 2


def test_who_has_no_source_is_planned_for_once_and_nothing_is_built_for_an_empty_key_twice(world, folder):
    (folder / "key").unlink()
    builder = Builder()

    async def main(life):
        one = life()
        for epoch in range(5):
            await one.of(job(epoch, source=None), folder, FACTS)
        assert (len(builder.planned), len(builder.built)) == (1, 1)
        await one.of(job(9), folder, FACTS)
        assert (len(builder.planned), len(builder.built)) == (2, 1)
        await one.of(job(10), folder, replace(FACTS, cpus=1))  # another machine
        assert len(builder.built) == 2

    world(main, builder)


def test_a_build_that_fails_is_the_users_with_its_last_lines_and_other_failures_are_the_plugins(world, folder):
    def fails(plan, site):
        for number in range(100):
            site.log(f"line {number}")
        site.log("\0" + "x" * 10_000)
        site.log(7)
        raise BuildFailed("no such package", hint="check its name")

    async def main(life):
        with pytest.raises(Unready) as failed:
            await life().of(job(), folder, FACTS)
        assert (failed.value.ended_by, failed.value.blame) == (EndedBy.ENVIRONMENT, Blame.USER)
        assert failed.value.evidence.startswith(
            "environment mine can't be made\nno such package\ncheck its name\nline 82\nline 83"
        )
        assert len(failed.value.evidence) < 4_100

    world(main, Builder(fails))

    for wrong in (lambda plan, site: 1 / 0, lambda plan, site: {"A": 1}, lambda plan, site: None):

        async def main(life):
            with pytest.raises(Unready) as failed:
                await life().of(job(), folder, FACTS)
            assert (failed.value.ended_by, failed.value.blame) == (EndedBy.ENVIRONMENT, Blame.PLUGIN)

        world(main, Builder(wrong))


def test_a_full_disk_is_told_as_one(world, folder):
    def full(plan, site):
        raise OSError(28, "No space left on device")

    async def main(life):
        with pytest.raises(DiskFull):
            await life().of(job(), folder, FACTS)

    world(main, Builder(full))


@pytest.mark.parametrize(
    "plan", [None, EnvironmentPlan(key=7), EnvironmentPlan(key="k" * 2_000), EnvironmentPlan(steps=([],))], ids=str
)
def test_a_plan_that_is_none_is_the_plugins(world, folder, plan):
    builder = Builder()
    builder.plan = lambda request: plan

    async def main(life):
        with pytest.raises(Unready) as failed:
            await life().of(job(), folder, FACTS)
        assert failed.value.blame is Blame.PLUGIN

    world(main, builder)


def test_an_environment_that_is_not_here_any_more_is_this_workers_lack(world, folder):
    async def main(life):
        with pytest.raises(Unready) as failed:
            await life().of(job(name="other"), folder, FACTS)
        assert (failed.value.ended_by, failed.value.blame) == (EndedBy.ENVIRONMENT, Blame.INFRASTRUCTURE)

    world(main, Builder())


def test_a_build_is_told_when_the_last_who_wanted_it_has_gone_and_made_anew_for_who_comes_then(world, folder):
    begun, told, go = threading.Event(), threading.Event(), threading.Event()

    def build(plan, site):
        if len(builder.built) > 1:
            return {"TRY": "2"}
        begun.set()
        while not site.is_cancelled():
            assert not go.wait(0.01)
        told.set()
        assert go.wait(WAIT_S)
        raise BuildFailed("given up")

    builder = Builder(build)

    async def main(life):
        one = life()
        waiting = [asyncio.create_task(one.of(job(epoch), folder, FACTS)) for epoch in (1, 2)]
        assert await asyncio.to_thread(begun.wait, WAIT_S)
        waiting[0].cancel()
        await asyncio.sleep(0)
        assert not told.is_set()
        waiting[1].cancel()
        assert await asyncio.to_thread(told.wait, WAIT_S)
        late = asyncio.create_task(one.of(job(3), folder, FACTS))
        await asyncio.sleep(0)
        go.set()
        assert dict((await late).variables) == {"TRY": "2"}
        assert [found for _, found in builder.built] == [[], []]

    world(main, builder)


async def when_free(environments, assignment, folder):
    while True:
        try:
            return await environments.of(assignment, folder, FACTS)
        except PluginResting as resting:
            await environments.until_free(assignment, resting)


def test_who_comes_while_a_build_goes_on_that_did_not_come_back_in_time_waits_for_its_end(world, folder, monkeypatch):
    monkeypatch.setattr(module, "ENVIRONMENT_DEADLINE_S", 0.2)
    go = threading.Event()

    def build(plan, site):
        go.wait(WAIT_S)
        return {"LATE": "1"}

    builder = Builder(build)

    async def main(life):
        one = life()
        with pytest.raises(Unready) as late:
            await one.of(job(), folder, FACTS)
        assert late.value.blame is Blame.PLUGIN
        with pytest.raises(PluginResting, match="an earlier build of the same has not ended yet"):
            await one.of(job(2), folder, FACTS)
        waiting = asyncio.create_task(when_free(one, job(2), folder))
        await asyncio.sleep(0)
        assert len(builder.built) == 1
        go.set()
        assert dict((await waiting).variables) == {"LATE": "1"}
        assert len(builder.built) == 1

    world(main, builder)


@pytest.mark.parametrize("ends_well", [True, False])
def test_a_build_of_an_earlier_life_of_the_agent_is_waited_for_and_never_mixed_up_with_the_next(
    world, folder, ends_well
):
    """An agent that joins again has environments of its own, while the thread of the old build goes on."""
    begun, go = threading.Event(), threading.Event()
    at_work = []

    def build(plan, site):
        at_work.append(site.folder)
        number = len(builder.built)
        (site.folder / f"one {number}").touch()
        if number == 1:
            begun.set()
            assert go.wait(WAIT_S)
        assert at_work == [site.folder], "two builds of one key, side by side"
        (site.folder / f"two {number}").touch()
        at_work.remove(site.folder)
        if number == 1 and not ends_well:
            raise BuildFailed("given up")
        return {"AT": str(site.folder)}

    builder = Builder(build)

    async def main(life):
        first = life()
        waiting = asyncio.create_task(first.of(job(), folder, FACTS))
        assert await asyncio.to_thread(begun.wait, WAIT_S)
        waiting.cancel()
        first.close()
        late = asyncio.create_task(when_free(life(), job(), folder))
        await asyncio.sleep(0.05)
        assert len(builder.built) == 1
        go.set()
        at = Path((await late).variables["AT"])
        assert at.is_dir()
        number = len(builder.built)
        assert number == (1 if ends_well else 2)
        assert sorted(path.name for path in at.iterdir()) == [f"one {number}", f"two {number}"]
        assert dict((await life().of(job(), folder, FACTS)).variables) == {"AT": str(at)}

    world(main, builder)


def test_what_still_writes_into_the_folder_of_a_build_that_failed_is_not_in_the_way_of_the_next(world, folder):
    places = []

    def build(plan, site):
        places.append(site.folder)
        if len(places) == 1:
            raise BuildFailed("its child goes on", is_users=False)
        places[0].mkdir(exist_ok=True)
        (places[0] / "stray").touch()
        return {}

    async def main(life):
        one = life()
        with pytest.raises(Unready):
            await one.of(job(), folder, FACTS)
        await one.of(job(), folder, FACTS)
        assert places[0] != places[1]
        assert list(places[1].iterdir()) == []

    world(main, Builder(build))


def test_what_is_wrong_with_our_own_disk_is_not_the_builders(world, folder, monkeypatch):
    def fails(*_):
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(module, "_fresh", fails)
    builder = Builder()

    async def main(life):
        one = life()
        with pytest.raises(OSError, match="Input/output error"):
            await one.of(job(), folder, FACTS)
        assert one._host._guard.faults_of("mine")[0] == 0

    world(main, builder)


def test_no_code_of_a_plugin_is_in_a_plan_that_is_compared(world, folder):
    class Step:
        def __hash__(self):
            raise AssertionError("outside of the guard")

    class Word(str):
        __slots__ = ()

        def __hash__(self):
            raise AssertionError("outside of the guard")

        def __str__(self):
            return self

    builder = Builder()

    async def main(life):
        one = life()
        builder.plan = lambda request: EnvironmentPlan(steps=(Step(),))
        with pytest.raises(Unready) as failed:
            await one.of(job(), folder, FACTS)
        assert failed.value.blame is Blame.PLUGIN
        builder.plan = lambda request: EnvironmentPlan(steps=((Word("pip"), "install"),))
        await one.of(job(), folder, FACTS)
        assert {type(word) for _, plan in one._made for step in plan.steps for word in step} == {str}

    world(main, builder)


def test_a_build_that_says_too_much_fills_no_log_and_its_secrets_are_not_in_it(
    host_of, tmp_path, folder, caplog, monkeypatch
):
    monkeypatch.setattr(module, "_LOGGED_BYTES", 1_000)
    caplog.set_level("INFO", logger="gpulayer")

    def fails(plan, site):
        site.log("with \u202e and opensesame" + " x" * 300)
        for number in range(1_000):
            site.log(f"line {number}")
        site.log("at the end opensesame")
        raise BuildFailed("no")

    host = host_of(environments=[Builder(fails)], options={"mine": {"token": "opensesame"}})

    async def main():
        start = lambda work, name: asyncio.create_task(work)  # noqa: E731
        patience = Patience(host, SystemClock())
        one = Environments(host, patience, Builds(), tmp_path / "w", environment={}, start=start)
        with pytest.raises(Unready) as failed:
            await one.of(job(), folder, FACTS)
        assert failed.value.evidence.endswith("line 999\nat the end ***")

    asyncio.run(main())
    assert len(caplog.text) < 10_000
    assert "with   and ***" in caplog.text
    assert "what else this build says is not kept here" in caplog.text
    assert "opensesame" not in caplog.text


def test_a_builder_that_has_just_failed_is_not_asked_and_that_is_no_failure_of_an_attempt(host_of, tmp_path, folder):
    is_away = True

    def build(plan, site):
        if is_away:
            raise BuildFailed("the index is away", is_users=False)
        return {"BUILT": "1"}

    builder = Builder(build)
    host = host_of(environments=[builder])

    async def main():
        nonlocal is_away
        clock = ManualClock()
        start = lambda work, name: asyncio.create_task(work)  # noqa: E731
        patience = Patience(host, clock)
        one = Environments(host, patience, Builds(), tmp_path / "w", environment={}, start=start)
        with pytest.raises(Unready):
            await one.of(job(), folder, FACTS)
        is_away = False
        for epoch in (2, 3):
            with pytest.raises(PluginResting):
                await one.of(job(epoch), folder, FACTS)
        assert len(builder.built) == 1
        waiting = asyncio.create_task(when_free(one, job(2), folder))
        clock.advance(1_000)
        assert dict((await waiting).variables) == {"BUILT": "1"}

    asyncio.run(main())


def test_an_overloaded_machine_is_no_fault_of_the_system_environment(host_of, tmp_path, folder, monkeypatch):
    monkeypatch.setattr(module, "ENVIRONMENT_PLAN_DEADLINE_S", 0.01)

    class Stalls(SystemEnvironment):
        def plan(self, request):
            threading.Event().wait(0.1)
            return super().plan(request)

    host = host_of(environments=[Stalls()])

    async def main():
        one = Environments(host, Patience(host, SystemClock()), Builds(), tmp_path, environment={}, start=None)
        for epoch in range(3):
            assert (await one.of(job(epoch, ""), folder, FACTS)).variables["PATH"]

    asyncio.run(main())
