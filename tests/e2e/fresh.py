"""A new environment that holds what its wheels need and nothing else, without a package index.

``gpulayer-core`` is built and installed as a wheel, as users have it, not the folder that the other tests run. What it
requires is taken from the Python that runs this: each required distribution, and what it requires in turn, is linked
in by itself, so nothing else of that Python can be found. What no plugin here imports (torch) is left out: wheels are
installed without their requirements.
"""

import os
import subprocess
import sys
import sysconfig
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement

__all__ = ["ROOT", "FreshEnvironment", "build_wheel", "build_wheels"]

ROOT = Path(__file__).parents[2]


class FreshEnvironment:
    """``folder``: where it is made. ``bin``: its programs. Nothing of the caller's variables reaches them but PATH."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "venv"
        self.wheels = folder / "wheels"
        run(sys.executable, "-m", "venv", "--without-pip", self.folder)
        self.bin = self.folder / "bin"
        self.packages = Path(
            sysconfig.get_path("purelib", "venv", {"base": str(self.folder), "platbase": str(self.folder)})
        )
        self.install(build_wheel(ROOT / "gpulayer-core", self.wheels))
        (core,) = metadata.distributions(name="gpulayer-core", path=[str(self.packages)])
        for distribution in sorted(required(core.requires or [])):
            link(metadata.distribution(distribution), self.packages)

    def install(self, *wheels: Path) -> None:
        """As pip does, without what they require."""
        self._pip("install", "--no-index", "--no-deps", "--no-compile", *wheels)

    def install_package(self, *sources: Path) -> None:
        """Build a wheel of each of these folders and install them."""
        self.install(*build_wheels(sources, self.wheels))

    def uninstall(self, distribution: str) -> None:
        self._pip("uninstall", "--yes", distribution)

    def _pip(self, command: str, *arguments: str | Path) -> None:
        # The pip of the caller's Python, for this one: an own one would take seconds to unpack.
        pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", self.bin / "python"]
        run(*pip, command, "--quiet", *arguments)


def build_wheels(sources: Iterable[Path], folder: Path) -> list[Path]:
    """Several at a time, each in a folder of its own below."""
    with ThreadPoolExecutor(os.cpu_count()) as builders:
        return list(builders.map(lambda source: build_wheel(source, folder / source.name), sources))


def build_wheel(source: Path, folder: Path) -> Path:
    """With the build backend of this Python, offline. Returns the wheel."""
    folder.mkdir(parents=True, exist_ok=True)
    before = set(folder.iterdir())
    run(sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", folder, cwd=source)
    (made,) = set(folder.iterdir()) - before
    return made


def required(requirements: Iterable[str]) -> set[str]:
    """Names of all distributions that these lead to, without extras of ours."""
    found: set[str] = set()
    waiting = list(_wanted(requirements, frozenset()))
    while waiting:
        one = waiting.pop()
        if one.name not in found:
            found.add(one.name)
            waiting += _wanted(metadata.requires(one.name) or [], frozenset(one.extras))
    return found


def link(distribution: metadata.Distribution, packages: Path) -> None:
    """Its modules and metadata, as links into ``packages``."""
    tops = {file.parts[0] for file in distribution.files or () if file.parts[0] not in ("..", "__pycache__")}
    for top in tops:
        place = packages / top
        if not place.exists():
            place.symlink_to(Path(str(distribution.locate_file(top))))


def run(*command: str | Path, cwd: Path | None = None) -> None:
    """Raises AssertionError with what it said."""
    kept = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
    done = subprocess.run(command, cwd=cwd, env=kept, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, f"{' '.join(map(str, command))}\n{done.stdout}{done.stderr}"


def _wanted(requirements: Iterable[str], extras: frozenset[str]) -> Iterator[Requirement]:
    for text in requirements:
        one = Requirement(text)
        if one.marker is None or any(one.marker.evaluate({"extra": extra}) for extra in extras or {""}):
            yield one
