"""The two variables for trials: refused where they make no sense, and not looked at otherwise."""

import pytest

from gpulayer.cli.trials import arm_faults, lease_ttl_ms, wanted_faults
from gpulayer.errors import UsageError


def test_without_the_variables_nothing_is_armed_and_the_lease_is_the_policys():
    arm_faults({})
    assert (wanted_faults({}), lease_ttl_ms({})) == ("", None)


def test_a_lease_is_a_time_of_three_seconds_or_more():
    assert lease_ttl_ms({"GPULAYER_LEASE_TTL": "3s"}) == 3_000
    for text in ("2s", "soon", "-4"):
        with pytest.raises(UsageError, match="GPULAYER_LEASE_TTL"):
            lease_ttl_ms({"GPULAYER_LEASE_TTL": text})


def test_a_command_with_an_unknown_fault_point_is_refused_before_it_does_anything(cli, monkeypatch):
    monkeypatch.setenv("GPULAYER_FAULTS", "client.nowhere")
    said = cli("status")
    assert (said.code, said.out) == (2, b"")
    assert "no fault point 'client.nowhere'" in said.err
