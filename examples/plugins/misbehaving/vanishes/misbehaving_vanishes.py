"""Wrong: it removes its own files while it runs, as an upgrade in the wrong moment would.

Right: nothing. It can't be prevented, so what was loaded works on, and the record says that it is not there any more.
"""

from importlib.metadata import files

from gpulayer.plugins import hookimpl

GPULAYER_API = "1.0"


@hookimpl
def gpulayer_check_job(spec, ctx):
    for file in files("misbehaving-vanishes") or ():
        file.locate().unlink(missing_ok=True)
    return []
