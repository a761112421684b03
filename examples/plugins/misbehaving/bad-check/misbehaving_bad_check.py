"""Wrong: the check takes for granted that every job has a certain tag, and raises KeyError where there is none.

Right: ``dict(spec.tags).get("cost-centre", "")``, and what is wrong with a job is said as a ``Problem``.
"""

from gpulayer.plugins import Problem, Severity, hookimpl

GPULAYER_API = "1.0"


@hookimpl
def gpulayer_check_job(spec, ctx):
    if not dict(spec.tags)["cost-centre"].isdigit():
        return [Problem(Severity.ERROR, "a cost centre is a number", field="tags")]
    return []
