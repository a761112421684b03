"""What comes from elsewhere never drives the terminal of whoever reads it: names, reasons, evidence, labels, errors and
the ends of logs are printed without a single control character. Only a log itself is printed as it is."""

import ast
import unicodedata
from pathlib import Path

import pytest

from gpulayer import cli as package
from gpulayer.cli.console import safe

PAYLOADS = {
    "colour": "\x1b[31mred", "clear": "\x1b[2J", "home": "\x1b[H", "cursor up": "\x1b[1A\x1b[2K", "save": "\x1b7",
    "restore": "\x1b8", "scroll region": "\x1b[1;1r", "alternate screen": "\x1b[?1049h",
    "hide the cursor": "\x1b[?25l", "mouse": "\x1b[?1000h", "bracketed paste": "\x1b[?2004h", "reset": "\x1bc",
    "soft reset": "\x1b[!p", "title": "\x1b]0;owned\x07", "title, ST": "\x1b]2;owned\x1b\\",
    "icon": "\x1b]1;owned\x07", "link": "\x1b]8;;https://evil.example\x1b\\click\x1b]8;;\x1b\\",
    "clipboard": "\x1b]52;c;cm0gLXJmIH4=\x07", "palette": "\x1b]4;1;rgb:00/00/00\x07",
    "working folder": "\x1b]7;file:///etc\x07", "notify": "\x1b]9;owned\x07",
    "iTerm file": "\x1b]1337;File=inline=1:AAAA\x07", "kitty image": "\x1b_Ga=T;AAAA\x1b\\",
    "sixel": "\x1bPq#0~\x1b\\", "DECRQSS": "\x1bP$qm\x1b\\", "device attributes": "\x1b[c",
    "report cursor": "\x1b[6n", "report title": "\x1b[21t", "answer-back": "\x05", "print": "\x1b[5i",
    "insert": "\x1b[4h", "character set": "\x1b(0", "shift out": "\x0e", "shift in": "\x0f", "bell": "\x07",
    "backspace": "secret\x08\x08\x08\x08\x08\x08", "delete": "\x7f", "carriage return": "ERROR\rfine ",
    "vertical tab": "a\x0bb", "form feed": "a\x0cb", "NUL": "a\0b", "XOFF": "\x13", "substitute": "\x1a",
    "CSI of 8 bits": "\x9b31mred", "OSC of 8 bits": "\x9d0;owned\x9c", "DCS of 8 bits": "\x90q\x9c",
    "APC of 8 bits": "\x9fG\x9c", "next line": "a\x85b", "RTL override": "\u202egpj.exe", "LTR override": "\u202dx",
    "isolates": "\u2066a\u2067b\u2068c\u2069", "embedding": "\u202ba\u202c", "RTL mark": "\u200fa",
    "zero width": "a\u200bb", "joiner": "a\u200db", "BOM": "\ufeffa", "soft hyphen": "a\xadb",
    "line separator": "a\u2028b", "paragraph separator": "a\u2029b", "tag": "a\U000e0041b",
    "annotation": "\ufff9a\ufffab\ufffb", "surrogate": "\udc1b[2J", "tab": "a\tb",
    "Rich markup": "[red]a[/red][link=https://evil.example]b[/link]", "a new row": "a\nERROR: all is lost",
}  # fmt: skip


def _hostile(plane, parts, text: str) -> None:
    """A control plane, all of whose texts are these."""
    attempt = parts.attempt(
        nodes=[{"worker": text, "devices": [text], "exit_code": 1, "signal": None}],
        ended_by=text,
        blame=text,
        evidence=text,
        log_tail=text,
        stderr_tail=text,
    )
    job = parts.job(
        name=text,
        state="failed",
        reason={"code": text, "message": text},
        command=[text, text],
        request={"labels": {text: text}, "worker": text, "device_models": [text]},
        options={"env": {text: text}},
        tags={text: text},
        submitted_by={"token_id": "a" * 12, "name": text, "client": text},
        attempts=[attempt],
        exit_code=1,
        ended_by="infrastructure",
        placement=text,
        secrets=[text],
        outputs=[{"path": text, "size": 1, "digest": "0" * 64}],
        source={"digest": "0" * 64, "files": 1, "size_bytes": 1, "commit": text, "dirty": True},
    )
    device = {"uuid": text, "index": 0, "kind": text, "model": text, "memory_bytes": 1, "memory_free_bytes": 1}
    worker = parts.worker(
        name=text,
        state=text,
        version=text,
        platform=text,
        labels={text: text},
        locality={"zone": text, "region": text, "network_group": text},
        devices=[{**device, "compute_capability": text, "state": text, "reason": text, "links": {}}],
        frameworks=[{"name": text, "version": text, "accelerator": text, "usable": False, "reason": text}],
        enforces=[text],
        addresses=[text],
    )
    event = {"seq": 1, "at": "2026-11-30T05:00:00.000Z", "event": text, "details": {text: text}}
    reasons = [{"code": text, "message": text, "wanted": text, "has": text}]
    verdict = {"worker": text, "verdict": "ineligible", "reasons": reasons, "busy_with": [text], "until": None}
    plane.on("GET", "/v1/jobs", {"jobs": [job], "next": None})
    plane.on("GET", "/v1/jobs/{ref}", job)
    plane.on("GET", "/v1/jobs/{ref}/events", [{"events": [event], "next": 1}, {"events": [], "next": 1}])
    plane.on("GET", "/v1/jobs/{ref}/outputs", {"tree": None, "outputs": job["outputs"]})
    plane.on("POST", "/v1/jobs/{ref}:cancel", job)
    plane.on("POST", "/v1/jobs/{ref}:retry", parts.error(409, "conflict", text, text, {text: text}))
    plane.on("GET", "/v1/workers", {"workers": [worker], "next": None})
    plane.on("GET", "/v1/workers/{ref}", worker)
    plane.on("POST", "/v1/workers/{ref}:drain", worker)
    verdicts = [{**verdict, "fits_with": {"cpus": text}, "score": None}]
    plane.on("POST", "/v1/explain", {"request": text, "choice": None, "verdicts": verdicts})
    plane.on(
        "GET", "/v1/plane", parts.plane(version=text, mode=text, state_dir=text, workers={text: 1}, jobs={text: 1})
    )


COMMANDS = (
    ["job", "list"],
    ["job", "show", "7f3a"],
    ["job", "events", "7f3a"],
    ["job", "cancel", "7f3a"],
    ["job", "retry", "7f3a"],
    ["job", "result", "7f3a"],
    ["worker", "list"],
    ["worker", "show", "b"],
    ["worker", "drain", "b"],
    ["explain"],
    ["status"],
)


def _driving(text: str) -> list[str]:
    return [c for c in text if c != "\n" and unicodedata.category(c) in ("Cc", "Cf", "Cs", "Zl", "Zp")]


@pytest.mark.parametrize("payload", PAYLOADS.values(), ids=PAYLOADS.keys())
def test_no_text_from_elsewhere_drives_the_terminal(cli, plane, parts, payload) -> None:
    _hostile(plane, parts, f"before {payload} after")
    for command in COMMANDS:
        said = cli(*command, plane=plane)
        shown = said.out.decode("utf-8") + said.err
        assert "no such" not in shown, command  # a command that is not there would prove nothing
        assert "internal error" not in shown, command
        assert _driving(shown) == [], (command, shown)


def test_a_name_makes_no_row_of_a_table(cli, plane, parts) -> None:
    _hostile(plane, parts, "a\nERROR: all is lost")
    for command in (["job", "list"], ["worker", "list"]):
        assert len(cli(*command, plane=plane).out.splitlines()) == 2


def test_what_is_safe_stays_as_it_is() -> None:
    for text in ("plain", "größe", "日本語", "a\nb", "×–…", "👍", "e\u0301"):
        assert safe(text) == text


_WRITERS = {
    "console.py": "the one place",
    "raw.py": "a log as it is",
    "foreground.py": "two line ends and a question, its own words",
    "doctor.py": "a sign, its own",
    "background.py": "its usage, its own words",
    "join.py": "a token into a file",
    "app.py": "a traceback, made safe",
    "ending.py": "as Python tells of what ends a program, at its very end",
    "down.py": "a question, made safe",
}


def test_only_the_console_writes_to_the_terminal() -> None:
    found = set()
    for file in Path(package.__file__).parent.glob("*.py"):
        for node in ast.walk(ast.parse(file.read_text("utf-8"))):
            if isinstance(node, ast.Call):
                call = ast.unparse(node.func)
                if call in ("print", "os.write", "click.echo", "typer.echo") or call.endswith(
                    ("stdout.write", "stderr.write")
                ):
                    found.add(file.name)
    assert found <= set(_WRITERS), "print_line, print_table, print_fields and say make texts safe: use those"
