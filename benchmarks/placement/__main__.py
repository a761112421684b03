"""``python -m benchmarks.placement [--only NAME]… [--rounds N] [--out DIR]``: measure, print, keep the results."""

import sys

from benchmarks.family import Measures, measure_family, own_version
from benchmarks.placement import clusters, scale, subsets

MEASURES: Measures = {
    "eight": (subsets.of_eight, 9),
    "sixteen": (subsets.of_sixteen, 5),
    "share": (subsets.share, 9),
    "clusters": (clusters.shared, 5),
    "steady": (scale.steady, 3),
    "decisions": (scale.decisions, 3),
}


if __name__ == "__main__":
    sys.exit(measure_family("placement", "Placement", MEASURES, doc=__doc__ or "", versions=own_version))
