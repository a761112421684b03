"""What of a node outlives the agent, and what of it is never believed."""

import shutil

import pytest

from gpulayer.errors import Blame
from gpulayer.ids import Digest, Epoch, JobId
from gpulayer.protocol.messages import Phase, Progress
from gpulayer.spec.assignment import Assignment, NodeKey
from gpulayer.spec.outcome import EndedBy, Outcome
from gpulayer.staging.workfolder import Baseline
from gpulayer.worker.journal import Journal

JOB = Assignment(
    key=NodeKey(Epoch(7), 1),
    job_id=JobId("j"),
    attempt=2,
    command=("sh", "-c", "x"),
    env=(("A", "1"),),
    source=Digest("a" * 64),
    devices=("GPU-1",),
    timeout_ms=5,
    exclusive=True,
)
FULL = Progress(
    Phase.ENDED,
    started_ms=1,
    stop=EndedBy.CANCEL,
    kill_at_ms=2,
    is_signalled=True,
    outcome=Outcome(EndedBy.CANCEL, 0, evidence="e", blame=Blame.USER),
    outputs=Digest("b" * 64),
)


@pytest.fixture
def journal(tmp_path):
    return Journal(tmp_path, boot_id="b1")


def test_the_last_progress_of_every_node_is_found_again_in_order(journal):
    other = Assignment(key=NodeKey(Epoch(10), 0), job_id=JobId("k"), attempt=1, command=("true",))
    journal.admit(other)
    journal.admit(JOB)
    journal.write(JOB.key, Progress(Phase.RUNNING))
    journal.write(JOB.key, FULL)
    assert journal.load() == [(JOB, FULL), (other, Progress(Phase.STAGING))]
    assert journal.site(JOB.key).work_dir.is_dir()


def test_a_line_that_was_cut_short_does_not_count(journal):
    journal.admit(JOB)
    journal.write(JOB.key, FULL)
    with open(journal.site(JOB.key).log_path.with_name("phase"), "ab") as file:
        file.write(b'{"phase": "stag')
    assert journal.load() == [(JOB, FULL)]


@pytest.mark.parametrize("damage", ["assign.json", "phase"])
@pytest.mark.parametrize("content", [b"", b"{}\n", b"[]\n", b"\xff\n", None])
def test_a_folder_that_cannot_be_read_is_thrown_away(journal, damage, content):
    journal.admit(JOB)
    path = journal.site(JOB.key).log_path.with_name(damage)
    if content is None:
        path.unlink()
    else:
        path.write_bytes(content)
    assert journal.load() == []
    assert not path.parent.exists()


def test_a_folder_under_another_name_is_not_believed(journal):
    journal.admit(JOB)
    folder = journal.site(JOB.key).log_path.parent
    folder.rename(folder.with_name("8.1"))
    assert journal.load() == []


def test_what_was_never_admitted_is_not_written(journal):
    with pytest.raises(FileNotFoundError):
        journal.write(JOB.key, FULL)


def test_forgetting_may_be_repeated_and_half_deleted_folders_are_swept(journal, tmp_path):
    journal.admit(JOB)
    journal.forget(JOB.key)
    journal.forget(JOB.key)
    trash = tmp_path / "attempts" / ".trash-9.0"
    trash.mkdir()
    assert journal.load() == []
    journal.sweep()
    assert list((tmp_path / "attempts").iterdir()) == []


def test_contact_counts_only_within_one_boot_of_the_host(journal, tmp_path):
    assert journal.contact_ms() is None
    journal.save_contact(5)
    assert journal.contact_ms() == 5
    assert not journal.has_rebooted()
    later = Journal(tmp_path, boot_id="b2")
    assert later.contact_ms() is None
    assert later.has_rebooted()
    later.save_contact(1)
    assert not later.has_rebooted()


def test_a_contact_that_a_loss_of_power_took_or_tore_is_one_of_before_it(journal, tmp_path):
    journal.save_contact(5)
    for torn in (b"?", b"", b"{}"):
        (tmp_path / "contact.json").write_bytes(torn)
        assert journal.contact_ms() is None
        assert journal.has_rebooted()
    (tmp_path / "contact.json").unlink()
    assert journal.has_rebooted()


def test_staging_again_begins_with_an_empty_folder(journal):
    journal.admit(JOB)
    (journal.site(JOB.key).work_dir / "left").touch()
    journal.renew_work_folder(JOB.key)
    assert list(journal.site(JOB.key).work_dir.iterdir()) == []
    assert journal.baseline(JOB.key) == Baseline({})
    journal.keep_baseline(JOB.key, Baseline({}))
    assert journal.baseline(JOB.key) == Baseline({})


def test_a_node_is_admitted_though_somebody_has_removed_the_folder_of_all_attempts(tmp_path):
    journal = Journal(tmp_path, boot_id="b1")
    shutil.rmtree(tmp_path / "attempts")
    assignment = Assignment(key=NodeKey(Epoch(7), 0), job_id=JobId("j7"), attempt=1, command=("true",))
    journal.admit(assignment)
    assert journal.load() == [(assignment, Progress(Phase.STAGING))]
    journal.close()
