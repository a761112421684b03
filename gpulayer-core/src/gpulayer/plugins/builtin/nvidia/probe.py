"""The NVIDIA probe: asks NVML in a child, nvidia-smi where there is no NVML, nobody where nothing is NVIDIA's."""

import importlib.util
import logging
import os
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Final

from gpulayer.plugins.builtin.believable import words
from gpulayer.plugins.builtin.child import Child, Unanswered, Unstarted
from gpulayer.plugins.builtin.near import allowed_cores, with_near
from gpulayer.plugins.builtin.nvidia import nvml, smi
from gpulayer.plugins.builtin.nvidia.cards import Card, Reading, devices_of, processes_of
from gpulayer.plugins.builtin.nvidia.presence import Signs, signs_of
from gpulayer.plugins.builtin.nvidia.topo import Topology, with_topology
from gpulayer.plugins.builtin.nvidia.topology_asking import RememberedTopology, ask_topology
from gpulayer.plugins.builtin.nvidia.visibility import Offered, Visible, is_hidden, shown
from gpulayer.plugins.contracts.probe import Findings, ProbeSite
from gpulayer.spec.machine import Device

__all__ = ["NvidiaProbe"]

_log: Final = logging.getLogger(__name__)
_BUDGET_S: Final = 8.0  # of the ten that a probe has; a child that dies hard takes one more
_LEAST_S: Final = 0.1
_LEAST_FOR_LINKS_S: Final = 1.0
_KIND: Final = "cuda"
_PROGRAM: Final = Path(__file__).with_name("nvml_child.py")


class NvidiaProbe:
    """Blocks for as long as the driver takes, ``_BUDGET_S`` at most.

    root: where the machine's files are; with_nvml False: nvidia-smi alone is asked. Both for tests.
    """

    def __init__(
        self,
        *,
        root: Path = Path("/"),
        with_nvml: bool = True,
        budget_s: float = _BUDGET_S,
        child: Child | None = None,
    ) -> None:
        self._root = root
        self._with_nvml = with_nvml
        self._budget_s = budget_s
        self._child = child or Child()  # one for all: a driver that hangs has one stuck process
        self._is_told = False
        self._hidden = ""
        self._visible = Visible()
        self._topology = RememberedTopology()
        self._fields = list(smi.FIELDS)  # without those that this driver has refused

    @property
    def name(self) -> str:
        return "nvidia"

    def look(self, site: ProbeSite) -> Findings:
        signs = signs_of(site.environment, root=self._root)
        if not signs.is_any:
            return _none(signs.blocked) if signs.blocked else Findings()
        ends_s = time.monotonic() + self._budget_s
        try:
            reading = self._read(signs, site.environment, ends_s)
        except Unstarted as error:
            return _none(str(error))
        except Unanswered as error:
            self._tell_what_helps()
            return replace(_none(f"the driver does not answer: {error}"), is_silent=True)
        if not reading.cards:
            return _none(_why_none(reading, signs))
        offer = self._visible.offered(reading.cards, site.environment)
        self._tell_hidden(reading.cards, offer, site.environment)
        counted = {card.uuid: card.index for card in reversed(reading.cards) if card.uuid}
        devices = devices_of(reading)
        if offer.uuids is not None:
            devices = tuple(device for device in devices if device.uuid in offer.uuids)
        devices = self._joined(devices, counted, signs, site.environment, ends_s)
        processes = processes_of(reading)
        uuids = {device.uuid for device in devices}
        missing = self._hidden if devices else offer.why
        return Findings(
            devices=devices,
            processes=None if processes is None else tuple(one for one in processes if one.device in uuids),
            missing=((_KIND, words(missing)),) if missing else (),
        )

    def _joined(
        self,
        devices: tuple[Device, ...],
        counted: Mapping[str, int],
        signs: Signs,
        environment: Mapping[str, str],
        ends_s: float,
    ) -> tuple[Device, ...]:
        """With their links and what stands near. counted: as the tools count now. Asked once, until it is others."""

        def ask() -> Topology:
            nvml_links = _reader("links", signs) if self._with_nvml and sys.executable else ()
            left_s = max(_LEAST_S, ends_s - time.monotonic())
            return ask_topology(
                self._child, environment=environment, nvml=nvml_links, tool=signs.tool, deadline_s=left_s
            )

        # With less time than that they stay unknown until the next look.
        if len(counted) > 1 and ends_s - time.monotonic() > min(_LEAST_FOR_LINKS_S, self._budget_s / 4):
            devices = with_topology(devices, self._topology.of(counted, ask), indices=counted)
        return with_near(devices, allowed=allowed_cores(), sys_root=self._root / "sys")

    def _tell_hidden(self, cards: Sequence[Card], offer: Offered, environment: Mapping[str, str]) -> None:
        """Some are no devices of ours, or a name is nobody's: to the log, whenever it is others, and to people."""
        hidden = 0 if offer.uuids is None else sum(is_hidden(card, offer.uuids) for card in cards)
        told = f"{shown(environment)}: {hidden} of {len(cards)} NVIDIA GPUs are not offered" if hidden else ""
        stray = f"{offer.stray[:100]!r} names none of {len(cards)} NVIDIA GPUs" if offer.stray else ""
        told = "; ".join(part for part in (told, stray) if part)
        if told not in ("", self._hidden):
            _log.log(logging.WARNING if stray else logging.INFO, "%s", told)
        self._hidden = told

    def _tell_what_helps(self) -> None:
        """Once, and to the log: it is about the machine, and the reason goes to people who only run jobs there."""
        if self._is_told or (self._root / "run/nvidia-persistenced/socket").exists():
            return
        self._is_told = True
        _log.warning(
            "NVIDIA's driver does not answer in time: without nvidia-persistenced each question starts all cards anew, "
            "which may take long; start it"
        )

    def _read(self, signs: Signs, environment: Mapping[str, str], ends_s: float) -> Reading:
        """Raises Unanswered."""
        without = ""
        if self._with_nvml and sys.executable:
            try:
                return self._read_nvml(signs, environment, ends_s)
            except (nvml.NoNvml, Unstarted) as error:
                without = str(error)
        if signs.tool:
            return self._read_smi(signs.tool, environment, ends_s)
        nobody = "something of NVIDIA's driver is here, but neither NVML nor nvidia-smi can be asked"
        return Reading(said=": ".join(part for part in (nobody, without, signs.blocked) if part))

    def _read_nvml(self, signs: Signs, environment: Mapping[str, str], ends_s: float) -> Reading:
        """It has all the time: where it hangs, so does all that could be asked instead."""
        command = _reader("cards", signs, str(self._root))
        deadline_s = max(_LEAST_S, ends_s - time.monotonic())
        said = self._child.ask(command, environment=environment, deadline_s=deadline_s, called="NVML")
        if said.code < 0:
            raise nvml.NoNvml(f"reading NVML was ended by signal {-said.code}")
        if said.code > 0:
            raise nvml.NoNvml(f"reading NVML failed: {said.err.strip().rpartition(chr(10))[2]}")
        return nvml.reading_of(said.out)

    def _read_smi(self, tool: str, environment: Mapping[str, str], ends_s: float) -> Reading:
        def ask(*arguments: str) -> tuple[int, str]:
            left_s = ends_s - time.monotonic()
            if left_s < _LEAST_S:
                raise Unanswered("nvidia-smi has no time left")
            said = self._child.ask([tool, *arguments], environment=environment, deadline_s=left_s)
            return said.code, said.out or said.err

        fields = self._fields
        code, queried = ask(*smi.query(fields))
        for _ in range(len(fields)):
            refused = smi.refused_field(queried)
            if refused not in fields:
                break
            fields.remove(refused)
            code, queried = ask(*smi.query(fields))
        reading = smi.reading_of(queried, fields)
        if not reading.cards:
            ending = f"ended with exit code {code}" if code >= 0 else f"was ended by signal {-code}"
            said = reading.said or f"nvidia-smi said nothing and {ending}"
            return Reading(driver=reading.driver, said=said)
        # What hangs of the rest takes no figure that was read; but without the list nobody knows what slices there are.
        listed = ask("-L")[1] if any(card.is_sliced for card in reading.cards) else ""
        apps: str | None = None
        table = ""
        with suppress(Unanswered):
            code, printed = ask(*smi.query(smi.APPS, of="compute-apps"))
            apps = None if code else printed
        with suppress(Unanswered):
            _, table = ask()
        return smi.reading_of(queried, fields, table=table, listed=listed, apps=apps)


def _none(why: str) -> Findings:
    return Findings(missing=((_KIND, words(why)),))


def _reader(what: str, signs: Signs, *more: str) -> list[str]:
    return [sys.executable, "-I", "-S", str(_PROGRAM), what, _folder_of_pynvml(), signs.library, *more]


def _folder_of_pynvml() -> str:
    """Found without importing it. The child does not look into the folders of this Python by itself."""
    spec = importlib.util.find_spec("pynvml")
    if spec is None or spec.origin is None:
        return ""
    folder = os.path.dirname(spec.origin)
    return os.path.dirname(folder) if spec.submodule_search_locations else folder


def _why_none(reading: Reading, signs: Signs) -> str:
    if signs.board:
        told = f": {reading.said}" if reading.said else ""
        return f"this is a {signs.board}, and its driver tells nothing of its GPU{told}"
    return reading.said
