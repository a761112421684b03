"""Wrong: the hook is to give a list of Probe, and gives names.

Right: objects with the members of the contract; a type checker and gpulayer.testing.PluginContract see the difference.
"""

from gpulayer.plugins import hookimpl

GPULAYER_API = "1.0"


@hookimpl
def gpulayer_register_probes(ctx):
    return ["temperature", "humidity"]
