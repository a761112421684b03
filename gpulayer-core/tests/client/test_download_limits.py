"""What a control plane hands out comes home only as far as it was asked for."""

import json

import pytest

from gpulayer.client.download import bring_home
from gpulayer.client.transport import Transport
from gpulayer.errors import GpulayerError, ProtocolError
from gpulayer.spec.tree import digest_of
from gpulayer.wire.packs import frame


def _tree(*rows) -> bytes:
    return json.dumps({"v": 1, "entries": list(rows)}).encode()


@pytest.fixture
def connected(plane):
    with Transport(plane.location, sleep=lambda _: None, retry_for_s=1) as transport:
        yield transport


@pytest.mark.parametrize("extra", ["another", "twice", "endless"])
def test_blobs_that_nobody_asked_for_are_refused(plane, parts, tmp_path, connected, extra) -> None:
    wanted, root = b"wanted", _tree(["f", "a", 0o644, 6, digest_of(b"wanted")])
    body = frame(digest_of(wanted), wanted)
    if extra == "twice":
        body += body
    else:
        other = b"other" * (1 if extra == "another" else 100_000)
        body = frame(digest_of(other), other) * (1 if extra == "another" else 50) + body
    plane.on("GET", "/v1/blobs/{digest}", lambda asked: parts.Answer(body=root))
    plane.on("POST", "/v1/blobs:fetch", lambda asked: parts.Answer(body=body))
    with pytest.raises(ProtocolError, match="nobody asked for"):
        bring_home(connected, digest_of(root), tmp_path / "home" / "run")
    assert not (tmp_path / "home").exists() or list((tmp_path / "home").iterdir()) == []


def test_a_root_of_another_digest_is_refused(plane, parts, tmp_path, connected) -> None:
    plane.on("GET", "/v1/blobs/{digest}", lambda asked: parts.Answer(body=_tree()))
    with pytest.raises(GpulayerError):
        bring_home(connected, "0" * 64, tmp_path / "home" / "run")
    assert not (tmp_path / "home").exists()
