"""Which file system a state folder lies on."""

import logging
from importlib import import_module
from pathlib import Path

import pytest

from gpulayer.server.mounts import file_system_of, find_type
from gpulayer.server.settings import Layout

serve = import_module("gpulayer.server.serve")

TABLE = """\
22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw
30 22 0:25 / /home rw,nosuid - nfs4 server:/export/home rw,vers=4.2
31 22 0:26 / /data/my\\040disk rw - xfs /dev/sdb rw
32 22 0:27 /volume /srv rw master:1 - btrfs /dev/sdc rw
"""


@pytest.mark.parametrize(
    ("device", "folder", "kind"),
    [
        ("8:1", "/var", "ext4"),
        ("0:25", "/home/me/.local", "nfs4"),
        ("0:99", "/home/me", "nfs4"),
        ("0:99", "/data/my disk/x", "xfs"),
        ("0:99", "/srv/a", "btrfs"),
        ("0:99", "/homeless", "ext4"),
    ],
)
def test_a_folder_has_the_type_of_its_mount(device, folder, kind):
    assert find_type(TABLE, device, Path(folder)) == kind


def test_what_is_no_table_tells_nothing():
    assert find_type("what is this\n\n - ", "8:1", Path("/")) == ""


def test_it_is_told_of_this_machine(tmp_path):
    assert file_system_of(tmp_path)
    assert file_system_of(tmp_path / "none") == ""


def test_a_state_folder_that_other_machines_share_is_warned_of(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(serve, "file_system_of", lambda folder: "nfs4")
    with caplog.at_level(logging.WARNING):
        serve._look_at_disk(Layout(tmp_path))
    assert f"state folder {tmp_path} is on a file system that other machines share (nfs4)" in caplog.text
    caplog.clear()
    monkeypatch.setattr(serve, "file_system_of", lambda folder: "ext4")
    serve._look_at_disk(Layout(tmp_path))
    assert caplog.text == ""
