"""Wrong: it prints, and raises, what it was trusted with.

Right: a secret goes where it is needed and nowhere else. (GPUlayer hides the values of options in what plugins print,
log and raise, as they stand there. A secret that was encoded first, as in a URL, it does not know.)
"""

from gpulayer.plugins import hookimpl

GPULAYER_API = "1.0"


@hookimpl
def gpulayer_on_event(event, ctx):
    token = ctx.options["token"]
    print(f"telling {event.kind} with {token}")
    raise ConnectionError(f"POST https://chat.example/hook?token={token}: no route")
