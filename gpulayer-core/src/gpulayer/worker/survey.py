"""What the Python of jobs has, without importing any of it: one short program for all framework checks. Pure.

It tells which modules can be found, and a digest of what their results depend on: the interpreter, where it looks, and
every package by name, version and time of installation. So whatever pip does there is seen.
"""

import hashlib
import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

from gpulayer.plugins.results import instance_of
from gpulayer.spec.plain import plain_line

__all__ = ["Survey", "last_answer", "read_survey", "survey_source"]

_SHOWN: Final = 100  # characters of a line that is none
_SCRIPT: Final = """
import hashlib
import importlib.util
import json
import os
import sys


def changed(path):
    try:
        return os.stat(path).st_mtime_ns
    except OSError:
        return 0


def place(name):
    try:
        spec = importlib.util.find_spec(name)
    except (ImportError, ValueError):
        return None
    if spec is None:
        return None
    origin = spec.origin or " ".join(spec.submodule_search_locations or ())
    return "%s %d" % (origin, changed(origin))


def packages():
    for folder in sys.path:
        try:
            with os.scandir(folder or ".") as entries:
                for entry in entries:
                    if entry.name.endswith((".dist-info", ".egg-info", ".egg-link", ".pth")):
                        yield "%s %s %d" % (folder, entry.name, changed(entry.path))
        except OSError:
            pass
    yield "conda %d" % changed(os.path.join(sys.prefix, "conda-meta"))


executable = os.path.realpath(sys.executable)
python = [sys.version, sys.executable, executable, changed(executable), sys.prefix, sys.path]
known = json.dumps([python, sorted(packages())]).encode("utf-8", "surrogateescape")
places = {name: place(name) for name in MODULES}
version = "%d.%d.%d" % sys.version_info[:3]
print(json.dumps({"python": hashlib.sha256(known).hexdigest(), "version": version, "places": places}))
"""


@dataclass(frozen=True, slots=True)
class Survey:
    """python: a digest of interpreter and packages. places: of modules, with the time of their last change; empty:
    not found. version: of the interpreter."""

    python: str
    places: Mapping[str, str]
    version: str

    def has(self, modules: Collection[str]) -> bool:
        """Whether all of them are installed."""
        return all(self.places.get(module) for module in modules)

    def digest(self, modules: Collection[str], *more: object) -> str:
        """Another one whenever one of these, or what ``more`` says (as JSON), is another."""
        places = [self.places.get(module, "") for module in modules]
        return hashlib.sha256(json.dumps([self.python, places, more]).encode()).hexdigest()


def survey_source(modules: Collection[str]) -> str:
    """The program, which prints what ``read_survey`` reads."""
    return f"MODULES = {json.dumps(sorted(modules))}\n{_SCRIPT}"


def read_survey(out: bytes) -> Survey:
    """Raises ValueError where it did not print a survey."""
    answer = last_answer(out, having="places")
    try:
        places = {instance_of(str, name): place or "" for name, place in instance_of(dict, answer["places"]).items()}
        python, version = (instance_of(str, answer[key]) for key in ("python", "version"))
        return Survey(python, MappingProxyType(places), version)
    except (ValueError, LookupError, TypeError, RecursionError):
        raise ValueError("no survey") from None


def last_answer(out: bytes, *, having: str) -> Mapping[str, Any]:
    """The last line that is a JSON object with this key: whatever else runs at the end of a Python may print as well.
    Raises ValueError that says what the last line is instead."""
    lines = [line for line in out.splitlines() if line.strip()]
    why = "it printed nothing"
    for number, line in enumerate(reversed(lines)):
        try:
            answer = json.loads(line)
        except (ValueError, RecursionError):
            found = f"no JSON: {plain_line(line.decode(errors='replace'), _SHOWN)!r}"
        else:
            if isinstance(answer, dict) and having in answer:
                return answer
            found = f"no object with a {having}"
        if number == 0:
            why = f"its last line is {found}"
    raise ValueError(why)
