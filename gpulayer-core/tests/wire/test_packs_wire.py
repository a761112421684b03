"""Frames survive any chunking, and nothing false comes out of them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpulayer.errors import BadRequest, DigestMismatch
from gpulayer.spec.tree import digest_of
from gpulayer.wire.packs import FRAME_HEADER, MAX_PACKED_BLOB, frame, read_frames


@given(st.lists(st.binary(max_size=200), max_size=8), st.lists(st.integers(1, 300), max_size=30))
def test_frames_come_out_as_they_went_in_however_the_body_is_cut(contents, cuts):
    body = b"".join(frame(digest_of(content), content) for content in contents)
    chunks, position = [], 0
    for cut in cuts:
        chunks.append(body[position : position + cut])
        position += cut
    chunks.append(body[position:])
    assert list(read_frames(chunks)) == [(digest_of(content), content) for content in contents]


@given(st.binary(max_size=300))
def test_any_bytes_give_verified_frames_or_a_clear_error(body):
    try:
        for digest, content in read_frames([body]):
            assert digest_of(content) == digest
    except (BadRequest, DigestMismatch):
        pass


def test_a_pack_that_is_cut_short_is_refused_after_its_whole_frames():
    body = frame(digest_of(b"a"), b"a") + frame(digest_of(b"bcd"), b"bcd")
    for missing in range(1, FRAME_HEADER + 3):
        got = []
        with pytest.raises(BadRequest, match="ends inside a frame"):
            got.extend(read_frames([body[:-missing]]))
        assert got == [(digest_of(b"a"), b"a")]


def test_a_frame_over_the_limit_is_refused_by_its_header_alone():
    header = bytes(32) + (MAX_PACKED_BLOB + 1).to_bytes(8, "big")
    with pytest.raises(BadRequest, match="the limit is"):
        list(read_frames([header]))
    with pytest.raises(BadRequest):
        list(read_frames([bytes(32) + b"\xff" * 8]))
    with pytest.raises(ValueError, match="travels alone"):
        frame(digest_of(b""), bytes(MAX_PACKED_BLOB + 1))


def test_false_content_is_refused():
    with pytest.raises(DigestMismatch, match="has digest"):
        list(read_frames([frame(digest_of(b"a"), b"b")]))
