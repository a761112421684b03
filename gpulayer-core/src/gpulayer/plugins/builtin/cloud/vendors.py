"""What clouds say: which one a machine is in, by its firmware, and what answers of a metadata service mean. Pure.

Firmware: as cloud-init tells clouds apart (tools/ds-identify), and Google's own libraries (compute/metadata in Go).
Paths and values:
https://cloud.google.com/compute/docs/metadata/predefined-metadata-keys
https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/configuring-instance-metadata-service.html
https://learn.microsoft.com/azure/virtual-machines/instance-metadata-service
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import Final, Protocol, assert_never

__all__ = ["AskedFor", "Cloud", "Place", "cloud_of", "read_place"]

_AZURE_ASSET_TAG: Final = "7783-7084-3265-9085-8269-3286-77"
_WORD: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")  # of every name of a zone, a region and a type
_SECRET: Final = re.compile(r"[\x21-\x7e]{1,1024}")
_GCP_NAME: Final = re.compile(r"\Aprojects/[^/]+/(?:zones|machineTypes)/")  # projects/123/zones/us-central1-a
_AWS_REGION: Final = re.compile(r"[a-z]+(?:-[a-z]+)+-\d+")  # with which every zone begins: us-west-2-lax-1a

_AWS_TYPE: Final = re.compile(r"[a-z0-9-]+\.[a-z0-9-]+")  # p5.48xlarge, u-6tb1.metal
_AWS_LIFE_CYCLES: Final[Mapping[str, bool]] = MappingProxyType(
    {"spot": True, "on-demand": False, "scheduled": False, "capacity-block": False}
)

_GCP: Final = "/computeMetadata/v1/instance/"
_AWS: Final = "/latest/meta-data/"
# The first version that tells the priority, and the last one that does not send the user data along.
_AZURE: Final = "/metadata/instance/compute?api-version=2020-12-01&format=json"


class Cloud(StrEnum):
    """Whose metadata service is asked, by the name that people know."""

    GCP = "Google Cloud"
    AWS = "AWS"
    AZURE = "Azure"


@dataclass(frozen=True, slots=True)
class Place:
    """Empty, or None: not told."""

    zone: str = ""
    region: str = ""
    instance_type: str = ""
    is_spot: bool | None = None


class AskedFor(Protocol):
    """One question to a metadata service."""

    def __call__(
        self, path: str, *, headers: Mapping[str, str], method: str = "GET", echo: tuple[str, str] | None = None
    ) -> str:
        """The text that is there; empty where there is none. echo: a header that the answer must have."""
        ...


def cloud_of(dmi: Mapping[str, str], *, hypervisor_uuid: str) -> Cloud | None:
    """dmi: what ``/sys/class/dmi/id`` says, by file. A Chromebook is of Google too, and every Hyper-V of Microsoft."""
    if dmi["product_name"] in ("Google Compute Engine", "Google"):
        return Cloud.GCP
    if "Amazon EC2" in (dmi["sys_vendor"], dmi["bios_vendor"]):
        return Cloud.AWS
    if hypervisor_uuid.lower().startswith("ec2") and dmi["bios_version"].lower().endswith("amazon"):
        return Cloud.AWS  # on Xen
    if dmi["chassis_asset_tag"] == _AZURE_ASSET_TAG:
        return Cloud.AZURE
    return None


def read_place(cloud: Cloud, asked: AskedFor) -> Place:
    """What matters most is asked for first: there is one deadline for all."""
    match cloud:
        case Cloud.GCP:
            return _gcp(asked)
        case Cloud.AWS:
            return _aws(asked)
        case Cloud.AZURE:
            return _azure(asked)
    assert_never(cloud)


def _gcp(asked: AskedFor) -> Place:
    def told(name: str) -> str:
        flavor = ("Metadata-Flavor", "Google")
        return asked(_GCP + name, headers=dict([flavor]), echo=flavor)

    zone = _word(_GCP_NAME.sub("", told("zone")))
    instance_type = _word(_GCP_NAME.sub("", told("machine-type")))
    spot = told("scheduling/preemptible")  # TRUE of spot machines as well
    if "-" not in zone:
        zone = ""  # somebody else's words
    return Place(zone, zone.rpartition("-")[0], instance_type, {"TRUE": True, "FALSE": False}.get(spot))


def _aws(asked: AskedFor) -> Place:
    seconds = {"X-aws-ec2-metadata-token-ttl-seconds": "60"}
    token = asked("/latest/api/token", method="PUT", headers=seconds)
    if not _SECRET.fullmatch(token):
        return Place()
    headers = {"X-aws-ec2-metadata-token": token}
    zone = _word(asked(f"{_AWS}placement/availability-zone", headers=headers))
    begins = _AWS_REGION.match(zone)
    if begins is None or begins[0] == zone:
        zone = ""  # a region's alone, cut short, or somebody else's words
    life_cycle = asked(f"{_AWS}instance-life-cycle", headers=headers)
    instance_type = _word(asked(f"{_AWS}instance-type", headers=headers))
    return Place(
        zone,
        begins[0] if begins else "",
        instance_type if _AWS_TYPE.fullmatch(instance_type) else "",
        _AWS_LIFE_CYCLES.get(life_cycle),
    )


def _azure(asked: AskedFor) -> Place:
    try:
        said = json.loads(asked(_AZURE, headers={"Metadata": "true"}) or "{}")
    except (ValueError, RecursionError):
        return Place()
    if not isinstance(said, dict):
        return Place()
    location, zone = _word(said.get("location")), _word(said.get("zone"))
    priority = said.get("priority")
    return Place(
        f"{location}-{zone}" if location and zone else "",  # the zone alone is "1"; as Kubernetes writes it on Azure
        location,
        _word(said.get("vmSize")),
        priority in ("Spot", "Low") if isinstance(priority, str) and priority else None,
    )


def _word(value: object) -> str:
    return value if isinstance(value, str) and _WORD.fullmatch(value) else ""
