"""Commands that installed distributions add, by the group ``gpulayer.commands``: in processes of their own."""

import os
import subprocess
import sys
from dataclasses import dataclass

import pytest

from gpulayer.cli.app import COMMANDS
from gpulayer.cli.plugin_commands import PluginCommand, find_command, find_commands
from gpulayer.errors import PluginFault, UsageError
from gpulayer.plugins.record import PluginStatus
from gpulayer.plugins.settings import PluginSettings
from gpulayer.testing.distribution import install_distribution

TYPER = """
import sys
from typing import Annotated
import typer

print("imported hello", file=sys.stderr)
app = typer.Typer()

@app.command()
def world(name: Annotated[str, typer.Option(help="Whom to greet.")] = "you", times: int = 1):
    "Greet somebody."
    print(f"hello {name}" * times)

@app.command()
def ends(how: str):
    match how:
        case "raises":
            raise ValueError("nine")
        case "mute":
            raise Mute
        case "exits":
            sys.exit(3)
        case "says":
            sys.exit("that was it")
        case "returns":
            return 6
        case "own":
            raise Own("kind")
        case "closes":
            raise GeneratorExit
        case "huge":
            return 256
        case "minus":
            return -1
        case "text":
            return "done"
        case "generator":
            return (each for each in ())
        case "asks":
            sys.exit(10**9)
        case "wordless":
            sys.exit(Mute())
        case "true":
            return True
        case "typer":
            raise typer.Exit(5)
        case "interrupt":
            raise KeyboardInterrupt
        case "error":
            from gpulayer.errors import NotFound
            raise NotFound("no job 'x'", hint="look again")

class Mute(Exception):
    def __str__(self):
        raise RuntimeError("no words")

class Own(BaseException):
    pass

def plain(number: int = 2):
    "A function alone."
    print(number + 1)

async def later():
    pass

text = "no command"
"""

CLICK = """
import click

@click.group()
def app():
    "With the click library."

@app.command()
@click.argument("words", nargs=-1)
def say(words):
    click.echo("|".join(words))
    raise SystemExit(4)
"""

BROKEN = {
    "needs": "import not_there",
    "exits": "import sys\nsys.exit(0)",
    "dies": "raise KeyboardInterrupt",
    "own": "class Own(BaseException): pass\nraise Own('kind')",
    "mute": "class Mute(Exception):\n    def __str__(self):\n        raise RuntimeError\nraise Mute",
}


@dataclass
class Ended:
    code: int
    out: str
    err: str


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("site")
    names = ("hello", "twice", "submit", "dashboard", "Odd Name", "shared")
    commands = {**dict.fromkeys(names, "hello_cli:app"), "bare": "hello_cli"}
    commands |= {name: f"hello_cli:{name}" for name in ("plain", "later", "text", "nothing")}
    install_distribution(folder, "gpulayer-hello", version="1.2", modules={"hello_cli": TYPER}, commands=commands)
    commands = {"click": "click_cli:app", "twice": "click_cli:app"}
    install_distribution(folder, "gpulayer-click", modules={"click_cli": CLICK}, commands=commands)
    for name, source in BROKEN.items():
        modules = {f"{name}_cli": source}
        install_distribution(folder, f"gpulayer-{name}", modules=modules, commands={name: f"{name}_cli:app"})
    install_distribution(
        folder,
        "gpulayer-with-plugin",
        modules={"with_plugin": "def app(): pass"},
        plugins={"cheap": "with_plugin"},
        commands={"prices": "with_plugin:app", "shared": "with_plugin:app"},
    )
    return folder


@pytest.fixture
def gpulayer(site, away):
    def run(*argv, **variables):
        done = subprocess.run(
            [sys.executable, "-P", "-m", "gpulayer.cli", *argv],
            env={**os.environ, "PYTHONPATH": f"{site}{os.pathsep}{os.environ.get('PYTHONPATH', '')}", **variables},
            stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip
        return Ended(done.returncode, done.stdout, done.stderr)

    return run


@pytest.fixture
def installed(site, monkeypatch):
    monkeypatch.syspath_prepend(str(site))

    def find(name, allowed=None):
        return find_command(name, PluginSettings(allowed), taken=COMMANDS)

    return find


def test_a_typer_app_is_a_command_with_help_and_arguments(gpulayer):
    said = gpulayer("hello", "world", "--name", "box", "--times", "2")
    assert (said.code, said.out) == (0, "hello boxhello box\n")
    said = gpulayer("hello", "world", "--help")
    assert said.code == 0
    assert "Usage: gpulayer hello world" in said.out
    assert "Whom to greet." in said.out
    assert "--install-completion" not in gpulayer("hello", "--help").out


def test_a_function_and_a_click_command_are_commands_too(gpulayer):
    assert gpulayer("plain", "--number", "4").out == "5\n"
    said = gpulayer("click", "say", "--", "-a", "b c")
    assert (said.code, said.out) == (4, "-a|b c\n")
    assert "Usage: gpulayer click" in gpulayer("click", "--help").out
    assert gpulayer("click", "nope").code == 2


@pytest.mark.parametrize(
    ("how", "code", "words"),
    [
        ("exits", 3, ""),
        ("says", 1, "that was it\n"),
        ("returns", 6, ""),
        ("true", 0, ""),
        ("typer", 5, ""),
        ("interrupt", 130, ""),
        ("error", 2, "error: no job 'x'\n hint: look again\n"),
    ],
)
def test_a_plugin_command_ends_as_core_commands_do(gpulayer, how, code, words):
    said = gpulayer("hello", "ends", how)
    assert (said.code, said.err) == (code, f"imported hello\n{words}")


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ("raises", "ValueError: nine"),
        ("mute", "Mute"),
        ("own", "Own: kind"),
        ("closes", "GeneratorExit: "),
        ("wordless", "RuntimeError: no words"),
    ],
)
def test_a_bug_of_a_plugin_command_is_reported_as_its_own(gpulayer, away, how, words):
    said = gpulayer("hello", "ends", how)
    assert said.code == 70
    _, error, hint = said.err.splitlines()
    assert error.startswith("error: the command hello of gpulayer-hello 1.2 failed, which is no fault of gpulayer: ")
    assert error.endswith(words)
    assert "to the authors of gpulayer-hello with " in hint
    (log,) = (away.parent / "state").glob("error-*.log")
    assert "hello_cli.py" in log.read_text()


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ("huge", "it ended with 256, which is no exit code"),
        ("minus", "it ended with -1, which is no exit code"),
        ("text", "it returned a str, which is no exit code"),
        ("generator", "it returned a generator, which is no exit code"),
        ("asks", "it ended with 1000000000, which is no exit code"),
    ],
)
def test_what_is_no_exit_code_is_a_fault_of_the_command_and_no_success(gpulayer, how, words):
    said = gpulayer("hello", "ends", how)
    assert said.code == 70
    _, error, hint = said.err.splitlines()
    assert error == f"error: the command hello of gpulayer-hello 1.2 failed, which is no fault of gpulayer: {words}"
    assert "a number from 0 to 255" in hint


def test_wrong_arguments_of_a_plugin_command_are_usage_errors_in_the_programs_one_form(gpulayer):
    said = gpulayer("hello", "world", "--nope")
    assert said.code == 2
    assert said.err.endswith(" hint: see gpulayer hello world --help\n")


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("needs", "of gpulayer-needs 1.0, can't be loaded: ModuleNotFoundError: No module named 'not_there'"),
        ("exits", "of gpulayer-exits 1.0, can't be loaded: it ends the program"),
        ("own", "of gpulayer-own 1.0, can't be loaded: Own: kind"),
        ("mute", "of gpulayer-mute 1.0, can't be loaded: Mute"),
        ("later", "hello_cli:later is an async function"),
        ("text", "hello_cli:text is a str"),
        ("nothing", "AttributeError: module 'hello_cli' has no attribute 'nothing'"),
    ],
)
def test_a_command_that_cannot_be_loaded_says_whose_it_is_and_why(gpulayer, name, words):
    said = gpulayer(name)
    assert said.code == 6
    assert "Traceback" not in said.err
    error, hint = said.err.splitlines()[-2:]
    assert words in error
    assert hint.startswith(" hint: ")


def test_ctrl_c_while_a_command_is_loaded_ends_quietly(gpulayer):
    assert (gpulayer("dies").code, gpulayer("dies").err) == (130, "")


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("bare", "its entry point says 'hello_cli', which is no object"),
        ("twice", "gpulayer-click 1.0 and gpulayer-hello 1.2 add a command of that name"),
        ("submit", "gpulayer has a command of that name itself"),
        ("dashboard", "gpulayer has a command of that name itself"),
        ("Odd Name", "can't be the name of a command"),
    ],
)
def test_names_that_cannot_be_are_known_without_an_import(installed, name, words):
    with pytest.raises(PluginFault, match=words) as caught:
        installed(name)
    assert caught.value.hint
    assert "hello_cli" not in sys.modules


def test_a_command_is_left_out_with_the_plugins_of_its_distribution(installed):
    for allowed in (None, {"cheap"}):
        found = installed("prices", None if allowed is None else frozenset(allowed))
        assert found == PluginCommand("prices", "gpulayer-with-plugin", "1.0", "with_plugin:app")
    for allowed in ((), ("other",)):
        with pytest.raises(UsageError, match="GPULAYER_PLUGINS leaves it out"):
            installed("prices", frozenset(allowed))


def test_a_command_of_no_plugin_is_left_out_with_none_alone(installed):
    with pytest.raises(UsageError, match="GPULAYER_PLUGINS leaves it out"):
        installed("plain", frozenset())
    assert installed("plain", frozenset({"other"})).name == "plain"


def test_a_command_that_is_left_out_is_no_rival_of_another(installed):
    with pytest.raises(PluginFault, match=r"gpulayer-hello 1\.2 and gpulayer-with-plugin 1\.0"):
        installed("shared")
    assert installed("shared", frozenset({"other"})).distribution == "gpulayer-hello"


def test_half_a_distribution_hides_no_other(site, tmp_path, monkeypatch):
    (tmp_path / "half-1.0.dist-info").mkdir()
    (tmp_path / "half-1.0.dist-info" / "entry_points.txt").write_bytes(b"[gpulayer.commands]\nx = \xff\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.syspath_prepend(str(site))
    found = {command.name: command.status for command in find_commands(PluginSettings(), taken=COMMANDS)}
    assert found["hello"] is PluginStatus.OK


def test_core_wins_and_help_and_completion_import_no_plugin(gpulayer):
    said = gpulayer("--help")
    assert (said.code, said.err) == (0, "")
    assert "hello" not in said.out
    assert gpulayer("submit", "--help").out.startswith("Usage: gpulayer submit")
    assert gpulayer("dashboard").err.startswith("error: gpulayer dashboard comes with a later version")
    words = {"_GPULAYER_COMPLETE": "complete_bash", "COMP_CWORD": "1"}
    said = gpulayer(COMP_WORDS="gpulayer ", **words)
    assert said.err == ""
    assert {"submit", "plugins", "hello", "plain", "needs"} <= set(said.out.split())
    assert not {"twice", "bare", "Odd"} & set(said.out.split())


def test_completion_goes_on_into_plugin_commands_and_stays_quiet_where_they_are_broken(gpulayer):
    words = {"_GPULAYER_COMPLETE": "complete_bash", "COMP_CWORD": "2"}
    assert gpulayer(COMP_WORDS="gpulayer hello ", **words).out.split() == ["world", "ends"]
    for name in ("needs", "sumbit", "twice"):
        said = gpulayer(COMP_WORDS=f"gpulayer {name} ", **words)
        assert said.err == ""


def test_an_unknown_command_has_those_of_plugins_among_the_nearest(gpulayer):
    said = gpulayer("helo")
    assert (said.code, said.err.splitlines()[1]) == (2, " hint: did you mean gpulayer hello?")
