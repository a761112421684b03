"""Values of options and tokens are in no text that people see."""

import io
import logging
import re

import pytest

from gpulayer.plugins.hiding import Printed, SecretsHider, hide_logged

TOKEN = "glw_" + "a" * 12 + "_" + "S" * 43


def test_the_plugins_own_values_all_secrets_of_others_and_all_tokens_are_hidden_and_short_words_are_not():
    mine = {"key": "hunter2", "longer": "hunter2hunter2", "n": "on", "zone": "eu-west"}
    hider = SecretsHider({"p": mine, "q": {"key": "swordfish", "zone": "us-east"}})
    told = f"on eu-west us-east: hunter2hunter2, hunter2; swordfish {TOKEN}"
    assert hider("p", told) == "on *** us-east: ***, ***; *** ***"
    assert hider("", "hunter2 swordfish eu-west") == "*** *** eu-west"
    assert hider("unknown", f"hunter2 {TOKEN}") == "*** ***"
    assert SecretsHider()("p", "gl_x global glad") == "gl_x global glad"


def test_what_a_plugin_logs_itself_is_hidden_in_whatever_the_root_logger_writes():
    written = io.StringIO()
    handler = logging.StreamHandler(written)
    root = logging.getLogger()
    root.addHandler(handler)
    undo = hide_logged(SecretsHider({"p": {"key": "hunter2"}}))
    try:
        logging.getLogger("some.plugin").warning("logging in as %s with %s", "me", "hunter2")
        logging.getLogger("some.plugin").warning("%d%%", 5)
        try:
            raise ValueError("no hunter2")
        except ValueError:
            logging.getLogger("other").exception("it failed")
    finally:
        undo()
        root.removeHandler(handler)
    assert "logging in as me with ***\n5%\n" in written.getvalue()
    assert "ValueError: no ***" in written.getvalue()
    assert "hunter2" not in written.getvalue()
    assert handler.filters == []


@pytest.mark.parametrize(
    ("options", "text", "hidden"),
    [
        ({"key": "-----BEGIN KEY-----\nMIIEline1\nline2x\n-----END KEY-----"}, "MIIEline1\nline2x", "*** ***"),
        ({"key": "a b\nc d"}, "x a b\nc d y; a  b c\td", "x *** y; ***"),
        ({"url": "https://a/T/A https://b/T/B"}, "POST https://b/T/B: 500", "POST ***: 500"),
        ({"secret": "whsec_old1,whsec_new2"}, "whsec_new2 or whsec_old1", "*** or ***"),
        ({"n": "on", "s": "  "}, "on and  off", "on and  off"),
        ({"x": ".*(+"}, "a.*(+b abc", "a***b abc"),
    ],
)
def test_values_of_several_words_are_hidden_whole_and_word_by_word(options, text, hidden):
    assert re.sub(r"\s+", " ", SecretsHider({"p": options})("p", text)) == re.sub(r"\s+", " ", hidden)


@pytest.mark.parametrize(
    ("option", "value", "text", "hidden"),
    [
        ("mode", "plugin", "gpulayer/plugins/guard.py: plugin, 'plugin'", "gpulayer/plugins/guard.py: ***, '***'"),
        ("mode", "plugin", "plugin_key myplugin PLUGIN", "plugin_key myplugin PLUGIN"),
        ("mode", "spot, plugin", "spots plugins spot plugin", "spots plugins *** ***"),
        ("place", "/data/x", "read /data/x, a/data/x; /data/xy", "read ***, a***; /data/xy"),
        ("api_key", "plugin", "plugins", "***s"),
        ("mode", "hunter22", "xhunter22x", "x***x"),
        ("mode", "abcdefghijklmnop", "xabcdefghijklmnopx", "x***x"),
        ("mode", "guards", "the guards of a/guards.py", "the *** of a/***.py"),
    ],
)
def test_a_short_value_that_looks_like_no_secret_is_hidden_as_a_whole_word_only(option, value, text, hidden):
    assert SecretsHider({"p": {option: value}})("p", text) == hidden


def test_what_is_a_secret_of_another_is_hidden_wherever_it_stands():
    hider = SecretsHider({"p": {"mode": "swordfish"}, "q": {"key": "swordfish"}})
    assert hider("p", "swordfishes") == "***es"


def test_in_what_everybody_logs_only_secrets_are_hidden():
    """A word that an option happens to be is in lines of the whole process."""
    options = {
        "mode": "plugin",
        "who": "worker",
        "scheme": "https",
        "is_on": "true",
        "monkey": "donkey",
        "author": "correct",
        "token_file": "abcdef",
        "api_key": "abcd",
        "token": "hunter2",
        "DB_PASSWORD": "correct donkey",
        "url": "https://u:p@db/x https://other.example/y",
        "marker": "Zm9vYmFyYmF6cXV4",
    }
    hider = SecretsHider({"p": options, "q": {"passphrase": "swordfish"}})
    plain = "plugin worker https true, a donkey is correct"
    assert hider("", plain) == plain
    for secret in ("abcd", "abcdef", "hunter2", "correct donkey", "https://u:p@db/x", "Zm9vYmFyYmF6cXV4", "swordfish"):
        assert hider("", f"<{secret}>") == "<***>"
    assert hider("", "GET https://other.example/y") == "GET ***"
    assert hider("p", "worker") == "***", "in what is told of the plugin itself"
    assert hider("q", "worker") == "worker"


def test_what_a_plugin_prints_is_hidden_where_that_is_a_log():
    written = io.StringIO()
    printed = Printed(written, SecretsHider({"": {"KEY": "hunter2"}}))
    print("with hunter2", 5, file=printed, flush=True)
    printed.writelines(["no ", "hunter2\n"])
    assert printed.write("hunter2") == 7
    assert written.getvalue() == "with *** 5\nno ***\n***"
    assert printed.writable()
