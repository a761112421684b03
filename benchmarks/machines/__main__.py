"""``python -m benchmarks.machines [--only NAME]… [--rounds N] [--out DIR]``: measure, print, keep the results."""

import sys

from benchmarks.family import Measures, measure_family, own_version
from benchmarks.machines import detecting, looks

MEASURES: Measures = {
    "nothing": (looks.of_nothing, 9),
    "stubs": (looks.of_stubs, 9),
    "survey": (detecting.survey, 9),
    "detect": (detecting.whole, 9),
}


if __name__ == "__main__":
    sys.exit(measure_family("machines", "Machines", MEASURES, doc=__doc__ or "", versions=own_version))
