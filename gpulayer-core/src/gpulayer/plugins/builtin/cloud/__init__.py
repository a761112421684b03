"""The cloud probe: in which zone and region of a cloud this machine stands, its type, and whether it is a spot one.

What the machine says of itself decides whom to ask, so one that is in no cloud asks nobody. The metadata service of
Google Cloud, AWS or Azure is then asked, for a second in all; an answer is good for as long as the machine runs.
"""

import logging
from pathlib import Path
from typing import Final

from gpulayer.clock import Clock, SystemClock
from gpulayer.plugins.builtin.cloud.metadata import Metadata
from gpulayer.plugins.builtin.cloud.vendors import Cloud, Place, cloud_of, read_place
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
_DMI: Final = ("sys_vendor", "product_name", "bios_vendor", "bios_version", "chassis_asset_tag")
_MOST: Final = 256  # characters of such a file


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
        clock: Clock | None = None,
    ) -> None:
        self._sys_root = sys_root
        self._address = address
        self._deadline_s = deadline_s
        self._clock = clock or SystemClock()
        self._known: Place | None = None

    @property
    def name(self) -> str:
        return "cloud"

    def look(self, site: ProbeSite) -> Findings:
        cloud = self._cloud()
        if cloud is None:
            return Findings()
        place = self._known or self._asked(cloud)
        labels = [(INSTANCE_TYPE_LABEL, place.instance_type)] if place.instance_type else []
        if place.is_spot is not None:
            labels.append((SPOT_LABEL, "true" if place.is_spot else "false"))
        locality = Locality(zone=place.zone, region=place.region)
        return Findings(labels=tuple(labels), locality=locality if locality != Locality() else None)

    def _cloud(self) -> Cloud | None:
        dmi = {name: _line(self._sys_root / "class" / "dmi" / "id" / name) for name in _DMI}
        return cloud_of(dmi, hypervisor_uuid=_line(self._sys_root / "hypervisor" / "uuid"))

    def _asked(self, cloud: Cloud) -> Place:
        metadata = Metadata(self._address, deadline_s=self._deadline_s, clock=self._clock)
        place = read_place(cloud, metadata.text)
        for path, reason in metadata.unanswered:
            _log.debug("%s: its metadata service gave no answer to %s: %s", cloud, path, reason)
        if place.region and not metadata.unanswered:
            self._known = place
        return place


def _line(path: Path) -> str:
    try:
        with path.open(encoding="utf-8", errors="replace") as file:
            return file.read(_MOST).strip()
    except OSError:
        return ""
