"""Sixteen misbehaving plugins, and nothing happens: `make demo-plugins`.

Makes a new Python environment with nothing but gpulayer-core in it and runs the quickstart there, as its page has it.
Then installs examples/plugins/misbehaving beside it, all at once, and one plugin that is good, and runs the quickstart
again: every command has to end as it did before and to print what it printed before. Everything printed after a ``$``
is a command you can type. ``--write`` renews docs/plugins/misbehaving.md with what was printed.
"""

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from gpulayer.cli.console import columns  # noqa: E402 - after the path, like the others
from tests.docs.test_docs_examples import blocks, is_as_shown, on_a_free_port, steps  # noqa: E402 - found only now
from tests.e2e.fresh import FreshEnvironment, build_wheels  # noqa: E402

MARK: Final = "<!-- not run: tests/examples/test_demo_plugins.py runs it and compares -->"
PAGE: Final = ROOT / "docs/plugins/misbehaving.md"
PACKAGES: Final = ROOT / "examples/plugins/misbehaving"
GOOD: Final = ROOT / "examples/plugins/licences"
SECRET: Final = "s3cr3t-0f-tells"
IMPORT_S: Final = "2"
DEADLINE_S: Final = 120.0

# What differs between two runs of one command: ids, times, sizes of what is free, addresses, what is random by design.
VARIES: Final = (
    (r"\b([0-9a-f]{16}|[0-9a-f]{12})\b", "ID"),
    (r"sha256:\w+|gl[a-z]_[\w-]+", "KEY"),
    (r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d[.\d]*(Z|[+-]\d\d:\d\d)?|\b\d\d:\d\d:\d\d(\.\d+)?\b", "TIME"),
    (r"\b\d[\d.,]* ?(ms|s|min|h)\b", "TIME"),
    (r"\b\d[\d.,]* ?[kKMGT]i?B\b", "SIZE"),
    (r"https?://[\w.:\[\]-]+", "URL"),
    # Of status: what runs, where, and how many jobs there were; some are run here beside those of the page.
    (r"^(process|state|jobs)  +.*$", r"\1"),
    (r"^\d+(?=  )", "SEQ"),
    (r"  +", "  "),
)
TABLE: Final = r"[A-Za-z]\S* {2,}\S"


class DemoFailed(Exception):
    pass


class Place:
    """A user's terminal in the fresh environment: an empty home, and a working folder with the examples in it.

    printed: by command, of those that were shown.
    """

    def __init__(self, scratch: Path, fresh: FreshEnvironment, name: str) -> None:
        self.folder = scratch / name
        self.here = self.folder / "here"
        shutil.copytree(ROOT / "examples/wordcount", self.here / "examples/wordcount")
        self.state = self.folder / "state"
        self.printed: dict[str, str] = {}
        self.env = {
            "PATH": f"{fresh.bin}{os.pathsep}{os.environ.get('PATH', os.defpath)}",
            "HOME": str(self.folder),
            "GPULAYER_STATE_DIR": str(self.state),
            "GPULAYER_CONFIG_DIR": str(self.folder / "config"),
            **{name: os.environ[name] for name in ("LANG", "TMPDIR") if name in os.environ},
        }

    def run(self, line: str) -> tuple[int, str, str]:
        """Exit code, stdout and stderr of a line of shell."""
        done = subprocess.run(
            ["bash", "-c", line],
            cwd=self.here,
            env=self.env,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=DEADLINE_S,
            check=False,
        )
        return done.returncode, done.stdout, done.stderr

    def show(self, line: str) -> tuple[int, str, str]:
        """Run it as at a terminal, with what it prints."""
        print(f"\n$ {line}", flush=True)
        started = time.monotonic()
        code, out, err = self.run(line)
        print(out + err, end="", flush=True)
        if (took_s := time.monotonic() - started) > 2:
            print(f"  ({took_s:.1f} s)", flush=True)
        self.printed[line] = out + err
        return code, out, err

    def logs(self) -> str:
        return "\n".join(path.read_text(encoding="utf-8", errors="replace") for path in self.state.rglob("*.log"))


def tell(text: str) -> None:
    print(f"\n# {text}", flush=True)


def check(what: str, is_so: bool) -> None:
    print(f"  {'yes' if is_so else 'NO '}  {what}", flush=True)
    if not is_so:
        raise DemoFailed(f"it is not so: {what}")


def type_in(place: Place, line: str, *, code: int = 0) -> str:
    """Returns all that it printed. Raises DemoFailed for another exit code."""
    ended, out, err = place.show(line)
    if ended != code:
        raise DemoFailed(f"{line} ended with {ended}, not with {code}")
    return out + err


def same_in_every_run(text: str) -> str:
    for pattern, word in VARIES:
        text = re.sub(pattern, word, text, flags=re.MULTILINE)
    return "\n".join(line.rstrip() for line in text.splitlines())


def quickstart() -> list[tuple[str, list[str]]]:
    """Its commands, each with the lines that the page shows below it."""
    page = blocks(ROOT / "docs/quickstart.md")
    found = [step for block in page if block.mark == "run" for step in steps(block.text)]
    return [(on_a_free_port(line), expected) for line, expected in found]


def run_without(place: Place) -> dict[str, tuple[int, str]]:
    """How each command ends and what it prints where there is no plugin."""
    found = {}
    for line, expected in quickstart():
        code, out, err = place.run(line)
        if code or (expected and not is_as_shown(expected, out)):
            raise DemoFailed(f"the quickstart fails even without a plugin: {line} ended with {code}\n{out}{err}")
        found[line] = code, same_in_every_run(out)
    return found


def run_with(place: Place, before: dict[str, tuple[int, str]]) -> None:
    for line, _ in quickstart():
        if line.startswith("gpulayer up"):
            look_around(place)  # while the control plane runs that has met them all
            kill(place)
            tell("The rest of the quickstart.")
        code, out, _ = place.show(line)
        if (code, same_in_every_run(out)) != before[line]:
            raise DemoFailed(f"without plugins it ended with {before[line][0]} and printed\n{before[line][1]}")


def look_around(place: Place) -> None:
    tell("The good one works among them: it gives this machine two licences, which jobs take and give back.")
    type_in(place, "gpulayer submit --resource matlab=2 -- echo solved")
    type_in(place, "gpulayer explain --resource matlab=3", code=3)
    tell("A job that asks for a misbehaving launcher fails, and it says whose fault that was.")
    said = type_in(place, "gpulayer submit --retries 0 --launcher elsewhere -- echo hello", code=6)
    check("the launcher's plugin is named", "plugin elsewhere failed (Launcher.plan)" in said)
    tell("Who looks for what is wrong finds it, with its name, the reason and what to do.")
    listed = type_in(place, "gpulayer plugins")
    unlisted = [name for name in names() if not re.search(rf"^\w+ +{name} ", listed, re.MULTILINE)]
    check(f"every one of them is listed{', but ' * bool(unlisted)}{', '.join(unlisted)}", not unlisted)
    type_in(place, "gpulayer doctor")


def kill(place: Place) -> None:
    tell("Control plane and worker are killed in the middle of a job. It goes on, and they come back.")
    type_in(place, "gpulayer submit --detach --name long -- sh -c 'sleep 2; echo it went on'")
    pids = [json.loads((place.state / "endpoint.json").read_bytes())["pid"]]
    pids.append(int((place.state / "worker/agent.lock").read_text(encoding="ascii").split()[0]))
    print(f"\n$ kill -9 {' '.join(map(str, pids))}", flush=True)
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    type_in(place, "gpulayer job wait long")
    check("it ran once, to its end", type_in(place, "gpulayer job logs long") == "it went on\n")


def tell_story(scratch: Path) -> dict[str, str]:
    """Returns what each command printed with all of them installed."""
    tell("A new environment with gpulayer-core and what it requires, nothing else; the quickstart runs in it.")
    fresh = FreshEnvironment(scratch)
    place = Place(scratch, fresh, "without")
    builder = ThreadPoolExecutor(1)  # meanwhile: it takes some seconds
    wheels = builder.submit(build_wheels, [*packages(), GOOD], scratch / "wheels")
    try:
        help_before = place.run("gpulayer --help")
        before = run_without(place)
    finally:
        place.run("gpulayer down")
        builder.shutdown()
    print(f"{len(before)} commands of docs/quickstart.md did what it shows", flush=True)

    tell("Now these are installed beside it, all at once:")
    for package in packages():
        print(f"  {package.name:<12} {first_line(package)}", flush=True)
    print(f"  {GOOD.name:<12} Good: a probe that counts licences.", flush=True)
    fresh.install(*wheels.result())

    place = Place(scratch, fresh, "with")
    licences = place.folder / "licences"
    licences.write_text("matlab 2\n", encoding="utf-8")
    place.env |= {
        "GPULAYER_PLUGIN_LICENCES_FILE": str(licences),
        "GPULAYER_PLUGIN_TELLS_TOKEN": SECRET,
        "GPULAYER_PLUGINS_IMPORT_S": IMPORT_S,
    }
    try:
        tell("The quickstart once more. Whatever is not as it was ends this with an error.")
        run_with(place, before)
        check("gpulayer --help is as it was", place.run("gpulayer --help") == help_before)
        check("the secret of tells is in no log", SECRET not in place.logs())
    finally:
        place.run("gpulayer down")
    return place.printed


def packages() -> list[Path]:
    return sorted(path.parent for path in PACKAGES.glob("*/pyproject.toml"))


def names() -> list[str]:
    """Of the plugins; the twins have one."""
    return sorted({re.sub("twin-.*", "twin", package.name) for package in [*packages(), GOOD]})


def first_line(package: Path) -> str:
    """What its module says that it does wrong."""
    (module,) = package.glob("*.py")
    return module.read_text(encoding="utf-8").split("\n", 1)[0].strip('"')


def write(page: Path, printed: dict[str, str]) -> None:
    """Below each command of the marked blocks, what it printed; the machine is called desk there."""
    head, *parts = page.read_text(encoding="utf-8").split(f"{MARK}\n```console\n")
    for place, part in enumerate(parts):
        shown, rest = part.split("```", 1)
        lines = [line for line, _ in steps(shown)]
        parts[place] = "".join(f"$ {line}\n{_of_desk(printed[line])}" for line in lines) + "```" + rest
    page.write_text(f"{MARK}\n```console\n".join([head, *parts]), encoding="utf-8")


def _of_desk(text: str) -> str:
    """Its tables are set anew: the name is of another length. An empty line ends a table."""
    text = re.sub(rf"\b{re.escape(socket.gethostname())}\b", "desk", text)
    return "\n\n".join(_laid(part.split("\n")) for part in text.split("\n\n"))


def _laid(lines: list[str]) -> str:
    rows = [re.split(" {2,}", line) for line in lines if re.match(TABLE, line)]
    laid = iter(columns(rows) if rows else [])
    return "\n".join(next(laid) if re.match(TABLE, line) else line for line in lines)


def main(arguments: list[str]) -> int:
    if arguments[:1] not in ([], ["--write"]) or len(arguments) > 2:
        print("usage: demo_plugins.py [--write [PAGE]]", file=sys.stderr)
        return 2
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="gpulayer-demo-", ignore_cleanup_errors=True) as scratch:
        try:
            printed = tell_story(Path(scratch))
        except (DemoFailed, AssertionError, subprocess.SubprocessError) as failure:
            print(f"\ndemo-plugins: {failure}", file=sys.stderr)
            return 1
    if arguments:
        write(Path(arguments[1]) if arguments[1:] else PAGE, printed)
    print(f"\ndemo-plugins: the quickstart ran unharmed, in {time.monotonic() - started:.1f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
