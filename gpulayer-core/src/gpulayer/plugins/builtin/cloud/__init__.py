"""The cloud probe: in which zone and region of a cloud this machine stands, its type, and whether it is a spot one.

What the machine says of itself decides whom to ask, so one that is in no cloud asks nobody. The metadata service of
Google Cloud, AWS or Azure is then asked, for a second in all, the first time for less, as a start waits for it; an
answer is good for as long as the machine runs. One that does not answer (as in a container on AWS, which may be one hop
too far away) is asked ever more rarely.
"""

import logging
from pathlib import Path
from typing import Final

from gpulayer.clock import Clock, SystemClock
from gpulayer.plugins.builtin.cloud.metadata import Metadata
from gpulayer.plugins.builtin.cloud.vendors import Cloud, Place, cloud_of, read_place
from gpulayer.plugins.builtin.pci import read_text
from gpulayer.plugins.contracts.context import Context
from gpulayer.plugins.contracts.probe import Findings, Probe, ProbeSite
from gpulayer.plugins.hooks import API_VERSION, hookimpl
from gpulayer.spec.labels import INSTANCE_TYPE_LABEL, SPOT_LABEL
from gpulayer.spec.machine import Locality

__all__ = ["GPULAYER_API", "CloudProbe", "gpulayer_register_probes"]

GPULAYER_API: Final = API_VERSION

_log: Final = logging.getLogger(__name__)
_ADDRESS: Final = ("169.254.169.254", 80)  # of all three; numeric, so that no resolver is asked
_DEADLINE_S: Final = 1.0
_FIRST_S: Final = 0.3
_AGAIN_MS: Final = (50_000, 600_000, 3_600_000)  # by failures in a row; the first is over before the next look
_DMI: Final = ("sys_vendor", "product_name", "bios_vendor", "bios_version", "chassis_asset_tag")


@hookimpl
def gpulayer_register_probes(ctx: Context) -> list[Probe]:
    """The cloud probe."""
    return [CloudProbe()]


class CloudProbe:
    """Remembers what it was told. The parameters are for tests."""

    def __init__(
        self,
        *,
        sys_root: Path = Path("/sys"),
        address: tuple[str, int] = _ADDRESS,
        deadline_s: float = _DEADLINE_S,
        first_s: float = _FIRST_S,
        clock: Clock | None = None,
    ) -> None:
        self._sys_root = sys_root
        self._address = address
        self._deadline_s = deadline_s
        self._clock = clock or SystemClock()
        self._next_s = first_s
        self._known = Place()
        self._failures = 0
        self._again_ms: int | None = self._clock.monotonic_ms()  # when it is asked again; None: never, all is known

    @property
    def name(self) -> str:
        return "cloud"

    def look(self, site: ProbeSite) -> Findings:
        cloud = self._cloud()
        if cloud is None:
            return Findings()
        if self._again_ms is not None and self._clock.monotonic_ms() >= self._again_ms:
            self._ask(cloud)
        place = self._known
        labels = [(INSTANCE_TYPE_LABEL, place.instance_type)] if place.instance_type else []
        if place.is_spot is not None:
            labels.append((SPOT_LABEL, "true" if place.is_spot else "false"))
        locality = Locality(zone=place.zone, region=place.region)
        return Findings(labels=tuple(labels), locality=locality if locality != Locality() else None)

    def _cloud(self) -> Cloud | None:
        dmi = {name: read_text(self._sys_root / "class" / "dmi" / "id" / name) for name in _DMI}
        return cloud_of(dmi, hypervisor_uuid=read_text(self._sys_root / "hypervisor" / "uuid"))

    def _ask(self, cloud: Cloud) -> None:
        metadata = Metadata(self._address, deadline_s=self._next_s, clock=self._clock)
        self._next_s = self._deadline_s
        place, before = read_place(cloud, metadata.text), self._known
        for path, reason in metadata.unanswered:
            _log.debug("%s: its metadata service gave no answer to %s: %s", cloud, path, reason)
        located = place if place.region else before
        self._known = Place(
            zone=located.zone,
            region=located.region,
            instance_type=place.instance_type or before.instance_type,
            is_spot=before.is_spot if place.is_spot is None else place.is_spot,
        )
        if self._known.region and not metadata.unanswered:
            self._again_ms = None
            return
        self._again_ms = self._clock.monotonic_ms() + _AGAIN_MS[min(self._failures, len(_AGAIN_MS) - 1)]
        self._failures += 1
