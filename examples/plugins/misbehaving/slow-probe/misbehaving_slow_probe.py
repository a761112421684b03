"""Wrong: the probe waits for a driver that does not answer. In C such a call could not even be interrupted.

Right: what can hang is asked in a child process, which the probe ends after some seconds.
"""

import threading

from gpulayer.plugins import hookimpl

GPULAYER_API = "1.0"


class SlowProbe:
    name = "slow"

    def look(self, site):
        threading.Event().wait()


@hookimpl
def gpulayer_register_probes(ctx):
    return [SlowProbe()]
