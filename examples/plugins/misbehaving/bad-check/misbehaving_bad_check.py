"""Wrong: the check takes for granted that every job has a tag, and raises KeyError where there is none.

Right: what is not there is no problem of the job's, or is said as one: ``Problem(Severity.ERROR, …)``.
"""

from gpulayer.plugins import hookimpl

GPULAYER_API = "1.0"


@hookimpl
def gpulayer_check_job(spec, ctx):
    print("checking the job of", spec.owner_of_the_cost_centre)
    return []
