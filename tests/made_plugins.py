"""Plugins made up for hosts to load, and what is asked of a host that has."""

from gpulayer.plugins.builtin import BUILTINS
from gpulayer.plugins.contracts.probe import Findings, ProbeSite
from gpulayer.plugins.results import instance_of

__all__ = ["PROBE", "look", "names", "probe", "records", "registers", "seen"]


PROBE = """
class Probe:
    name = {name!r}
    def look(self, site):
        {look}
@hookimpl
def gpulayer_register_probes(ctx):
    return [Probe()]
"""


def probe(name, look="return Findings(cpus=3)"):
    return PROBE.format(name=name, look=look)


def registers(hook, values):
    return f"@hookimpl\ndef {hook}(ctx): return {values}\n"


def look(host, registered, tmp_path, deadline_s=5.0):
    site = ProbeSite(tmp_path, {})
    return host.call(
        registered, "Probe.look", lambda thing: instance_of(Findings, thing.look(site)), deadline_s=deadline_s
    )


def records(host):
    return {record.name: record for record in host.records()}


def seen(things):
    """``host`` stands for all of core's own probes."""
    own = [thing for thing in things if thing.plugin in BUILTINS and thing.kind == "probe"]
    return [thing for thing in things if thing not in own or thing.name == "host"]


def names(things):
    return [thing.name for thing in seen(things)]
