"""``python -m benchmarks.edges [--only NAME]… [--rounds N] [--out DIR]``: measure, print, keep the results."""

import sys

from benchmarks.edges import reconnect, requests
from benchmarks.family import Measures, measure_family, own_version

MEASURES: Measures = {
    "connection": (requests.connection, 7),
    "request": (requests.request, 7),
    "authentication": (requests.authentication, 7),
    "reconnect": (reconnect.row, 3),
}


if __name__ == "__main__":
    sys.exit(measure_family("edges", "Edges: other machines", MEASURES, doc=__doc__ or "", versions=own_version))
