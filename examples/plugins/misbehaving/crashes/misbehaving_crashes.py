"""Wrong: native code reads where nothing is. That ends the process, and no ``except`` helps.

Right: native code that is not beyond doubt runs in a child process. (GPUlayer notes which call was running when the
worker ended, starts it again, and after three such ends in a row leaves this version of the plugin out for a day.)
"""

import ctypes

from gpulayer.plugins import hookimpl

GPULAYER_API = "1.0"


class CrashingProbe:
    name = "crashes"

    def look(self, site):
        return ctypes.string_at(0)


@hookimpl
def gpulayer_register_probes(ctx):
    return [CrashingProbe()]
