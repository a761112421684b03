"""The variables that a process's plugins are set by."""

import pytest

from gpulayer.errors import UsageError
from gpulayer.plugins.settings import PluginSettings


def of(**variables):
    return PluginSettings.of({f"GPULAYER_{name}": value for name, value in variables.items()})


@pytest.mark.parametrize(
    ("text", "allowed"),
    [("", None), (" ", None), ("none", frozenset()), ("a", {"a"}), (" a, cheap-hour ,", {"a", "cheap-hour"})],
)
def test_plugins_are_all_none_or_those_that_are_named(text, allowed):
    assert of(PLUGINS=text).allowed == allowed
    assert PluginSettings.of({}).allowed is None


@pytest.mark.parametrize("text", ["A", "a,none", "none,none", "a b", "../x"])
def test_what_can_be_no_name_is_an_error_of_whoever_set_it(text):
    with pytest.raises(UsageError, match="can't be the name of a plugin"):
        of(PLUGINS=text)


def test_strict_is_yes_or_no():
    assert [of(STRICT=text).strict for text in ("1", "true", "0", "false", "")] == [True, True, False, False, False]
    with pytest.raises(UsageError, match="neither yes nor no"):
        of(STRICT="2")


def test_options_are_by_plugin_and_option_and_not_shown():
    settings = of(PLUGIN_CHEAP_HOUR_ZONE="de", PLUGIN_CHEAP_HOUR_API_KEY="hunter2", PLUGIN_X_="?", PLUGINS="x")
    assert settings.options_of("cheap-hour") == {"zone": "de", "api_key": "hunter2"}
    assert settings.options_of("cheap.hour") == settings.options_of("cheap-hour")
    assert settings.options_of("x") == {}
    assert "hunter2" not in repr(settings)


def test_a_variable_that_fits_two_plugins_is_of_the_one_with_the_longer_name():
    settings = of(PLUGIN_CHEAP_HOUR_ZONE="de", PLUGIN_CHEAP_LIMIT="3")
    both = ("cheap", "cheap-hour")
    assert settings.options_of("cheap", both) == {"limit": "3"}
    assert settings.options_of("cheap-hour", both) == {"zone": "de"}
    assert settings.options_of("cheap", ("cheap",)) == {"limit": "3", "hour_zone": "de"}


def test_a_variable_of_no_plugin_is_told_with_the_one_that_may_be_meant():
    settings = of(
        PLUGIN_BENHC_CHANNELS="2", PLUGIN_CHEAP_HUOR_ZONE="de", PLUGIN_NOBODYS_X="?", PLUGIN_BENCH_ROOM="n", PLUGIN_Y=""
    )
    assert settings.strangers(("bench", "cheap-hour", "cheap")) == {
        "GPULAYER_PLUGIN_BENHC_CHANNELS": "bench",
        "GPULAYER_PLUGIN_NOBODYS_X": "",
        "GPULAYER_PLUGIN_Y": "",
    }, "cheap has an option huor_zone, for all that is known"
    assert settings.strangers(("cheap-hour", "bench"))["GPULAYER_PLUGIN_CHEAP_HUOR_ZONE"] == "cheap-hour"


def test_options_that_are_given_by_hand_win():
    settings = PluginSettings(options={"a": {"x": "1"}}, variables={"A_X": "2", "A_Y": "3"})
    assert settings.options_of("a") == {"x": "1", "y": "3"}


def test_an_import_may_take_ten_seconds_or_what_is_set():
    assert (of().import_s, of(PLUGINS_IMPORT_S=" ").import_s, of(PLUGINS_IMPORT_S="2.5").import_s) == (10.0, 10.0, 2.5)
    assert of(PLUGINS_IMPORT_S="30").variables == {}


@pytest.mark.parametrize("text", ["0", "61", "nan", "inf", "-5", "ten"])
def test_no_time_for_an_import_and_no_end_of_it_are_errors(text):
    with pytest.raises(UsageError, match="GPULAYER_PLUGINS_IMPORT_S"):
        of(PLUGINS_IMPORT_S=text)
