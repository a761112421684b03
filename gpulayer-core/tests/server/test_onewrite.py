import asyncio

from gpulayer.server.onewrite import _Gathering


class _Wire:
    def __init__(self) -> None:
        self.sent: list[bytes] = []
        self.is_closed = False

    def write(self, data: bytes) -> None:
        self.sent.append(data)

    def is_closing(self) -> bool:
        return self.is_closed

    def close(self) -> None:
        self.is_closed = True


async def _gathering() -> tuple[_Wire, _Gathering]:
    wire = _Wire()
    return wire, _Gathering(wire, asyncio.get_running_loop())  # type: ignore[arg-type] # all that is used of one


def test_what_one_turn_writes_leaves_together() -> None:
    async def run() -> list[bytes]:
        wire, transport = await _gathering()
        transport.write(b"head")
        transport.write(b"body")
        assert wire.sent == []
        await asyncio.sleep(0)
        return wire.sent

    assert asyncio.run(run()) == [b"headbody"]


def test_large_pieces_pass_in_order_and_small_ones_do_not_pile_up() -> None:
    async def run() -> list[bytes]:
        wire, transport = await _gathering()
        transport.write(b"head")
        transport.write(b"x" * 100_000)
        for _ in range(5):
            transport.write(b"y" * 30_000)
        assert sum(map(len, wire.sent)) >= 100_004 + 4 * 30_000
        await asyncio.sleep(0)
        return wire.sent

    assert b"".join(asyncio.run(run())) == b"head" + b"x" * 100_000 + b"y" * 150_000


def test_closing_sends_what_was_kept_first() -> None:
    async def run() -> list[bytes]:
        wire, transport = await _gathering()
        transport.write(b"bye")
        transport.close()
        await asyncio.sleep(0)
        return wire.sent

    assert asyncio.run(run()) == [b"bye"]
