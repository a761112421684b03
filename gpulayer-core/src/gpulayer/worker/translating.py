"""Commands off the wire and report items onto it, in the words of the agent's machine."""

import logging
from collections.abc import Sequence
from typing import Any, Final

from gpulayer.errors import BadRequest
from gpulayer.ids import Epoch
from gpulayer.plugins.record import PluginRecord
from gpulayer.plugins.reporting import plugin_to_wire
from gpulayer.protocol.messages import Item, ReportPlan, Revoke, Stop
from gpulayer.spec.assignment import Assignment
from gpulayer.spec.machine import WorkerFacts
from gpulayer.spec.outcome import EndedBy
from gpulayer.wire import SCHEMA_VERSION
from gpulayer.wire.convert import assignment_from_wire, outcome_to_wire
from gpulayer.wire.facts import facts_to_wire
from gpulayer.wire.workers import ReportBody, ReportItem

__all__ = ["command_from_wire", "report_to_wire"]

_log: Final = logging.getLogger(__name__)
_EVIDENCE_LIMIT: Final = 60_000  # characters; the wire allows 65,536
_PLUGINS: Final = 128


def command_from_wire(fields: Any) -> Assignment | Stop | Revoke | None:  # Any: a JSON document of wire.workers.Command
    """None for what this version does not understand: one odd command must not keep the others from being heard."""
    try:
        match fields["type"]:
            case "assign":
                return assignment_from_wire(fields)
            case "stop":
                ended_by = EndedBy(fields["ended_by"])
                return Stop(Epoch(fields["epoch"]), ended_by, fields["grace_ms"], fields.get("node"))
            case "revoke":
                return Revoke(Epoch(fields["epoch"]))
            case unknown:
                _log.warning("a command of type %r is not known to this version", unknown)
    except (KeyError, ValueError, TypeError, BadRequest) as error:
        _log.warning("a command can't be read: %r", error)
    return None


def report_to_wire(plan: ReportPlan, facts: WorkerFacts, plugins: Sequence[PluginRecord] | None = None) -> ReportBody:
    """The whole body; ``facts`` go along where the plan says so. plugins: None where they are known already."""
    body: ReportBody = {
        "schema": SCHEMA_VERSION,
        "boot": plan.boot,
        "seq": plan.seq,
        "sent_ms": plan.sent_ms,
        "holding": list(plan.holding),
        "items": [_item_to_wire(item) for item in plan.items],
    }
    if plan.recovered is not None:
        body["recovered"] = list(plan.recovered)
    if plan.unstarted:
        body["unstarted"] = list(plan.unstarted)
    if plan.unsure:
        body["unsure"] = True
    if plan.has_facts:
        body["facts"] = facts_to_wire(facts)
    if plugins is not None:
        body["plugins"] = [plugin_to_wire(record) for record in plugins[:_PLUGINS]]
    if plan.stopping:
        body["stopping"] = True
    if plan.leaving:
        body["leaving"] = True
    return body


def _item_to_wire(item: Item) -> ReportItem:
    """Evidence is cut to what the wire takes."""
    fields: ReportItem = {"epoch": item.key.epoch, "node": item.key.node, "state": item.state.value}
    if item.outcome is not None:
        outcome = outcome_to_wire(item.outcome)
        outcome["evidence"] = outcome["evidence"][:_EVIDENCE_LIMIT]
        fields["outcome"] = outcome
    if item.outputs is not None:
        fields["outputs"] = item.outputs
    if item.started_ago_ms is not None:
        fields["started_ago_ms"] = item.started_ago_ms
    return fields
