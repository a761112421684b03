"""Wrong: hooks are synchronous. Nobody would await what this one returns, so it is refused with that as the reason.

Right: ``def``; what takes time goes into the methods of what is registered, which are called in threads.
"""

from gpulayer.plugins import hookimpl

GPULAYER_API = "1.0"


@hookimpl
async def gpulayer_register_probes(ctx):
    return []
