"""``python -m benchmarks.plugins [--only NAME]… [--rounds N] [--out DIR]``: measure, print, keep the results."""

import sys

from benchmarks.family import Measures, measure_family, own_version
from benchmarks.plugins import calls, loading, scoring

MEASURES: Measures = {
    "call": (calls.call, 9),
    "acall": (calls.acall, 9),
    "help": (loading.help_time, 15),
    "version": (loading.version_time, 15),
    "load": (loading.load, 5),
    "list": (loading.list_time, 5),
    "scorer": (scoring.batch, 5),
}


if __name__ == "__main__":
    sys.exit(measure_family("plugins", "Plugins", MEASURES, doc=__doc__ or "", versions=own_version))
