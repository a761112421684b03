"""Devices of the host: one tree at a time, whoever dies; with real spawners side by side."""

import errno
import fcntl
import os
import signal
import stat
import sys
from pathlib import Path

import pytest

from gpulayer.spawner import messages as m
from gpulayer.spawner import tree
from gpulayer.spawner.locks import DeviceInUse, DeviceLocks, holder_of
from tests.together import kill_together

GPU = "GPU-8f2a"


@pytest.fixture
def lock():
    """Makes the locks of one more spawner; closed at the end."""
    made = []

    def make(*folders):
        made.append(DeviceLocks([str(folder) for folder in folders]))
        return made[-1]

    yield make
    for one in made:
        one.close()


def test_two_spawners_of_a_host_lend_a_device_once(another, until):
    first, second = another("a"), another("b")
    one, two = first.client(), second.client()
    pid = one.spawn("1.0", "sleep", "600", devices=(GPU, "GPU-2")).pid
    refused = two.spawn("9.0", "true", devices=("GPU-3", GPU))
    assert isinstance(refused, m.SpawnFailed)
    assert (refused.errno, refused.exit_code) == (errno.EBUSY, None)
    assert refused.message == f"device {GPU} is in use by another worker on this host, process {first.spawner_pid}"
    assert two.run("3.0", "true", devices=("GPU-3",)).exit_code == 0, "what the refused one had taken is free again"
    same = one.spawn("2.0", "true", devices=(GPU,))
    assert same.message == f"device {GPU} is in use by 1.0 of this worker"
    os.kill(pid, signal.SIGTERM)
    assert one.exited("1.0").signal == signal.SIGTERM
    assert two.run("9.0", "true", devices=(GPU,)).exit_code == 0, "the same key may be tried again"


def test_a_device_is_free_only_when_the_whole_tree_is_dead(another, until):
    first, second = another("a"), another("b")
    one, two = first.client(), second.client()
    for number in range(4):
        record = one.run(f"{number}.0", "sh", "-c", "(setsid sleep 600 &); exit 0", devices=(GPU,))
        assert record.tree_clean
        assert not first.running()
        assert two.run(f"{number}.0", "true", devices=(GPU,)).exit_code == 0


def test_no_process_of_a_job_holds_the_lock(another):
    agent = another("a").client()
    program = "import os; print(*(os.readlink(f'/proc/self/fd/{n}') for n in os.listdir('/proc/self/fd') if n != '3'))"
    harness = agent.harness
    agent.run("1.0", sys.executable, "-I", "-S", "-c", program, devices=(GPU,))
    assert str(harness.locks) not in harness.log("1.0").read_text()


@pytest.mark.parametrize("victims", [("spawner",), ("watchdog", "spawner")], ids=["spawner", "both"])
@pytest.mark.parametrize("rounds", [2, pytest.param(100, marks=[pytest.mark.soak, pytest.mark.timeout(3600)])])
def test_the_death_of_a_spawner_frees_its_devices_only_after_the_tree(another, until, victims, rounds):
    first, second = another("a"), another("b")
    one, two = first.client(), second.client()
    tree = "(setsid sh -c 'sleep 600 & sleep 601' &); exec sleep 602"
    for number in range(rounds):
        one.spawn(f"{number}.0", "sh", "-c", tree, devices=(GPU,))
        until(lambda: len(first.running()) >= 4, "the tree is up")
        kill_together(pid for name, pid in first.state.read_pids().items() if name in victims)
        is_there = victims == ("spawner",)  # the watchdog ends the tree; else the next start does
        while isinstance(reply := two.spawn(f"{number}.0", "true", devices=(GPU,)), m.SpawnFailed):
            assert reply.errno == errno.EBUSY
            if not is_there and "is still used by process" in reply.message:
                is_there = first.start() == 0
        assert is_there, "both were dead, and the tree was not looked for"
        assert not first.running(), "lent while the former tree was alive"
        assert two.exited(f"{number}.0").exit_code == 0
        until(lambda: first.start() in (0, 3) and first.is_listening(), "it is there again")
        one = first.client()


def test_a_lock_that_somebody_else_holds_keeps_a_job_from_starting(another):
    agent = another("a").client()
    agent.run("1.0", "true", devices=(GPU,))
    (path,) = agent.harness.locks.iterdir()
    with path.open() as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        refused = agent.spawn("2.0", "true", devices=(GPU,))
        assert refused.message == f"device {GPU} is in use by another worker on this host"
    assert agent.run("2.0", "true", devices=(GPU,)).exit_code == 0


def test_the_folder_is_everybodys_and_files_stay(tmp_path, lock):
    before = os.umask(0o077)
    try:
        locks = lock(tmp_path / "locks")
        locks.take([GPU, "../../etc/passwd"], key="1.0", marker=None)
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "locks").stat().st_mode) == 0o1777
    assert sorted(path.name for path in (tmp_path / "locks").iterdir()) == [
        "..%2f..%2fetc%2fpasswd.lock",
        f"{GPU}.lock",
    ]
    assert {stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "locks").iterdir()} == {0o666}
    locks.give_back([GPU, "../../etc/passwd"])
    assert len(list((tmp_path / "locks").iterdir())) == 2


@pytest.mark.parametrize("trick", ["link", "fifo", "folder", "linked folder", "open folder"])
def test_no_trick_with_the_folder_or_the_file_is_followed(tmp_path, lock, trick):
    folder, victim = tmp_path / "locks", tmp_path / "victim"
    victim.write_text("precious")
    target = tmp_path / "target"
    target.mkdir()
    if trick == "linked folder":
        folder.symlink_to(target)
    else:
        folder.mkdir()
        folder.chmod(0o777 if trick == "open folder" else 0o1777)
    match trick:
        case "link":
            (folder / f"{GPU}.lock").symlink_to(victim)
        case "fifo":
            os.mkfifo(folder / f"{GPU}.lock")
        case "folder":
            (folder / f"{GPU}.lock").mkdir()
    with pytest.raises(DeviceInUse, match=f"device {GPU} can't be locked"):
        lock(folder).take([GPU], key="1.0", marker=None)
    assert victim.read_text() == "precious"
    assert list(target.iterdir()) == []


def test_two_that_share_one_folder_only_meet_there(tmp_path, lock):
    (tmp_path / "file").write_text("")
    one, two = lock(tmp_path / "a", tmp_path / "b"), lock(tmp_path / "file" / "none", tmp_path / "b")
    one.take([GPU], key="1.0", marker=None)
    with pytest.raises(DeviceInUse):
        two.take([GPU], key="1.0", marker=None)
    one.give_back([GPU])
    two.take([GPU], key="1.0", marker=None)
    with pytest.raises(DeviceInUse):
        one.take([GPU], key="1.0", marker=None)


def test_a_file_that_was_tidied_away_is_made_again(tmp_path, lock):
    one, two = lock(tmp_path / "a"), lock(tmp_path / "a")
    one.take([GPU], key="1.0", marker=None)
    one.give_back([GPU])
    Path(tmp_path / "a" / f"{GPU}.lock").unlink()
    two.take([GPU], key="1.0", marker=None)
    with pytest.raises(DeviceInUse):
        one.take([GPU], key="1.0", marker=None)


def test_a_lock_of_another_file_system_with_the_same_number_of_a_file_is_not_taken_for_one(tmp_path, lock, monkeypatch):
    """Who shares no process table with the holder has /proc/locks alone to see that somebody has a device."""
    lock(tmp_path).take([GPU], key="1.0", marker=None)
    (path,) = tmp_path.iterdir()
    known = path.stat()
    place = f"{os.major(known.st_dev):02x}:{os.minor(known.st_dev):02x}"
    read_all = tree.read_all

    def lists(where):
        line = f"1: FLOCK  ADVISORY  WRITE 4711 {where}:{known.st_ino} 0 EOF\n".encode()
        monkeypatch.setattr(tree, "read_all", lambda path: line if path == "/proc/locks" else read_all(path))

    for where in (place, "aa:bb"):
        lists(where)
        assert holder_of(GPU, [str(tmp_path)]) is not None, "it is locked, wherever it is said to be"
    other = tmp_path / "empty"
    other.mkdir()
    (other / path.name).touch()
    known = (other / path.name).stat()
    lists("aa:bb")
    assert holder_of(GPU, [str(other)]) is None


def test_all_devices_or_none(tmp_path, lock):
    one, two = lock(tmp_path / "a"), lock(tmp_path / "a")
    one.take(["GPU-2"], key="1.0", marker=None)
    with pytest.raises(DeviceInUse):
        two.take(["GPU-1", "GPU-2"], key="1.0", marker=None)
    one.take(["GPU-1"], key="2.0", marker=None)
    one.give_back(["GPU-1", "GPU-1"])


def test_what_a_job_says_of_itself_in_the_file_is_believed_only_as_far_as_it_is_a_marker(tmp_path, lock):
    (tmp_path / "a").mkdir()
    (tmp_path / "a").chmod(0o1777)
    for text in ("rubbish", "[1]", '{"pid": "rm -rf", "marker": "x"}', '{"marker": 5, "boot_id": "another"}', "\x00"):
        Path(tmp_path / "a" / f"{GPU}.lock").write_text(text)
        one = lock(tmp_path / "a")
        assert one.take([GPU], key="1.0", marker=None) is None
        one.close()
