"""How long a worker waits for a control plane without room, and for what it waits as long as it takes."""

from gpulayer.plugins.contracts.launcher import LaunchSite
from gpulayer.worker.giving_up import GivingUp, clear_made


def test_what_failed_for_want_of_room_is_given_up_after_its_time_and_nothing_else():
    now, has_failed = [0], [True]
    gives_up = GivingUp(lambda: now[0], lambda: has_failed[0], 20_000)
    asked = []
    for ms in (1_000, 20_999, 21_000):
        now[0] = ms
        asked.append(gives_up())
    assert asked == [False, False, True]
    assert gives_up.is_over
    has_failed[0] = False
    now[0] = 10**9
    assert not gives_up()
    has_failed[0] = True
    assert not gives_up(), "its time counts from when it was known to have failed"


def test_all_that_it_wrote_goes_and_its_folders_stay(tmp_path):
    site = LaunchSite(
        tmp_path / "work", tmp_path / "out", tmp_path / "log", tmp_path / "exit.json", tmp_path / "log.err"
    )
    for folder in (site.work_dir, site.output_dir):
        (folder / "deep").mkdir(parents=True)
        (folder / "deep" / "file").write_bytes(b"x")
        (folder / "deep").chmod(0o500)
    site.log_path.write_bytes(b"x")
    clear_made(site)
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["log", "out", "work"]
