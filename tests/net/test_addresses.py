"""R1: the addresses that a worker reports are numeric and lead to it, whatever its own host name means to itself."""

import ipaddress
import socket

from tests.net.town import until


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
