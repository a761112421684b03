"""A store that is damaged is refused at the start, by name and with what to do, and left as it is; one that is not
refused answers. Nothing hangs, and nothing ends in a traceback."""

import itertools
import json
import os
import random
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from gpulayer.clock import ManualClock
from gpulayer.errors import Conflict, GpulayerError, StorageUnavailable
from gpulayer.server.settings import Layout, PlaneSettings
from gpulayer.server.store import Batch, EventRow, Side, Store, health
from gpulayer.server.store.disk import StoreDisk, examine
from gpulayer.server.store.health import read_only
from gpulayer.syncing import Syncs
from gpulayer.testing.plane import LivePlane


@pytest.fixture(scope="module")
def used(tmp_path_factory) -> Path:
    """The folder of a control plane that has had workers and jobs, and has ended."""
    live = LivePlane(tmp_path_factory.mktemp("used") / "state", clock=ManualClock()).start()
    from gpulayer.testing.wire_worker import WireWorker  # noqa: PLC0415 - it needs the plane

    worker = WireWorker(live, "box")
    worker.report()
    bodies = [{"schema": 1, "command": ["echo", "x" * 500], "name": f"j{n}"} for n in range(60)]
    headers = {"Authorization": f"Bearer {live.token}"}
    for body in bodies:
        assert live.bare.post(f"{live.url}/v1/jobs", json=body, headers=headers).status_code == 201
    for _ in range(3):
        for command in worker.commands(hold_s=1):
            if command["type"] == "assign":
                worker.report(worker.running(command["epoch"]), worker.ended(command["epoch"]))
    live.stop()
    return live.settings.state_dir


@pytest.fixture
def folder(used, tmp_path) -> Layout:
    shutil.copytree(used, tmp_path / "state")
    return Layout(tmp_path / "state")


def contents(layout: Layout) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in layout.root.iterdir() if path.is_file()}


def refused(layout: Layout) -> GpulayerError:
    """By a whole control plane. The folder is as it was."""
    before = contents(layout)
    live = LivePlane(layout.root, clock=ManualClock())
    with pytest.raises(GpulayerError) as error:
        live.start()
    after = {name: content for name, content in contents(layout).items() if not name.endswith("-shm")}
    assert {name: content for name, content in before.items() if not name.endswith("-shm")} == after
    assert error.value.hint
    return error.value


def change(layout: Layout, *statements: str) -> None:
    connection = sqlite3.connect(layout.store)
    for statement in statements:
        connection.execute(statement)
    connection.commit()
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    connection.close()


def overwrite(path: Path, offset: int, content: bytes) -> None:
    with open(path, "r+b") as file:
        file.seek(offset)
        file.write(content)


def test_garbage_in_the_header_is_no_sqlite_file(folder) -> None:
    overwrite(folder.store, 0, os.urandom(100))
    assert "it is no SQLite file" in refused(folder).message


def test_an_empty_file_is_damaged_and_no_new_store_is_made_of_it(folder) -> None:
    folder.store.write_bytes(b"")
    error = refused(folder)
    assert error.message == f"the control plane's store {folder.store} is damaged: it is empty"
    assert "gpulayer restore FILE" in error.hint
    assert "nothing in it was changed" in error.hint


def test_a_store_that_is_gone_is_not_made_anew(folder) -> None:
    folder.store.unlink()
    assert "it is gone, and pepper, which was made after it, is there" in refused(folder).message


@pytest.mark.parametrize("share", [0.001, 0.3, 0.9])
def test_a_store_that_was_cut_off_is_damaged(folder, share) -> None:
    os.truncate(folder.store, int(folder.store.stat().st_size * share))
    assert "is damaged" in refused(folder).message


def test_a_page_of_zeros_or_of_rubbish_is_found_wherever_it_is(folder) -> None:
    whole = folder.store.read_bytes()
    pages = len(whole) // 4096
    for page in range(1, pages, max(1, pages // 12)):
        folder.store.write_bytes(whole)
        overwrite(folder.store, page * 4096, b"\xa5" * 4096)
        assert "is damaged" in refused(folder).message, page


def test_a_missing_table_column_or_row_of_counters_is_named(folder) -> None:
    change(folder, "DROP TABLE sink_cursors")
    assert "its table sink_cursors is missing" in refused(folder).message


def test_a_missing_row_of_counters_is_said(folder) -> None:
    change(folder, "DELETE FROM counters")
    assert "it has 0 rows of counters instead of one" in refused(folder).message


def test_counters_that_stand_below_what_was_given_out_are_never_used_again(folder) -> None:
    change(folder, "UPDATE counters SET next_epoch = 2")
    assert "its counter of epochs stands at 2, and it has number" in refused(folder).message


def test_another_programs_sqlite_file_is_left_alone(folder) -> None:
    folder.store.unlink()
    connection = sqlite3.connect(folder.store)
    connection.execute("CREATE TABLE notes (text)")
    connection.commit()
    connection.close()
    assert "it is another program's SQLite file" in refused(folder).message


def test_a_folder_a_pipe_and_a_dangling_link_in_its_place_are_said(folder) -> None:
    folder.store.unlink()
    folder.store.mkdir()
    assert "there is a folder in its place" in refused(folder).message
    folder.store.rmdir()
    os.mkfifo(folder.store)
    live = LivePlane(folder.root)
    with pytest.raises(StorageUnavailable, match="it is no plain file"):
        live.start()
    folder.store.unlink()
    folder.store.symlink_to(folder.root / "nowhere")
    with pytest.raises(StorageUnavailable, match="it is a link to nothing"):
        live.start()


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
def test_a_store_that_can_not_be_read_says_so(folder) -> None:
    folder.store.chmod(0)
    assert "can't be read: Permission denied" in refused(folder).message


def test_a_crash_whose_wal_was_taken_away_is_noticed(folder) -> None:
    """SQLite would go on from an older state, and give out the same epochs again."""
    store = Store(str(folder.store))
    store.commit(Batch(events=[EventRow(1, 1, "job_submitted", "{}")], sides=[Side()]))
    crashed = folder.root.with_name("crashed")
    shutil.copytree(folder.root, crashed)
    store.close()
    left = Layout(crashed)
    (crashed / "store.db-wal").unlink()
    (crashed / "store.db-shm").unlink()
    error = refused(left)
    assert "store.db-wal is gone" in error.message
    assert f"remove {left.store}-open" in error.hint
    (crashed / "store.db-open").unlink()
    Store(str(left.store)).close()
    assert not (crashed / "store.db-open").exists()


@pytest.fixture
def crashed(folder) -> Layout:
    """The same after a kill -9, in the middle of whose life SQLite wrote its log back and began it anew."""
    store = Store(str(folder.store))
    for number in range(60):
        store.commit(Batch(events=[EventRow(number, 1, "job_submitted", json.dumps({"x": "y" * 40_000}))]))
        if number == 30:
            with closing(sqlite3.connect(folder.store)) as connection:
                connection.execute("PRAGMA wal_checkpoint(PASSIVE)")
    left = folder.root.with_name("crashed")
    shutil.copytree(folder.root, left)
    store.close()
    return Layout(left)


def test_what_a_kill_left_is_taken_over(crashed) -> None:
    store = Store(str(crashed.store))
    assert store.highest() > 60
    store.close()


def _log(layout: Layout) -> Path:
    return layout.root / "store.db-wal"


@pytest.mark.parametrize("share", [0.0, 0.00001, 0.001, 0.2, 0.9])
def test_a_log_that_was_emptied_or_cut_off_is_damage_and_no_torn_end(crashed, share) -> None:
    os.truncate(_log(crashed), int(_log(crashed).stat().st_size * share))
    error = refused(crashed)
    assert "it was in use when its control plane ended, and store.db-wal" in error.message
    assert "gpulayer restore FILE" in error.hint


def test_wherever_a_bit_of_the_log_flips_no_commit_is_lost_without_a_word(crashed) -> None:
    whole = _log(crashed).read_bytes()
    with closing(read_only(crashed.store)) as connection:
        (last,) = connection.execute("SELECT max(seq) FROM events").fetchone()
    rng = random.Random(7)
    said = set()
    for offset in [0, 5, 20, 31, 40, *(rng.randrange(len(whole)) for _ in range(25))]:
        _log(crashed).write_bytes(whole)
        overwrite(_log(crashed), offset, bytes([whole[offset] ^ 1 << rng.randrange(8)]))
        again = crashed.root.with_name("again")
        shutil.rmtree(again, ignore_errors=True)
        shutil.copytree(crashed.root, again)
        (again / "store.db-shm").unlink()
        try:
            store = Store(str(Layout(again).store))
        except GpulayerError as error:
            said.add(error.message.rpartition("store.db-wal ")[2])
            continue
        with store.reading() as connection:
            assert connection.exec_driver_sql("SELECT max(seq) FROM events").scalar_one() == last
        store.close()
    assert any("newest" in each for each in said)
    assert "has a damaged header" in said


def test_an_older_log_in_its_place_is_noticed(folder) -> None:
    store = Store(str(folder.store))
    store.commit(Batch(events=[EventRow(1, 1, "job_submitted", "{}")]))
    older = _log(folder).read_bytes()
    for number in range(3):
        store.commit(Batch(events=[EventRow(number, 1, "job_submitted", "{}")]))
    left = Layout(folder.root.with_name("crashed"))
    shutil.copytree(folder.root, left.root)
    store.close()
    _log(left).write_bytes(older)
    (left.root / "store.db-shm").unlink()
    assert "the newest 3 commits are not in it" in refused(left).message
    with pytest.raises(StorageUnavailable, match="the newest 3 commits"):
        examine(left.store, made_after=left.pepper)


@pytest.mark.parametrize(
    "mark", [b"", b"\0" * 32, b"9" * 32, b"\xa5" * 32], ids=["empty", "zeros", "digits", "rubbish"]
)
def test_a_mark_that_a_power_cut_left_without_its_count_refuses_nothing(crashed, mark) -> None:
    (crashed.root / "store.db-open").write_bytes(mark)
    Store(str(crashed.store)).close()


def test_a_log_that_can_not_be_written_back_stays_and_so_does_the_word_that_it_is_needed(folder) -> None:
    """As on a full disk."""
    store = Store(str(folder.store))
    store.commit(Batch(events=[EventRow(1, 1, "job_submitted", "{}")]))
    with store.reading() as reader:
        reader.exec_driver_sql("SELECT count(*) FROM events").all()
        store.commit(Batch(events=[EventRow(2, 1, "job_submitted", "{}")]))
        store.close()
        left = Layout(folder.root.with_name("left"))
        shutil.copytree(folder.root, left.root)
    assert (left.root / "store.db-open").exists()
    assert _log(left).stat().st_size > 0
    kept = _log(left).rename(left.root / "kept")
    assert "store.db-wal is gone" in refused(left).message
    kept.rename(_log(left))
    Store(str(left.store)).close()
    assert not (left.root / "store.db-open").exists()


@pytest.mark.parametrize("how", ["removed", "replaced", "without its log"])
def test_a_store_that_is_taken_away_from_a_running_plane_ends_it_and_all_of_it_is_kept(folder, how) -> None:
    told: list[str] = []
    disk = StoreDisk(Syncs(failed=lambda path, error: told.append(f"{path}: {error.strerror}")))
    store = Store(str(folder.store), disk=disk)
    store.commit(Batch(events=[EventRow(1, 1, "job_submitted", "{}")]))
    store.check_place()
    for each in folder.root.glob("store.db-wal" if how == "without its log" else "store.db*"):
        each.unlink()
    if how == "replaced":
        sqlite3.connect(folder.store).close()
        folder.store.touch()
    with pytest.raises(StorageUnavailable, match="is gone"):
        store.commit(Batch(events=[EventRow(2, 1, "job_queued", "{}")]))
    (said,) = told
    kept = Path(said.partition("the copy ")[2].partition(". ")[0])
    assert kept.stat().st_mode & 0o777 == 0o600
    with closing(read_only(kept)) as connection:
        assert connection.execute("SELECT kind FROM events ORDER BY seq DESC LIMIT 2").fetchall() == [
            ("job_queued",),
            ("job_submitted",),
        ]
    store.close()
    for each in folder.root.glob("store.db*"):
        if each != kept:
            each.unlink()
    error = refused(folder)
    assert "it is gone" in error.message
    assert f"{kept} is a copy that was made when that was noticed" in error.hint
    kept.rename(folder.store)
    Store(str(folder.store)).close()


def test_a_folder_that_was_moved_is_no_store_that_was_lost(folder) -> None:
    store = Store(str(folder.store))
    folder.root.rename(folder.root.with_name("elsewhere"))
    store.commit(Batch(events=[EventRow(1, 1, "job_submitted", "{}")]))
    store.close()


def test_a_store_that_ended_well_needs_no_wal(folder) -> None:
    assert not (folder.root / "store.db-open").exists()
    store = Store(str(folder.store))
    store.commit(Batch(sides=[Side()]))
    assert (folder.root / "store.db-open").exists()
    store.close()
    assert not (folder.root / "store.db-open").exists()
    Store(str(folder.store)).close()


def test_a_newer_schema_is_refused_by_the_whole_program(folder) -> None:
    change(folder, "UPDATE alembic_version SET version_num = '9999'")
    error = refused(folder)
    assert isinstance(error, Conflict)
    assert "the store has schema 9999" in error.message
    assert "upgrade gpulayer" in error.hint


def test_an_older_store_is_copied_before_it_is_brought_up_to_date(folder) -> None:
    change(
        folder, "DROP TABLE sink_cursors", "ALTER TABLE counters DROP COLUMN store_id",
        "ALTER TABLE tasks DROP COLUMN held_until_ms", "ALTER TABLE tasks DROP COLUMN state",
        "ALTER TABLE tasks DROP COLUMN outcome", "ALTER TABLE tasks DROP COLUMN outputs",
        "ALTER TABLE attempts DROP COLUMN task_index", "DROP INDEX ix_jobs_retry_of",
        "ALTER TABLE jobs DROP COLUMN retry_of", "ALTER TABLE jobs DROP COLUMN begun",
        "UPDATE alembic_version SET version_num = '0003'",
    )  # fmt: skip
    Store(str(folder.store)).close()
    copy = folder.root / "store.db.schema-0003"
    connection = sqlite3.connect(copy)
    assert connection.execute("SELECT version_num FROM alembic_version").fetchone() == ("0003",)
    connection.close()
    assert copy.stat().st_mode & 0o777 == 0o600


def test_a_new_store_that_was_not_finished_is_made_again(tmp_path) -> None:
    for name in ("store.db.new", "store.db.new-journal"):
        (tmp_path / name).write_bytes(b"half")
    Store(str(tmp_path / "store.db")).close()
    assert [path.name for path in tmp_path.iterdir()] == ["store.db"]


def test_whichever_bits_flip_a_start_refuses_or_answers(used, tmp_path) -> None:
    """SQLite's pages have no checksums: a changed letter in a command is not noticed. What can't be right is."""
    random_ = random.Random(6)
    whole = (used / "store.db").read_bytes()
    outcomes = {"refused": 0, "served": 0}
    for trial in range(60):
        root = tmp_path / f"s{trial}"
        root.mkdir(mode=0o700)
        (root / "pepper").write_bytes((used / "pepper").read_bytes())
        changed = bytearray(whole)
        for _ in range(random_.choice((1, 1, 4, 64))):
            changed[random_.randrange(len(changed))] ^= 1 << random_.randrange(8)
        (root / "store.db").write_bytes(changed)
        outcomes[_start(root)] += 1
        shutil.rmtree(root)
    assert min(outcomes.values()) > 5, outcomes


def _start(root: Path) -> str:
    live = LivePlane(root, clock=ManualClock())
    try:
        live.start()
    except (StorageUnavailable, Conflict):
        return "refused"
    try:
        headers = {"Authorization": f"Bearer {live.token}"}
        for path in ("/v1/plane", "/v1/jobs?limit=100", "/v1/workers", "/v1/audit", "/v1/tokens"):
            answer = live.bare.get(live.url + path, headers=headers)
            assert answer.status_code in (200, 401, 503), (path, answer.text)
    finally:
        live.stop()
    return "served"


def test_a_store_is_only_made_where_there_was_none(tmp_path) -> None:
    settings = PlaneSettings(state_dir=tmp_path / "state")
    live = LivePlane(settings.state_dir).start()
    live.stop()
    before = settings.layout.store.stat().st_ino
    live = LivePlane(settings.state_dir).start()
    live.stop()
    assert settings.layout.store.stat().st_ino == before


@pytest.mark.parametrize(
    "look", [health.examine, lambda path, **_: Store(str(path)).close()], ids=["a doctor", "a start"]
)
def test_a_disk_that_fails_as_the_file_is_opened_is_no_fault_of_ours(tmp_path, monkeypatch, look):
    """SQLite reads a file as it opens it; so an error may come before anything is asked."""
    path = tmp_path / "store.db"
    Store(str(path)).close()
    usual, opened = sqlite3.connect, []
    monkeypatch.setattr(sqlite3, "connect", lambda *told, **options: opened.append(told) or usual(*told, **options))
    look(path, made_after=tmp_path / "pepper")
    for failing in range(len(opened)):
        calls = itertools.count()

        def connect(*told, failing=failing, calls=calls, **options):
            if next(calls) == failing:
                raise sqlite3.OperationalError("disk I/O error")
            return usual(*told, **options)

        monkeypatch.setattr(sqlite3, "connect", connect)
        with pytest.raises(StorageUnavailable, match="disk I/O error"):
            look(path, made_after=tmp_path / "pepper")
