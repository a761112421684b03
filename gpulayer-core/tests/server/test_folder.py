"""Who else may look into a state folder: nobody."""

import os
import stat

import pytest

from gpulayer.errors import Conflict, UsageError
from gpulayer.server import ServeSettings, serve
from gpulayer.server.folder import lock_holder, locked, make_private
from gpulayer.server.settings import Layout
from gpulayer.server.store import Batch, Side, Store


def mode_of(path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_who_holds_a_folder_for_something_else_is_named_and_not_given_up_to_be_ended(tmp_path):
    layout = Layout(tmp_path)
    with locked(layout, doing="gpulayer backup"):
        assert lock_holder(layout) is None
        with (
            pytest.raises(Conflict, match=rf"gpulayer backup is at work .*pid {os.getpid()}") as refused,
            locked(layout),
        ):
            pass
        assert "gpulayer down" not in refused.value.hint
    with locked(layout):
        assert lock_holder(layout) == os.getpid()
        with pytest.raises(Conflict, match=rf"already running .*pid {os.getpid()}"), locked(layout):
            pass


@pytest.fixture
def loose():
    """A machine whose users give everything to everybody."""
    before = os.umask(0)
    yield
    os.umask(before)


@pytest.mark.parametrize("is_old", [False, True], ids=["new", "of an earlier version"])
def test_the_store_and_the_files_beside_it_are_the_owners_alone(tmp_path, loose, is_old):
    path = tmp_path / "store.db"
    if is_old:
        old = Store(str(path))
        old.commit(Batch(sides=[Side(forget_tokens=("a",))]))
        for each in tmp_path.iterdir():  # while it is open: else SQLite takes them away
            each.chmod(0o644)
        again = Store(str(path))
        old.close()
    else:
        again = Store(str(path))
    again.commit(Batch(sides=[Side(forget_tokens=("a",))]))
    modes = {each.name: mode_of(each) for each in tmp_path.iterdir()}
    again.close()
    assert {"store.db", "store.db-wal", "store.db-shm"} <= set(modes)
    assert set(modes.values()) == {0o600}


@pytest.mark.parametrize("mode", [0o755, 0o750, 0o711, 0o701])
def test_a_folder_that_others_may_look_into_is_closed_with_its_files(tmp_path, mode):
    root = tmp_path / "state"
    root.mkdir()
    (root / "plane.log").touch(0o644)
    (root / "run.sh").touch(0o755)
    (tmp_path / "elsewhere").touch(0o644)
    (root / "link").symlink_to(tmp_path / "elsewhere")
    root.chmod(mode)
    make_private(Layout(root))
    assert mode_of(root) == 0o700
    assert (mode_of(root / "plane.log"), mode_of(root / "run.sh")) == (0o600, 0o700)
    assert mode_of(tmp_path / "elsewhere") == 0o644


def test_a_folder_that_is_made_is_ours_alone(tmp_path, loose):
    make_private(Layout(tmp_path / "a" / "state"))
    assert mode_of(tmp_path / "a" / "state") == 0o700


@pytest.mark.parametrize("mode", [0o777, 0o1777, 0o770, 0o720, 0o702, 0o775])
def test_a_folder_that_others_may_write_is_refused_untouched(tmp_path, mode):
    root = tmp_path / "state"
    root.mkdir()
    root.chmod(mode)
    with pytest.raises(UsageError, match=rf"others on this machine may write state folder .*{mode:04o}") as caught:
        serve(ServeSettings(root, port=0))
    assert f"chmod 700 {root}" in caught.value.hint
    assert (mode_of(root), list(root.iterdir())) == (mode, [])


@pytest.mark.skipif(os.geteuid() != 0, reason="another's folder needs another user")
def test_anothers_folder_that_others_may_look_into_is_warned_of(tmp_path, caplog):
    root = tmp_path / "state"
    root.mkdir()
    os.chown(root, 12345, 12345)
    root.chmod(0o755)
    make_private(Layout(root))
    assert "it is not ours to close" in caplog.text
    assert mode_of(root) == 0o755
