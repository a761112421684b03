"""The cheapest hour: its contracts, its prices by value, and jobs that go where it says."""

import pytest

import gpulayer_cheapest_hour
from gpulayer.plugins import Mark, Pair, Refusal, Request, ScoreBatch
from gpulayer.testing import PluginContract, ScorerContract, cuda_devices, machine_facts
from gpulayer_cheapest_hour.prices import parse_most, parse_prices, parse_tariff, usd_an_hour
from gpulayer_cheapest_hour.scorer import CheapestHour

PRICES = {"H100": 3.0, "L4": 1.0}
HOUR_MS = 3_600_000


class TestPlugin(PluginContract):
    @pytest.fixture
    def plugin(self):
        return gpulayer_cheapest_hour

    @pytest.fixture
    def options(self):
        return {"prices": "H100=3, L4=0.70", "tariff": "22-6=0.5", "most": "8"}


class TestScorer(ScorerContract):
    @pytest.fixture
    def scorer(self):
        return CheapestHour(prices=PRICES, tariff=parse_tariff("22-6=0.5"), most=20)


def opinions(scorer, *machines, hour=12):
    pairs = tuple(Pair(0, number) for number in range(len(machines)))
    return scorer.score(ScoreBatch((Request(),), machines, pairs, hour * HOUR_MS))


def test_the_cheaper_machine_has_the_better_mark_and_the_unknown_one_none():
    cheap = machine_facts(labels=(("usd-per-hour", "1"),))
    dear = machine_facts(devices=cuda_devices(1))
    assert opinions(CheapestHour(prices=PRICES), cheap, dear, machine_facts()) == [Mark(0.5), Mark(0.25), None]


def test_above_the_maximum_of_the_hour_a_machine_is_refused_with_the_figures():
    scorer = CheapestHour(prices=PRICES, tariff=parse_tariff("17-20=2"), most=4)
    dear = machine_facts(devices=cuda_devices(1))
    assert opinions(scorer, dear, hour=16) == [Mark(0.25)]
    assert opinions(scorer, dear, hour=17) == [Refusal("costs $6.00 an hour now, more than $4.00")]


@pytest.mark.parametrize(
    ("changes", "usd"),
    [
        ({}, None),
        ({"devices": cuda_devices(2)}, 6.0),
        ({"devices": cuda_devices(1, model="nvidia l4")}, 1.0),
        ({"devices": cuda_devices(1, model="A card of 1999")}, None),
        ({"devices": (*cuda_devices(1), *cuda_devices(1, model="A card of 1999"))}, None),
        ({"devices": cuda_devices(2), "labels": (("usd-per-hour", "0"),)}, 0.0),
        ({"labels": (("usd-per-hour", "much"),)}, None),
        ({"labels": (("usd-per-hour", "nan"),)}, None),
        ({"labels": (("usd-per-hour", "-1"),)}, None),
    ],
)
def test_what_an_hour_costs(changes, usd):
    assert usd_an_hour(machine_facts(**changes), PRICES) == usd


def test_a_tariff_goes_over_midnight_and_later_spans_win():
    factors = parse_tariff("22-6=0.5, 5-6=3, 12-24=2, 20-21=1").factors
    assert [hour for hour, factor in enumerate(factors) if factor == 0.5] == [0, 1, 2, 3, 4]
    assert factors[5] == 3
    assert [hour for hour, factor in enumerate(factors) if factor == 2] == [*range(12, 20), 21, 22, 23]


@pytest.mark.parametrize(
    ("span", "hours"),
    [
        ("0-24", range(24)),
        ("23-24", [23]),
        ("23-0", [23]),
        ("0-1", [0]),
        ("1-0", range(1, 24)),
        ("8-24", range(8, 24)),
        ("8-7", [hour for hour in range(24) if hour != 7]),
    ],
)
def test_a_span_has_its_hours_and_no_others(span, hours):
    factors = parse_tariff(f"{span}=2").factors
    assert [hour for hour, factor in enumerate(factors) if factor == 2] == list(hours)


@pytest.mark.parametrize("span", ["8-8", "0-0"])
def test_a_span_without_hours_is_refused_and_the_whole_day_named(span):
    with pytest.raises(ValueError, match=f"{span}.*the whole day is 0-24"):
        parse_tariff(f"{span}=2")


@pytest.mark.parametrize(
    ("parse", "text"),
    [
        (parse_prices, "H100"),
        (parse_prices, "=3"),
        (parse_prices, "H100=cheap"),
        (parse_tariff, "night=0.5"),
        (parse_tariff, "22-30=0.5"),
        (parse_tariff, "22-6=-1"),
        (parse_most, "inf"),
    ],
)
def test_an_option_that_makes_no_sense_is_refused_with_what_it_said(parse, text):
    with pytest.raises(ValueError, match=text.partition("=")[0] or "=3"):
        parse(text)


class TestOnAControlPlane:
    @pytest.fixture
    def plane_plugins(self):
        return {"cheapest-hour": "gpulayer_cheapest_hour"}

    @pytest.fixture
    def plane_options(self):
        return {"cheapest-hour": {"most": "5"}}

    def test_a_job_goes_where_the_hour_is_cheapest(self, plane, fleet):
        fleet.add("dear", cpus=1, labels={"usd-per-hour": "4"})  # it would fit better
        cheap = fleet.add("cheap", cpus=64, labels={"usd-per-hour": "1"})
        job = plane.client.submit(["true"])
        assert fleet.worker_of(job) is cheap
        cheap.finish(job)
        assert job.wait(timeout=10)["state"] == "succeeded"

    def test_a_job_waits_rather_than_cost_too_much(self, plane, fleet):
        fleet.add("dear", labels={"usd-per-hour": "6"})
        job = plane.client.submit(["true"])
        plane.until(lambda: "costs $6.00 an hour now" in str(plane.client.explain()))
        assert job.state == "queued"
        cheap = fleet.add("cheap", labels={"usd-per-hour": "1"})
        cheap.finish(job)
        assert job.wait(timeout=10)["state"] == "succeeded"
