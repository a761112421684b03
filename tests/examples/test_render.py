"""examples/render, run directly: what workers would run, and what joins the frames."""

import os
import struct
import subprocess
import sys
from pathlib import Path

SOURCE = Path(__file__).parents[2] / "examples/render"
SIGNATURE = b"\x89PNG\r\n\x1a\n"


def run(script: str, folder: Path, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, SOURCE / script, *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1", **variables},
        capture_output=True,
        text=True,
        check=False,
    )


def frames(folder: Path, count: int = 3) -> list[Path]:
    for index in range(count):
        element = {"GPULAYER_ARRAY_INDEX": str(index), "GPULAYER_ARRAY_COUNT": str(count)}
        done = run("render.py", folder, "--size", "33x18", "--tracer", "python", **element)
        assert done.returncode == 0, done.stderr
        said = f"frames/frame-{index:04d}.png: frame {index + 1} of {count}, by the ray tracer in Python\n"
        assert done.stdout == said
    return sorted((folder / "frames").iterdir())


def test_each_element_renders_its_own_frame_and_always_the_same(tmp_path: Path) -> None:
    found = frames(tmp_path)
    assert [file.name for file in found] == ["frame-0000.png", "frame-0001.png", "frame-0002.png"]
    contents = [file.read_bytes() for file in found]
    assert len(set(contents)) == 3
    assert all(content.startswith(SIGNATURE) for content in contents)
    assert struct.unpack(">II", contents[0][16:24]) == (33, 18)
    assert [file.read_bytes() for file in frames(tmp_path)] == contents


def test_frames_are_joined_by_ffmpeg(tmp_path: Path) -> None:
    frames(tmp_path)
    done = run("join.py", tmp_path, "frames", "film")
    assert (done.returncode, done.stdout) == (0, "film.mp4: 3 frames, ffmpeg\n"), done.stderr
    assert (tmp_path / "film.mp4").read_bytes()[4:8] == b"ftyp"


def test_without_ffmpeg_they_become_a_picture_that_moves(tmp_path: Path) -> None:
    frames(tmp_path)
    done = run("join.py", tmp_path, "frames", "film", "--without-ffmpeg", "--per-second", "10")
    assert done.stdout == "film.png: 3 frames, as a moving PNG: there is no ffmpeg here\n"
    film = (tmp_path / "film.png").read_bytes()
    kinds = [film[at + 4 : at + 8] for at in _chunks(film)]
    assert kinds == [b"IHDR", b"acTL", b"fcTL", b"IDAT", b"fcTL", b"fdAT", b"fcTL", b"fdAT", b"IEND"]
    numbered = [at + 8 for at, kind in zip(_chunks(film), kinds, strict=True) if kind in (b"fcTL", b"fdAT")]
    assert [struct.unpack(">I", film[at : at + 4])[0] for at in numbered] == [0, 1, 2, 3, 4]


def _chunks(content: bytes) -> list[int]:
    found, at = [], len(SIGNATURE)
    while at < len(content):
        found.append(at)
        at += struct.unpack(">I", content[at : at + 4])[0] + 12
    return found


def test_no_frames_are_no_film(tmp_path: Path) -> None:
    (tmp_path / "frames").mkdir()
    done = run("join.py", tmp_path, "frames", "film")
    assert (done.returncode, done.stderr) == (1, "frames has no frame-*.png\n")
