"""Find ffmpeg, and say how large and how long media files are. Standard library only.

    media.py find                  print the ffmpeg to use
    media.py rate FILE N           print the frame rate that takes N frames evenly from FILE
    media.py describe FILE…        print one line a file: name, size, duration

ffprobe is not needed: the ffmpeg that comes with the imageio-ffmpeg package has none beside it.
"""

import re
import shutil
import subprocess
import sys
from pathlib import Path


def find_ffmpeg() -> str:
    """The ffmpeg on PATH, else the one inside the imageio-ffmpeg package of this Python."""
    on_path = shutil.which("ffmpeg")
    if on_path:
        return on_path
    try:
        import imageio_ffmpeg  # noqa: PLC0415 - only where PATH has none
    except ImportError:
        sys.exit("no ffmpeg: install it, or `pip install imageio-ffmpeg`")
    return str(imageio_ffmpeg.get_ffmpeg_exe())


def duration_s(file: Path) -> float | None:
    """Seconds, or None for a picture and for anything without a length."""
    # ffmpeg exits 1 here, since it is given no output; it prints what the file is all the same.
    shown = subprocess.run([find_ffmpeg(), "-hide_banner", "-i", file], capture_output=True, check=False)
    match = re.search(rb"Duration: (\d+):(\d+):(\d+\.\d+)", shown.stderr)
    if match is None:
        return None
    hours, minutes, seconds = match.groups()
    return int(hours) * 3600 + int(minutes) * 60 + float(seconds)


def describe(file: Path) -> str:
    length = None if file.suffix == ".png" else duration_s(file)
    shown = "" if length is None else f"{length:8.1f} s"
    return f"{file.name:<20}{file.stat().st_size / 1e6:8.2f} MB{shown}"


def main(arguments: list[str]) -> int:
    match arguments:
        case ["find"]:
            print(find_ffmpeg())
        case ["rate", file, frames]:
            print(f"{int(frames) / (duration_s(Path(file)) or 1.0):.6f}")
        case ["describe", *files] if files:
            for file in files:
                print(describe(Path(file)))
        case _:
            print(__doc__, file=sys.stderr)
            return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
