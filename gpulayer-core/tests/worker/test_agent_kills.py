"""Agents that die at any point, and transfers of some size: nothing is lost, nothing runs twice."""

import random
import sys

from gpulayer.spec.tree import Entry, EntryKind, decode_tree, digest_of, encode_tree


def test_agents_killed_again_and_again_lose_no_job_no_code_and_no_log_byte(scene):
    async def main(plane, worker):
        rng = random.Random(7)
        worker.start()
        for epoch in range(1, 11):
            wait = rng.choice(["", "sleep 0.2;", "sleep 0.6;"])
            plane.assign(
                epoch,
                "sh",
                "-c",
                f"echo a{epoch} >> $HOME/ran; echo one; {wait} echo two; exit {epoch}",
                env={"HOME": str(worker.folder.parent)},
            )
        for _ in range(6):
            target = len(plane.requests) + rng.randint(1, 12)
            await plane.until(lambda target=target: len(plane.requests) >= target or len(plane.ended) == 10)
            worker.kill()
            worker.start()
        for epoch in range(1, 11):
            item = await plane.end_of(epoch)
            assert (item["outcome"]["ended_by"], item["outcome"]["exit_code"]) == ("program", epoch)
            assert bytes(plane.logs[epoch]) == b"one\ntwo\n"
        ran = (worker.folder.parent / "ran").read_text().split()
        assert sorted(ran) == sorted(f"a{epoch}" for epoch in range(1, 11))
        await plane.until(lambda: worker.attempts() == [])
        await worker.stop()

    scene(main)


def test_a_large_log_and_large_outputs_are_byte_exact(scene):
    async def main(plane, worker):
        worker.start()
        code = (
            "import sys, random; r = random.Random(1); b = r.randbytes(3_000_001); sys.stdout.buffer.write(b);"
            "open('big', 'wb').write(b); [open(f'small{i}', 'wb').write(r.randbytes(1000)) for i in range(300)]"
        )
        plane.assign(1, sys.executable, "-c", code)
        item = await plane.end_of(1)
        expected = random.Random(1).randbytes(3_000_001)
        assert bytes(plane.logs[1]) == expected
        home = decode_tree(plane.blobs[item["outputs"]])
        assert len(home.entries) == 301
        assert plane.blobs[next(entry.digest for entry in home.entries if entry.name == "big")] == expected
        await worker.stop()

    scene(main)


def transfers(plane):
    is_blob = {"GET": "/v1/blobs/", "POST": "/v1/blobs:fetch"}
    return [path for method, path in plane.requests if path.startswith(is_blob.get(method, "none"))]


def test_many_small_and_some_large_files_are_staged_and_only_once(scene):
    async def main(plane, worker):
        rng = random.Random(2)

        def put(content):
            plane.blobs[digest_of(content)] = content
            return digest_of(content)

        def folder(count, size):
            entries = []
            for index in range(count):
                content = rng.randbytes(size)
                entries.append(Entry(f"f{index}", EntryKind.FILE, 0o644, size, put(content)))
            return put(encode_tree(entries))

        small, large = folder(400, 2000), folder(3, 1_200_000)
        root = put(
            encode_tree(
                [
                    Entry("empty", EntryKind.FILE, 0o644, 0, digest_of(b"")),
                    Entry("large", EntryKind.DIRECTORY, 0o755, 0, large),
                    Entry("small", EntryKind.DIRECTORY, 0o755, 0, small),
                ]
            )
        )
        worker.start()
        plane.assign(1, "sh", "-c", "cat small/* large/* | wc -c; ls | wc -l", source=root)
        await plane.end_of(1)
        assert bytes(plane.logs[1]).split() == [b"4400000", b"3"]
        fetched = [
            path
            for method, path in plane.requests
            if path == "/v1/blobs:fetch" or (method == "GET" and "blobs" in path)
        ]
        plane.assign(2, "sh", "-c", "cat small/* large/* | wc -c", source=root)
        await plane.end_of(2)
        assert bytes(plane.logs[2]).split() == [b"4400000"]
        again = [
            path
            for method, path in plane.requests
            if path == "/v1/blobs:fetch" or (method == "GET" and "blobs" in path)
        ]
        assert fetched
        assert again == fetched
        await worker.stop()

    scene(main)
