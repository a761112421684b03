"""What a worker runs in that a job may want to know: WSL2, a Jetson, a container. Reads marks, and no contents of a
machine's own beyond them: of each, the answer is one of a few words.

WSL2: https://github.com/microsoft/WSL/issues/423 and 4555. Containers: as systemd tells them (src/basic/virt.c),
https://github.com/containers/podman/issues/3586, https://github.com/moby/moby/issues/18355.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final

__all__ = ["container_kind", "host_kind"]

_MOST: Final = 65_536
_OTHER: Final = "other"
_BY_MANAGER: Final = {  # what a manager calls itself in its mark; "wsl" is none
    "docker": "docker",
    "podman": "podman",
    "lxc": "lxc",
    "lxc-libvirt": "lxc",
    "wsl": "",
}
_BY_GROUP: Final = (
    (re.compile(r"/kubepods(?:[./-]|$)", re.MULTILINE), "kubernetes"),
    (re.compile(r"/docker[/-][0-9a-f]{64}"), "docker"),
    (re.compile(r"/libpod-[0-9a-f]{64}"), "podman"),
    (re.compile(r"/lxc(?:\.payload)?[./]"), "lxc"),
)


def host_kind(root: Path, proc_root: Path) -> str:
    """``wsl2``, ``jetson``, or nothing."""
    release = _text(proc_root / "sys" / "kernel" / "osrelease")
    is_wsl1 = "Microsoft" in release
    is_named = "WSL2" in release or "microsoft-standard" in release
    formats = proc_root / "sys" / "fs" / "binfmt_misc"
    marks = (formats / "WSLInterop", formats / "WSLInterop-late", root / "run" / "WSL")
    # A kernel that somebody built has any name; the marks are there all the same.
    if is_named or (not is_wsl1 and any(_exists(mark) for mark in marks)):
        return "wsl2"
    model = _text(proc_root / "device-tree" / "model")
    if "jetson" in model.lower() or _exists(root / "etc" / "nv_tegra_release"):
        return "jetson"
    return ""


def container_kind(root: Path, proc_root: Path, environment: Mapping[str, str]) -> str:
    """``kubernetes``, ``docker``, ``podman``, ``lxc``, ``apptainer``, ``other``, or nothing. environment: the
    worker's."""
    groups = _text(proc_root / "self" / "cgroup")
    secrets = root / "var" / "run" / "secrets" / "kubernetes.io"
    if "KUBERNETES_SERVICE_HOST" in environment or _exists(secrets):
        return "kubernetes"
    for pattern, kind in _BY_GROUP:
        if pattern.search(groups):
            return kind
    if _exists(root / ".singularity.d"):
        return "apptainer"
    if _exists(root / "run" / ".containerenv"):
        return "podman"
    for manager in (
        _text(root / "run" / "host" / "container-manager").strip(),
        _text(root / "run" / "systemd" / "container").strip(),
        _of_first_process(_text(proc_root / "1" / "environ")),
    ):
        if manager:
            return _BY_MANAGER.get(manager, _OTHER)
    return "docker" if _exists(root / ".dockerenv") else ""


def _of_first_process(environ: str) -> str:
    """Its variable ``container``; readable by root alone."""
    return next((text.partition("=")[2] for text in environ.split("\0") if text.startswith("container=")), "")


def _text(path: Path) -> str:
    try:
        with path.open(encoding="utf-8", errors="replace") as file:
            return file.read(_MOST)
    except OSError:
        return ""


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except OSError:
        return False  # not for us to see
