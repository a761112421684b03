"""Facts of a machine out of what several probes find."""

import asyncio

from gpulayer.plugins.contracts.probe import Findings, ProbeSite
from gpulayer.spec.machine import Device, Locality
from gpulayer.spec.request import Accelerator
from gpulayer.worker.facts import KnownFacts, combine, gather_facts


def test_the_first_that_knows_is_believed_and_devices_add_up():
    one, two = (Device(f"GPU-{index}", index, Accelerator.CUDA, "H100") for index in (1, 2))
    facts = combine(
        [
            Findings(devices=(one,), labels=(("a", "found"), ("b", "found"))),
            Findings(platform="linux-x86_64", cpus=4, memory_bytes=8, disk_bytes=12_345_678_901, devices=(two,)),
            Findings(platform="other", cpus=9, locality=Locality(zone="z")),
        ],
        version="1",
        labels=(("a", "given"),),
    )
    assert (facts.platform, facts.cpus, facts.memory_bytes, facts.disk_bytes) == ("linux-x86_64", 4, 8, 12_000_000_000)
    assert facts.devices == (one, two)
    assert facts.labels == (("a", "given"), ("b", "found"))
    assert facts.locality.zone == "z"


class Broken:
    name = "broken"

    def look(self, site):
        raise RuntimeError("no driver")


class Works:
    name = "works"

    def look(self, site):
        return Findings(platform="p", cpus=3)


def test_a_broken_probe_costs_its_own_findings_alone(tmp_path, caplog):
    facts = asyncio.run(gather_facts([Broken(), Works()], ProbeSite(tmp_path, {}), version="1", labels=()))
    assert (facts.platform, facts.cpus) == ("p", 3)
    assert "probe broken failed" in caplog.text


class Reaches:
    name = "reaches"

    def look(self, site):
        return Findings(addresses=("10.0.0.5", "192.168.1.7"))


def test_the_address_that_reached_the_control_plane_stays_first_and_a_change_is_news_once(tmp_path):
    async def main():
        site = ProbeSite(tmp_path, {})
        facts = await gather_facts([Reaches()], site, version="1", labels=())
        known = KnownFacts(facts, [Reaches()], site, version="1", labels=())
        assert known.facts.addresses == ("10.0.0.5", "192.168.1.7")
        assert known.set_addresses(("10.0.0.5", "192.168.1.7"), own="192.168.1.7")
        assert known.facts.addresses == ("192.168.1.7", "10.0.0.5")
        assert not await known.look_again()
        assert not known.set_addresses(("10.0.0.5", "192.168.1.7"), own="")
        assert known.set_addresses(("10.0.0.6",), own="10.0.0.6")
        assert known.facts.addresses == ("10.0.0.6",)

    asyncio.run(main())
