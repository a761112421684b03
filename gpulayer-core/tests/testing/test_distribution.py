"""Made-up distributions are found by the same code that finds real ones."""

import importlib
import os
import subprocess
import sys
from importlib import metadata

from gpulayer.testing.distribution import install_distribution, install_plugin


def points(folder, group="gpulayer"):
    found = [point for one in metadata.distributions(path=[str(folder)]) for point in one.entry_points]
    return {point.name: point for point in found if point.group == group}


def test_a_plugin_is_found_with_its_distribution_and_imports(tmp_path, monkeypatch):
    install_plugin(tmp_path, "a-b.c", "ANSWER = 42\n", version="2.1")
    monkeypatch.syspath_prepend(tmp_path)
    point = points(tmp_path)["a-b.c"]
    assert (point.dist.name, point.dist.version) == ("gpulayer-a-b.c", "2.1")
    assert point.load().ANSWER == 42
    sys.modules.pop(point.module)


def test_a_child_finds_it_through_pythonpath(tmp_path):
    install_distribution(
        tmp_path,
        "thing",
        modules={"thing.deep.one": "X = 1\n", "thing": "Y = 2\n"},
        commands={"thing": "thing.deep.one:X"},
        requires=["numpy>=2"],
    )
    script = (
        "from importlib.metadata import entry_points, requires\n"
        "[one] = entry_points(group='gpulayer.commands')\n"
        "import thing\nprint(one.name, one.load(), thing.Y, requires('thing'))"
    )
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True, timeout=30
    )
    assert done.stdout == "thing 1 2 ['numpy>=2']\n"


def test_uninstalled_it_is_gone_whole_and_the_others_stay(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    gone = install_distribution(tmp_path, "gone", modules={"gone.part": ""}, plugins={"gone": "gone.part"})
    install_plugin(tmp_path, "stays", "")
    importlib.import_module("gone.part")
    gone.uninstall()
    gone.uninstall()
    for name in ("gone.part", "gone"):
        sys.modules.pop(name)
    assert list(points(tmp_path)) == ["stays"]
    assert {path.name for path in tmp_path.iterdir()} == {"gpulayer_stays.py", "gpulayer_stays-1.0.dist-info"}
    assert importlib.util.find_spec("gone") is None


def test_a_changed_file_is_what_imports_find(tmp_path):
    one = install_plugin(tmp_path, "one", "")
    one.write(f"{one.info.name}/entry_points.txt", "[gpulayer]\nother = gpulayer_one\n")
    assert list(points(tmp_path)) == ["other"]
