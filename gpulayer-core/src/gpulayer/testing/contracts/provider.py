"""The contract of providers, as tests. They make machines and end them: a real cloud will charge for it."""

from collections.abc import Iterator
from secrets import token_hex
from typing import ClassVar

import pytest

from gpulayer.plugins.contracts.provider import (
    PROVIDER_DEADLINE_S,
    MachineState,
    NoCapacity,
    Offer,
    ProvidedMachine,
    Provider,
    ProviderRefused,
    WorkerStart,
)
from gpulayer.spec.request import Request
from gpulayer.testing.contracts.contract import Ask, SharedContract, check_line, check_plain_name, from_threads, within

__all__ = ["ProviderContract"]


class ProviderContract(SharedContract):
    """``class TestMine(ProviderContract)`` with a fixture ``provider``, and ``wanted`` where not any request has an
    offer. Every machine is ended again, if the provider lets it."""

    deadline_s: ClassVar[float] = PROVIDER_DEADLINE_S

    @pytest.fixture
    def provider(self) -> Provider:
        raise NotImplementedError("a fixture `provider` gives the provider to be tested")

    @pytest.fixture
    def wanted(self) -> Request:
        return Request()

    @pytest.fixture
    def start(self) -> WorkerStart:
        return WorkerStart(("https://203.0.113.7:8470",), (f"sha256:{'0' * 64}",), "gl-join-token", "made", ())

    @pytest.fixture
    def owner(self) -> str:
        """A control plane that nobody else is."""
        return f"kit-{token_hex(6)}"

    @pytest.fixture
    def offer(self, provider: Provider, wanted: Request) -> str:
        offers = within(self.deadline_s, lambda: list(provider.offers(wanted)))
        assert offers, "there is no offer for the request `wanted`"
        return offers[0].name

    @pytest.fixture
    def request_id(self, provider: Provider, owner: str) -> Iterator[str]:
        """Of a machine that is ended after the test."""
        made = f"kit-{token_hex(6)}"
        yield made
        within(self.deadline_s, lambda: provider.destroy(made, owner=owner))

    @pytest.fixture
    def ask(self, provider: Provider, wanted: Request) -> Ask:
        return lambda: list(provider.offers(wanted))

    def test_it_is_a_provider_with_a_plain_name(self, provider: Provider) -> None:
        assert isinstance(provider, Provider), "a provider has a name and the methods offers, create, list and destroy"
        check_plain_name(provider.name)

    def test_its_offers_are_told_apart_by_name(self, ask: Ask) -> None:
        offers = within(self.deadline_s, ask)
        assert all(isinstance(offer, Offer) for offer in offers)
        names = [offer.name for offer in offers]
        assert len(names) == len(set(names)), "two offers of one name"
        for offer in offers:
            check_line(offer.name, "the name of an offer")
            assert offer.usd_an_hour is None or offer.usd_an_hour >= 0, "None where nobody knows"

    def test_a_request_that_nothing_fits_has_no_offers_and_no_error(self, provider: Provider) -> None:
        impossible = Request(devices=100_000, device_models=("a model that nobody makes",))
        within(self.deadline_s, lambda: list(provider.offers(impossible)))

    def test_a_new_control_plane_has_no_machines(self, provider: Provider, owner: str) -> None:
        assert self._machines(provider, owner) == []

    def test_what_is_created_is_listed(
        self, provider: Provider, request_id: str, offer: str, start: WorkerStart, owner: str
    ) -> None:
        made = within(self.deadline_s, lambda: provider.create(request_id, offer, start, owner=owner))
        assert isinstance(made, ProvidedMachine), f"create gave a {type(made).__name__}"
        assert (made.request_id, made.offer) == (request_id, offer)
        assert self._ids(provider, owner) == [request_id]

    def test_a_request_id_stands_for_one_machine_however_often_it_is_asked_for(
        self, provider: Provider, request_id: str, offer: str, start: WorkerStart, owner: str
    ) -> None:
        within(self.deadline_s, lambda: provider.create(request_id, offer, start, owner=owner))
        within(self.deadline_s, lambda: provider.create(request_id, offer, start, owner=owner))
        assert self._ids(provider, owner) == [request_id]

    def test_it_is_one_machine_also_when_asked_from_several_threads(
        self, provider: Provider, request_id: str, offer: str, start: WorkerStart, owner: str
    ) -> None:
        from_threads(self.deadline_s, lambda: provider.create(request_id, offer, start, owner=owner))
        assert self._ids(provider, owner) == [request_id]

    def test_what_is_destroyed_goes(
        self, provider: Provider, request_id: str, offer: str, start: WorkerStart, owner: str
    ) -> None:
        within(self.deadline_s, lambda: provider.create(request_id, offer, start, owner=owner))
        within(self.deadline_s, lambda: provider.destroy(request_id, owner=owner))
        left = {machine.state for machine in self._machines(provider, owner) if machine.request_id == request_id}
        assert left <= {MachineState.STOPPING, MachineState.GONE}, f"it was destroyed, and is {', '.join(left)}"

    def test_what_is_gone_or_never_was_can_be_destroyed(
        self, provider: Provider, request_id: str, offer: str, start: WorkerStart, owner: str
    ) -> None:
        within(self.deadline_s, lambda: provider.create(request_id, offer, start, owner=owner))
        within(self.deadline_s, lambda: provider.destroy(request_id, owner=owner))
        within(self.deadline_s, lambda: provider.destroy(request_id, owner=owner))
        within(self.deadline_s, lambda: provider.destroy("kit-never-was", owner=owner))

    def test_machines_of_another_control_plane_are_none_of_ours(
        self, provider: Provider, request_id: str, offer: str, start: WorkerStart, owner: str
    ) -> None:
        within(self.deadline_s, lambda: provider.create(request_id, offer, start, owner=owner))
        other = f"{owner}-other"
        assert self._machines(provider, other) == []
        within(self.deadline_s, lambda: provider.destroy(request_id, owner=other))
        assert self._ids(provider, owner) == [request_id], "another control plane ended it"

    def test_an_offer_that_is_not_made_is_refused_by_name(
        self, provider: Provider, request_id: str, start: WorkerStart, owner: str
    ) -> None:
        with pytest.raises((NoCapacity, ProviderRefused)) as refused:
            within(
                self.deadline_s, lambda: provider.create(request_id, "an-offer-that-nobody-made", start, owner=owner)
            )
        check_line(str(refused.value), "the message")

    def test_the_join_token_is_shown_nowhere(
        self, provider: Provider, request_id: str, offer: str, start: WorkerStart, owner: str
    ) -> None:
        made = within(self.deadline_s, lambda: provider.create(request_id, offer, start, owner=owner))
        assert start.token not in repr(made), "details are for people, and the token is for the machine alone"

    def _machines(self, provider: Provider, owner: str) -> list[ProvidedMachine]:
        return within(self.deadline_s, lambda: list(provider.list(owner=owner)))

    def _ids(self, provider: Provider, owner: str) -> list[str]:
        gone = (MachineState.GONE, MachineState.STOPPING)
        return [machine.request_id for machine in self._machines(provider, owner) if machine.state not in gone]
