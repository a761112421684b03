"""Secrets in the SDK's keywords: from values or from the environment, and in nothing that shows itself."""

import json

import pytest

from gpulayer.client import calls
from gpulayer.errors import UsageError
from gpulayer.sdk.client import plan_batch
from gpulayer.sdk.options import check_submission, plan_job

VALUE = "abc123xyz"


def plan(**options):
    return plan_job(["true"], options, base_env={"PATH": "/bin"}, environment={"HF_TOKEN": VALUE, "EMPTY": ""})


@pytest.mark.parametrize("secrets", [{"HF_TOKEN": VALUE}, ["HF_TOKEN"], ("HF_TOKEN",)])
def test_values_and_names_come_to_the_same_submission(secrets):
    made = plan(secrets=secrets, grant="own")
    assert made.submission["secrets"] == {"HF_TOKEN": VALUE}
    assert made.submission["grant"] == "own"
    call = calls.submit_job(made.submission, key="k")
    assert json.loads(call.body)["secrets"] == {"HF_TOKEN": VALUE}
    for shown in (made, made.submission, call):
        assert VALUE not in repr(shown)


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"secrets": ["OTHER"]}, "'OTHER' is not set here"),
        ({"secrets": ["EMPTY"]}, "EMPTY is empty"),
        ({"secrets": "HF_TOKEN"}, "give a list of names"),
        ({"secrets": {"HF_TOKEN": 123}}, "must be text, not int"),
        ({"secrets": {"HF_TOKEN": VALUE.encode()}}, "must be text, not bytes"),
        ({"secrets": {f"HF_TOKEN={VALUE}": VALUE}}, "can't name a variable"),
        ({"secrets": [f"HF_TOKEN={VALUE}"]}, "'HF_TOKEN' is not set"),
        ({"secrets": {"PATH": VALUE}, "env": {"PATH": "/bin"}}, "PATH is a variable of env"),
        ({"secrets": ["HF_TOKEN"], "env": {"HF_TOKEN": "x"}}, "HF_TOKEN is a variable of env"),
        ({"secrets": {"HF_TOKEN": f"{VALUE}\udcff"}}, "not UTF-8"),
        ({"grant": "everything"}, "unknown"),
        ({"secrets": {f"S{number}": VALUE + "x" * 60_000 for number in range(64)}}, "1 MiB together"),
        ({"env": {"BIG": VALUE + "x" * 131_072}}, "BIG has 131,0.. bytes .* 128 KiB"),
    ],
)
def test_what_can_not_be_meant_is_refused_before_anything_is_sent(options, why):
    with pytest.raises(UsageError, match=why) as refused:
        plan(**options)
    assert VALUE not in str(refused.value)
    assert VALUE[:-1] not in str(refused.value.details)


@pytest.mark.parametrize("secrets", [{"PATH": VALUE}, ["PATH"]])
def test_a_secret_wins_over_a_variable_that_every_job_of_this_client_gets(secrets):
    base_env = {"PATH": "/bin", "VIRTUAL_ENV": "/venv"}
    made = plan_job(["true"], {"secrets": secrets}, base_env=base_env, environment={"PATH": VALUE})
    assert made.submission["secrets"] == {"PATH": VALUE}
    assert made.submission["env"] == {"VIRTUAL_ENV": "/venv"}
    check_submission(made.submission)


def test_a_batch_has_them_too_also_where_only_the_command_differs():
    items = [{"command": ["echo", str(number)], "secrets": ["HF_TOKEN"]} for number in range(3)]
    plans = plan_batch(items, base_env={}, environment={"HF_TOKEN": VALUE})
    assert [made.submission["secrets"] for made in plans] == [{"HF_TOKEN": VALUE}] * 3
    assert VALUE not in repr(plans)
