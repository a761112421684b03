"""Installed distributions made from source text, for tests of plugins: what pip would leave in a folder, and no pip.

Whoever has the folder on its ``sys.path`` finds them: ``sys.path.insert(0, str(folder))`` here (``monkeypatch.
syspath_prepend`` in a test), ``PYTHONPATH`` for a child. Nothing is checked: broken ones are made the same way.
"""

import importlib
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

__all__ = ["COMMANDS", "PLUGINS", "Distribution", "install_distribution", "install_plugin"]

PLUGINS: Final = "gpulayer"
"""The entry-point group of plugins: a name, and the module that is the plugin."""

COMMANDS: Final = "gpulayer.commands"
"""The entry-point group of CLI commands: a name, and ``module:object``."""


@dataclass(frozen=True, slots=True)
class Distribution:
    """One that lies in ``folder``. ``files``: relative to it, as in its RECORD."""

    folder: Path
    name: str
    version: str
    info: Path
    files: tuple[str, ...]

    def write(self, file: str, text: str) -> None:
        """Change a file of it: the source of a module, or ``METADATA`` and the like by ``info.name``."""
        (self.folder / file).write_text(text, encoding="utf-8")
        importlib.invalidate_caches()

    def uninstall(self) -> None:
        """Take away its files, and the folders that are empty then. May be repeated. What is imported stays so."""
        for file in self.files:
            (self.folder / file).unlink(missing_ok=True)
        for parent in sorted({above for file in self.files for above in Path(file).parents}, reverse=True):
            below = self.folder / parent
            shutil.rmtree(below / "__pycache__", ignore_errors=True)
            if below != self.folder and below.is_dir() and not any(below.iterdir()):
                below.rmdir()
        importlib.invalidate_caches()


def install_distribution(
    folder: Path,
    name: str,
    *,
    version: str = "1.0",
    modules: Mapping[str, str] | None = None,
    plugins: Mapping[str, str] | None = None,
    commands: Mapping[str, str] | None = None,
    entry_points: Mapping[str, Mapping[str, str]] | None = None,
    requires: Sequence[str] = (),
) -> Distribution:
    """Write it and make it visible to imports of this process that look into ``folder``.

    modules: source by dotted name; one that has others below it becomes a package. plugins, commands: by name, what the
    entry point says: ``module`` or ``module:object``. entry_points: of further groups.
    """
    sources = _files_of(modules or {})
    info = f"{name.replace('-', '_')}-{version}.dist-info"
    groups = {PLUGINS: plugins or {}, COMMANDS: commands or {}, **(entry_points or {})}
    texts = {
        **sources,
        f"{info}/METADATA": _metadata(name, version, requires),
        f"{info}/entry_points.txt": _ini(groups),
        f"{info}/INSTALLER": "gpulayer.testing\n",
    }
    files = (*texts, f"{info}/RECORD")
    texts[f"{info}/RECORD"] = "".join(f"{file},,\n" for file in files)
    for file, text in texts.items():
        (folder / file).parent.mkdir(parents=True, exist_ok=True)
        (folder / file).write_text(text, encoding="utf-8")
    importlib.invalidate_caches()
    return Distribution(folder, name, version, folder / info, files)


def install_plugin(folder: Path, name: str, source: str, *, version: str = "1.0") -> Distribution:
    """The plugin ``name`` alone: the distribution ``gpulayer-NAME`` with the module ``gpulayer_NAME``."""
    module = f"gpulayer_{name.translate(_TO_IDENTIFIER)}"
    return install_distribution(
        folder, f"gpulayer-{name}", version=version, modules={module: source}, plugins={name: module}
    )


_TO_IDENTIFIER: Final = str.maketrans("-.+", "___")


def _files_of(modules: Mapping[str, str]) -> dict[str, str]:
    """By relative path. A package that nobody wrote a source for has an empty one."""
    packages = {
        ".".join(parts[:depth]) for name in modules for parts in [name.split(".")] for depth in range(1, len(parts))
    }
    files: dict[str, str] = {}
    for name in sorted(packages | set(modules)):
        path = name.replace(".", "/")
        files[f"{path}/__init__.py" if name in packages else f"{path}.py"] = modules.get(name, "")
    return files


def _metadata(name: str, version: str, requires: Sequence[str]) -> str:
    lines = ["Metadata-Version: 2.1", f"Name: {name}", f"Version: {version}"]
    return "\n".join([*lines, *(f"Requires-Dist: {one}" for one in requires)]) + "\n"


def _ini(groups: Mapping[str, Mapping[str, str]]) -> str:
    lines = [
        [f"[{group}]", *(f"{name} = {value}" for name, value in points.items()), ""]
        for group, points in groups.items()
        if points
    ]
    return "\n".join(line for group in lines for line in group)
