"""What the join token of a worker says of it, put over what the worker says of itself. Pure."""

from dataclasses import replace

from gpulayer.server.store import IdentityRow
from gpulayer.spec.labels import located
from gpulayer.spec.machine import WorkerFacts

__all__ = ["offered"]


def offered(facts: WorkerFacts, identity: IdentityRow) -> WorkerFacts:
    """The facts as placement sees them: the token's labels win over the worker's own of the same key, also those that
    say where it is, and of its devices those with the lowest indexes are offered, as many as the token allows."""
    labels, locality = facts.labels, facts.locality
    if identity.labels:
        locality = located(identity.labels, locality)
        labels = tuple(sorted({**dict(labels), **dict(identity.labels)}.items()))
    devices = facts.devices
    if identity.max_devices is not None and len(devices) > identity.max_devices:
        devices = tuple(sorted(devices, key=lambda device: device.index)[: identity.max_devices])
        kept = {device.uuid for device in devices}
        devices = tuple(
            replace(device, links=tuple(link for link in device.links if link[0] in kept)) for device in devices
        )
    changed = replace(facts, labels=labels, locality=locality, devices=devices)
    return facts if changed == facts else changed
