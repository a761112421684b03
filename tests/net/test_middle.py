"""A man in the middle, with the likeness of the server's certificate: nothing is said to him."""

import sys

import pytest

from tests.net.middle import MiddleBox
from tests.net.town import SERVER, until


@pytest.fixture
def middle_box(town, tmp_path):
    boxes = []

    def make(machine):
        boxes.append(MiddleBox(town, machine, tmp_path / f"box-{machine.name}"))
        return boxes[-1]

    yield make
    for box in boxes:
        box.close()


def test_a_client_refuses_a_man_in_the_middle_before_it_says_a_word(town, middle_box):
    invitation = town.up()
    laptop, exchange = town.laptop(delay_ms=5)
    laptop.variables.update(invitation.client)
    laptop.did("job", "list")
    box = middle_box(exchange)
    for argv in (("job", "list"), ("submit", "--", "true")):
        ended = laptop.run(*argv)
        assert ended.code == 5, ended.err
        assert f"the server at https://{SERVER}:8470 is not the pinned one: it shows sha256:" in ended.err
        assert "somebody may be in the middle: nothing was sent" in ended.err
    # A context is not made of it either, and without a pin it is the CAs of this machine that do not vouch for it.
    refused = laptop.run("context", "add", "lab", *invitation.urls, *invitation.trust)
    assert refused.code == 5, refused.err
    del laptop.variables["GPULAYER_FINGERPRINT"]
    unpinned = laptop.run("job", "list")
    assert unpinned.code == 5, unpinned.err
    assert f"the certificate of https://{SERVER}:8470 is not trusted here" in unpinned.err
    assert box.connections >= 4
    assert box.heard == b""
    assert town.jobs() == []


def test_a_worker_does_not_join_through_a_man_in_the_middle_and_keeps_its_token(town, middle_box):
    invitation = town.up()
    desk, router = town.desk()
    box = middle_box(router)
    process = desk.join(*invitation.join)
    until(lambda: desk.says("is not the pinned one: it shows sha256:"), "it says so in its log")
    until(lambda: box.connections >= 2 or process.poll() is not None, "it tries again, or has given up")
    assert box.heard == b""
    assert town.worker("desk") is None
    # The token is not used up: as soon as the way is clear, it is good.
    box.steps_aside()
    if process.poll() is not None:
        desk.join(*invitation.join)
    town.ready(desk)


def test_a_worker_that_has_joined_says_nothing_to_a_man_who_comes_between_later(town, middle_box):
    invitation = town.up(lease="3s")
    desk, router = town.desk()
    town.joined(desk, *invitation.join)
    box = middle_box(router)
    router.forgets_connections()  # else the connections that there are would pass him by
    until(lambda: desk.says("is not the pinned one: it shows sha256:"), "it says so in its log")
    assert box.connections
    assert box.heard == b""
    box.steps_aside()
    until(lambda: desk.says("the connection is back"), "it goes on as soon as the way is clear")


def test_who_pins_nothing_and_checks_nothing_would_be_deceived(town, middle_box):
    """The box works: it is the pin that stops it."""
    invitation = town.up()
    laptop, exchange = town.laptop(delay_ms=5)
    box = middle_box(exchange)
    code = (
        "import ssl, sys, urllib.request as r; c = ssl.create_default_context(); c.check_hostname = False;"
        "c.verify_mode = ssl.CERT_NONE; q = r.Request(sys.argv[1], headers={'Authorization': 'Bearer ' + sys.argv[2]});"
        "print(r.urlopen(q, context=c).status)"
    )
    token = invitation.client["GPULAYER_TOKEN"]
    ended = laptop.end(laptop.popen(sys.executable, "-c", code, f"{invitation.urls[0]}/v1/jobs", token))
    assert ended.out == b"200\n", ended.err
    assert token.encode() in box.heard
