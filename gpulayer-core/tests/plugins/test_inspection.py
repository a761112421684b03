"""What is refused of a plugin's hooks, and what its author then reads."""

import functools
from types import ModuleType

import pytest

from gpulayer.plugins.hooks import hookimpl
from gpulayer.plugins.inspection import HOOKS, inspect_plugin, parameters_of
from gpulayer.plugins.record import PluginStatus


def inspected(source="", **names):
    module = ModuleType("plugin")
    exec(f"from gpulayer.plugins import hookimpl\n{source}", vars(module))
    vars(module).update({"GPULAYER_API": "1.0", **names})
    return inspect_plugin(module)


GOOD = "@hookimpl\ndef gpulayer_register_probes(ctx): return []\n"


def test_a_good_one_is_told_with_its_hooks_and_its_priority():
    told = inspected(GOOD + "@hookimpl\ndef gpulayer_check_job(ctx, spec): return []", GPULAYER_PRIORITY=3)
    assert told.status is PluginStatus.OK
    assert told.hooks == ("gpulayer_check_job", "gpulayer_register_probes")
    assert (told.api, told.priority, told.error, told.hint) == ("1.0", 3, "", "")


@pytest.mark.parametrize(
    ("api", "error"),
    [
        ("1.1", "it needs the plugin API 1.1; this gpulayer has 1.0"),
        ("2.0", "it needs the plugin API 2.0"),
        ("0.9", "it needs the plugin API 0.9"),
        (None, "does not say which GPULAYER_API"),
        ("1", "is '1', not MAJOR.MINOR"),
        (1.0, "is 1.0, not MAJOR.MINOR"),
        ("1.0\n", "not MAJOR.MINOR"),
        ("x" * 1000, "not MAJOR.MINOR"),
        (object(), "is a object, not MAJOR.MINOR"),
    ],
)
def test_another_api_is_incompatible_and_says_who_has_to_change(api, error):
    told = inspected(GOOD, GPULAYER_API=api)
    assert told.status is PluginStatus.INCOMPATIBLE
    assert error in told.error
    assert told.hint
    assert len(told.error) < 200


@pytest.mark.parametrize("priority", ["1", 1.0, True, None])
def test_a_priority_is_a_whole_number(priority):
    assert "GPULAYER_PRIORITY" in inspected(GOOD, GPULAYER_PRIORITY=priority).error


@pytest.mark.parametrize(
    ("source", "error", "hint"),
    [
        ("", "it implements no hook", "@hookimpl"),
        ("def gpulayer_register_probes(ctx): pass", "gpulayer_register_probes is not marked", "@hookimpl"),
        (
            "@hookimpl\ndef gpulayer_register_probe(ctx): pass",
            "no hook gpulayer_register_probe",
            "mean gpulayer_register_probes",
        ),
        (
            "@hookimpl(specname='gpulayer_check_job')\ndef quota(spec): pass\n"
            "@hookimpl(specname='gpulayer_check_job')\ndef policy(spec): pass",
            "policy and quota are all for the hook gpulayer_check_job",
            "one function",
        ),
        (
            "@hookimpl\ndef gpulayer_register_probes(ctx): pass\n"
            "@hookimpl(specname='gpulayer_register_probes')\ndef more(ctx): pass",
            "gpulayer_register_probes and more are all for the hook",
            "one function",
        ),
        ("@hookimpl\ndef something(ctx): pass", "there is no hook something", "gpulayer_on_event"),
        ("@hookimpl(specname='gpulayer_x')\ndef gpulayer_register_probes(ctx): pass", "no hook gpulayer_x", ""),
        ("@hookimpl\nasync def gpulayer_register_probes(ctx): pass", "is async", "with def"),
        ("@hookimpl\nasync def gpulayer_register_probes(ctx): yield", "is async", "with def"),
        ("@hookimpl\ndef gpulayer_register_probes(ctx): yield 1", "is a generator", "return a list"),
        ("@hookimpl(wrapper=True)\ndef gpulayer_register_probes(ctx): yield", "wraps the hook", "without options"),
        ("@hookimpl(hookwrapper=True)\ndef gpulayer_check_job(ctx): yield", "wraps the hook", "without options"),
        ("@hookimpl(tryfirst=True)\ndef gpulayer_register_probes(ctx): pass", "tryfirst", "GPULAYER_PRIORITY"),
        ("@hookimpl(trylast=True)\ndef gpulayer_register_probes(ctx): pass", "trylast", "GPULAYER_PRIORITY"),
        ("@hookimpl\ndef gpulayer_check_job(*, spec): pass", "keyword-only argument spec", "spec and ctx"),
        ("@hookimpl\ndef gpulayer_check_job(spec, ctx=None): pass", "a default for ctx", "no defaults"),
        ("@hookimpl\ndef gpulayer_check_job(*args): pass", "*args, which is never passed", "spec and ctx"),
        ("@hookimpl\ndef gpulayer_check_job(spec, **more): pass", "**more, which is never passed", "spec and ctx"),
        ("@hookimpl\ndef gpulayer_check_job(specs, ctx): pass", "unknown argument specs", "did you mean spec?"),
        ("@hookimpl\ndef gpulayer_on_event(job): pass", "unknown argument job", "event and ctx"),
    ],
)
def test_what_pluggy_would_pass_over_is_refused_with_the_reason(source, error, hint):
    told = inspected(source)
    assert told.status is PluginStatus.BROKEN
    assert error in told.error
    assert hint in told.hint


def test_of_several_mistakes_the_first_is_told_and_the_others_counted():
    told = inspected(GOOD + "@hookimpl\nasync def gpulayer_check_job(spec): pass\ndef gpulayer_on_event(event): pass")
    assert told.error == "gpulayer_check_job is async (and 1 more)"
    assert told.hooks == ("gpulayer_check_job", "gpulayer_register_probes")


def test_a_hook_of_a_later_version_may_be_marked_as_optional():
    told = inspected(GOOD + "@hookimpl(optionalhook=True)\ndef gpulayer_register_dreams(ctx): pass")
    assert (told.status, told.hooks) == (PluginStatus.OK, ("gpulayer_register_probes",))


def test_a_decorated_hook_is_taken_for_what_it_wraps():
    def gpulayer_on_event(event): ...

    @functools.wraps(gpulayer_on_event)
    def decorated(*args, **kwargs):
        return gpulayer_on_event(*args, **kwargs)

    told = inspected(gpulayer_on_event=hookimpl(decorated))
    assert told.status is PluginStatus.OK
    assert parameters_of(decorated) == ("event",)


def test_what_puts_itself_into_sys_modules_is_refused():
    assert inspect_plugin(object()).error == "what was imported is no module"


def test_modules_and_constants_that_are_named_like_a_plugin_are_nothing():
    assert inspected(GOOD, gpulayer_torch=ModuleType("gpulayer_torch"), gpulayer_on_event="x").error == ""


def test_every_hook_is_known_with_its_arguments():
    assert HOOKS["gpulayer_check_job"] == ("spec", "ctx")
    assert HOOKS["gpulayer_on_event"] == ("event", "ctx")
    assert HOOKS["gpulayer_register_probes"] == ("ctx",)
    assert len(HOOKS) >= 10
