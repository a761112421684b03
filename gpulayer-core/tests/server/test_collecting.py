"""A plane that is not very busy keeps no ended connections."""

import asyncio
import gc
import weakref

from gpulayer.server.serve import keep_collecting


async def closed_connection() -> weakref.ref:
    """A transport that nobody needs any more, but it itself."""
    server = await asyncio.start_server(lambda reader, writer: writer.close(), "127.0.0.1", 0)
    async with server:
        _, writer = await asyncio.open_connection(*server.sockets[0].getsockname()[:2])
        writer.close()
        await writer.wait_closed()
        return weakref.ref(writer.transport)


def test_an_ended_connection_is_let_go_of_however_little_else_is_made() -> None:
    async def main() -> None:
        gone = asyncio.Event()
        weakref.finalize((await closed_connection())(), gone.set)
        await asyncio.sleep(0)
        assert not gone.is_set()  # or else there would be nothing to collect
        collecting = asyncio.create_task(keep_collecting(every_s=0.001))
        await asyncio.wait_for(gone.wait(), 10)
        collecting.cancel()

    before = gc.get_threshold()
    gc.collect()
    gc.set_threshold(1_000_000)
    try:
        asyncio.run(main())
    finally:
        gc.set_threshold(*before)
