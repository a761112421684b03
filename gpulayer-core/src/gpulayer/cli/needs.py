"""The flags that say what a job needs: one list for ``submit`` and ``explain``, turned into the SDK's keywords."""

from collections.abc import Sequence
from typing import Annotated

import typer

from gpulayer.errors import UsageError
from gpulayer.sdk.options import RequestOptions

__all__ = [
    "AcceleratorFlag",
    "CapabilityFlag",
    "CpusFlag",
    "DeviceMemoryFlag",
    "DeviceModelFlag",
    "DevicesFlag",
    "DiskFlag",
    "EnvironmentFlag",
    "FrameworkFlag",
    "GroupFlag",
    "InputFlag",
    "LabelFlag",
    "LauncherFlag",
    "MemoryFlag",
    "RegionFlag",
    "ResourceFlag",
    "WorkerFlag",
    "ZoneFlag",
    "counts",
    "pairs",
    "request_options",
]

_PANEL = "What it needs"

AcceleratorFlag = Annotated[
    str, typer.Option("--accelerator", metavar="KIND", help="cuda, rocm, xpu, mps, mlx, cpu or any; several by comma.")
]
DevicesFlag = Annotated[int | None, typer.Option("--devices", metavar="N", help="How many, all on one worker.")]
DeviceModelFlag = Annotated[
    str, typer.Option("--device-model", metavar="MODELS", help='Alternatives in order: "H100,A100".')
]
DeviceMemoryFlag = Annotated[str, typer.Option("--device-memory", metavar="SIZE", help="Of each device: 24GB.")]
CapabilityFlag = Annotated[str, typer.Option("--compute-capability", metavar="RANGE", help='">=8.0"')]
FrameworkFlag = Annotated[
    list[str] | None, typer.Option("--framework", metavar="NAME[>=V]", help="torch>=2.4; may be repeated.")
]
CpusFlag = Annotated[int | None, typer.Option("--cpus", metavar="N", help="Cores (default 1).")]
MemoryFlag = Annotated[str, typer.Option("--memory", metavar="SIZE", help="16GB")]
DiskFlag = Annotated[str, typer.Option("--disk", metavar="SIZE", help="50GB")]
ResourceFlag = Annotated[
    list[str] | None, typer.Option("--resource", metavar="NAME[=N]", help="What workers count by name: licence=1.")
]
LauncherFlag = Annotated[str, typer.Option("--launcher", metavar="NAME", help="A plugin's, to start it with.")]
EnvironmentFlag = Annotated[str, typer.Option("--environment", metavar="NAME", help="A plugin's, to run in.")]
InputFlag = Annotated[
    list[str] | None,
    typer.Option("--input", metavar="NAME=URI", help="Fetched by the worker; its path: $GPULAYER_INPUT_NAME."),
]
LabelFlag = Annotated[list[str] | None, typer.Option("--label", metavar="K=V", help="A worker's label.")]
WorkerFlag = Annotated[str, typer.Option("--worker", metavar="NAME", help="This worker only.")]
ZoneFlag = Annotated[str, typer.Option("--zone", metavar="Z", help="Where the worker is.")]
RegionFlag = Annotated[str, typer.Option("--region", metavar="R")]
GroupFlag = Annotated[str, typer.Option("--network-group", metavar="G")]


def request_options(
    *,
    accelerator: str,
    devices: int | None,
    device_model: str,
    device_memory: str,
    compute_capability: str,
    framework: Sequence[str] | None,
    cpus: int | None,
    memory: str,
    disk: str,
    label: Sequence[str] | None,
    worker: str,
    zone: str,
    region: str,
    network_group: str,
    resource: Sequence[str] | None,
    launcher: str,
    environment: str,
    input_: Sequence[str] | None,
) -> RequestOptions:
    """Only what was given, so that the defaults stay in one place."""
    options: RequestOptions = {}
    if accelerator:
        options["accelerator"] = accelerator
    if devices is not None:
        options["devices"] = _at_least(0, devices, "--devices")
    if device_model:
        options["device_model"] = device_model
    if device_memory:
        options["device_memory"] = device_memory
    if compute_capability:
        options["compute_capability"] = compute_capability
    if framework:
        options["frameworks"] = framework
    if cpus is not None:
        options["cpus"] = _at_least(1, cpus, "--cpus")
    if memory:
        options["memory"] = memory
    if disk:
        options["disk"] = disk
    if label:
        options["labels"] = pairs(label, "--label", is_once=True)
    if worker:
        options["worker"] = worker
    if zone:
        options["zone"] = zone
    if region:
        options["region"] = region
    if network_group:
        options["network_group"] = network_group
    if resource:
        options["resources"] = counts(resource, "--resource")
    if launcher:
        options["launcher"] = launcher
    if environment:
        options["environment"] = environment
    if input_:
        options["inputs"] = pairs(input_, "--input", is_once=True)
    return options


def _at_least(least: int, number: int, flag: str) -> int:
    if number < least:
        raise UsageError(f"{flag} {number}: less than {least}", hint=f"write {flag} {max(1, least)}")
    return number


def counts(texts: Sequence[str], flag: str) -> dict[str, int]:
    """``licence``, ``licence=2``, or several by comma. Raises UsageError."""
    found: dict[str, int] = {}
    for text in ",".join(texts).split(","):
        name, separator, number = text.strip().partition("=")
        is_number = number.isascii() and number.isdigit() and len(number) < 10
        if not name or (separator and not is_number):
            raise UsageError(f"{flag} {text}: not of the form NAME or NAME=N", hint=f"write {flag} licence=1")
        if name in found:
            raise UsageError(f"{flag} {text}: {name} is given twice", hint=f"write {flag} {name}=N once")
        found[name] = int(number) if separator else 1
    return found


def pairs(texts: Sequence[str], flag: str, *, is_once: bool = False) -> dict[str, str]:
    """``k=v`` each; the last of a key counts, unless each may be given once. Raises UsageError."""
    found: dict[str, str] = {}
    for text in texts:
        key, separator, value = text.partition("=")
        if not separator or not key:
            raise UsageError(f"{flag} {text}: not of the form KEY=VALUE", hint=f"write {flag} key=value")
        if is_once and key in found:
            raise UsageError(f"{flag} {text}: {key} is given twice", hint=f"write {flag} {key}=… once")
        found[key] = value
    return found
