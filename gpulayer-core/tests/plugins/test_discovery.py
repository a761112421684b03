"""What is found of the distributions that are installed, however odd some of them are."""

import os
import sys

import pytest

from gpulayer.plugins.discovery import Found, Installed, discover, installed_points
from gpulayer.testing.distribution import install_distribution, install_plugin


def found(*folders):
    return discover([str(folder) for folder in folders])


def test_a_plugin_is_found_with_the_distribution_that_it_came_with(tmp_path):
    install_plugin(tmp_path, "cheap-hour", "raise SystemExit('nothing is imported')", version="1.2")
    install_distribution(
        tmp_path, "numpy", modules={"numpy": ""}, entry_points={"console_scripts": {"f2py": "numpy:x"}}
    )
    assert found(tmp_path) == (Found("cheap-hour", "gpulayer_cheap_hour", "gpulayer-cheap-hour", "1.2"),)
    assert found() == ()


def test_several_of_one_distribution_and_one_name_of_several_are_all_told(tmp_path):
    install_distribution(tmp_path, "one", plugins={"a": "m.a", "b": "m.b"})
    install_distribution(tmp_path, "two", plugins={"a": "n"})
    assert [(one.name, one.distribution) for one in found(tmp_path)] == [("a", "one"), ("a", "two"), ("b", "one")]


def test_of_a_distribution_that_is_there_twice_the_first_on_the_path_counts(tmp_path):
    old, new = tmp_path / "old", tmp_path / "new"
    install_plugin(old, "a", "", version="1.0")
    install_plugin(new, "a", "", version="2.0")
    assert [one.version for one in found(new, old)] == ["2.0"]
    assert [one.version for one in found(old, new)] == ["1.0"]
    assert len(found(old, old)) == 1


def test_a_version_that_has_no_plugin_any_more_hides_an_older_one_behind_it(tmp_path):
    install_plugin(tmp_path / "old", "a", "", version="1.0")
    install_distribution(tmp_path / "new", "gpulayer-a", version="2.0")
    assert found(tmp_path / "new", tmp_path / "old") == ()


@pytest.mark.parametrize(
    ("line", "error"),
    [
        ("Two Words = m", "can't be the name of a plugin"),
        ("UPPER = m", "can't be the name of a plugin"),
        (f"{'x' * 64} = m", "can't be the name of a plugin"),
        ("a = m:Plugin", "is no module"),
        ("a = ", "is no module"),
        ("a", "is no module"),
        ("a = m-n", "is no module"),
    ],
)
def test_what_cannot_be_a_plugin_is_told_with_the_reason(tmp_path, line, error):
    one = install_plugin(tmp_path, "a", "")
    one.write(f"{one.info.name}/entry_points.txt", f"[gpulayer]\n# ours\n{line}\n[other]\nb = c\n")
    [told] = found(tmp_path)
    assert error in told.error
    assert told.hint
    assert told.distribution == "gpulayer-a"


def test_extras_of_an_entry_point_are_no_part_of_the_module(tmp_path):
    one = install_plugin(tmp_path, "a", "")
    one.write(f"{one.info.name}/entry_points.txt", "[gpulayer]\na = m.n [extra]\n")
    assert [(told.module, told.error) for told in found(tmp_path)] == [("m.n", "")]


def test_broken_metadata_of_others_hurts_nobody(tmp_path):
    install_plugin(tmp_path, "good", "")
    for name, file, content in (
        ("empty", "METADATA", b""),
        ("binary", "entry_points.txt", b"\xff\xfe[gpulayer]\n\xff = \xff"),
        ("ours", "entry_points.txt", b"[gpulayer\nx"),
        ("latin", "METADATA", b"Name: \xe9\xe8\nVersion: 1"),
    ):
        broken = install_distribution(tmp_path, name, plugins={f"of-{name}": name})
        (broken.info / file).write_bytes(content)
    folder = tmp_path / "folder-1.0.dist-info"
    (folder / "entry_points.txt").mkdir(parents=True)
    (tmp_path / "file-1.0.dist-info").write_text("")
    (tmp_path / "gone-1.0.dist-info").symlink_to("nowhere")
    assert "good" in {one.name for one in found(tmp_path, "/nowhere", tmp_path / "file-1.0.dist-info")}


def test_uninstalled_it_is_not_found_any_more(tmp_path):
    one = install_plugin(tmp_path, "a", "")
    assert len(found(tmp_path)) == 1
    one.uninstall()
    assert found(tmp_path) == ()


@pytest.mark.parametrize("spelled", ["acme_sched", "acme.sched", "Acme-Sched", "acme--sched", "ACME_.sched"])
def test_two_spellings_of_a_name_are_one_distribution(tmp_path, spelled):
    for folder, name, version in (("first", "acme-sched", "2.0"), ("second", spelled, "1.0")):
        install_distribution(
            tmp_path / folder, name, version=version, plugins={"acme": "acme"}, commands={"acme": "acme:app"}
        )
    first, second = str(tmp_path / "first"), str(tmp_path / "second")
    assert [(one.distribution, one.version) for one in discover([first, second])] == [("acme-sched", "2.0")]
    assert [(one.distribution, one.version) for one in discover([second, first])] == [(spelled, "1.0")]
    assert [one.version for one in installed_points([first, second])] == ["2.0", "2.0"]


def test_what_is_no_point_of_ours_is_passed_over(tmp_path):
    one = install_plugin(tmp_path, "a", "")
    text = (
        "[gpulayer.other]\nx = y\n[gpulayer.commands]\n; no\nb = m:app [extra]\n[gpulayer]\na = m\n[gpulayer.\nc = d\n"
    )
    one.write(f"{one.info.name}/entry_points.txt", text)
    assert [(each.group, each.name, each.value) for each in installed_points([str(tmp_path)])] == [
        ("gpulayer.commands", "b", "m:app"),
        ("gpulayer", "a", "m"),
    ]


def test_what_an_uninstall_left_half_hides_no_whole_distribution(tmp_path):
    half = install_plugin(tmp_path / "half", "a", "", version="1.0")
    (half.info / "METADATA").unlink()
    install_plugin(tmp_path / "whole", "a", "", version="2.0")
    assert [one.version for one in found(tmp_path / "half", tmp_path / "whole")] == ["2.0"]
    [told] = found(tmp_path / "half")
    assert (told.name, told.distribution) == ("gpulayer_a-1.0.dist-info", "gpulayer_a")
    assert told.error == "it can't be read: its METADATA is missing, or tells no name"
    assert told.hint == f"remove {half.info}, then install it again"


@pytest.mark.parametrize(
    ("file", "content", "error"),
    [
        ("entry_points.txt", b"[gpulayer]\na = caf\xe9\n", "is no UTF-8 text"),
        ("entry_points.txt", "[gpulayer]\na = a\n".encode("utf-16"), "is no UTF-8 text"),
        ("entry_points.txt", b"\xef\xbb\xbf[gpulayer]\na = a\n", "begins with a byte order mark"),
        ("entry_points.txt", b"[ gpulayer ]\na = a\n", "says '[ gpulayer ]', which is not [gpulayer]"),
        ("entry_points.txt", b"[gpulayer.commands] # mine\na = a\n", "says '[gpulayer.commands] # mine'"),
        ("METADATA", b"", "METADATA is missing, or tells no name"),
        ("METADATA", b"Name: \xe9\nVersion: 1", "METADATA is missing, or tells no name"),
        ("METADATA", b"Name: other\nVersion: 1", "METADATA says that it is 'other'"),
    ],
)
def test_one_for_gpulayer_that_cannot_be_read_is_told_by_its_folder(tmp_path, file, content, error):
    install_plugin(tmp_path, "good", "")
    broken = install_plugin(tmp_path / "broken", "a", "")
    (broken.info / file).write_bytes(content)
    told, good = sorted(found(tmp_path, tmp_path / "broken"), key=lambda one: one.name == "good")
    assert (good.name, good.error) == ("good", "")
    assert told.name == broken.info.name
    assert error in told.error
    assert "again" in told.hint


@pytest.mark.parametrize("content", [b"[other]\na = caf\xe9\n", b"# [ gpulayer ]\n[x]\na = b [ gpulayer ]\n"])
def test_what_is_odd_and_not_for_gpulayer_is_passed_over(tmp_path, content):
    odd = install_distribution(tmp_path, "odd", plugins={"a": "a"})
    (odd.info / "entry_points.txt").write_bytes(content)
    assert found(tmp_path) == ()


def test_one_that_cannot_be_read_is_told_only_where_it_would_count(tmp_path):
    broken = install_plugin(tmp_path / "broken", "a", "")
    broken.write(f"{broken.info.name}/entry_points.txt", "[ gpulayer ]\na = a\n")
    install_plugin(tmp_path / "whole", "a", "")
    assert [one.name for one in found(tmp_path / "whole", tmp_path / "broken")] == ["a"]
    assert [one.name for one in found(tmp_path / "broken", tmp_path / "whole")] == [broken.info.name]


class Broken:
    """A finder of somebody's."""

    def find_spec(self, *_):
        return None

    def find_distributions(self, context):
        yield from ()
        raise ValueError("the index is gone")


def test_a_finder_that_fails_hides_no_plugin_of_others_and_is_told_of_once(tmp_path, monkeypatch, caplog):
    for name in ("a", "b", "c"):
        install_plugin(tmp_path, name, "")
    monkeypatch.setattr(sys, "meta_path", [Broken(), *sys.meta_path])
    assert [one.name for one in found(tmp_path)] == ["a", "b", "c"]
    [record] = caplog.records
    assert "test_discovery.Broken fails" in record.getMessage()


def test_nothing_is_looked_up_again_until_something_was_installed_or_removed(tmp_path, monkeypatch):
    looks = []

    def look():
        looks.append(1)
        return discover()

    monkeypatch.setattr(sys, "path", [str(tmp_path), "/nowhere", ""])
    installed = Installed(look)
    assert installed.now() == ()
    one = install_plugin(tmp_path, "a", "", version="1.0")
    changed(tmp_path)
    assert [(found.name, found.version) for found in installed.now()] == [("a", "1.0")]
    before = len(looks)
    for _ in range(5):
        installed.now()
    assert len(looks) == before
    one.uninstall()
    install_plugin(tmp_path, "a", "", version="2.0")
    changed(tmp_path)
    assert [found.version for found in installed.now()] == ["2.0"]
    monkeypatch.setattr(sys, "path", ["/nowhere"])
    assert installed.now() == ()


def changed(folder):
    """As a file system tells that has fine times; within a tick of its clock it may say nothing."""
    now = os.stat(folder)
    os.utime(folder, ns=(now.st_atime_ns, now.st_mtime_ns + 1_000_000))


def test_a_finder_that_fails_is_not_told_of_with_every_look(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    monkeypatch.setattr(sys, "meta_path", [Broken(), *sys.meta_path])
    installed = Installed()
    for _ in range(5):
        installed.now()
    assert len(caplog.records) == 1
