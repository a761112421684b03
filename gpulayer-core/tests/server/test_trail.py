"""The audit trail: one unbroken chain over commits, failures and restarts, in which every forgery is found."""

import itertools
import sqlite3
import subprocess
import sys

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy.exc import OperationalError

from gpulayer.errors import InternalError, StorageUnavailable
from gpulayer.server.routes.tokens import audit_record
from gpulayer.server.store import AuditEntry, Batch, IdempotencyRow, Side, Store, reads
from gpulayer.server.store import store as store_module
from gpulayer.wire.trail import FIRST_HASH, ChainCheck, entry_hash

COLUMNS = ("seq", "wall_ms", "actor", "action", "subject", "details", "hash")


def _entry(number: int) -> AuditEntry:
    return AuditEntry(1000 + number, f"alice ({number})", "token.create", f"t{number}", '{"role":"reader"}')


def _commit(store: Store, *numbers: int) -> None:
    store.commit(Batch(sides=[Side(audit=tuple(map(_entry, numbers)))]))


def _records(store: Store) -> list[dict]:
    with store.reading() as connection:
        return [audit_record(row) for row in reads.read_audit(connection, after=0, limit=10_000)]


def _verified(store: Store) -> tuple[int, bool]:
    """How far the chain is good, and whether that is all of it."""
    check = ChainCheck()
    records = _records(store)
    good = list(itertools.takewhile(check.take, records))
    return len(good), len(good) == len(records)


@pytest.fixture
def path(tmp_path):
    return str(tmp_path / "store.db")


@pytest.fixture
def store(path):
    made = Store(path)
    yield made
    made.close()


def test_the_chain_goes_on_over_commits_and_restarts(path) -> None:
    for start in range(0, 12, 4):
        store = Store(path)
        _commit(store, start)
        _commit(store, start + 1, start + 2)
        store.commit(Batch(sides=[Side(audit=(_entry(start + 3),)), Side()]))
        store.close()
    store = Store(path)
    assert _verified(store) == (12, True)
    assert [record["seq"] for record in _records(store)] == list(range(1, 13))
    assert [record["subject"] for record in _records(store)] == [f"t{number}" for number in range(12)]
    store.close()


def test_the_hash_of_an_entry_is_what_the_documentation_says(store) -> None:
    _commit(store, 1)
    (record,) = _records(store)
    text = f'["{FIRST_HASH}",1,1001,"alice (1)","token.create","t1","{{\\"role\\":\\"reader\\"}}"]'
    done = subprocess.run(["sha256sum"], input=text.encode(), capture_output=True, check=True)
    assert done.stdout.split()[0].decode() == record["hash"]


def test_a_commit_that_failed_does_not_advance_the_chain(store, monkeypatch) -> None:
    _commit(store, 1)

    def fail(point: str) -> None:
        if point == "plane.in_transaction":
            raise OperationalError("COMMIT", {}, sqlite3.OperationalError("disk I/O error"))

    with monkeypatch.context() as patch:
        patch.setattr(store_module, "here", fail)
        with pytest.raises(StorageUnavailable, match="disk I/O error"):
            _commit(store, 2, 3)
    clash = Side(audit=(_entry(4),), idempotency=(IdempotencyRow("o", "k", None, (), 1),))
    with pytest.raises(InternalError):
        store.commit(Batch(sides=[clash]))
    _commit(store, 5)
    assert [record["subject"] for record in _records(store)] == ["t1", "t5"]
    assert _verified(store) == (2, True)


def test_a_commit_that_failed_and_is_there_after_all_is_gone_on_from(store, path) -> None:
    _commit(store, 1)
    other = Store(path)  # as if the answer to our own commit had been lost
    _commit(other, 2)
    other.close()
    with pytest.raises(InternalError):
        _commit(store, 3)
    store.load_live()  # what the driver does after a failure
    _commit(store, 4)
    assert [record["subject"] for record in _records(store)] == ["t1", "t2", "t4"]
    assert _verified(store) == (3, True)


def test_a_killed_process_leaves_a_whole_chain(path) -> None:
    code = (
        "import os, signal, sys\n"
        "from gpulayer.server.store import AuditEntry, Batch, Side, Store\n"
        "import gpulayer.server.store.store as module\n"
        "store = Store(sys.argv[1])\n"
        "for number in range(5): store.commit(Batch(sides=[Side(audit=(AuditEntry(number, 'a', 'b'),))]))\n"
        "module.here = lambda point: os.kill(os.getpid(), signal.SIGKILL)\n"
        "store.commit(Batch(sides=[Side(audit=(AuditEntry(9, 'a', 'b'),))]))\n"
    )
    done = subprocess.run([sys.executable, "-c", code, path], capture_output=True, check=False)
    assert done.returncode == -9, done.stderr
    store = Store(path)
    assert _verified(store) == (5, True)
    _commit(store, 6)
    assert _verified(store) == (6, True)
    store.close()


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE audit SET actor = 'mallory' WHERE seq = 2",
        "UPDATE audit SET hash = hash",
        "DELETE FROM audit WHERE seq = 3",
        "DELETE FROM audit",
        "INSERT OR REPLACE INTO audit SELECT 2, wall_ms, 'mallory', action, subject, details, hash FROM audit LIMIT 1",
        "INSERT INTO audit SELECT -1, wall_ms, 'mallory', action, subject, details, hash FROM audit LIMIT 1",
    ],
)
def test_the_database_itself_refuses_to_change_an_entry(store, path, statement) -> None:
    _commit(store, 1, 2, 3)
    before = _records(store)
    connection = sqlite3.connect(path)
    try:
        with pytest.raises(sqlite3.IntegrityError, match="append-only"):
            connection.execute(statement)
    finally:
        connection.close()
    assert _records(store) == before


def _forged(rows: list[tuple], path: str) -> None:
    """Whoever owns the file can drop the triggers, too."""
    connection = sqlite3.connect(path)
    connection.execute("DROP TRIGGER audit_no_update")
    connection.execute("DROP TRIGGER audit_no_delete")
    connection.execute("DROP TRIGGER audit_no_insert")
    connection.execute("DELETE FROM audit")
    connection.executemany("INSERT INTO audit VALUES (?, ?, ?, ?, ?, ?, ?)", rows)
    connection.commit()
    connection.close()


def _rows(store: Store) -> list[tuple]:
    return [tuple(record[name] for name in COLUMNS) for record in _records(store)]


def _changed(row: tuple, column: int) -> tuple:
    value = row[column]
    other = value + 1 if isinstance(value, int) else ("f" if value[:1] != "f" else "0") + value[1:]
    return (*row[:column], other, *row[column + 1 :])


@pytest.mark.parametrize("place", [0, 2, 4])
@pytest.mark.parametrize("column", range(1, 7), ids=COLUMNS[1:])
def test_a_changed_entry_is_found(store, path, place, column) -> None:
    _commit(store, 1, 2, 3, 4, 5)
    rows = _rows(store)
    rows[place] = _changed(rows[place], column)
    _forged(rows, path)
    assert _verified(store) == (place, False)


@pytest.mark.parametrize("place", [0, 2, 3])
@pytest.mark.parametrize("is_renumbered", [False, True])
def test_an_entry_that_was_taken_out_is_found(store, path, place, is_renumbered) -> None:
    _commit(store, 1, 2, 3, 4, 5)
    rows = _rows(store)
    del rows[place]
    if is_renumbered:
        rows = [(number, *row[1:]) for number, row in enumerate(rows, 1)]
    _forged(rows, path)
    assert _verified(store) == (place, False)


@pytest.mark.parametrize("place", [0, 2, 3])
def test_entries_that_changed_places_are_found(store, path, place) -> None:
    _commit(store, 1, 2, 3, 4, 5)
    rows = _rows(store)
    one, two = rows[place], rows[place + 1]
    rows[place], rows[place + 1] = (one[0], *two[1:]), (two[0], *one[1:])
    _forged(rows, path)
    assert _verified(store) == (place, False)


@pytest.mark.parametrize("place", [1, 3, 5])
def test_an_entry_that_was_slipped_in_is_found(store, path, place) -> None:
    _commit(store, 1, 2, 3, 4, 5)
    rows = _rows(store)
    seq, wall_ms, actor, action, subject, details = (place, 1, "mallory", "token.create", "t", "{}")
    after = rows[place - 2][6] if place > 1 else FIRST_HASH
    made = entry_hash(
        after=after, seq=seq, wall_ms=wall_ms, actor=actor, action=action, subject=subject, details=details
    )
    rest = [(row[0] + 1, *row[1:]) for row in rows[place - 1 :]]
    _forged([*rows[: place - 1], (seq, wall_ms, actor, action, subject, details, made), *rest], path)
    assert _verified(store) == (place, False)  # it is good itself; what follows is not any more


def test_a_trail_that_was_cut_or_written_anew_is_told_by_the_hash_kept_elsewhere(store, path) -> None:
    _commit(store, 1, 2, 3, 4, 5)
    check = ChainCheck()
    assert all(check.take(record) for record in _records(store))
    kept = (check.seq, check.hash)
    rows = _rows(store)
    _forged(rows[:3], path)
    assert _verified(store) == (3, True)
    assert kept not in [(record["seq"], record["hash"]) for record in _records(store)]


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    texts=st.lists(
        st.tuples(*[st.text(st.characters(exclude_categories=("Cs",)), max_size=12)] * 4), min_size=2, max_size=5
    ),
    data=st.data(),
)
def test_no_two_trails_share_a_hash(texts, data) -> None:
    """Moving text over the border between two fields, too, changes the hash."""

    def last(rows) -> str:
        after = FIRST_HASH
        for seq, (actor, action, subject, details) in enumerate(rows, 1):
            after = entry_hash(
                after=after, seq=seq, wall_ms=0, actor=actor, action=action, subject=subject, details=details
            )
        return after

    place = data.draw(st.integers(0, len(texts) - 1))
    actor, action, subject, details = texts[place]
    others = [
        texts[:place] + texts[place + 1 :],
        [*texts, texts[place]],
        [*texts[:place], (actor + action, "", subject, details), *texts[place + 1 :]],
        [*texts[:place], (actor, action, details, subject), *texts[place + 1 :]],
    ]
    assert all(last(other) != last(texts) or other == texts for other in others)
