"""Jobs to try plugins with: a usual one, and such as are legal too."""

from collections.abc import Sequence
from typing import Final

from gpulayer.spec.job import JobSpec
from gpulayer.spec.request import Request

__all__ = ["UNICODE", "odd_jobs", "usual_job"]

UNICODE: Final = "Grüße, 世界 🌍"


def usual_job() -> JobSpec:
    """With a name and a tag, and asking for nothing in particular."""
    return JobSpec(("python", "train.py"), name="a job", tags=(("team", "vision"),))


def odd_jobs() -> Sequence[JobSpec]:
    """Legal all, and as far from the usual as a submission can be."""
    return (
        JobSpec(("true",)),
        JobSpec((UNICODE, "", "a\nb"), name=UNICODE, tags=((UNICODE, ""),), env=(("X", UNICODE),)),
        JobSpec(("true", *["x" * 1000] * 200), tags=tuple((f"tag-{number}", "x") for number in range(64))),
        JobSpec(("true",), request=Request(devices=1024, cpus=100_000, device_models=(UNICODE,))),
        JobSpec(("true",), launcher="nobodys", environment="nobodys", inputs=(("data", "nobodys:///x"),)),
    )
