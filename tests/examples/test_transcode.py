"""examples/transcode, run directly: what a worker would run."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import imageio_ffmpeg

SOURCE = Path(__file__).parents[2] / "examples/transcode"
PNG = b"\x89PNG\r\n\x1a\n"


def transcode(folder: Path, *arguments: str, path: str | None = None) -> subprocess.CompletedProcess[str]:
    shutil.copytree(SOURCE, folder, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__"))
    return subprocess.run(
        ["./transcode.sh", *arguments],
        cwd=folder,
        env={**os.environ, "PYTHON": sys.executable, "PATH": path or os.environ["PATH"]},
        capture_output=True,
        text=True,
        check=False,
    )


def test_it_makes_a_clip_transcodes_it_and_leaves_two_files(tmp_path: Path) -> None:
    before = {file.name for file in SOURCE.iterdir() if file.name != "__pycache__"}
    done = transcode(tmp_path)
    assert done.returncode == 0, done.stderr
    assert {file.name for file in tmp_path.iterdir()} - {"__pycache__"} - before == {"result.mp4", "contact-sheet.png"}
    assert (tmp_path / "result.mp4").read_bytes()[4:8] == b"ftyp"
    assert (tmp_path / "contact-sheet.png").read_bytes().startswith(PNG)
    clip, result, sheet = done.stdout.splitlines()[-3:]
    assert "12.0 s" in clip
    assert "12.0 s" in result
    assert float(result.split()[1]) < float(clip.split()[1]) / 2
    assert sheet.startswith("contact-sheet.png")


def test_it_takes_a_video_and_finds_the_ffmpeg_of_the_python_package(tmp_path: Path) -> None:
    ffmpeg = imageio_ffmpeg.get_ffmpeg_exe()
    video = tmp_path / "holiday film.avi"
    source = ["-f", "lavfi", "-i", "testsrc=size=320x240:rate=10:duration=2"]
    subprocess.run([ffmpeg, "-loglevel", "error", *source, "-c:v", "mpeg4", video], check=True)
    tools = tmp_path / "bin"
    tools.mkdir()
    for tool in ("env", "bash", "dirname", "mktemp", "rm", "grep"):
        (tools / tool).symlink_to(str(shutil.which(tool)))
    done = transcode(tmp_path / "work", str(video), path=str(tools))
    assert done.returncode == 0, done.stderr
    assert "2.0 s" in done.stdout.splitlines()[-2]


def test_a_video_that_is_none_fails_with_what_ffmpeg_says(tmp_path: Path) -> None:
    (tmp_path / "broken.mov").write_bytes(b"not a video")
    done = transcode(tmp_path, "broken.mov")
    assert done.returncode != 0
    assert "broken.mov" in done.stderr
    assert not (tmp_path / "contact-sheet.png").exists()
