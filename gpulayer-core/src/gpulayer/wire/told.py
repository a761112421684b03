"""What a worker tells of itself, judged by meaning before it is kept and handed out: names that are none are refused.

For reports and enrolments alone: what is in the store was judged when it came. A kind of capability that is not known
here is no fault, since a worker may be newer than its control plane.
"""

import unicodedata
from collections.abc import Iterable
from datetime import datetime
from typing import Final

from gpulayer.errors import BadRequest, UsageError
from gpulayer.spec.capabilities import check_resource, is_plain_name
from gpulayer.spec.machine import WorkerFacts
from gpulayer.wire.facts import facts_from_wire
from gpulayer.wire.plugins import PluginFields
from gpulayer.wire.workers import WorkerFactsFields

__all__ = ["check_told_plugins", "told_facts"]

_CORE: Final = "gpulayer-core"
# Not all that can't be printed: the worker's Python may know characters that this one does not.
_NOT_SHOWN: Final = ("Cc", "Cf", "Cs", "Zl", "Zp")


def told_facts(facts: WorkerFactsFields) -> WorkerFacts:
    """The facts, as ``wire.convert`` reads them. Raises BadRequest."""
    try:
        for name in facts.get("resources", {}):
            check_resource(name)
    except UsageError as error:
        raise BadRequest(f"facts.{error.message}", hint=error.hint) from None
    seen: set[str] = set()
    for capability in facts.get("capabilities", ()):
        kind, _, name = capability.partition(":")
        if not is_plain_name(kind) or not is_plain_name(name):
            raise BadRequest(f"facts.capabilities: {capability[:60]!r} is none", hint="they are written kind:name")
        if capability in seen:
            raise BadRequest(f"facts.capabilities: {capability!r} stands twice")
        seen.add(capability)
    return facts_from_wire(facts)


def check_told_plugins(plugins: Iterable[PluginFields]) -> None:
    """Raises BadRequest. Names may be none, and stand twice: then that is what is wrong with the plugin. Errors, hints
    and messages are free text."""
    for plugin in plugins:
        words = [plugin["name"], plugin["distribution"], plugin["version"], plugin["api"]]
        words += [*plugin["hooks"], *plugin["provides"], *(fault["hook"] for fault in plugin["last_faults"])]
        for word in words:
            if any(unicodedata.category(character) in _NOT_SHOWN for character in word):
                raise BadRequest(f"plugins: {word[:60]!a} holds what can't be shown")
        if not plugin["name"]:
            raise BadRequest("plugins: one has no name")
        if plugin["is_builtin"] and plugin["distribution"] != _CORE:
            raise BadRequest(f"plugins.{plugin['name']}: only {_CORE} brings built-in ones")
        for fault in plugin["last_faults"]:
            if fault["at"] is not None and not _is_time(fault["at"]):
                raise BadRequest(f"plugins.{plugin['name']}: {fault['at'][:60]!a} is no time")


def _is_time(text: str) -> bool:
    try:
        return datetime.fromisoformat(text).tzinfo is not None
    except ValueError:
        return False
