"""Join the frames of a folder into a film: an MP4 where there is ffmpeg, else a PNG that moves (APNG).

    python3 join.py FOLDER FILM [--per-second 12]      FILM without a suffix: film.mp4 or film.png

ffmpeg comes from PATH, else from the Python package imageio-ffmpeg.
"""

import argparse
import shutil
import subprocess
import sys
from pathlib import Path

from png import write_animation


def main() -> int:
    """Returns the exit code."""
    parser = argparse.ArgumentParser(description="Join frames into a film.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("film", type=Path)
    parser.add_argument("--per-second", type=int, default=12, metavar="N")
    parser.add_argument("--without-ffmpeg", action="store_true")
    options = parser.parse_args()
    frames = sorted(options.folder.glob("frame-*.png"))
    if not frames:
        print(f"{options.folder} has no frame-*.png", file=sys.stderr)
        return 1
    ffmpeg = None if options.without_ffmpeg else find_ffmpeg()
    film = options.film.with_suffix(".mp4" if ffmpeg else ".png")
    if ffmpeg is None:
        write_animation(film, frames, per_second=options.per_second)
    else:
        pattern = str(options.folder / "frame-%04d.png")
        start = frames[0].stem.removeprefix("frame-")
        source = ["-framerate", str(options.per_second), "-start_number", start, "-i", pattern]
        even = ["-vf", "pad=ceil(iw/2)*2:ceil(ih/2)*2", "-pix_fmt", "yuv420p"]
        subprocess.run([ffmpeg, "-loglevel", "error", "-nostdin", "-y", *source, *even, str(film)], check=True)
    how = "ffmpeg" if ffmpeg else "as a moving PNG: there is no ffmpeg here"
    print(f"{film}: {len(frames)} frames, {how}")
    return 0


def find_ffmpeg() -> str | None:
    """None where there is none."""
    found = shutil.which("ffmpeg")
    if found is not None:
        return found
    try:
        import imageio_ffmpeg  # noqa: PLC0415 - not everybody has it
    except ImportError:
        return None
    return str(imageio_ffmpeg.get_ffmpeg_exe())


if __name__ == "__main__":
    sys.exit(main())
