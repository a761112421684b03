"""Whether there is anything of NVIDIA's on this machine at all: a few looks at names of files, nothing is run.

Most machines have nothing, and their workers must not pay for asking.
"""

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from gpulayer.plugins.builtin.child import blocked_program, found_program

__all__ = ["Signs", "signs_of"]

_TOOL: Final = "nvidia-smi"
_LIBRARY: Final = "libnvidia-ml.so.1"
_LIBRARY_FOLDERS: Final = (
    "usr/lib/wsl/lib",
    "usr/lib/x86_64-linux-gnu",
    "usr/lib/aarch64-linux-gnu",
    "usr/lib64",
    "usr/lib",
    "usr/lib/aarch64-linux-gnu/nvidia",
    "usr/local/nvidia/lib64",  # what Google's container OS mounts into pods
    "run/opengl-driver/lib",  # NixOS
)
_TOOL_FOLDERS: Final = (
    "usr/lib/wsl/lib",  # not on root's PATH
    "usr/bin",
    "usr/local/nvidia/bin",
    "run/current-system/sw/bin",
    "opt/bin",
)


@dataclass(frozen=True, slots=True)
class Signs:
    """library, tool: paths, empty where they are not. board: what a Jetson calls itself. blocked: what has the tool's
    name and can't be run, and why."""

    library: str = ""
    tool: str = ""
    has_driver: bool = False
    board: str = ""
    blocked: str = ""

    @property
    def is_any(self) -> bool:
        return bool(self.library or self.tool or self.has_driver or self.board)


def signs_of(environment: Mapping[str, str], *, root: Path = Path("/")) -> Signs:
    """Blocks for a millisecond."""
    own = environment.get("LD_LIBRARY_PATH", "").split(os.pathsep)
    folders = [*(Path(folder) for folder in own if folder.startswith("/")), *(root / one for one in _LIBRARY_FOLDERS)]
    library = next((str(path) for folder in folders if (path := folder / _LIBRARY).exists()), "")
    also = [str(root / one) for one in _TOOL_FOLDERS]
    tool = found_program(_TOOL, environment=environment, also=also)
    return Signs(
        library=library,
        tool=tool,
        blocked="" if tool else blocked_program(_TOOL, environment=environment, also=also),
        has_driver=(root / "proc/driver/nvidia").exists() or any(_devices(root / "dev")),
        board=_board(root / "proc/device-tree"),
    )


def _devices(folder: Path) -> Iterable[bool]:
    try:
        return [name.startswith("nvidia") or name == "dxg" for name in os.listdir(folder)]
    except OSError:
        return []


def _board(tree: Path) -> str:
    if b"nvidia,tegra" not in _read(tree / "compatible"):
        return ""
    return _read(tree / "model").rstrip(b"\0").decode("ascii", "replace").strip() or "NVIDIA Jetson"


def _read(path: Path) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read(4096)
    except OSError:
        return b""
