"""The worker's HTTP client against a tiny server that does what real ones do, and what they must not."""

import asyncio
import socket
from contextlib import asynccontextmanager

import pytest

from gpulayer.errors import ProtocolError, TooLarge, Unreachable
from gpulayer.net import Address
from gpulayer.worker.http import Body, HttpClient


@asynccontextmanager
async def serving(*scripts, repeat=False, receive_buffer=None):
    """A server whose nth connection is handled by the nth script (the last one again when ``repeat``)."""
    seen = []
    tasks = []
    waiting = list(scripts)

    async def handle(reader, writer):
        tasks.append(asyncio.current_task())
        script = waiting[0] if repeat and len(waiting) == 1 else waiting.pop(0)
        seen.append([])
        try:
            await script(reader, writer, seen[-1])
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(handle, "127.0.0.1", 0)
    if receive_buffer is not None:
        for listener in server.sockets:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
    try:
        yield Address("127.0.0.1", server.sockets[0].getsockname()[1]), seen
    finally:
        server.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await server.wait_closed()


async def read_request(reader):
    head = (await reader.readuntil(b"\r\n\r\n")).decode()
    length = next(
        (int(line.split(":")[1]) for line in head.split("\r\n") if line.lower().startswith("content-length")), 0
    )
    return head, await reader.readexactly(length)


def answering(*answers, then_close=False):
    async def script(reader, writer, seen):
        for answer in answers:
            seen.append(await read_request(reader))
            writer.write(answer)
            await writer.drain()
        if not then_close:
            await reader.read()

    return script


def ok(body=b"", extra=b""):
    return b"HTTP/1.1 200 OK\r\n" + extra + b"Content-Length: %d\r\n\r\n" % len(body) + body


def run(coroutine):
    return asyncio.run(asyncio.wait_for(coroutine, 20))


def test_requests_in_a_row_share_one_connection():
    async def main():
        async with serving(answering(ok(b"one"), ok(b"two"))) as (address, seen), HttpClient() as client:
            first = await client.request(address, "POST", "/a", body=b"x", headers={"Authorization": "Bearer t"})
            second = await client.request(address, "GET", "/b")
            assert (first.status, first.body, second.body) == (200, b"one", b"two")
            assert len(seen) == 1
            head, body = seen[0][0]
            assert head.startswith("POST /a HTTP/1.1\r\nHost: 127.0.0.1:")
            assert "Authorization: Bearer t\r\n" in head
            assert body == b"x"
            assert "Content-Length" not in seen[0][1][0]

    run(main())


def test_a_chunked_answer_is_put_together_and_its_connection_kept():
    chunked = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    chunked += b"3\r\nabc\r\n10;x=y\r\n0123456789abcdef\r\n0\r\nT: v\r\n\r\n"

    async def main():
        async with serving(answering(chunked, ok(b"next"))) as (address, seen), HttpClient() as client:
            assert (await client.request(address, "GET", "/")).body == b"abc0123456789abcdef"
            assert (await client.request(address, "GET", "/")).body == b"next"
            assert len(seen) == 1

    run(main())


def test_a_kept_connection_that_the_peer_closed_is_replaced_silently():
    async def main():
        scripts = (answering(ok(b"one"), then_close=True), answering(ok(b"two")))
        async with serving(*scripts) as (address, seen), HttpClient() as client:
            await client.request(address, "GET", "/")
            assert (await client.request(address, "POST", "/", body=b"again")).body == b"two"
            assert len(seen) == 2

    run(main())


def test_a_kept_connection_closed_while_the_request_is_on_its_way_is_tried_again():
    async def hangs_up_on_the_second(reader, writer, seen):
        seen.append(await read_request(reader))
        writer.write(ok(b"one"))
        await writer.drain()
        seen.append(await read_request(reader))

    async def main():
        async with serving(hangs_up_on_the_second, answering(ok(b"two"))) as (address, seen), HttpClient() as client:
            await client.request(address, "GET", "/")
            assert (await client.request(address, "POST", "/", body=b"again")).body == b"two"
            assert [len(requests) for requests in seen] == [2, 1]

    run(main())


def test_connection_close_and_http_1_0_are_not_reused():
    async def main():
        scripts = (
            answering(ok(b"a", b"Connection: close\r\n")),
            answering(b"HTTP/1.0 200 OK\r\n\r\nuntil the end", then_close=True),
        )
        async with serving(*scripts) as (address, seen), HttpClient() as client:
            assert (await client.request(address, "GET", "/")).body == b"a"
            assert (await client.request(address, "GET", "/")).body == b"until the end"
            assert len(seen) == 2

    run(main())


def test_nobody_listening_is_unreachable_and_says_that_nothing_was_sent():
    async def main():
        async with serving() as (address, _):
            pass
        async with HttpClient() as client:
            with pytest.raises(Unreachable) as caught:
                await client.request(address, "GET", "/")
            assert caught.value.details == {"is_sent": False}

    run(main())


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"HTTP/1.1 200 OK\r\nContent-Le",
        b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhalf",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nab",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nabcde\r\n",
    ],
)
def test_an_answer_that_is_cut_short_is_unreachable(answer):
    async def main():
        async with serving(answering(answer, then_close=True)) as (address, _), HttpClient() as client:
            with pytest.raises(Unreachable) as caught:
                await client.request(address, "GET", "/")
            assert caught.value.details == {"is_sent": True}

    run(main())


@pytest.mark.parametrize(
    "answer",
    [
        b"SSH-2.0-OpenSSH\r\n\r\n",
        b"HTTP/1.1 abc\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nno colon\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nabc\r\n0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nX: " + b"a" * 70_000 + b"\r\n\r\n",
    ],
)
def test_an_answer_that_is_no_http_is_a_protocol_error(answer):
    async def main():
        async with serving(answering(answer, then_close=True)) as (address, _), HttpClient() as client:
            with pytest.raises(ProtocolError):
                await client.request(address, "GET", "/")

    run(main())


def test_a_slow_answer_ends_at_its_time_limit_and_the_connection_is_not_kept():
    async def main():
        scripts = (answering(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nab"), answering(ok(b"fresh")))
        async with serving(*scripts) as (address, seen), HttpClient() as client:
            with pytest.raises(Unreachable, match=r"no answer within 0\.05 s"):
                await client.request(address, "GET", "/", timeout_s=0.05)
            assert (await client.request(address, "GET", "/")).body == b"fresh"
            assert len(seen) == 2

    run(main())


def test_an_error_status_is_an_answer_like_any_other():
    async def main():
        conflict = b"HTTP/1.1 409 Conflict\r\nContent-Length: 2\r\n\r\n{}"
        async with serving(answering(conflict, ok())) as (address, seen), HttpClient() as client:
            assert (await client.request(address, "PUT", "/", body=b"x")).status == 409
            assert (await client.request(address, "PUT", "/", body=b"x")).status == 200
            assert len(seen) == 1

    run(main())


def test_a_body_travels_in_pieces_both_ways():
    async def main():
        answer = ok(b"y" * 3_000_000)
        async with serving(answering(answer)) as (address, seen), HttpClient() as client:

            async def pieces():
                for _ in range(30):
                    yield b"x" * 100_000

            size = 0
            body = Body(pieces(), 3_000_000)
            async with client.stream(address, "PUT", "/", body=body) as incoming:
                async for piece in incoming.pieces():
                    size += len(piece)
            assert size == 3_000_000
            assert len(seen[0][0][1]) == 3_000_000

    run(main())


def test_a_body_of_another_size_than_announced_is_not_taken_for_whole():
    async def main():
        async def pieces():
            yield b"short"

        async with serving(answering(ok())) as (address, _), HttpClient() as client:
            with pytest.raises(Unreachable, match="not the 10 announced"):
                await client.request(address, "PUT", "/", body=Body(pieces(), 10))

    run(main())


def test_a_refusal_before_the_whole_body_was_read_is_heard():
    async def refuses(reader, writer, seen):
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 413 Too Large\r\nConnection: close\r\nContent-Length: 2\r\n\r\n{}")
        await writer.drain()
        while await reader.read(65536):
            pass

    async def main():
        async with serving(refuses) as (address, _), HttpClient() as client:
            assert (await client.request(address, "PUT", "/", body=b"x" * 4_000_000)).status == 413

    run(main())


def test_leaving_a_stream_early_does_not_spoil_the_next_request():
    async def main():
        async with (
            serving(answering(ok(b"z" * 1_000_000)), answering(ok(b"clean"))) as (address, seen),
            HttpClient() as client,
        ):
            async with client.stream(address, "GET", "/") as incoming:
                assert incoming.status == 200
            assert (await client.request(address, "GET", "/")).body == b"clean"
            assert len(seen) == 2

    run(main())


def test_a_whole_answer_has_a_limit():
    async def main():
        async with serving(answering(ok(b"z" * 100_000))) as (address, _), HttpClient() as client:
            with pytest.raises(TooLarge):
                async with client.stream(address, "GET", "/") as incoming:
                    await incoming.read(limit=1000)

    run(main())


def test_informational_answers_and_empty_ones_are_understood():
    async def main():
        answers = (b"HTTP/1.1 100 Continue\r\n\r\n" + ok(b"real"), b"HTTP/1.1 204 No Content\r\n\r\n", ok(b"after"))
        async with serving(answering(*answers)) as (address, seen), HttpClient() as client:
            assert (await client.request(address, "GET", "/")).body == b"real"
            assert (await client.request(address, "GET", "/")).status == 204
            assert (await client.request(address, "GET", "/")).body == b"after"
            assert len(seen) == 1

    run(main())


def test_requests_side_by_side_use_their_own_connections():
    async def main():
        async with serving(answering(ok(b"a")), repeat=True) as (address, seen), HttpClient() as client:
            answers = await asyncio.gather(*(client.request(address, "GET", "/") for _ in range(12)))
            assert {answer.body for answer in answers} == {b"a"}
            assert len(seen) == 12

    run(main())


def test_a_header_cannot_smuggle_another():
    async def main():
        async with serving(answering(ok())) as (address, _), HttpClient() as client:
            with pytest.raises(ValueError, match="line break"):
                await client.request(address, "GET", "/", headers={"A": "b\r\nC: d"})

    run(main())


async def silent(reader, writer, seen):
    while True:
        seen.append(await read_request(reader))


def test_after_silence_a_request_is_repeated_on_a_new_connection():
    async def falls_silent(reader, writer, seen):
        seen.append(await read_request(reader))
        writer.write(ok(b"one"))
        await silent(reader, writer, seen)

    async def main():
        async with serving(falls_silent, answering(ok(b"two"))) as (address, seen), HttpClient() as client:
            await client.request(address, "GET", "/")
            with pytest.raises(Unreachable):
                await client.request(address, "POST", "/", body=b"x", timeout_s=0.05)
            assert (await client.request(address, "POST", "/", body=b"x")).body == b"two"
            assert [len(requests) for requests in seen] == [2, 1]

    run(main())


def test_silence_on_one_connection_makes_what_is_held_on_another_be_asked_again():
    async def main():
        async with serving(silent, silent, answering(ok(b"held"))) as (address, seen), HttpClient() as client:
            holding = asyncio.create_task(client.request(address, "GET", "/held", asks_again=True))
            while not seen or not seen[0]:
                await asyncio.sleep(0.005)
            with pytest.raises(Unreachable):
                await client.request(address, "POST", "/", timeout_s=1.1)
            assert (await holding).body == b"held"
            assert [len(requests) for requests in seen] == [1, 1, 1]

    run(main())


def test_what_was_asked_just_before_the_silence_was_noticed_is_asked_again_too():
    async def main():
        async with serving(silent, silent, answering(ok(b"held"))) as (address, seen), HttpClient() as client:
            silence = asyncio.create_task(client.request(address, "POST", "/", timeout_s=0.2))
            while not seen or not seen[0]:
                await asyncio.sleep(0.005)
            holding = asyncio.create_task(client.request(address, "GET", "/held", asks_again=True))
            with pytest.raises(Unreachable):
                await silence
            assert (await holding).body == b"held"
            assert [len(requests) for requests in seen] == [1, 1, 1]

    run(main())


def test_what_was_idle_or_held_before_a_suspend_is_left():
    slept_ms = 0

    async def main():
        nonlocal slept_ms
        scripts = (answering(ok(b"a"), ok(b"b")), silent, answering(ok(b"held")), answering(ok(b"new")))
        async with serving(*scripts) as (address, seen), HttpClient(suspended_ms=lambda: slept_ms) as client:
            await client.request(address, "GET", "/")
            slept_ms += 3  # the noise of two clocks
            await client.request(address, "GET", "/")
            assert [len(requests) for requests in seen] == [2]
            idle = client._idle.pop(address)
            holding = asyncio.create_task(client.request(address, "GET", "/held", asks_again=True))
            while len(seen) < 2 or not seen[1]:
                await asyncio.sleep(0.005)
            client._idle[address] = idle
            slept_ms += 60_000
            client.forget_connections()
            assert (await holding).body == b"held"
            slept_ms += 60_000
            assert (await client.request(address, "GET", "/")).body == b"new"

    run(main())


def test_a_large_body_on_a_slow_line_gets_through_while_it_moves():
    size, step = 6_000_000, 50_000

    async def slow(reader, writer, seen):
        await reader.readuntil(b"\r\n\r\n")
        left = size
        while left:
            left -= len(await reader.read(step))
            await asyncio.sleep(0.01)
        writer.write(ok(b"all"))
        await writer.drain()

    async def main():
        async with serving(slow, receive_buffer=step) as (address, _), HttpClient() as client:
            # As a whole it takes longer than the limit, and it never stands still for as long.
            assert (await client.request(address, "PUT", "/", body=b"x" * size, timeout_s=1.0)).body == b"all"

    run(main())


def test_what_is_good_once_is_never_sent_twice():
    async def hangs_up_on_the_second(reader, writer, seen):
        seen.append(await read_request(reader))
        writer.write(ok(b"one"))
        await writer.drain()
        seen.append(await read_request(reader))

    async def main():
        async with serving(hangs_up_on_the_second) as (address, seen), HttpClient() as client:
            await client.request(address, "GET", "/")
            with pytest.raises(Unreachable, match="closed before an answer came"):
                await client.request(address, "POST", "/", body=b"signature", is_once=True)
            assert [len(requests) for requests in seen] == [2]

    run(main())
