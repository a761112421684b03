"""Commands off the wire and report items onto it, in the words of the agent's machine."""

import logging
from typing import Any, Final

from gpulayer.errors import BadRequest
from gpulayer.ids import Epoch
from gpulayer.protocol.messages import Item, Revoke, Stop
from gpulayer.spec.assignment import Assignment
from gpulayer.spec.outcome import EndedBy
from gpulayer.wire.convert import assignment_from_wire, outcome_to_wire
from gpulayer.wire.workers import ReportItem

__all__ = ["command_from_wire", "item_to_wire"]

_log: Final = logging.getLogger(__name__)
_EVIDENCE_LIMIT: Final = 60_000  # characters; the wire allows 65,536


def command_from_wire(fields: Any) -> Assignment | Stop | Revoke | None:  # Any: a JSON document of wire.workers.Command
    """None for what this version does not understand: one odd command must not keep the others from being heard."""
    try:
        match fields["type"]:
            case "assign":
                return assignment_from_wire(fields)
            case "stop":
                return Stop(Epoch(fields["epoch"]), EndedBy(fields["ended_by"]), fields["grace_ms"])
            case "revoke":
                return Revoke(Epoch(fields["epoch"]))
            case unknown:
                _log.warning("a command of type %r is not known to this version", unknown)
    except (KeyError, ValueError, TypeError, BadRequest) as error:
        _log.warning("a command can't be read: %r", error)
    return None


def item_to_wire(item: Item) -> ReportItem:
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
