"""Attempt folders are used again only where nothing of the last job is left."""

import os

import pytest

from gpulayer.errors import Blame
from gpulayer.ids import Epoch, JobId
from gpulayer.protocol.messages import Phase, Progress
from gpulayer.spec.assignment import Assignment, NodeKey
from gpulayer.spec.outcome import EndedBy, Outcome
from gpulayer.staging.workfolder import Baseline
from gpulayer.worker.journal import Journal

ENDED = Progress(Phase.ENDED, outcome=Outcome(EndedBy.PROGRAM, 0, blame=Blame.USER))


def job(epoch, *command):
    key = NodeKey(Epoch(epoch), 0)
    return Assignment(key=key, job_id=JobId(f"j{epoch}"), attempt=1, command=command or ("true",))


@pytest.fixture
def journal(tmp_path):
    journal = Journal(tmp_path, boot_id="b1")
    yield journal
    journal.close()


def run(journal, epoch):
    """A whole life: admitted, ended, with a log and an exit record."""
    one = job(epoch, "sh", "-c", "x" * 1000)
    journal.admit(one)
    site = journal.site(one.key)
    site.log_path.write_bytes(b"a log\n")
    site.exit_path.write_bytes(b"{}")
    journal.write(one.key, ENDED)
    return one


def test_a_folder_that_is_used_again_holds_nothing_of_the_former_job(journal):
    former = run(journal, 1)
    inode = journal.site(former.key).work_dir.stat().st_ino
    assert journal.put_by(former.key)
    assert journal.load() == []
    journal.admit(job(2))
    site = journal.site(job(2).key)
    assert site.work_dir.stat().st_ino == inode
    assert sorted(os.listdir(site.log_path.parent)) == ["assign.json", "out", "phase", "work"]
    assert journal.load() == [(job(2), Progress(Phase.STAGING))]
    journal.write(job(2).key, Progress(Phase.RUNNING))
    assert journal.load() == [(job(2), Progress(Phase.RUNNING))]


@pytest.mark.parametrize("name", ["work/made", "out/made", "unknown", "work/folder/"])
def test_a_folder_in_which_something_was_left_is_not_kept(journal, name):
    former = run(journal, 1)
    path = journal.site(former.key).log_path.parent / name
    if name.endswith("/"):
        path.mkdir()
    else:
        path.write_bytes(b"")
    assert not journal.made_nothing(former.key) or name == "unknown"
    assert not journal.put_by(former.key)
    journal.forget(former.key)
    assert not path.parent.exists()


def test_a_folder_that_the_job_replaced_or_opened_is_not_kept(journal, tmp_path):
    former = run(journal, 1)
    work = journal.site(former.key).work_dir
    work.chmod(0o777)
    assert not journal.put_by(former.key)
    work.rmdir()
    work.symlink_to(tmp_path)
    assert not journal.made_nothing(former.key)
    assert not journal.put_by(former.key)


def test_a_job_with_a_source_has_made_something_until_that_is_looked_at(journal):
    former = run(journal, 1)
    assert journal.made_nothing(former.key)
    journal.keep_baseline(former.key, Baseline({}))
    assert not journal.made_nothing(former.key)


def test_an_end_of_the_former_job_is_never_taken_for_the_new_ones(journal):
    former = run(journal, 1)
    folder = journal.site(former.key).log_path.parent
    assert journal.put_by(former.key)
    spare = next((folder.parent.parent / "spare").iterdir())
    spare.rename(folder.with_name("2.0"))  # as a crash leaves it: taken, and not written yet
    assert journal.load() == []
    assert not folder.with_name("2.0").exists()


def test_what_an_earlier_agent_kept_is_deleted(journal, tmp_path):
    assert journal.put_by(run(journal, 1).key)
    assert list((tmp_path / "spare").iterdir())
    Journal(tmp_path, boot_id="b1")
    assert not (tmp_path / "spare").exists()


@pytest.mark.parametrize("name", ["assign.json", "phase"])
@pytest.mark.parametrize("kind", ["pipe", "folder", "link", "second name"])
def test_a_folder_whose_journal_the_job_has_replaced_is_not_kept(journal, tmp_path, name, kind):
    former = run(journal, 1)
    path = journal.site(former.key).log_path.parent / name
    elsewhere = tmp_path / "elsewhere"
    elsewhere.write_bytes(b"the user's own")
    match kind:
        case "pipe":
            path.unlink()
            os.mkfifo(path)
        case "folder":
            path.unlink()
            path.mkdir()
        case "link":
            path.unlink()
            path.symlink_to(elsewhere)
        case _:
            os.link(path, tmp_path / "second")
    assert not journal.put_by(former.key)
    journal.forget(former.key)
    journal.admit(job(2))
    assert journal.load() == [(job(2), Progress(Phase.STAGING))]
    assert elsewhere.read_bytes() == b"the user's own"


def test_a_folder_into_which_something_was_to_be_staged_is_not_kept_since_that_may_still_go_on(journal):
    staged = job(1)
    journal.admit(staged)
    journal.renew_work_folder(staged.key)
    assert not journal.put_by(staged.key)
    journal.forget(staged.key)
    assert run(journal, 2)
    assert journal.put_by(job(2).key)
