"""Wrong: it prints, and raises, what it was trusted with.

Right: a secret goes where it is needed and nowhere else. (GPUlayer hides the values of a plugin's options in what the
plugin logs and raises; what a plugin prints itself goes to the log of the control plane, which only its owner reads.)
"""

from gpulayer.plugins import hookimpl

GPULAYER_API = "1.0"


@hookimpl
def gpulayer_on_event(event, ctx):
    token = ctx.options["token"]
    print(f"telling {event.kind} with {token}")
    raise ConnectionError(f"POST https://chat.example/hook?token={token}: no route")
