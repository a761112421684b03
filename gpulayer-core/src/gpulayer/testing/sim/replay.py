"""A scenario as one line of JSON, and back: what is as usual is left out, so that a small one stays small."""

import json
from dataclasses import MISSING, fields
from typing import Any

from gpulayer.testing.sim.scenario import Fault, HostPlan, JobPlan, Noise, Scenario, Trouble

__all__ = ["scenario_from", "written"]


def written(scenario: Scenario) -> str:
    """``scenario_from`` of it is the scenario again."""
    return json.dumps(_plain(scenario), separators=(",", ":"))


def scenario_from(text: str) -> Scenario:
    """Raises ValueError for what is no scenario, with the reason."""
    try:
        plain = json.loads(text)
        faults = [{**fault, "kind": Trouble(fault["kind"])} for fault in plain.pop("faults", ())]
        return Scenario(
            hosts=tuple(HostPlan(**host) for host in plain.pop("hosts", ())),
            jobs=tuple(JobPlan(**job) for job in plain.pop("jobs", ())),
            faults=tuple(Fault(**fault) for fault in faults),
            noise=Noise(**plain.pop("noise", {})),
            scorers=tuple(plain.pop("scorers", ())),
            **plain,
        )
    except (AttributeError, KeyError, TypeError) as error:
        raise ValueError(f"no scenario: {error}") from error


def _plain(part: Any) -> dict[str, Any]:
    """Any: the parts of a scenario, which are flat, and itself."""
    found: dict[str, Any] = {}
    for one in fields(part):
        value = getattr(part, one.name)
        default = one.default_factory() if one.default_factory is not MISSING else one.default
        if value == default:
            continue
        if isinstance(value, Noise):
            value = _plain(value)
        elif isinstance(value, tuple):
            value = [each if isinstance(each, str) else _plain(each) for each in value]
        found[one.name] = value
    return found
