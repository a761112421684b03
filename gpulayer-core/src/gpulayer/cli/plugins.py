"""``gpulayer plugins``: what is installed, what works, and what is wrong with the rest. Starts no control plane.

This process never imports a plugin: those installed here are tried in a child, so that none of them, however broken,
stands in the way of finding out which it is.
"""

import os
import shutil
import sys
import textwrap
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from difflib import get_close_matches
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from gpulayer.cli.console import columns, print_json, print_line, say
from gpulayer.cli.exits import Exit
from gpulayer.cli.nouns import JsonFlag, StateOption, TargetOption, command_app, settings_for
from gpulayer.cli.plugin_commands import PluginCommand, find_commands
from gpulayer.cli.records import age
from gpulayer.client import calls
from gpulayer.client.connect import Settings, open_transport
from gpulayer.client.embedded import find_plane
from gpulayer.client.location import Configured, Local
from gpulayer.errors import GpulayerError, UsageError
from gpulayer.plugins.record import is_note
from gpulayer.plugins.settings import PluginSettings
from gpulayer.plugins.trial import CheckReport, Flaw, check_plugin, installed_plugins
from gpulayer.spec.plain import plain_line

if TYPE_CHECKING:
    from gpulayer.wire.plugins import PluginRecord

app = command_app(
    help="List and check plugins, and the commands that they add. "
    "GPULAYER_PLUGIN_<NAME>_<OPTION> sets an option of a plugin, GPULAYER_PLUGINS=a,b (or none) says which are loaded: "
    "where they run, when that starts. How to write one: docs/plugins/index.md."
)

_HERE: Final = "here"
_PLACES_SHOWN: Final = 2
_ORDER: Final = ("broken", "duplicate", "incompatible", "suspended", "disabled", "ok")
_COLOURS: Final = {"ok": "32", "suspended": "33", "disabled": "2"}
_RED: Final = "31"
_INDENT: Final = 4
_LONGEST: Final = 2000
_BAD: Final = 1
_ANSWER_S: Final = 5.0


@app.callback(invoke_without_command=True)
def plugins(
    context: typer.Context, *, target: TargetOption = "", state: StateOption = "", json: JsonFlag = False
) -> None:
    if context.invoked_subcommand is None:
        _list(target, state, as_json=json)


@app.command("list")
def list_plugins(*, target: TargetOption = "", state: StateOption = "", json: JsonFlag = False) -> None:
    """Those installed here, and those of the control plane and its workers."""
    _list(target, state, as_json=json)


@app.command()
def check(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Of a plugin that is installed here.")],
    *,
    json: JsonFlag = False,
) -> int:
    """Try one plugin, step by step, and say what to mend. Exits with 0 if it is good, else with 1."""
    report = check_plugin(name, os.environ, waiting=_waiting(f"plugin {name} takes its time …"))
    if not report.is_known:
        raise _unknown(name, report.known)
    if json:
        print_json(_report_fields(report))
    else:
        _print_report(report)
    return Exit.OK if report.is_good else _BAD


def _unknown(name: str, known: list[str]) -> UsageError:
    """A command, or a plugin of another place, has that name; or nothing has."""
    from gpulayer.cli.app import COMMANDS  # noqa: PLC0415 - it is what loads this module

    commands = [one for one in find_commands(PluginSettings.of(os.environ), taken=COMMANDS) if one.name == name]
    if commands:
        message = f"{name} is no plugin: {commands[0].origin} adds the command gpulayer {name}, and nothing to check"
        return UsageError(message, hint=commands[0].hint or f"gpulayer {name} --help tries it")
    places = sorted({record["where"] for record in _elsewhere("", "", tell=lambda _: None) if record["name"] == name})
    if places:
        hint = f"run this where it is installed; gpulayer plugins shows its record of {', '.join(places)}"
        return UsageError(f"the plugin {name} is loaded by {', '.join(places)}, and not installed here", hint=hint)
    return UsageError(f"no plugin {name!r} is installed here", hint=_nearest(name, known))


def _nearest(name: str, known: list[str]) -> str:
    close = get_close_matches(name, known, n=1)
    return f"did you mean {close[0]}?" if close else f"there is {', '.join(known)}"


def _waiting(text: str) -> Any:  # Any: a function without arguments
    return lambda: say(text) if sys.stderr.isatty() else None


def _list(target: str, state: str, *, as_json: bool) -> None:
    here, trouble = installed_plugins(os.environ, waiting=_waiting("trying the plugins of this environment …"))
    if trouble:
        say(f"note: the plugins of this environment are unknown: {trouble}")
    records = [*({**record, "where": _HERE} for record in here), *_elsewhere(target, state)]
    for note in _stray_options([record["name"] for record in records]):
        say(note)
    from gpulayer.cli.app import COMMANDS  # noqa: PLC0415 - it is what loads this module

    commands = find_commands(PluginSettings.of(os.environ), taken=COMMANDS)
    if as_json:
        print_json({"plugins": records, "commands": [_command_fields(command) for command in commands]})
        return
    for line in _table(records):
        print_line(line)
    for line in _commands_table(commands):
        print_line(line)


def _elsewhere(target: str, state: str, *, tell: Callable[[str], None] = say) -> "list[PluginRecord]":
    """Of the control plane and its workers, if it can be asked and answers soon; why not is told."""
    found: list[list[PluginRecord] | None] = []
    failed: list[BaseException] = []

    def ask() -> None:
        try:
            found.append(_ask(settings_for(target, state=state)))
        except BaseException as error:
            failed.append(error)

    # In a thread: to look for it, a connection and an answer each have a limit of their own, and together too much.
    asking = threading.Thread(target=ask, name="gpulayer-plugins-asked", daemon=True)
    asking.start()
    asking.join(_ANSWER_S)
    match found, failed:
        case [[None], _]:
            tell("note: no control plane runs here; these are the plugins of this environment")
        case [[list() as records], _]:
            return records
        case [_, [GpulayerError() as error]] if not isinstance(error, UsageError):
            tell(f"note: the control plane's plugins are unknown: {error.message}")
            if error.hint:
                tell(f" hint: {error.hint}")
        case [_, [BaseException() as error]]:
            raise error
        case _:
            tell(
                f"note: the control plane's plugins are unknown: it gave no answer within {_ANSWER_S:g} s; perhaps it "
                "still tries them, or one of them holds it up"
            )
    return []


def _ask(settings: Settings) -> "list[PluginRecord] | None":
    """None where it is this machine's own, and does not run."""
    where = settings.where
    if isinstance(where, Local):
        endpoint = find_plane(where.state_dir)
        if endpoint is None:
            return None
        where = Configured(endpoint.location)
    with open_transport(replace(settings, where=where), say=say) as transport:
        return transport.send(calls.list_plugins())["plugins"]


def _stray_options(names: list[str]) -> Iterator[str]:
    for variable, near in PluginSettings.of(os.environ).strangers(names).items():
        meant = f"; did you mean an option of {near}?" if near else ""
        yield f"note: {variable} is set, and no plugin has such a name{meant}"


def _table(records: "list[Any]") -> Iterator[str]:  # Any: PluginRecord, and those of this environment
    """A row a plugin, what is wrong below it; the bad ones first, core's own in a line at the end."""
    own = sorted({record["name"] for record in records if record["is_builtin"]})
    bad_own = {record["name"] for record in records if record["is_builtin"] and _is_bad(record)}
    shown = _merged([each for each in records if not each["is_builtin"] or each["name"] in bad_own])
    rows = [["STATUS", "PLUGIN", "VERSION", "API", "WHERE", "PROVIDES"]]
    for record in shown:
        provides = ", ".join(record["provides"]) if record["status"] in ("ok", "suspended") else ""
        rows.append(
            [
                record["status"],
                record["name"],
                record["version"] or "-",
                record["api"] or "-",
                _places(record["places"]),
                provides or "-",
            ]
        )
    if shown:
        now = datetime.now(UTC)
        header, *lines = columns([[plain_line(cell, _LONGEST) for cell in row] for row in rows])
        yield header
        for line, record in zip(lines, shown, strict=True):
            yield line
            yield from _below(record, now)
    else:
        yield "no plugins are installed"
    if any(_is_bad(record) and _HERE in record["places"] for record in shown):
        yield "gpulayer plugins check NAME looks closer at one of those here"
    good = [name for name in own if name not in bad_own]
    if good:
        yield f"gpulayer's own work: {', '.join(good)}"


def _is_bad(record: Mapping[str, Any]) -> bool:
    return bool(record["status"] != "ok" or record["faults"])


def _below(record: Mapping[str, Any], now: datetime) -> Iterator[str]:
    if record["error"]:
        yield from _folded(record["error"])
    last = record["last_faults"][-1] if record["last_faults"] else None
    if record["faults"] and not (last and last["message"] in record["error"]):
        yield from _folded(_faults(record, last, now))
    if record["hint"]:
        yield from _folded(f"→ {record['hint']}")


def _faults(record: Mapping[str, Any], last: Mapping[str, Any] | None, now: datetime) -> str:
    is_once = record["faults"] == 1
    are_notes = last is not None and all(is_note(fault["message"]) for fault in record["last_faults"])
    said = ("noted" if are_notes else "failed") + (" once" if is_once else f" {record['faults']:,} times")
    if record["faulty"] != record["places"]:
        said += f" in {_places(record['faulty'])}"
    if last is None:
        return said
    ago = "" if record["faulty"] == [_HERE] else f", {age(last['at'], now)}"  # here: just now
    return f"{said}{'' if are_notes and is_once else '; last'}{ago}: {last['hook']}: {last['message']}"


def _folded(text: str) -> list[str]:
    """Under a row: to the width of the screen where somebody looks, else a line, to be searched."""
    text = plain_line(text, _LONGEST)
    if not sys.stdout.isatty():
        return [" " * _INDENT + text]
    indent = " " * _INDENT
    width = max(40, shutil.get_terminal_size().columns)
    return textwrap.wrap(text, width, initial_indent=indent, subsequent_indent=indent, break_long_words=False)


def _merged(records: list[Any]) -> list[dict[str, Any]]:  # Any: as above
    """One of those that are the same in several places. What they provide and their faults differ by place, and add
    up. ``faulty``: the places of the faults."""
    found: dict[tuple[object, ...], dict[str, Any]] = {}
    for record in records:
        # Of those that share a name each says the same of all.
        whose = "" if record["status"] == "duplicate" else record["distribution"]
        same = (whose, *(record[name] for name in ("name", "version", "status", "error")))
        none = {"places": [], "faulty": [], "provides": [], "faults": 0, "last_faults": []}
        one = found.setdefault(same, {**record, **none})
        one["places"] += [record["where"]] * (record["where"] not in one["places"])
        one["faulty"] += [record["where"]] * (record["faults"] > 0 and record["where"] not in one["faulty"])
        one["faults"] += record["faults"]
        one["last_faults"] = sorted([*one["last_faults"], *record["last_faults"]], key=lambda fault: fault["at"])
        one["hint"] = one["hint"] or record["hint"]
        one["provides"] += [each for each in record["provides"] if each not in one["provides"]]
    return sorted(found.values(), key=lambda one: (_rank(one), one["name"]))


def _rank(record: Mapping[str, Any]) -> int:
    status = record["status"]
    return _ORDER.index(status) if status in _ORDER else 0


def _places(places: list[str]) -> str:
    workers = [place for place in places if place not in (_HERE, "plane")]
    others = [place for place in places if place in (_HERE, "plane")]
    if len(workers) > _PLACES_SHOWN:
        workers = [f"{len(workers)} workers"]
    return ", ".join([*others, *workers])


def _commands_table(commands: list[PluginCommand]) -> Iterator[str]:
    if not commands:
        return
    yield ""
    rows = [["STATUS", "COMMAND", "OF"]]
    rows += [[str(command.status), f"gpulayer {command.name}", command.origin] for command in commands]
    header, *lines = columns([[plain_line(cell, _LONGEST) for cell in row] for row in rows])
    yield header
    for line, command in zip(lines, commands, strict=True):
        yield line
        if command.error:
            yield from _folded(command.error)
        if command.hint:
            yield from _folded(f"→ {command.hint}")


def _command_fields(command: PluginCommand) -> dict[str, str]:
    return {
        "name": command.name,
        "distribution": command.distribution,
        "version": command.version,
        "status": str(command.status),
        "error": command.error,
        "hint": command.hint,
    }


def _print_report(report: CheckReport) -> None:
    came_with = f"{report.distribution} {report.version}".strip()
    print_line(f"plugin {report.name}" + (f", of {came_with}" if came_with else "") + f", module {report.target}")
    for step in report.steps:
        sign = "ok" if step.is_good else "FAIL"
        took = "" if step.took_s is None else f"{step.took_s * 1000:,.1f} ms"
        print_line(f"{sign:<4}  {step.name:<40}  {took:>9}".rstrip())
    if report.api:
        print_line(f"API {report.api}; hooks: {', '.join(report.hooks) or 'none'}")
    if report.options:
        print_line(f"options: {', '.join(report.options)}")
    if report.provides:
        print_line(f"provides: {', '.join(report.provides)}")
    for flaw in report.warnings:
        _print_flaw("warn", flaw)
    for flaw in report.flaws:
        _print_flaw("FAIL", flaw)
    if report.output.strip():
        print_line("it printed:")
        print_line(textwrap.indent(report.output.rstrip(), "    "))
    count = len(report.flaws)
    print_line("nothing is wrong with it" if report.is_good else f"{count} thing{'s' if count > 1 else ''} to mend")


def _print_flaw(sign: str, flaw: Flaw) -> None:
    print_line(f"{sign:<4}  {flaw.what}: {flaw.message}")
    if flaw.hint:
        print_line(f"      → {flaw.hint}")
    if flaw.story:
        print_line(textwrap.indent(flaw.story.rstrip(), "      "))


def _report_fields(report: CheckReport) -> dict[str, Any]:  # Any: JSON
    def flaws(found: list[Flaw]) -> list[dict[str, str]]:
        return [{"what": f.what, "message": f.message, "hint": f.hint, "traceback": f.story} for f in found]

    return {
        "name": report.name,
        "ok": report.is_good,
        "distribution": report.distribution,
        "version": report.version,
        "module": report.target,
        "api": report.api,
        "hooks": report.hooks,
        "options": report.options,
        "provides": report.provides,
        "steps": [{"step": step.name, "took_s": step.took_s, "ok": step.is_good} for step in report.steps],
        "flaws": flaws(report.flaws),
        "warnings": flaws(report.warnings),
        "output": report.output,
    }
