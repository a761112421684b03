"""``python -m benchmarks.reliability [--only NAME]… [--rounds N] [--out DIR]``: measure, print, keep the results."""

import sys

from benchmarks.family import Measures, measure_family, own_version
from benchmarks.reliability import crowd, durable, fleet_story

MEASURES: Measures = {
    "events": (durable.durable_events, 5),
    "waiting": (durable.waiting, 5),
    "crowd": (crowd.rows, 1),
    "story": (fleet_story.rows, 1),
}


if __name__ == "__main__":
    sys.exit(measure_family("reliability", "Reliability figures", MEASURES, doc=__doc__ or "", versions=own_version))
