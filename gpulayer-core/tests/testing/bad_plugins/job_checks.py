"""Checks of jobs."""

from bad_plugins.caught import for_ever, given, hanging
from bad_plugins.modules import module
from gpulayer.plugins import hookimpl
from gpulayer.testing import JobCheckContract


def job_check(test):
    return given(JobCheckContract, "plugin", test)


@job_check("list_of_problems")
def CheckOfNothing():  # noqa: N802 - it stands beside the classes
    @hookimpl
    def gpulayer_check_job(spec):
        return None

    return module(gpulayer_check_job=gpulayer_check_job)


@job_check("list_of_problems")
def CheckOfWords():  # noqa: N802
    @hookimpl
    def gpulayer_check_job(spec, ctx):
        return ["it has no team"]

    return module(gpulayer_check_job=gpulayer_check_job)


@job_check("any_legal_job")
def CheckOfTeams():  # noqa: N802
    @hookimpl
    def gpulayer_check_job(spec):
        return list(dict(spec.tags)["team"][:0])

    return module(gpulayer_check_job=gpulayer_check_job)


@hanging(JobCheckContract, "plugin")
def CheckOfJobsForEver():  # noqa: N802
    @hookimpl
    def gpulayer_check_job(spec):
        for_ever()

    return module(gpulayer_check_job=gpulayer_check_job)
