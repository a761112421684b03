"""Wrong: a scorer is asked about some pairs, and answers with a million opinions.

Right: one opinion a pair, in the order of ``batch.pairs``.
"""

from gpulayer.plugins import Mark, hookimpl

GPULAYER_API = "1.0"


class FloodingScorer:
    name = "floods"
    lifetime_s = 1.0

    def score(self, batch):
        return [Mark(0.1)] * 1_000_000


@hookimpl
def gpulayer_register_scorers(ctx):
    return [FloodingScorer()]
