"""Facts of a machine out of what several probes find, whatever they say."""

import asyncio
import json
import threading
from dataclasses import replace

import pytest

from gpulayer.clock import ManualClock, SystemClock
from gpulayer.plugins.contracts.probe import Findings, ProbeSite
from gpulayer.plugins.record import PluginRecord
from gpulayer.spec.machine import Device, DeviceState, Framework, Locality
from gpulayer.spec.request import Accelerator
from gpulayer.wire.facts import facts_from_wire, facts_to_wire
from gpulayer.worker.facts import KnownFacts, Probing, combine, devices_of
from gpulayer.worker.findings import checked_findings
from gpulayer.worker.kept import KeptFindings

GPU = Device("GPU-1", 0, Accelerator.CUDA, "H100")


class Says:
    """A probe that gives these answers, one a look, and the last one again; exceptions are raised."""

    def __init__(self, name, *answers):
        self.name = name
        self.answers = list(answers)

    def look(self, site):
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer


@pytest.fixture
def probing(host_of, tmp_path):
    def make(*probes, labels=()):
        return Probing(host_of(probes=probes), ProbeSite(tmp_path, {}), version="1", labels=labels, clock=SystemClock())

    return make


def test_the_first_that_knows_is_believed_and_devices_add_up():
    one, two = (Device(f"GPU-{index}", index, Accelerator.CUDA, "H100") for index in (1, 2))
    facts = combine(
        [
            Findings(devices=(one,), labels=(("a", "found"), ("b", "first")), resources=(("licence", 2),)),
            Findings(platform="linux-x86_64", cpus=4, memory_bytes=8, disk_bytes=12_345_678_901, devices=(two,)),
            Findings(platform="other", cpus=9, locality=Locality(zone="z"), labels=(("b", "later"),)),
            Findings(resources=(("board", 0), ("licence", 9))),
        ],
        version="1",
        labels=(("a", "given"),),
    )
    assert (facts.platform, facts.cpus, facts.memory_bytes, facts.disk_bytes) == ("linux-x86_64", 4, 8, 12_000_000_000)
    assert facts.devices == (one, two)
    assert facts.labels == (("a", "given"), ("b", "first"))
    assert facts.locality.zone == "z"
    assert facts.resources == (("licence", 2),)  # of what there is none, nothing is told


def test_where_a_worker_stands_is_as_its_owner_says_before_it_is_as_it_was_found():
    found = [
        Findings(locality=Locality(network_group="rack-7")),
        Findings(locality=Locality(zone="us-central1-a", region="us-central1")),
        Findings(locality=Locality(zone="elsewhere-1", region="elsewhere", network_group="other")),
    ]
    assert combine(found, version="1", labels=()).locality == Locality("us-central1-a", "us-central1", "rack-7")
    told = (("gpulayer.dev/network-group", "cellar"), ("gpulayer.dev/region", "home"), ("gpulayer.dev/zone", ""))
    facts = combine(found, version="1", labels=told)
    assert facts.locality == Locality("", "home", "cellar")
    assert facts.labels == told, "they are labels like all others, too"
    assert combine([], version="1", labels=told[:1]).locality == Locality(network_group="cellar")


def test_a_label_that_a_probe_found_says_nothing_of_where_a_worker_stands():
    found = [Findings(labels=(("gpulayer.dev/zone", "found"),), locality=Locality(zone="z"))]
    assert combine(found, version="1", labels=()).locality == Locality("z")


def test_a_broken_probe_costs_its_own_findings_alone(probing, caplog):
    broken, works = Says("broken", RuntimeError("no driver")), Says("works", Findings(platform="p", cpus=3))
    facts = asyncio.run(probing(broken, works).look())
    assert (facts.platform, facts.cpus) == ("p", 3)
    assert "plugin broken failed" in caplog.text


def test_a_probe_that_fails_now_keeps_what_it_found_last(probing):
    async def main():
        looks = probing(Says("flaky", Findings(devices=(GPU,)), OSError("busy"), Findings()))
        assert [(await looks.look()).devices for _ in range(2)] == [(GPU,), (GPU,)]
        (gone,) = (await looks.look()).devices
        assert (gone.uuid, gone.state, gone.reason) == (GPU.uuid, DeviceState.UNHEALTHY, "it is not found any more")

    asyncio.run(main())


def test_a_device_that_two_probes_find_is_the_first_ones_and_that_is_said_once(probing, caplog):
    async def main():
        looks = probing(Says("one", Findings(devices=(GPU,))), Says("two", Findings(devices=(replace(GPU, index=7),))))
        assert [(await looks.look()).devices for _ in range(2)] == [(GPU,), (GPU,)]

    asyncio.run(main())
    assert caplog.text.count("device GPU-1 is found by plugins one and two") == 1


LIES = {
    "no findings": None,
    "a dictionary": {"cpus": 1},
    "no devices": Findings(cpus="4"),
    "cpus that are true": Findings(cpus=True),
    "less than none": Findings(memory_bytes=-1),
    "more than any": Findings(disk_bytes=2**70),
    "a text of a megabyte": Findings(platform="x" * 1_000_000),
    "a NUL": Findings(labels=(("a", "b\0"),)),
    "half a character": Findings(labels=(("a", "\ud800"),)),
    "a device that is a text": Findings(devices=("GPU",)),
    "a text of devices": Findings(devices="GPU"),
    "a device without a name": Findings(devices=(replace(GPU, uuid=""),)),
    "a device twice": Findings(devices=(GPU, GPU)),
    "a device of a kind that is a word": Findings(devices=(replace(GPU, kind="cuda"),)),
    "a device of any kind": Findings(devices=(replace(GPU, kind=Accelerator.ANY),)),
    "a state that is a word": Findings(devices=(replace(GPU, state="usable"),)),
    "a link of one": Findings(devices=(replace(GPU, links=(("GPU-2",),)),)),
    "a number of a device": Findings(devices=(replace(GPU, index=-1),)),
    "too many devices": Findings(devices=tuple(replace(GPU, uuid=str(index)) for index in range(1025))),
    "devices without end": Findings(devices=(replace(GPU, uuid=str(index)) for index in iter(int, 1))),
    "too many labels": Findings(labels=tuple((str(index), "") for index in range(65))),
    "an address that is a name": Findings(addresses=("example.org",)),
    "a framework that may be usable": Findings(frameworks=(Framework("torch", "2", Accelerator.CUDA, usable=1),)),
    "a framework of a thousand architectures": Findings(
        frameworks=(Framework("torch", "2", Accelerator.CUDA, usable=True, architectures=("sm_90",) * 1000),)
    ),
    "a build without end": Findings(
        frameworks=(Framework("torch", "2", Accelerator.CUDA, usable=True, build="x" * 65),)
    ),
    "a resource in capitals": Findings(resources=(("MATLAB", 1),)),
    "less than no licences": Findings(resources=(("matlab", -1),)),
    "half a licence": Findings(resources=(("matlab", 0.5),)),
    "a zone that is a number": Findings(locality=Locality(zone=7)),
}


@pytest.mark.parametrize("lie", LIES.values(), ids=LIES)
def test_findings_that_cannot_be_are_no_findings(lie):
    with pytest.raises((TypeError, ValueError)):
        checked_findings(lie)


def test_a_probe_that_lies_costs_its_own_findings_alone_and_the_report_stays_whole(probing):
    lies = [Says(f"liar-{number}", lie) for number, lie in enumerate(LIES.values())]
    facts = asyncio.run(probing(*lies, Says("honest", Findings(cpus=3, devices=(GPU,)))).look())
    assert (facts.cpus, facts.devices, facts.labels) == (3, (GPU,), ())
    assert facts_from_wire(facts_to_wire(facts)) == facts


def test_honest_findings_come_through_as_they_are():
    honest = Findings(
        platform="linux-x86_64",
        cpus=4,
        memory_bytes=0,
        disk_bytes=7,
        devices=(replace(GPU, memory_bytes=5, state=DeviceState.BUSY, reason="x", links=(("GPU-2", "nvlink"),)),),
        frameworks=(
            Framework("torch", "2.4", Accelerator.CPU, usable=True, build="cpu", architectures=("x",)),
            Framework("jax", "0.4", Accelerator.CUDA, usable=True, failed_on=(("GPU-0", "no kernel image"),)),
            Framework("cupy", "", Accelerator.CUDA, usable=False, reason="its devices are in use", is_pending=True),
        ),
        labels=(("größe", "ü"),),
        locality=Locality(zone="z"),
        addresses=("10.0.0.1", "fd00::1"),
        resources=(("matlab", 0),),
    )
    assert checked_findings(honest) == honest


def test_several_probes_together_find_no_more_than_a_report_holds(probing):
    def many(name):
        devices = tuple(replace(GPU, uuid=f"{name}-{index}") for index in range(1000))
        labels = tuple((f"{name}-{index}", "") for index in range(60))
        return Says(name, Findings(devices=devices, labels=labels, addresses=("10.0.0.1",) * 60))

    facts = asyncio.run(probing(many("a"), many("b"), labels=(("mine", "1"),)).look())
    assert (len(facts.devices), len(facts.labels), len(facts.addresses)) == (1024, 64, 64)
    assert facts.devices[0].uuid == "a-0"
    assert ("mine", "1") in facts.labels


def test_the_address_that_reached_the_control_plane_stays_first_and_a_change_is_news_once(probing):
    async def main():
        looks = probing(Says("reaches", Findings(addresses=("10.0.0.5", "192.168.1.7"))))
        known = KnownFacts(await looks.look(), looks)
        assert known.facts.addresses == ("10.0.0.5", "192.168.1.7")
        assert known.set_addresses(("10.0.0.5", "192.168.1.7"), own="192.168.1.7")
        assert known.facts.addresses == ("192.168.1.7", "10.0.0.5")
        assert not await known.look_again()
        assert not known.set_addresses(("10.0.0.5", "192.168.1.7"), own="")
        assert known.set_addresses(("10.0.0.6",), own="10.0.0.6")
        assert known.facts.addresses == ("10.0.0.6",)

    asyncio.run(main())


def test_what_a_check_computed_is_believed_before_what_a_probe_found(probing):
    async def main():
        found = Framework("torch", "2.3", Accelerator.CPU, usable=True)
        other = Framework("jax", "0.4", Accelerator.CPU, usable=True)
        computed = Framework("torch", "2.4", Accelerator.CPU, usable=False, reason="no")
        looks = probing(Says("probe", Findings(frameworks=(found, other))))
        known = KnownFacts(await looks.look(), looks)
        assert known.facts.frameworks == (found, other)
        assert known.set_frameworks([computed])
        assert not known.set_frameworks([computed])
        assert known.set_frameworks([computed], python="/opt/venv/bin/python3"), "others see whose frameworks they are"
        assert not await known.look_again()
        assert known.facts.frameworks == (computed, other)
        assert known.facts.python == "/opt/venv/bin/python3"

    asyncio.run(main())


@pytest.mark.parametrize("path", ["/opt/bad\udcff/python3", "/opt/two\nlines/python3", "/" + "x" * 5000])
def test_a_python_whose_path_no_report_can_carry_is_left_out(probing, path):
    async def main():
        looks = probing(Says("probe", Findings()))
        return KnownFacts(await looks.look(), looks, python=path).facts.python

    assert asyncio.run(main()) == ""


def test_devices_are_the_same_ones_while_only_their_free_memory_changes():
    def facts(device):
        return combine([Findings(devices=(device,))], version="1", labels=())

    assert devices_of(facts(GPU)) == devices_of(facts(replace(GPU, memory_free_bytes=3)))
    assert devices_of(facts(GPU)) != devices_of(facts(replace(GPU, state=DeviceState.UNHEALTHY)))


WARM = replace(GPU, memory_bytes=80 * 2**30, memory_free_bytes=79 * 2**30 + 5, temperature_c=40, use_percent=1)
HOT = replace(WARM, memory_free_bytes=2**30 + 5, temperature_c=80, use_percent=99)


def test_what_always_moves_is_no_news_and_makes_no_facts_of_their_own(host_of, tmp_path):
    async def main():
        clock = ManualClock()
        host = host_of(probes=[Says("driver", *(Findings(devices=(gpu,), processes=()) for gpu in (WARM, HOT)))])
        looks = Probing(host, ProbeSite(tmp_path, {}), version="1", labels=(), clock=clock)
        known = KnownFacts(await looks.start(), looks)
        told = known.facts
        assert told.devices == (replace(GPU, memory_bytes=80 * 2**30, memory_free_bytes=79 * 2**30),)
        assert known.seen.devices == (WARM,), "for who asks this machine itself"
        assert not await known.look_again()
        assert not await known.look_at([GPU.uuid])
        assert (known.facts, known.seen.devices) == (told, (HOT,))
        assert known.set_enforced(["memory"]), "free memory goes with what is news"
        assert known.facts.devices[0].memory_free_bytes == 2**30

    asyncio.run(main())


def test_free_memory_is_told_by_itself_every_ten_minutes_at_most(host_of, tmp_path):
    async def main():
        clock = ManualClock()
        found = [Findings(devices=(gpu,), processes=()) for gpu in (WARM, HOT, HOT, WARM)]
        looks = Probing(
            host_of(probes=[Says("driver", *found)]), ProbeSite(tmp_path, {}), version="1", labels=(), clock=clock
        )
        known = KnownFacts(await looks.start(), looks)
        clock.advance(599_999)
        assert not await known.look_again()
        clock.advance(1)
        assert await known.look_again()
        assert known.facts.devices[0].memory_free_bytes == 2**30
        assert not await known.look_again()

    asyncio.run(main())


class Hangs:
    """A probe that answers when it is let, with what it found."""

    name = "hangs"

    def __init__(self):
        self.go = threading.Event()

    def look(self, site):
        self.go.wait(30)
        return Findings(resources=(("licence", 3),))


def test_a_probe_that_was_late_at_a_start_is_waited_for_a_moment_at_the_next_and_what_it_finds_follows(
    host_of, tmp_path
):
    class Quick:
        name = "quick"

        def look(self, site):
            return Findings(cpus=4)

    clock, hangs = ManualClock(), Hangs()
    host = host_of(probes=[Hangs(), Quick()]), host_of(probes=[hangs, Quick()]), host_of(probes=[Hangs(), Quick()])
    site = ProbeSite(tmp_path, {})

    async def main():
        first = Probing(host[0], site, version="1", labels=(), clock=clock, deadline_s=0.1)
        assert (await first.start()).cpus == 4
        assert await first.catch_up() is None  # it had its time
        again = Probing(host[1], site, version="1", labels=(), clock=clock, deadline_s=30.0, moment_s=0.01)
        known = KnownFacts(await again.start(), again)
        assert (known.facts.cpus, known.facts.resources) == (4, ())
        hangs.go.set()
        assert await known.catch_up()
        assert known.facts.resources == (("licence", 3),)
        assert not await known.catch_up()
        await again.aclose()
        # It has answered: nothing is held against it any more.
        last = Probing(host[2], site, version="1", labels=(), clock=clock, deadline_s=0.1, moment_s=0.0)
        await last.start()
        assert await last.catch_up() is None

    asyncio.run(main())
    host[0].registry.probes[0].thing.go.set()
    host[2].registry.probes[0].thing.go.set()


def test_a_probe_that_is_late_is_waited_for_again_after_an_hour(host_of, tmp_path):
    clock, hangs = ManualClock(), Hangs()

    async def start():
        host = host_of(probes=[hangs])
        probing = Probing(
            host, ProbeSite(tmp_path, {}), version="1", labels=(), clock=clock, deadline_s=0.1, moment_s=0
        )
        try:
            await probing.start()
            return await probing.catch_up() is None
        finally:
            await probing.aclose()

    assert asyncio.run(start())
    clock.advance(1_800_000)
    assert not asyncio.run(start())
    clock.advance(1_800_000)
    assert asyncio.run(start())
    for text in ("[1]", '{"hangs": 1e999}', "[" * 100_000):
        (tmp_path / "late-probes.json").write_text(text)
        assert asyncio.run(start())
    hangs.go.set()


def test_a_start_that_is_given_up_leaves_no_look_behind(host_of, tmp_path):
    hangs = Hangs()

    async def main():
        probing = Probing(host_of(probes=[hangs]), ProbeSite(tmp_path, {}), version="1", labels=(), clock=ManualClock())
        starting = asyncio.create_task(probing.start())
        await asyncio.wait([starting], timeout=0.05)
        starting.cancel()
        await asyncio.gather(starting, return_exceptions=True)
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(main())
    hangs.go.set()


RICH = Findings(
    platform="linux-x86_64",
    cpus=4,
    devices=(replace(GPU, memory_bytes=5, state=DeviceState.BUSY, reason="x", links=(("GPU-2", "nvlink"),)),),
    frameworks=(
        Framework("torch", "2.4", Accelerator.CPU, usable=True, build="cpu", architectures=("x",)),
        Framework("jax", "0.4", Accelerator.CUDA, usable=True, failed_on=(("GPU-0", "no kernel image"),)),
        Framework("cupy", "", Accelerator.CUDA, usable=False, reason="its devices are in use", is_pending=True),
    ),
    labels=(("größe", "ü"),),
    locality=Locality(zone="z"),
    addresses=("10.0.0.1", "fd00::1"),
    resources=(("matlab", 2),),
)
KEPT = "found-by-probes.json"


@pytest.fixture
def start(host_of, tmp_path):
    """A life of a worker: its start, then one look for each further answer of the probe."""

    async def life(probing, looks):
        facts = [await probing.start()]
        facts += [await probing.look() for _ in range(looks)]
        return facts[-1]

    def run(*answers, clock, name="licences", is_builtin=False):
        host = host_of(probes=[Says(name, *answers)])
        if is_builtin:
            host.records = lambda: [PluginRecord(host.registry.probes[0].plugin, "gpulayer-core", is_builtin=True)]
        probing = Probing(host, ProbeSite(tmp_path, {}), version="1", labels=(), clock=clock)
        return asyncio.run(life(probing, len(answers) - 1))

    return run


def test_a_probe_that_fails_at_a_start_has_found_what_it_found_before_it(start):
    clock = ManualClock()
    found = start(RICH, clock=clock)
    assert found.resources == (("matlab", 2),)
    clock.advance(3_599_000)
    assert start(OSError("no server"), clock=clock) == found
    clock.advance(1_000)  # it has not been seen since
    assert start(OSError("no server"), clock=clock).resources == ()


def test_what_it_finds_at_a_start_is_believed_and_not_what_it_found_before(start):
    clock = ManualClock()
    start(RICH, clock=clock)
    assert start(Findings(cpus=2), clock=clock).resources == ()
    assert start(OSError("no server"), clock=clock).cpus == 2


def test_what_another_probe_or_one_of_ours_found_before_is_not_believed(start):
    clock = ManualClock()
    start(RICH, clock=clock)
    assert start(OSError("no server"), clock=clock, name="other").resources == ()
    assert start(OSError("no server"), clock=clock, is_builtin=True).resources == ()


def test_a_probe_that_is_late_at_a_start_has_found_what_it_found_before_it(host_of, tmp_path):
    clock, hangs = ManualClock(), Hangs()
    site = ProbeSite(tmp_path, {})

    async def main():
        hangs.go.set()
        first = Probing(host_of(probes=[hangs]), site, version="1", labels=(), clock=clock)
        assert (await first.start()).resources == (("licence", 3),)
        hangs.go.clear()
        late = Probing(host_of(probes=[hangs]), site, version="1", labels=(), clock=clock, deadline_s=0.1)
        assert (await late.start()).resources == (("licence", 3),)

    try:
        asyncio.run(main())
    finally:
        hangs.go.set()


@pytest.mark.parametrize("plugin", ["nvidia", "amd"])
def test_a_probe_of_ours_that_fails_at_a_start_says_why_there_is_no_device_until_it_answers(start, plugin):
    clock, kind = ManualClock(), {"nvidia": "cuda", "amd": "rocm"}[plugin]
    [(missing, why)] = start(ValueError("x\0y"), clock=clock, name=plugin, is_builtin=True).missing
    assert missing == kind
    assert why.startswith("looking for it failed: ")
    assert "ValueError" in why
    assert "\0" not in why
    assert start(ValueError("x"), Findings(), clock=clock, name=plugin, is_builtin=True).missing == ()
    assert start(ValueError("x"), clock=clock, name=plugin).missing == (), "an outside plugin may look for anything"


def test_a_device_that_is_missing_after_a_restart_is_told_of_and_the_others_keep_their_numbers(start):
    clock = ManualClock()
    one, two = (replace(GPU, uuid=f"GPU-{letter}", index=index) for index, letter in enumerate("ab"))
    assert start(Findings(devices=(one, two)), clock=clock).devices == (one, two)
    gone, left = start(Findings(devices=(replace(two, index=0),)), clock=clock).devices
    assert (gone.uuid, gone.index, gone.reason) == ("GPU-a", 0, "it is not found any more")
    assert (left.uuid, left.index, left.mask_index) == ("GPU-b", 1, 0)
    gone, left = start(OSError("late"), clock=clock, is_builtin=True).devices
    assert gone.reason == left.reason == "it is not found, and not every probe has answered since the worker's start"
    assert start(Findings(devices=(one, two)), clock=clock).devices == (one, two)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[1]",
        '{"licences": 1}',
        '{"KEY": [NOW, {"resources": [["matlab", 2]]}]}',
        '{"KEY": [NOW, {"platform": 7, "devices": [], "frameworks": [], "labels": [], "locality": null, '
        '"addresses": [], "resources": [["matlab", 2]]}]}',
        '{"KEY": [1e999, {}]}',
        "[" * 100_000,
    ],
)
def test_what_was_kept_and_cannot_be_was_never_kept(start, tmp_path, text):
    clock = ManualClock()
    start(RICH, clock=clock)
    (key,) = json.loads((tmp_path / KEPT).read_text())
    (tmp_path / KEPT).write_text(text.replace("KEY", key).replace("NOW", str(clock.wall_ms())))
    assert start(OSError("no server"), clock=clock).resources == ()


def test_what_probes_found_is_written_when_it_changes_or_gets_old_and_not_for_free_space(tmp_path):
    clock = ManualClock()
    kept = KeptFindings(tmp_path / KEPT, clock)

    def is_written(found):
        (tmp_path / KEPT).unlink(missing_ok=True)
        kept.keep("a probe", found)
        kept.write()
        return (tmp_path / KEPT).exists()

    assert is_written(RICH)
    clock.advance(60_000)
    assert not is_written(replace(RICH, disk_bytes=7, devices=(replace(RICH.devices[0], memory_free_bytes=1),)))
    assert is_written(replace(RICH, cpus=5))
    clock.advance(600_000)
    assert is_written(replace(RICH, cpus=5))


def test_findings_that_cannot_be_kept_cost_a_line(start, tmp_path, caplog):
    (tmp_path / KEPT).mkdir()
    assert start(RICH, clock=ManualClock()).cpus == 4
    assert "what probes found can't be kept" in caplog.text


def test_a_probe_that_fails_is_asked_again_soon_and_alone_then_with_all(probing):
    class Counts:
        name = "counts"
        looks = 0

        def look(self, site):
            self.looks += 1
            return Findings(cpus=4)

    async def main():
        counts = Counts()
        failure = OSError("no server")
        found = Findings(resources=(("matlab", 2),))
        looks = probing(counts, Says("licences", failure, failure, found, failure))
        known = KnownFacts(await looks.start(), looks)
        assert known.retry_in_s == 2.0
        assert not await known.retry()
        assert known.retry_in_s == 10.0
        assert await known.retry()
        assert known.facts.resources == (("matlab", 2),)
        assert (known.retry_in_s, counts.looks) == (None, 1)
        waits = []
        await known.look_again()
        while known.retry_in_s is not None:
            waits.append(known.retry_in_s)
            await known.retry()
        assert (waits, counts.looks) == ([2.0, 10.0], 2)

    asyncio.run(main())
