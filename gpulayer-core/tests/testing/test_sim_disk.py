"""The simulated disk keeps its word, and no more than that."""

import errno
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpulayer.testing.sim.disk import SECTOR, DiskFault, DiskOp, SimDisk

WRITES = st.lists(
    st.one_of(
        st.tuples(st.just("write"), st.integers(0, 6 * SECTOR), st.binary(min_size=1, max_size=3 * SECTOR)),
        st.tuples(st.just("truncate"), st.integers(0, 6 * SECTOR), st.just(b"")),
        st.tuples(st.just("sync"), st.just(0), st.just(b"")),
    ),
    max_size=12,
)


def play(disk, file, changes):
    """Do them, and return what a file should hold after them."""
    expected = bytearray()
    for kind, at, data in changes:
        match kind:
            case "write":
                disk.write(file, at, data)
                expected.extend(bytes(max(0, at - len(expected))))
                expected[at : at + len(data)] = data
            case "truncate":
                disk.truncate(file, at)
                expected = expected[:at] + bytes(max(0, at - len(expected)))
            case _:
                disk.sync(file)
    return bytes(expected)


def named(disk, name="/f"):
    file = disk.open(name, create=True)
    disk.sync_folder("")
    return file


@given(WRITES)
def test_what_was_written_is_read(changes):
    disk = SimDisk()
    file = named(disk)
    expected = play(disk, file, changes)
    assert disk.read(file, 0, 1 << 20) == expected


@given(WRITES, st.integers(0, 1000))
def test_what_was_synced_survives_a_power_cut(changes, seed):
    disk = SimDisk()
    file = named(disk)
    expected = play(disk, file, changes)
    disk.sync(file)
    disk.power_cut(Random(seed))
    assert disk.read(disk.open("/f"), 0, 1 << 20) == expected


@given(WRITES, WRITES, st.integers(0, 1000))
def test_after_a_power_cut_each_sector_is_as_it_once_was(before, after, seed):
    disk = SimDisk()
    file = named(disk)
    synced = play(disk, file, before)
    disk.sync(file)
    size = len(synced)
    seen: dict[int, set[bytes]] = {}

    def look():
        content = disk.read(file, 0, 1 << 20)
        for sector in range(20):
            found = content[sector * SECTOR : (sector + 1) * SECTOR]
            seen.setdefault(sector, set()).add(found.ljust(SECTOR, b"\0"))

    look()
    for change in after:
        if change[0] != "sync":
            play(disk, file, [change])
            look()
    disk.power_cut(Random(seed))
    content = disk.read(disk.open("/f"), 0, 1 << 20)
    for sector in range(size // SECTOR):  # beyond it there may be rubbish
        found = content[sector * SECTOR : (sector + 1) * SECTOR]
        whole = found.ljust(SECTOR, b"\0")
        is_cut = len(found) < SECTOR  # a shorter size arrived without what it took away
        assert whole in seen[sector] or (is_cut and any(each.startswith(found) for each in seen[sector]))


@given(st.integers(0, 1000))
def test_a_name_is_durable_only_with_its_folder(seed):
    disk = SimDisk()
    disk.sync(disk.open("/made", create=True))
    disk.sync_folder("")
    disk.sync(disk.open("/unsaid", create=True))
    disk.rename("/made", "/renamed")
    disk.power_cut(Random(seed))
    assert set(disk.names()) <= {"/made", "/renamed", "/unsaid"}
    assert ("/made" in disk.names()) is not ("/renamed" in disk.names())


def test_every_outcome_of_a_power_cut_is_met():
    """Dropped whole, kept whole, torn between sectors, the later of two files without the earlier one."""
    found = set()
    for seed in range(300):
        disk = SimDisk()
        first, second = named(disk, "/a"), named(disk, "/b")
        disk.write(first, 0, b"1" * 2 * SECTOR)
        disk.write(second, 0, b"1" * SECTOR)
        disk.power_cut(Random(seed))
        content = disk.read(disk.open("/a"), 0, 1 << 20)
        other = disk.read(disk.open("/b"), 0, 1 << 20)
        found.add((content[:1], content[SECTOR : SECTOR + 1], other[:1]))
    ones = {tuple(each == b"1" for each in story) for story in found}
    assert len(ones) == 8


def test_after_a_failed_sync_a_later_one_saves_only_what_was_written_since():
    for seed in range(100):
        disk = SimDisk()
        file = named(disk)
        disk.write(file, 0, b"a" * 4 * SECTOR)
        disk.inject(DiskFault(DiskOp.SYNC))
        with pytest.raises(OSError, match="Input/output error"):
            disk.sync(file)
        disk.write(file, 0, b"b" * SECTOR)
        disk.sync(file)
        assert disk.read(file, 0, 1 << 20) == b"b" * SECTOR + b"a" * 3 * SECTOR  # as the cache has it
        disk.power_cut(Random(seed))
        content = disk.read(disk.open("/f"), 0, 1 << 20)
        assert content[:SECTOR] == b"b" * SECTOR
        if content[SECTOR:] != b"a" * 3 * SECTOR:
            return
    raise AssertionError("what a failed sync had left was always there")


def test_a_cache_may_forget_what_a_failed_sync_left():
    contents = set()
    for seed in range(20):
        disk = SimDisk()
        file = named(disk)
        disk.write(file, 0, b"a" * SECTOR)
        disk.sync(file)
        disk.write(file, 0, b"b" * SECTOR)
        disk.inject(DiskFault(DiskOp.SYNC))
        with pytest.raises(OSError, match="Input/output error"):
            disk.sync(file)
        disk.drop_caches(Random(seed))
        contents.add(disk.read(file, 0, 1))
    assert contents == {b"a", b"b"}


def test_a_full_disk_takes_a_part_and_says_so():
    disk = SimDisk(capacity_bytes=1000)
    file = named(disk)
    disk.write(file, 0, b"x" * 900)
    with pytest.raises(OSError, match="No space left") as caught:
        disk.write(file, 900, b"y" * 900)
    assert caught.value.errno == errno.ENOSPC
    assert disk.used_bytes() == 1000
    disk.write(file, 0, b"z" * 900)  # what grows nothing needs no room
    disk.heal()
    disk.write(file, 900, b"y" * 900)


def test_faults_come_at_their_call_and_end():
    disk = SimDisk()
    file = named(disk)
    disk.inject(DiskFault(DiskOp.WRITE, at=2, calls=2), DiskFault(DiskOp.READ, calls=None))
    outcomes = []
    for _ in range(4):
        try:
            disk.write(file, 0, b"x")
            outcomes.append("written")
        except OSError:
            outcomes.append("failed")
    assert outcomes == ["written", "failed", "failed", "written"]
    for _ in range(3):
        with pytest.raises(OSError, match="Input/output error"):
            disk.read(file, 0, 1)
    disk.heal()
    assert disk.read(file, 0, 1) == b"x"
