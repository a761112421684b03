"""Small blobs share a body, large ones travel alone, changed ones not at all."""

import pytest

from gpulayer.errors import UsageError
from gpulayer.spec.tree import digest_of
from gpulayer.staging.beneath import Beneath
from gpulayer.staging.packs import Pack, Single, blobs_of, make_packs
from gpulayer.staging.trees import build_tree
from gpulayer.wire.packs import MAX_PACKED_BLOB, read_frames


def test_small_blobs_are_grouped_to_the_target_and_large_ones_are_single(tmp_path):
    contents = [bytes([n]) * 1000 for n in range(10)]
    (tmp_path / "large").write_bytes(b"x" * (MAX_PACKED_BLOB + 1))
    large = digest_of((tmp_path / "large").read_bytes())
    items = [(digest_of(c), c, len(c)) for c in contents]
    items.insert(3, (large, tmp_path / "large", MAX_PACKED_BLOB + 1))
    plans = list(make_packs(items, target_bytes=4000))
    packs = [plan for plan in plans if isinstance(plan, Pack)]
    assert [plan for plan in plans if isinstance(plan, Single)] == [
        Single(large, tmp_path / "large", MAX_PACKED_BLOB + 1)
    ]
    assert [len(pack.digests) for pack in packs] == [3, 3, 3, 1]
    assert all(len(pack.body) <= 4000 for pack in packs)
    assert [frame for pack in packs for frame in read_frames([pack.body])] == [(digest_of(c), c) for c in contents]


def test_a_built_tree_gives_objects_and_files_that_are_missing(tmp_path):
    (tmp_path / "a").write_bytes(b"aa")
    (tmp_path / "b").write_bytes(b"bb")
    with Beneath(tmp_path) as beneath:
        built = build_tree(tmp_path, list(beneath.walk()))
    (pack,) = make_packs(blobs_of(built, [built.digest, digest_of(b"bb")]))
    assert dict(read_frames([pack.body])) == {built.digest: built.objects[built.digest], digest_of(b"bb"): b"bb"}


@pytest.mark.parametrize("now", [b"xx", b"x", b"xxxx", None])
def test_a_file_that_changed_since_it_was_hashed_is_named_and_not_sent(tmp_path, now):
    path = tmp_path / "model.bin"
    path.write_bytes(b"aa")
    items = [(digest_of(b"aa"), path, 2)]
    path.unlink()
    if now is not None:
        path.write_bytes(now)
    with pytest.raises(UsageError, match=r"model\.bin"):
        list(make_packs(items))


def test_nothing_to_send_is_no_pack():
    assert list(make_packs([])) == []
