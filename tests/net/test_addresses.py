"""R1: the addresses that a worker reports are numeric and lead to it, whatever its own host name means to itself."""

import ipaddress
import json
import socket
import sys

from tests.net.town import until

SAYS = "import json; from gpulayer.net.interfaces import interface_addresses; print(json.dumps(interface_addresses()))"


def addresses_of(machine):
    """As a process there finds them, with the machine's own /sys as in a container."""
    script = 'mount -t sysfs none /sys && exec "$@"'
    return json.loads(machine.run("unshare", "--mount", "sh", "-c", script, "sh", sys.executable, "-P", "-c", SAYS))


def settle(machine, *devices):
    """Up, and the kernel says so: a bridge that was plugged into takes a moment."""
    for device in devices:
        machine.up(device)
    for device in devices:
        until(lambda name=device: "LOWER_UP" in machine.run("ip", "link", "show", name), f"{device} is up")
        until(lambda name=device: "state DOWN" not in machine.run("ip", "link", "show", name), f"{device} works")


def test_what_leads_inside_a_host_is_not_offered_and_its_bridge_to_the_outside_is(lab):
    host, router, container = (lab.machine(name) for name in ("host", "router", "box"))
    lab.cable(host, "eth0", router, "eth0")
    lab.cable(host, "eth1", router, "eth1")
    for bridge, card in (("docker0", "veth0"), ("br-0123456789ab", "veth1"), ("mybridge", "veth2")):
        host.run("ip", "link", "add", bridge, "type", "bridge")
        lab.cable(host, card, container, card.replace("veth", "eth"))
        host.run("ip", "link", "set", card, "master", bridge)
    host.run("ip", "tuntap", "add", "vm0", "mode", "tap")
    host.run("ip", "link", "set", "vm0", "master", "mybridge")
    # A tunnel stands for a card of hardware, of which namespaces have none: what a bridge leads out through.
    host.run("ip", "link", "add", "lab", "type", "bridge")
    host.run("ip", "link", "add", "out", "type", "vxlan", "id", "7", "dev", "eth1", "dstport", "4789")
    host.run("ip", "link", "set", "out", "master", "lab")
    for device, address in (
        ("eth0", "10.0.0.5/24"),
        ("eth0", "fd00:7::5/64"),
        ("eth1", "169.254.9.9/16"),
        ("docker0", "172.17.0.1/16"),
        ("br-0123456789ab", "172.18.0.1/16"),
        ("mybridge", "10.200.0.1/24"),
        ("lab", "192.168.7.2/24"),
    ):
        host.run("ip", "address", "add", address, "dev", device, *(("nodad",) if ":" in address else ()))
    host.up("vm0")
    settle(host, "out", "veth0", "veth1", "veth2", "docker0", "br-0123456789ab", "mybridge", "lab")
    host.run("ip", "route", "add", "default", "via", "10.0.0.1")
    assert addresses_of(host) == ["10.0.0.5", "192.168.7.2", "fd00:7::5"]

    container.run("ip", "address", "add", "10.200.0.2/24", "dev", "eth2")
    assert addresses_of(container) == ["10.200.0.2"], "its own address, though its card is one end of a pair"
    host.run("ip", "link", "set", "eth0", "down")
    assert addresses_of(host) == ["192.168.7.2"], "what is down leads nowhere"


def test_a_host_whose_only_way_out_is_a_bridge_offers_its_address(lab):
    host, router = lab.machine("host"), lab.machine("router")
    lab.cable(host, "eth0", router, "eth0")
    host.run("ip", "link", "add", "br-ex", "type", "bridge")
    host.run("ip", "link", "set", "eth0", "master", "br-ex")
    host.run("ip", "address", "add", "192.168.111.20/24", "dev", "br-ex")
    settle(host, "br-ex")
    assert addresses_of(host) == [], "a bridge of that name, and one end of a pair in it"
    host.run("ip", "route", "add", "default", "via", "192.168.111.1")
    assert addresses_of(host) == ["192.168.111.20"]


def test_r1_a_worker_whose_name_only_it_knows_reports_addresses_at_which_a_peer_without_dns_finds_it(town, tmp_path):
    invitation = town.up()
    hosts = tmp_path / "hosts"
    hosts.write_text("127.0.0.1 localhost\n127.0.1.1 lonely\n")
    lonely = town.place(town.public("lonely", 40), hosts=hosts)
    peer = town.place(town.public("peer", 41), hosts=tmp_path / "hosts-of-peer")
    peer.hosts.write_text("127.0.0.1 localhost\n")
    lonely.join(*invitation.join)  # by its own name
    town.ready(lonely)

    addresses = town.worker("lonely")["addresses"]
    assert addresses
    assert not any(ipaddress.ip_address(address).is_loopback for address in addresses)
    # The listener is opened by a job, the peer goes where the record says.
    serve = (
        "import socket; s = socket.create_server(('', 7000), family=socket.AF_INET6, dualstack_ipv6=True); s.accept()"
    )
    job = town.server.did("submit", "--detach", "--", "python3", "-c", serve).out.decode().strip()
    until(lambda: town.job(job)["state"] == "running", "the listener's job runs")
    name = peer.end(peer.popen("getent", "hosts", "lonely"))
    assert name.code != 0, "the peer can't resolve the name"

    def reach():
        with peer.machine.inside():
            try:
                socket.create_connection((addresses[0], 7000), timeout=5).close()
            except ConnectionRefusedError:
                return False  # it does not listen yet
        return True

    until(reach, "the peer reaches it")
    assert town.server.did("job", "wait", job).code == 0
