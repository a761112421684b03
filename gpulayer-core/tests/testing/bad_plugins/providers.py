"""Providers of machines."""

import itertools
import threading
import time

from bad_plugins.caught import for_ever, given, hanging
from gpulayer.plugins import Offer, ProvidedMachine
from gpulayer.plugins.contracts.provider import MachineState, ProviderRefused
from gpulayer.testing import ProviderContract, machine_facts


def provider(test):
    return given(ProviderContract, "provider", test)


@given(ProviderContract, "provider")
class GoodProvider:
    name = "good"

    def __init__(self):
        self.machines = {}
        self.lock = threading.Lock()

    def offers(self, request):
        return [Offer("small", machine_facts(), 0.0)] if not request.devices else []

    def create(self, request_id, offer, start, *, owner):
        if offer != "small":
            raise ProviderRefused(f"there is no {offer}")
        with self.lock:
            return self.machines.setdefault((owner, request_id), self.made(request_id, offer, start))

    def made(self, request_id, offer, start):
        return ProvidedMachine(request_id, offer, MachineState.STARTING)

    def list(self, *, owner):
        with self.lock:
            return [machine for (of, _), machine in self.machines.items() if of == owner]

    def destroy(self, request_id, *, owner):
        with self.lock:
            self.machines.pop((owner, request_id), None)


@provider("plain_name")
class ProviderOfNoName(GoodProvider):
    name = "Good Cloud"


@provider("new_control_plane")
class ProviderOfOneMachine(GoodProvider):
    def list(self, *, owner):
        return [ProvidedMachine("somebodys", "small", MachineState.RUNNING)]


@provider("is_listed")
class ProviderThatForgets(GoodProvider):
    def list(self, *, owner):
        return []


@provider("told_apart_by_name")
class ProviderOfEqualOffers(GoodProvider):
    def offers(self, request):
        return [Offer("small", machine_facts()), Offer("small", machine_facts())]


@provider("nothing_fits")
class ProviderThatExpects(GoodProvider):
    def offers(self, request):
        if request.devices > 8:
            raise ValueError("too many")
        return super().offers(request)


@provider("one_machine_however_often")
class ProviderOfMany(GoodProvider):
    count = itertools.count()

    def create(self, request_id, offer, start, *, owner):
        made = self.made(request_id, offer, start)
        self.machines[owner, next(self.count)] = made
        return made

    def destroy(self, request_id, *, owner):
        self.machines.clear()


@provider("several_threads")
class ProviderOfRaces(GoodProvider):
    def create(self, request_id, offer, start, *, owner):
        if not any(made.request_id == request_id for made in self.list(owner=owner)):
            time.sleep(0.05)
            self.machines[owner, threading.get_ident()] = self.made(request_id, offer, start)
        return self.made(request_id, offer, start)

    def destroy(self, request_id, *, owner):
        self.machines.clear()


@provider("goes")
class ProviderThatKeeps(GoodProvider):
    def destroy(self, request_id, *, owner):
        pass


@provider("never_was")
class ProviderThatMisses(GoodProvider):
    def destroy(self, request_id, *, owner):
        del self.machines[owner, request_id]


@provider("none_of_ours")
class ProviderOfAll(GoodProvider):
    def list(self, *, owner):
        return list(self.machines.values())


@provider("refused_by_name")
class ProviderThatMakesAnything(GoodProvider):
    def create(self, request_id, offer, start, *, owner):
        return super().create(request_id, "small", start, owner=owner)


@provider("shown_nowhere")
class ProviderThatTells(GoodProvider):
    def made(self, request_id, offer, start):
        return ProvidedMachine(request_id, offer, MachineState.STARTING, details={"start": start.token})


@hanging(ProviderContract, "provider")
class ProviderForEver(GoodProvider):
    offers = create = list = destroy = for_ever
