"""When a submission under a known key is the one of before: by what was asked for, not by how it was written."""

import pytest

from gpulayer.server.submission import differing_fields

JOB = {"schema": 1, "command": ["make"], "env": {"PATH": "/usr/bin", "A": "1"}}


@pytest.mark.parametrize(
    "again",
    [
        {**JOB, "retries": 2, "grace_ms": 30_000, "launcher": "", "tags": {}, "wait": True},
        {**JOB, "env": {"A": "1", "PATH": "/opt/bin:/usr/bin", "VIRTUAL_ENV": "/home/me/venv"}},
        {**JOB, "env": {"A": "1"}},
    ],
)
def test_defaults_that_are_spelt_out_and_what_a_client_sends_by_itself_make_no_other_job(again):
    assert differing_fields([JOB, JOB], [JOB, again]) == []


@pytest.mark.parametrize(
    ("again", "fields"),
    [
        ({**JOB, "command": ["make", "all"]}, ["command"]),
        ({**JOB, "retries": 3, "exclusive": True}, ["exclusive", "retries"]),
        ({**JOB, "env": {"PATH": "/usr/bin", "A": "2"}}, ["env"]),
        ({**JOB, "request": {"cpus": 1}}, ["request"]),  # as a limit it was asked for
    ],
)
def test_what_differs_is_named(again, fields):
    assert differing_fields([JOB, JOB], [JOB, again]) == fields


def test_another_number_of_jobs_is_another_batch():
    assert differing_fields([JOB], [JOB, JOB]) == ["number of jobs"]
