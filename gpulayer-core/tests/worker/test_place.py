"""A copy of a worker's folder has another name than the folder, wherever it lies; the folder keeps its own."""

import os
import shutil
import subprocess
import sys

import pytest

from gpulayer.worker.place import place_id

NAMESPACE = ["unshare", "--user", "--map-root-user", "--mount"]
OF_ROOTS = """
import subprocess, sys
from pathlib import Path
from gpulayer.worker.place import place_id
def mounted(path):
    path.mkdir(exist_ok=True)
    subprocess.run(["mount", "-t", "tmpfs", "tmpfs", path], check=True)
    print(path.stat().st_ino, place_id(path))
a, b = Path(sys.argv[1], "a"), Path(sys.argv[1], "b")
mounted(a)
mounted(b)
print(a.stat().st_ino, place_id(a))
subprocess.run(["umount", b], check=True)
mounted(b)
"""


def test_a_folder_keeps_its_name_whatever_it_holds_and_wherever_it_is_renamed_to(tmp_path):
    folder, other = tmp_path / "work", tmp_path / "other"
    folder.mkdir()
    name = place_id(folder)
    (folder / "identity.json").write_text("{}")
    (folder / "attempts").mkdir()
    os.chmod(folder, 0o700)
    assert place_id(folder) == name
    folder.rename(other)
    assert place_id(other) == name


def test_a_copy_beside_its_original_has_another_name(tmp_path):
    folder, copy = tmp_path / "work", tmp_path / "copy"
    folder.mkdir()
    shutil.copytree(folder, copy)
    assert place_id(copy) != place_id(folder)


def test_a_copy_that_is_put_where_its_original_was_removed_has_another_name(tmp_path):
    """It often gets the very inode: each time another generation of it, where the file system keeps those."""
    folder, copy = tmp_path / "work", tmp_path / "copy"
    folder.mkdir()
    shutil.copytree(folder, copy)
    names, inodes = [], []
    for _ in range(20):
        names.append(place_id(folder))
        inodes.append(folder.stat().st_ino)
        folder.rmdir()
        shutil.copytree(copy, folder)
    if names[0].endswith("."):
        pytest.skip("this file system does not tell generations")
    assert len(set(names)) == len(names), inodes


@pytest.mark.skipif(sys.platform != "linux", reason="namespaces")
def test_roots_of_two_file_systems_have_two_names_also_where_one_is_mounted_after_the_other(tmp_path):
    """Roots have one inode on all file systems of a kind, and a device number is used again."""
    if shutil.which("unshare") is None or subprocess.run([*NAMESPACE, "true"], check=False, timeout=20).returncode:
        pytest.skip("no namespaces may be made here")
    asked = [*NAMESPACE, sys.executable, "-c", OF_ROOTS, str(tmp_path)]
    said = subprocess.run(asked, check=True, capture_output=True, text=True, timeout=60).stdout.splitlines()
    assert len({line.split()[0] for line in said}) == 1, "roots have one inode"
    first, second, still, third = (line.split()[1] for line in said)
    assert still == first
    assert second != first
    assert third != first
    if _kernel() >= (6, 7):  # before it, a tmpfs has no id of its own
        assert third != second


def _kernel():
    return tuple(int(part) for part in os.uname().release.split("-")[0].split(".")[:2])
