"""A plane that is not very busy keeps no ended connections."""

import asyncio
import gc
import platform
import subprocess
import sys
import weakref

from gpulayer.server.memory import keep_collecting


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


HEAPS = """
import ctypes, re, sys, tempfile, threading
from gpulayer.server.memory import share_heaps

share_heaps()
libc = ctypes.CDLL(None)
libc.malloc.restype = ctypes.c_void_p
libc.free.argtypes = [ctypes.c_void_p]
all_there, go = threading.Barrier(13), threading.Barrier(13)

def allocate():
    held = [libc.malloc(4_000) for _ in range(100)]
    all_there.wait()
    go.wait()
    for each in held:
        libc.free(each)

threads = [threading.Thread(target=allocate) for _ in range(12)]
[each.start() for each in threads]
all_there.wait()
libc.fopen.restype = ctypes.c_void_p
libc.fclose.argtypes = [ctypes.c_void_p]
libc.malloc_info.argtypes = [ctypes.c_int, ctypes.c_void_p]
with tempfile.NamedTemporaryFile() as file:
    told = libc.fopen(file.name.encode(), b"w")
    libc.malloc_info(0, told)
    libc.fclose(told)
    print(len(re.findall(b"<heap nr", file.read())))
go.wait()
"""


def test_the_threads_of_a_control_plane_share_their_heaps() -> None:
    """What each of them keeps unused adds up: memory would grow for hours after a start."""
    if platform.libc_ver()[0] != "glibc":
        return  # others have one heap
    argv = [sys.executable, "-c", HEAPS]
    ended = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=True)
    assert int(ended.stdout) <= 2
