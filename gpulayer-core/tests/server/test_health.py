"""A store that is damaged is refused at the start, by name and with what to do, and left as it is; one that is not
refused answers. Nothing hangs, and nothing ends in a traceback."""

import os
import random
import shutil
import sqlite3
from pathlib import Path

import pytest

from gpulayer.clock import ManualClock
from gpulayer.errors import Conflict, GpulayerError, StorageUnavailable
from gpulayer.server.settings import Layout, PlaneSettings
from gpulayer.server.store import Batch, EventRow, Side, Store
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


def test_a_store_that_ended_well_needs_no_wal(folder) -> None:
    assert not (folder.root / "store.db-open").exists()
    store = Store(str(folder.store))
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
