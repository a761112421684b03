"""For any text, secrets, limits, chunks and restarts: what leaves the worker is the mask of the whole."""

import os

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpulayer.ids import Digest, Epoch
from gpulayer.protocol.messages import LogDrained, OutputsCollected, ProcessExited, Staged, StagingFailed
from gpulayer.spawner.spool import MIN_LIMIT_BYTES, Spool
from gpulayer.spec.assignment import NodeKey
from gpulayer.worker.logs import PIECE
from gpulayer.worker.masked_spool import MaskedSpool
from gpulayer.worker.masking import Masks, masked_input

KEY = NodeKey(Epoch(1), 0)

# Few letters: so that secrets overlap themselves, each other, and the text.
LETTERS = st.sampled_from("ab\n*")
SECRETS = st.lists(st.text(LETTERS, min_size=4, max_size=9).filter(lambda s: len(s.strip()) >= 4), max_size=3)
TEXTS = st.text(st.sampled_from("ab\nc*"), max_size=60).map(str.encode)


@st.composite
def logs(draw):
    """Secrets, and a text that is mostly made of them and of parts of them: so that they meet at every edge."""
    secrets = draw(SECRETS)
    part = st.sampled_from(secrets or ["a"]).flatmap(lambda s: st.sampled_from([s, s, s[:-1], s[:2], s[1:], s[-2:]]))
    parts = st.one_of(part, part, st.text(st.sampled_from("ab\nc*"), max_size=2))
    return secrets, "".join(draw(st.lists(parts, max_size=12))).encode()


def naive(patterns, text):
    """What is meant: each byte of each occurrence."""
    masked = bytearray(text)
    for pattern in patterns:
        for at in range(len(text)):
            if text.startswith(pattern, at):
                masked[at : at + len(pattern)] = b"*" * len(pattern)
    return bytes(masked)


def patterns_of(secrets):
    whole = [secret.strip() for secret in secrets]
    lines = [line.strip() for secret in whole for line in secret.split("\n") if len(line.strip()) >= 4]
    return [text.encode() for text in {*whole, *lines}]


@given(SECRETS, TEXTS)
def test_every_byte_of_every_occurrence_is_a_star_and_no_other(secrets, text):
    assert Masks(secrets).mask(text) == naive(patterns_of(secrets), text)


def send(path, secrets, stages, draw, *, limit_bytes=0, start=0, **options):
    """All that is sent of a spool from ``start`` on, in pieces of any length by agents that are replaced at any time,
    to a control plane that loses any end of it at any time. stages: the sizes of the spool while its program runs."""
    sent, size, ends = bytearray(), start, iter([*stages, None])
    with open(path, "r+b", buffering=0) as reader:
        is_whole = False
        while not (is_whole and start + len(sent) == size):
            if not is_whole and not draw(st.booleans(), "it is read again before more is written"):
                end = next(ends)
                is_whole, size = end is None, path.stat().st_size if end is None else end
            masked = MaskedSpool(Masks(secrets), limit_bytes=limit_bytes)  # a new agent, for all it matters
            if draw(st.integers(0, 5), "the answer was lost, or the store") == 5:
                del sent[draw(st.integers(0, len(sent)), "goes back to") :]
            count = 20 - draw(st.integers(0, 19), "fewer at a time")
            ended = options if is_whole else {}
            offset = start + len(sent)
            piece = masked.read(reader.fileno(), offset, count, size=size, is_whole=is_whole, **ended)
            assert len(piece) <= count
            assert piece or not is_whole or offset == size
            sent += piece
    return bytes(sent)


@settings(max_examples=150)
@given(logs(), st.data())
def test_any_pieces_restarts_and_losses_give_the_mask_of_the_whole_and_leave_it_in_the_file(
    tmp_path_factory, log, data
):
    secrets, text = log
    path = tmp_path_factory.getbasetemp() / "spool"
    path.write_bytes(text)
    stages = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=6), "the program writes up to"))
    whole = naive(patterns_of(secrets), text)
    assert send(path, secrets, stages, data.draw) == whole
    assert path.read_bytes() == (text if Masks(secrets).is_starry else whole)


@given(logs(), logs(), st.integers(0, 40), st.booleans(), st.data())
def test_so_do_they_at_the_limit_of_a_log_and_on_a_full_disk(tmp_path_factory, log, more, split, is_cut, data):
    (secrets, text), (_, tail) = log, more
    path = tmp_path_factory.getbasetemp() / "limited"
    path.unlink(missing_ok=True)
    spool_of(path, b"." * (MIN_LIMIT_BYTES - min(split, len(text))) + text + tail)
    text = path.read_bytes()
    start = MIN_LIMIT_BYTES - 60
    size = len(text)
    with open(path, "rb", buffering=0) as reader:  # which can't write into it
        masked = MaskedSpool(Masks(secrets), limit_bytes=1)
        whole = masked.read(reader.fileno(), start, size, size=size, is_whole=True, is_cut=is_cut)
    assert path.read_bytes() == text
    stages = sorted(data.draw(st.lists(st.integers(start, min(size, MIN_LIMIT_BYTES)), max_size=4)))
    sent = send(path, secrets, stages, data.draw, limit_bytes=1, start=start, is_cut=is_cut)
    assert sent == whole
    assert path.read_bytes()[start:] == (text[start:] if Masks(secrets).is_starry else whole)


def test_a_secret_over_the_edge_of_two_pieces_leaves_no_part_in_the_file_and_none_in_what_is_sent_again(tmp_path):
    secret, path = b"abc123xyz", tmp_path / "spool"
    text = b"." * (PIECE - 5) + secret + b"." * PIECE
    path.write_bytes(text)
    masked = MaskedSpool(Masks([secret.decode()]), limit_bytes=0)
    with open(path, "r+b", buffering=0) as reader:
        first = masked.read(reader.fileno(), 0, PIECE, size=len(text), is_whole=False)
        second = masked.read(reader.fileno(), PIECE, PIECE, size=len(text), is_whole=False)
        assert (first[-6:], second[:5]) == (b".*****", b"****.")
        assert path.read_bytes() == text.replace(secret, b"*" * 9)
        assert masked.read(reader.fileno(), PIECE - 10, 20, size=len(text), is_whole=False) == b".....*********......"


def test_where_a_spool_was_not_written_from_its_beginning_no_secret_is_cut_in_it(tmp_path):
    """As on a disk that was full for a while: what was left in clear before the offset must be found again."""
    path = tmp_path / "spool"
    text = b"abcabcabcabcabcabcab, abcdabcd"
    masked = MaskedSpool(Masks(["abcabcab", "abcd"]), limit_bytes=0)
    whole = b"*" * 20 + b", ********"
    for offset in range(len(text)):
        for count in range(1, len(text)):
            path.write_bytes(text)
            with open(path, "r+b", buffering=0) as reader:
                piece = masked.read(reader.fileno(), offset, count, size=len(text), is_whole=True)
                assert piece == whole[offset : offset + count]
                assert masked.read(reader.fileno(), 0, 99, size=len(text), is_whole=True) == whole


def test_what_can_become_no_secret_is_never_held_back(tmp_path):
    path = tmp_path / "spool"
    masked = MaskedSpool(Masks(["abcdef", "bcdxyz"]), limit_bytes=0)
    for text, told in (
        (b"hello", b"hello"),
        (b"hello abc", b"hello "),
        (b"hello abcdx", b"hello a"),
        (b"abce", b"abce"),
    ):
        path.write_bytes(text)
        with open(path, "r+b", buffering=0) as reader:
            assert masked.read(reader.fileno(), 0, 99, size=len(text), is_whole=False) == told


@pytest.mark.parametrize(
    ("secrets", "text", "masked"),
    [
        (["abc123xyz"], "abc123xyz", "*********"),
        (["abc123xyz", "abc1"], "abc1 abc123xyz abc123", "**** ********* ****23"),
        (["abcabcab"], "abcabcabcab", "***********"),
        (["aabb", "bbcc"], "aabbcc", "******"),
        (["aaaa"], "aaa aaaaaaa", "aaa *******"),
        (["  padded  "], "<padded>", "<******>"),
        (["BEGIN\nsecond line\nx\nEND"], "BEGIN second line x END", "***** *********** x END"),
        (["BEGIN\nx\nsecond"], "BEGIN\nx\nsecond", "**************"),
        (["one1\r\ntwo2"], "two2\none1", "****\n****"),
        (["a.c*"], "abc* a.c*", "abc* ****"),
        (["schlüssel"], "ein schlüssel", "ein **********"),
    ],
)
def test_values_and_their_lines_are_masked(secrets, text, masked):
    assert Masks(secrets).mask(text.encode()) == masked.encode()


def read_all(path, masked, *, step, **options):
    sent = bytearray()
    size = path.stat().st_size
    with open(path, "r+b", buffering=0) as reader:
        while len(sent) < size:
            piece = masked.read(reader.fileno(), len(sent), step, size=size, is_whole=True, **options)
            assert piece
            sent += piece
    return bytes(sent)


def spool_of(path, *pieces, join=True):
    """As the spawner writes it, with the least limit there is."""
    spool = Spool(str(path), limit_bytes=1)
    left = b"".join(pieces)
    while left:
        fd, room = spool.target()
        taken = os.write(fd, left[:room])
        spool.took(taken)
        left = left[taken:]
    if join:
        spool.join()
    spool.close()


@pytest.mark.parametrize("step", [1000, 1 << 20])
@pytest.mark.parametrize("more", [0, 10, 100_000])
@pytest.mark.parametrize("split", [0, 1, 4, 8, 9])
def test_a_secret_cut_by_the_limit_of_a_log_leaves_no_part(tmp_path, step, more, split):
    secret, path = b"abc123xyz", tmp_path / "spool"
    filler = b"." * (MIN_LIMIT_BYTES - split)
    spool_of(path, filler + secret + b"-" * more + secret + b"!")
    size = path.stat().st_size
    told = read_all(path, MaskedSpool(Masks(["abc123xyz"]), limit_bytes=1), step=step)
    assert len(told) == size
    assert path.read_bytes() == told
    assert read_all(path, MaskedSpool(Masks(["abc123xyz"]), limit_bytes=1), step=step) == told
    assert told[:MIN_LIMIT_BYTES] == filler + b"*" * split
    head, _, behind = told.partition(b" left out]\n")
    assert b"the log has reached its limit" in head
    assert not any(secret[:length] in told for length in range(3, 10))
    assert not any(secret[-length:] in behind for length in range(1, 10))
    assert behind.endswith(b"*" * 9 + b"!")


@pytest.mark.parametrize("split", range(1, 10))
def test_the_first_bytes_of_the_kept_end_may_be_the_end_of_a_secret(tmp_path, split):
    path, tail = tmp_path / "spool", MIN_LIMIT_BYTES // 4
    secret = b"abc123xyz"
    spool_of(path, b"." * MIN_LIMIT_BYTES, b"-" * tail, secret + b"-" * (tail - split))
    told = read_all(path, MaskedSpool(Masks(["abc123xyz"]), limit_bytes=1), step=777)
    _, _, behind = told.partition(b" left out]\n")
    assert behind == b"*" * split + b"-" * (tail - split)


def test_the_word_that_more_came_is_told_at_once_and_the_end_when_it_is_whole(tmp_path):
    path = tmp_path / "spool"
    masked = MaskedSpool(Masks(["abc123xyz"]), limit_bytes=1)
    spool_of(path, b"." * MIN_LIMIT_BYTES + b"xyz", join=False)
    size = path.stat().st_size
    with open(path, "r+b", buffering=0) as reader:
        told = masked.read(reader.fileno(), MIN_LIMIT_BYTES, 1000, size=size, is_whole=False)
    assert told.startswith(b"\n[gpulayer: the log has reached its limit")
    spool_of(tmp_path / "whole", b"." * MIN_LIMIT_BYTES + b"xyz")
    path = tmp_path / "whole"
    size = path.stat().st_size
    with open(path, "r+b", buffering=0) as reader:
        assert masked.read(reader.fileno(), MIN_LIMIT_BYTES, 1000, size=size, is_whole=False) == told
        whole = masked.read(reader.fileno(), MIN_LIMIT_BYTES, 1000, size=size, is_whole=True)
    assert whole == told + b"[gpulayer: nothing was left out]\n***"


def test_on_a_full_disk_the_beginning_of_a_secret_is_no_text(tmp_path):
    path = tmp_path / "spool"
    path.write_bytes(b"token: abc123")
    masked = MaskedSpool(Masks(["abc123xyz"]), limit_bytes=0)
    assert read_all(path, masked, step=100) == b"token: abc123"
    assert read_all(path, masked, step=100, is_cut=True) == b"token: ******"


def test_texts_for_people_are_masked_wherever_they_stand():
    masks = Masks(["abc123xyz"])
    said, shown = "a file named abc123xyz", "a file named *********"
    assert masked_input(StagingFailed(KEY, said), masks) == StagingFailed(KEY, shown)
    assert masked_input(LogDrained(KEY, said), masks) == LogDrained(KEY, shown)
    tree = Digest("0" * 64)
    assert masked_input(OutputsCollected(KEY, tree, (said,)), masks) == OutputsCollected(KEY, tree, (shown,))
    ended = masked_input(ProcessExited(KEY, exit_code=1, signal=None, evidence=said), masks)
    assert ended.evidence == shown
    assert masked_input(Staged(KEY), masks) == Staged(KEY)
    assert masks.mask_text("no text: \udcff abc123xyz") == "no text: \udcff *********"


def test_masks_do_not_show_themselves():
    assert "abc123" not in repr(Masks(["abc123xyz"]))


@pytest.mark.parametrize(("secret", "text"), [("aaaa", b"a" * 2**20), ("ab" * 2000 + "c", b"ab" * 2**19)])
def test_text_that_goes_on_like_a_secret_costs_no_search_for_each_byte(secret, text):
    masks = Masks([secret])
    pattern = masks._patterns[0]
    assert len(list(pattern.runs(text))) <= 1
    assert masks.settled(text) >= len(text) - masks.reach
