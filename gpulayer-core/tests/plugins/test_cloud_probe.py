"""The cloud probe against metadata services on loopback: true ones, and whatever else may answer there.

Firmware values: cloud-init, tools/ds-identify and tests/unittests/test_ds_identify.py. Answers: of AWS from
aws/amazon-ec2-metadata-mock (pkg/config/defaults/aemm-metadata-default-values.json), of Azure from the example in
https://learn.microsoft.com/azure/virtual-machines/instance-metadata-service, of Google Cloud from
https://cloud.google.com/compute/docs/metadata/predefined-metadata-keys.
"""

import json
import logging
import socket
import threading
from contextlib import contextmanager
from types import SimpleNamespace

import pytest

from gpulayer.clock import ManualClock
from gpulayer.plugins.builtin.cloud import CloudProbe
from gpulayer.plugins.builtin.cloud.vendors import Cloud, Place, cloud_of, read_place
from gpulayer.plugins.contracts.probe import Findings, ProbeSite
from gpulayer.spec.machine import Locality
from gpulayer.testing import ProbeContract

ON_GCP = {"sys_vendor": "Google", "product_name": "Google Compute Engine", "bios_vendor": "Google"}
ON_AWS = {"sys_vendor": "Amazon EC2", "product_name": "p4d.24xlarge", "bios_vendor": "Amazon EC2"}
ON_AZURE = {
    "sys_vendor": "Microsoft Corporation",
    "product_name": "Virtual Machine",
    "chassis_asset_tag": "7783-7084-3265-9085-8269-3286-77",
}
AT_HOME = {"sys_vendor": "ASUS", "product_name": "System Product Name", "bios_vendor": "American Megatrends Inc."}

GCP = {
    "/computeMetadata/v1/instance/zone": "projects/123456789012/zones/us-central1-a",
    "/computeMetadata/v1/instance/machine-type": "projects/123456789012/machineTypes/g2-standard-8",
    "/computeMetadata/v1/instance/scheduling/preemptible": "TRUE",
}
AWS = {
    "/latest/api/token": "AQAEALG5tZ3nyXaF6wZ3bW==",
    "/latest/meta-data/placement/availability-zone": "us-east-1a",
    "/latest/meta-data/instance-type": "m4.xlarge",
    "/latest/meta-data/instance-life-cycle": "on-demand",
}
AZURE = {
    "/metadata/instance/compute?api-version=2020-12-01&format=json": json.dumps(
        {
            "azEnvironment": "AZUREPUBLICCLOUD",
            "location": "westus",
            "name": "examplevmname",
            "osProfile": {"adminUsername": "admin", "computerName": "examplevmname"},
            "priority": "Regular",
            "vmSize": "Standard_A3",
            "zone": "1",
        }
    )
}
FLAVOR = "Metadata-Flavor: Google"
TYPE, SPOT = "gpulayer.dev/instance-type", "gpulayer.dev/spot"


class Service:
    """Answers each request by what ``says`` does with its head and its connection; keeps the heads."""

    def __init__(self, says):
        self.says = says
        self.heads = []
        self.over = threading.Event()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = self._listener.getsockname()
        self._threads = [threading.Thread(target=self._serve)]
        self._threads[0].start()

    @property
    def paths(self):
        return [head.split()[1] for head in self.heads]

    def _serve(self):
        while True:
            connection, _ = self._listener.accept()
            if self.over.is_set():
                connection.close()
                return
            self._threads.append(threading.Thread(target=self._answer, args=(connection,)))
            self._threads[-1].start()

    def _answer(self, connection):
        with connection:
            head = b""
            try:
                while not head.endswith(b"\r\n\r\n"):
                    head += connection.recv(4096)
                self.heads.append(head.decode())
                self.says(self.heads[-1], connection)
            except OSError:
                pass  # the probe has gone

    def close(self):
        self.over.set()
        socket.create_connection(self.address).close()
        for thread in self._threads:
            thread.join()
        self._listener.close()


def answer(text, *headers, status="200 OK"):
    body = text.encode()
    return "\r\n".join((f"HTTP/1.1 {status}", f"Content-Length: {len(body)}", *headers, "", "")).encode() + body


def tells(texts, *headers):
    def say(head, connection):
        path = head.split()[1]
        there = path in texts
        connection.sendall(
            answer(texts.get(path, "not found"), *headers, status="200 OK" if there else "404 Not Found")
        )

    return say


@contextmanager
def served(says):
    service = Service(says)
    try:
        yield service
    finally:
        service.close()


@pytest.fixture
def sys_root(tmp_path):
    return tmp_path / "sys"


@pytest.fixture
def probe_at(sys_root):
    def make(dmi, service=None, *, hypervisor="", deadline_s=30.0, **options):
        (sys_root / "class" / "dmi" / "id").mkdir(parents=True, exist_ok=True)
        (sys_root / "hypervisor").mkdir(exist_ok=True)
        for name, value in dmi.items():
            (sys_root / "class" / "dmi" / "id" / name).write_text(f"{value}\n")
        if hypervisor:
            (sys_root / "hypervisor" / "uuid").write_text(f"{hypervisor}\n")
        address = ("192.0.2.1", 9) if service is None else service.address
        options = {"first_s": deadline_s} | options
        return CloudProbe(sys_root=sys_root, address=address, deadline_s=deadline_s, **options)

    return make


@pytest.fixture
def look(tmp_path):
    return lambda probe: probe.look(ProbeSite(tmp_path, {}))


# Whom to ask ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("dmi", "uuid", "cloud"),
    [
        (ON_GCP, "", Cloud.GCP),
        (ON_AWS, "", Cloud.AWS),
        (ON_AZURE, "", Cloud.AZURE),
        ({"sys_vendor": "Xen", "product_name": "HVM domU", "bios_version": "4.11.amazon"}, "ec2abc12", Cloud.AWS),
        ({"sys_vendor": "Xen", "product_name": "HVM domU", "bios_version": "4.11"}, "ec2abc12", None),
        ({"sys_vendor": "Google", "product_name": "Eve", "bios_vendor": "coreboot"}, "", None),
        ({"sys_vendor": "Microsoft Corporation", "product_name": "Virtual Machine"}, "", None),
        ({"sys_vendor": "OpenStack Foundation", "product_name": "OpenStack Nova"}, "", None),
        ({"sys_vendor": "QEMU", "product_name": "Standard PC (Q35 + ICH9, 2009)"}, "", None),
        (AT_HOME, "", None),
        ({}, "", None),
    ],
)
def test_the_firmware_tells_which_cloud_a_machine_is_in(dmi, uuid, cloud):
    names = ("sys_vendor", "product_name", "bios_vendor", "bios_version", "chassis_asset_tag")
    assert cloud_of({name: dmi.get(name, "") for name in names}, hypervisor_uuid=uuid) is cloud


@pytest.mark.parametrize("dmi", [AT_HOME, {}, {"sys_vendor": "Google", "product_name": "Eve"}])
def test_a_machine_at_home_asks_nobody(probe_at, look, monkeypatch, dmi):
    def asked(*_, **__):
        raise AssertionError("somebody was asked")

    monkeypatch.setattr(socket, "create_connection", asked)
    monkeypatch.setattr(socket, "getaddrinfo", asked)
    assert look(probe_at(dmi)) == Findings()


def test_a_machine_without_such_files_is_in_no_cloud(look, sys_root):
    assert look(CloudProbe(sys_root=sys_root, address=("192.0.2.1", 9))) == Findings()


# What they say --------------------------------------------------------------------------------------------------------


def test_google_cloud_tells_zone_type_and_spot(probe_at, look):
    with served(tells(GCP, FLAVOR)) as service:
        found = look(probe_at(ON_GCP, service))
    assert found == Findings(
        locality=Locality(zone="us-central1-a", region="us-central1"), labels=((TYPE, "g2-standard-8"), (SPOT, "true"))
    )
    assert all("\r\nMetadata-Flavor: Google\r\n" in head for head in service.heads)


def test_aws_tells_them_to_whoever_has_a_token(probe_at, look):
    with served(tells(AWS)) as service:
        found = look(probe_at(ON_AWS, service))
    assert found == Findings(
        locality=Locality(zone="us-east-1a", region="us-east-1"), labels=((TYPE, "m4.xlarge"), (SPOT, "false"))
    )
    first, *others = service.heads
    assert first.startswith("PUT /latest/api/token HTTP/1.1\r\n")
    assert "\r\nX-aws-ec2-metadata-token-ttl-seconds: 60\r\n" in first
    assert len(others) == 3
    assert all("\r\nX-aws-ec2-metadata-token: AQAEALG5tZ3nyXaF6wZ3bW==\r\n" in head for head in others)


def test_azure_tells_them_in_one_answer_of_which_nothing_else_is_taken(probe_at, look):
    with served(tells(AZURE)) as service:
        found = look(probe_at(ON_AZURE, service))
    assert found == Findings(
        locality=Locality(zone="westus-1", region="westus"), labels=((TYPE, "Standard_A3"), (SPOT, "false"))
    )
    assert "\r\nMetadata: true\r\n" in service.heads[0]
    assert "X-Forwarded-For" not in service.heads[0]


@pytest.mark.parametrize(
    ("cloud", "texts", "place"),
    [
        (Cloud.GCP, {**GCP, "/computeMetadata/v1/instance/scheduling/preemptible": "FALSE"}, (..., ..., ..., False)),
        (Cloud.GCP, {**GCP, "/computeMetadata/v1/instance/scheduling/preemptible": "?"}, (..., ..., ..., None)),
        (Cloud.GCP, {}, ("", "", "", None)),
        (Cloud.AWS, {**AWS, "/latest/meta-data/instance-life-cycle": "spot"}, (..., ..., ..., True)),
        (
            Cloud.AWS,
            {**AWS, "/latest/meta-data/placement/availability-zone": "us-west-2-lax-1a"},
            ("us-west-2-lax-1a", "us-west-2", ..., ...),
        ),
        (
            Cloud.AWS,
            {**AWS, "/latest/meta-data/placement/availability-zone": "us-gov-west-1a"},
            ("us-gov-west-1a", "us-gov-west-1", ..., ...),
        ),
        (Cloud.AWS, {**AWS, "/latest/api/token": ""}, ("", "", "", None)),
        (Cloud.AWS, {**AWS, "/latest/api/token": "a\r\nX-Evil: 1"}, ("", "", "", None)),
        (
            Cloud.AZURE,
            {"": json.dumps({"location": "eastus", "zone": "", "priority": "Spot"})},
            ("", "eastus", "", True),
        ),
        (
            Cloud.AZURE,
            {"": '{"location": 7, "zone": ["1"], "vmSize": null, "priority": {}}'},
            ("", "", "", None),
        ),
        (Cloud.AZURE, {"": "[" * 60_000}, ("", "", "", None)),
        (Cloud.AZURE, {"": "[1]"}, ("", "", "", None)),
    ],
)
def test_what_their_answers_mean(cloud, texts, place):
    def asked(path, **_):
        return texts.get(path, texts.get("", ""))

    told = read_place(cloud, asked)
    values = (told.zone, told.region, told.instance_type, told.is_spot)
    assert [value for value, due in zip(values, place, strict=True) if due is not ...] == [
        due for due in place if due is not ...
    ]


@pytest.mark.parametrize("text", ["<html>", "a b", "ü", "z" * 64, "zone\nanother", "-", "../x", "projects/1/zones/"])
@pytest.mark.parametrize("cloud", list(Cloud))
def test_what_can_be_no_name_of_a_zone_or_a_type_is_not_taken_for_one(cloud, text):
    def asked(path, **_):
        match cloud:
            case Cloud.AZURE:
                return json.dumps(dict.fromkeys(("location", "zone", "vmSize"), text))
            case _ if path.endswith("token"):
                return "token"
        return text

    assert read_place(cloud, asked) == Place()


@pytest.mark.parametrize("text", ["welcome", "us-west-2"])
def test_one_that_answers_all_alike_tells_no_zone_no_type_and_nothing_of_spot(text):
    told = read_place(Cloud.AWS, lambda path, **_: text)
    assert (told.zone, told.instance_type, told.is_spot) == ("", "", None)


# When they do not answer ----------------------------------------------------------------------------------------------


def hangs(head, connection):
    connection.recv(1)  # until the probe hangs up


def trickles(head, connection):
    connection.sendall(b"HTTP/1.1 200 OK\r\n")
    while True:
        connection.sendall(b"X: y\r\n")
        connection.settimeout(0.02)
        try:
            if not connection.recv(1):
                return
        except TimeoutError:
            pass


def trickles_a_body(head, connection):
    connection.sendall(f"HTTP/1.1 200 OK\r\n{FLAVOR}\r\nTransfer-Encoding: chunked\r\n\r\n".encode())
    while True:
        connection.sendall(b"1\r\na\r\n")
        connection.settimeout(0.02)
        try:
            if not connection.recv(1):
                return
        except TimeoutError:
            pass


def sends_100_mb(head, connection):
    connection.sendall(f"HTTP/1.1 200 OK\r\n{FLAVOR}\r\nContent-Length: 100000000\r\n\r\n".encode())
    for _ in range(1000):
        connection.sendall(b"a" * 100_000)


def sends_a_head_without_end(head, connection):
    connection.sendall(b"HTTP/1.1 200 OK\r\n")
    for _ in range(1000):
        connection.sendall(b"X: " + b"a" * 60_000 + b"\r\n")


def hangs_up(head, connection):
    pass


def speaks_something_else(head, connection):
    connection.sendall(b"SSH-2.0-OpenSSH_9.6\r\n")


def sends(data):
    return lambda head, connection: connection.sendall(data)


ODD = {
    "hangs": hangs,
    "a byte now and then": trickles,
    "a body without end, slowly": trickles_a_body,
    "a body of 100 MB": sends_100_mb,
    "a head without end": sends_a_head_without_end,
    "hangs up": hangs_up,
    "another protocol": speaks_something_else,
    "a redirect": sends(answer("", "Location: http://127.0.0.1:1/", FLAVOR, status="302 Found")),
    "a page": sends(answer("<html><body>Sign in</body></html>", "Content-Type: text/html")),
    "a page of somebody like Google": sends(answer("<html></html>", FLAVOR)),
    "not found": sends(answer("no", FLAVOR, status="404 Not Found")),
    "forbidden": sends(answer("no", FLAVOR, status="403 Forbidden")),
    "too many requests": sends(answer("no", FLAVOR, status="429 Too Many Requests")),
    "an answer cut short": sends(f"HTTP/1.1 200 OK\r\n{FLAVOR}\r\nContent-Length: 99\r\n\r\nus-west-2".encode()),
    "a negative length": sends(f"HTTP/1.1 200 OK\r\n{FLAVOR}\r\nContent-Length: -5\r\n\r\nus-west-2".encode()),
    "a length that nobody has": sends(
        f"HTTP/1.1 200 OK\r\n{FLAVOR}\r\nContent-Length: 99999999999999\r\n\r\nus-west-2a".encode()
    ),
    "no text": sends(b"HTTP/1.1 200 OK\r\n" + FLAVOR.encode() + b"\r\nContent-Length: 2\r\n\r\n\xff\xfe"),
}


@pytest.mark.parametrize("dmi", [ON_GCP, ON_AWS, ON_AZURE], ids=["gcp", "aws", "azure"])
@pytest.mark.parametrize("says", ODD.values(), ids=ODD)
def test_whatever_answers_there_is_no_place_and_no_failure(probe_at, look, caplog, dmi, says):
    caplog.set_level(logging.INFO)
    with served(says) as service:
        assert look(probe_at(dmi, service, deadline_s=0.3)) == Findings()
    assert caplog.records == []
    assert service.heads, "it was asked"


def test_there_is_one_deadline_for_all_that_is_asked(probe_at, look):
    """The clock is at a standstill but for what the answers take: 0.6 s each, of the second."""
    clock = ManualClock()

    def slow(head, connection):
        clock.advance(600)
        tells(GCP, FLAVOR)(head, connection)

    with served(slow) as service:
        found = look(probe_at(ON_GCP, service, deadline_s=1.0, clock=clock))
    assert found.locality == Locality(zone="us-central1-a", region="us-central1")
    assert found.labels in ((), ((TYPE, "g2-standard-8"),))
    assert len(service.heads) == 2, "the third had no time left"


def test_a_proxy_that_the_environment_names_is_not_asked(probe_at, look, monkeypatch):
    with served(tells({})) as proxy, served(tells(GCP, FLAVOR)) as service:
        for name in ("http_proxy", "HTTP_PROXY", "ALL_PROXY", "all_proxy"):
            monkeypatch.setenv(name, f"http://127.0.0.1:{proxy.address[1]}")
        assert look(probe_at(ON_GCP, service)).locality.zone == "us-central1-a"
    assert proxy.heads == []


def test_a_failure_is_a_line_for_those_who_look_for_it(probe_at, look, caplog):
    caplog.set_level(logging.DEBUG)
    with served(sends(answer("no", status="503 Service Unavailable"))) as service:
        look(probe_at(ON_AZURE, service))
    assert (
        "Azure: its metadata service gave no answer to /metadata/instance/compute: its answer is a 503" in caplog.text
    )


# How often they are asked ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("dmi", "texts"), [(ON_GCP, GCP), (ON_AWS, AWS), (ON_AZURE, AZURE)], ids=["gcp", "aws", "azure"]
)
def test_what_was_told_once_is_not_asked_again(probe_at, look, dmi, texts):
    with served(tells(texts, FLAVOR)) as service:
        probe = probe_at(dmi, service)
        first = look(probe)
        asked = len(service.heads)
        assert [look(probe) for _ in range(3)] == [first] * 3
    assert len(service.heads) == asked
    assert look(probe) == first


def test_what_was_not_answered_is_asked_again_and_what_was_stands(probe_at, look):
    clock = ManualClock()

    def half(head, connection):
        (hangs_up if "machine-type" in head else tells(GCP, FLAVOR))(head, connection)

    with served(hangs_up) as service:
        probe = probe_at(ON_GCP, service, clock=clock)
        assert look(probe) == Findings()
        service.says = half
        clock.advance(60_000)
        found = look(probe)
        assert (found.locality.zone, found.labels) == ("us-central1-a", ((SPOT, "true"),))
        service.says = hangs_up
        clock.advance(600_000)
        assert look(probe) == found, "what was told once stands"
        service.says = tells(GCP, FLAVOR)
        clock.advance(3_600_000)
        assert look(probe).labels == ((TYPE, "g2-standard-8"), (SPOT, "true"))


def test_one_that_does_not_answer_is_asked_ever_more_rarely(probe_at, look):
    clock = ManualClock()
    with served(hangs_up) as service:
        probe = probe_at(ON_AWS, service, clock=clock)
        at_minutes = []
        for minute in range(150):
            before = len(service.heads)
            assert look(probe) == Findings()
            at_minutes += [minute] if len(service.heads) > before else []
            clock.advance(60_000)
    assert at_minutes == [0, 1, 11, 71, 131]


def test_a_start_waits_for_less_than_later_looks_do(probe_at, look):
    clock = ManualClock()

    def slow(head, connection):
        clock.advance(600)
        tells(GCP, FLAVOR)(head, connection)

    with served(slow) as service:
        probe = probe_at(ON_GCP, service, clock=clock, first_s=0.3, deadline_s=1.0)
        look(probe)
        assert len(service.heads) == 1, "the second had no time left"
        clock.advance(60_000)
        assert look(probe).locality == Locality(zone="us-central1-a", region="us-central1")
        assert len(service.heads) == 3


@pytest.mark.parametrize("length", ["99999999999999", "11", "-5"])
def test_an_answer_that_is_cut_short_is_none(probe_at, look, length):
    cut = f"HTTP/1.1 200 OK\r\n{FLAVOR}\r\nContent-Length: {length}\r\n\r\nus-west-2".encode()
    with served(sends(cut)) as service:
        assert look(probe_at(ON_GCP, service)) == Findings()


def test_words_that_are_no_zone_are_none(probe_at, look):
    for dmi, welcome in ((ON_GCP, "welcome"), (ON_AWS, "welcome"), (ON_AWS, "us-west-2")):
        with served(sends(answer(welcome, FLAVOR))) as service:
            locality = look(probe_at(dmi, service)).locality or Locality()
        assert locality.zone == ""


def test_what_is_not_there_is_an_answer_too(probe_at, look):
    with served(tells({path: GCP[path] for path in GCP if path.endswith("zone")}, FLAVOR)) as service:
        probe = probe_at(ON_GCP, service)
        assert look(probe) == look(probe) == Findings(locality=Locality("us-central1-a", "us-central1"))
    assert len(service.heads) == len(GCP)


class TestInACloud(ProbeContract):
    @pytest.fixture
    def probe(self, probe_at):
        with served(tells(AWS)) as service:
            yield probe_at(ON_AWS, service)


class TestWhereNobodyAnswers(ProbeContract):
    @pytest.fixture
    def probe(self, probe_at):
        with socket.create_server(("127.0.0.1", 0)) as silent:  # no thread of ours, which would be taken for its own
            yield probe_at(ON_GCP, SimpleNamespace(address=silent.getsockname()), deadline_s=0.1)
