"""SQLite on the simulated disk: as on any other, until something is done to it."""

import errno
import sqlite3
import threading
from contextlib import closing
from random import Random

import pytest

from gpulayer.testing.sim.disk import DiskFault, DiskOp, SimDisk
from gpulayer.testing.sim.vfs import SimVfs


@pytest.fixture
def vfs():
    with SimVfs(SimDisk()) as made:
        yield made
        assert made.faults == []


def connect(vfs, *, wal=True):
    connection = sqlite3.connect(f"file:/s.db?vfs={vfs.name}", uri=True, isolation_level=None, check_same_thread=False)
    if wal:
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("PRAGMA synchronous=FULL")
    return connection


def count(connection):
    return connection.execute("SELECT count(*) FROM t").fetchone()[0]


@pytest.mark.parametrize("wal", [True, False])
def test_it_holds_rows_across_connections(vfs, wal):
    with closing(connect(vfs, wal=wal)) as connection:
        connection.execute("CREATE TABLE t (a INTEGER PRIMARY KEY, b)")
        connection.executemany("INSERT INTO t VALUES (?, ?)", [(n, "x" * n) for n in range(500)])
        connection.execute("UPDATE t SET b = b || 'y'")
    with closing(connect(vfs, wal=wal)) as connection:
        assert count(connection) == 500
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    assert vfs.disk.names() == ("/s.db",)


def test_readers_and_a_writer_share_it_over_threads(vfs):
    with closing(connect(vfs)) as writer:
        writer.execute("CREATE TABLE t (a)")
        seen = []

        def read():
            with closing(connect(vfs)) as reader:
                seen.extend(count(reader) for _ in range(50))

        threads = [threading.Thread(target=read) for _ in range(3)]
        for thread in threads:
            thread.start()
        for number in range(300):
            writer.execute("INSERT INTO t VALUES (?)", (number,))
        for thread in threads:
            thread.join()
        assert count(writer) == 300
        assert len(seen) == 150


def test_two_writers_never_write_at_once(vfs):
    with closing(connect(vfs)) as first, closing(connect(vfs)) as second:
        second.execute("PRAGMA busy_timeout=0")
        first.execute("CREATE TABLE t (a)")
        first.execute("BEGIN IMMEDIATE")
        with pytest.raises(sqlite3.OperationalError, match="locked"):
            second.execute("BEGIN IMMEDIATE")
        first.execute("COMMIT")
        second.execute("INSERT INTO t VALUES (1)")
        assert count(first) == 1


def test_a_dead_process_writes_nothing_any_more_and_holds_no_lock(vfs):
    dead = connect(vfs)
    dead.execute("CREATE TABLE t (a)")
    dead.execute("BEGIN IMMEDIATE")
    dead.execute("INSERT INTO t VALUES (1)")
    vfs.kill()
    calls = vfs.disk.calls[DiskOp.WRITE], vfs.disk.calls[DiskOp.SYNC]
    dead.close()
    assert (vfs.disk.calls[DiskOp.WRITE], vfs.disk.calls[DiskOp.SYNC]) == calls
    with closing(connect(vfs)) as connection:
        assert count(connection) == 0
        connection.execute("INSERT INTO t VALUES (2)")


@pytest.mark.parametrize("seed", range(20))
def test_what_was_committed_survives_power_cuts(vfs, seed):
    rng, committed = Random(seed), 0
    for _ in range(4):
        connection = connect(vfs)
        connection.execute("CREATE TABLE IF NOT EXISTS t (a, b)")
        if committed == 0:
            vfs.disk.sync_folder("")  # SQLite does not make the name of its own file durable
        for _ in range(rng.randrange(1, 30)):
            connection.execute("INSERT INTO t VALUES (?, ?)", (committed, "x" * rng.randrange(3000)))
            committed += 1
        connection.execute("BEGIN")
        connection.execute("INSERT INTO t VALUES (-1, ?)", ("x" * 300_000,))
        vfs.kill()
        connection.close()
        vfs.disk.power_cut(rng)
        with closing(connect(vfs)) as connection:
            assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
            assert count(connection) == committed


@pytest.mark.parametrize(
    ("fault", "name"),
    [
        (DiskFault(DiskOp.WRITE, number=errno.ENOSPC), "SQLITE_FULL"),
        (DiskFault(DiskOp.WRITE), "SQLITE_IOERR_WRITE"),
        (DiskFault(DiskOp.SYNC), "SQLITE_IOERR_FSYNC"),
    ],
)
def test_faults_of_the_disk_are_told_as_sqlite_tells_them(vfs, fault, name):
    with closing(connect(vfs)) as connection:
        connection.execute("CREATE TABLE t (a)")
        vfs.disk.inject(fault)
        with pytest.raises(sqlite3.OperationalError) as caught:
            connection.execute("INSERT INTO t VALUES (1)")
        assert caught.value.sqlite_errorname == name
        connection.execute("INSERT INTO t VALUES (2)")


def test_a_read_that_fails_is_told(vfs):
    with closing(connect(vfs)) as connection:
        connection.execute("CREATE TABLE t (a)")
    with closing(connect(vfs, wal=False)) as connection:
        vfs.disk.inject(DiskFault(DiskOp.READ, calls=None))
        with pytest.raises(sqlite3.OperationalError, match="disk I/O error"):
            count(connection)


def test_who_only_reads_leaves_the_log_where_it_is(vfs):
    writer = connect(vfs)
    writer.execute("CREATE TABLE t (a)")
    vfs.kill()
    writer.close()
    names = vfs.disk.names()
    with closing(sqlite3.connect(f"file:/s.db?vfs={vfs.name}&mode=ro", uri=True)) as reader:
        assert count(reader) == 0
        with pytest.raises(sqlite3.OperationalError, match="readonly"):
            reader.execute("INSERT INTO t VALUES (1)")
    assert vfs.disk.names() == names == ("/s.db", "/s.db-wal")


def test_no_exception_crosses_into_sqlite():
    class Broken(SimDisk):
        def write(self, file, offset, data):
            raise KeyboardInterrupt

    with SimVfs(Broken()) as vfs, closing(connect(vfs, wal=False)) as connection:
        with pytest.raises(sqlite3.OperationalError, match="disk I/O error"):
            connection.execute("CREATE TABLE t (a)")
        assert any(isinstance(fault, KeyboardInterrupt) for fault in vfs.faults)
