"""The contract of probes, as tests."""

from collections.abc import Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import ClassVar

import pytest
from pydantic import TypeAdapter

from gpulayer.plugins.contracts.probe import PROBE_DEADLINE_S, Findings, Probe, ProbeSite
from gpulayer.spec.capabilities import is_plain_name
from gpulayer.spec.request import DEVICE_KINDS
from gpulayer.testing.contracts.contract import Ask, SharedContract, check_plain_name, within
from gpulayer.wire.facts import facts_to_wire
from gpulayer.wire.workers import WorkerFactsFields
from gpulayer.worker.facts import combine
from gpulayer.worker.findings import checked_findings

__all__ = ["ProbeContract"]


class ProbeContract(SharedContract):
    """``class TestMine(ProbeContract)`` with a fixture ``probe``.

    ``environment``: of the worker that it is to find something on; override it where the probe reads variables.
    """

    deadline_s: ClassVar[float] = PROBE_DEADLINE_S

    @pytest.fixture
    def probe(self) -> Probe:
        raise NotImplementedError("a fixture `probe` gives the probe to be tested")

    @pytest.fixture
    def environment(self) -> Mapping[str, str]:
        return {"PATH": "/usr/bin:/bin"}

    @pytest.fixture
    def site(self, tmp_path: Path, environment: Mapping[str, str]) -> ProbeSite:
        work_dir = tmp_path / "work"
        work_dir.mkdir()
        return ProbeSite(work_dir, environment)

    @pytest.fixture
    def ask(self, probe: Probe, site: ProbeSite) -> Ask:
        return lambda: probe.look(site)

    def test_it_is_a_probe_with_a_plain_name(self, probe: Probe) -> None:
        assert isinstance(probe, Probe), "a probe has a name and a method look"
        check_plain_name(probe.name)
        assert probe.name == probe.name, "its name changes"

    def test_it_gives_findings(self, ask: Ask) -> None:
        found = within(self.deadline_s, ask)
        assert isinstance(found, Findings), f"look gave a {type(found).__name__}"

    def test_what_it_finds_can_be_reported(self, ask: Ask) -> None:
        """As the worker checks it, and the control plane after that."""
        found = self._found(ask)
        facts = combine([found], version="0.1.0", labels=())
        TypeAdapter(WorkerFactsFields).validate_python(facts_to_wire(facts), strict=True)

    def test_devices_are_told_apart_and_are_of_a_known_kind(self, ask: Ask) -> None:
        devices = within(self.deadline_s, ask).devices
        uuids = [device.uuid for device in devices]
        assert all(uuids), "a device without a uuid can't be lent"
        assert len(uuids) == len(set(uuids)), "two devices of one uuid"
        for device in devices:
            assert device.kind in DEVICE_KINDS, f"{device.kind} is no kind of a device"

    def test_processes_are_on_devices_that_it_finds(self, ask: Ask) -> None:
        found = self._found(ask)
        uuids = {device.uuid for device in found.devices}
        for process in found.processes or ():
            assert process.device in uuids, f"process {process.pid} is on device {process.device}, which is not found"

    def test_resources_are_counted_by_plain_names(self, ask: Ask) -> None:
        resources = within(self.deadline_s, ask).resources
        names = [name for name, _ in resources]
        assert len(names) == len(set(names)), "a resource is named twice"
        for name, count in resources:
            assert is_plain_name(name), f"{name!r} can't name a resource"
            assert isinstance(count, int), f"{name}: {count!r} is no count"
            assert count >= 1, f"{name}: what there is none of is left out"

    def test_a_second_look_at_the_same_machine_finds_the_same(self, ask: Ask) -> None:
        """But for what others use up or free meanwhile. What differs at each look would be reported at each look."""
        first, second = _lasting(self._found(ask)), _lasting(self._found(ask))
        for part in fields(Findings):
            assert getattr(first, part.name) == getattr(second, part.name), f"its {part.name} differ at a second look"

    def test_an_empty_environment_is_no_error(self, probe: Probe, site: ProbeSite) -> None:
        found = within(self.deadline_s, lambda: probe.look(ProbeSite(site.work_dir, {})))
        assert isinstance(found, Findings), "a machine without what it looks for gives no findings; that is no error"

    def test_it_changes_nothing_where_it_looks(self, ask: Ask, site: ProbeSite) -> None:
        before = dict(site.environment)
        within(self.deadline_s, ask)
        assert list(site.work_dir.iterdir()) == [], "it left files on the disk of the jobs"
        assert dict(site.environment) == before, "it changed the worker's environment"

    def _found(self, ask: Ask) -> Findings:
        return within(self.deadline_s, lambda: checked_findings(ask()))


def _lasting(found: Findings) -> Findings:
    devices = tuple(device.without_flowing_figures() for device in found.devices)
    return replace(found, disk_bytes=None, devices=devices, processes=None)
