#!/usr/bin/env bash
# Transcode a video to a small MP4 and make a contact sheet of it.
#
#   ./transcode.sh [VIDEO]     without VIDEO a 12-second test clip is made first
#
# Leaves result.mp4 and contact-sheet.png in the working directory.
set -euo pipefail

here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
python="${PYTHON:-python3}"
ffmpeg="$("$python" "$here/media.py" find)"
scratch="$(mktemp -d)"
trap 'rm -rf "$scratch"' EXIT

run() { "$ffmpeg" -hide_banner -nostdin -loglevel error -y "$@"; }

video="${1:-}"
if [ -z "$video" ]; then
    # Outside the working directory, so that the clip itself is not one of the job's outputs.
    video="$scratch/clip.mkv"
    echo "making a test clip"
    run -f lavfi -i testsrc2=size=1280x720:rate=25:duration=12 -f lavfi -i sine=frequency=440:duration=12 \
        -c:v mpeg4 -q:v 2 -c:a pcm_s16le -shortest "$video"
fi

# The codecs of builds differ; the first that this one has is taken.
available="$("$ffmpeg" -hide_banner -encoders 2>/dev/null)"
codec=""
for candidate in libx264 libopenh264 h264_videotoolbox mpeg4; do
    if grep -q " $candidate " <<<"$available"; then codec="$candidate"; break; fi
done
quality=(-b:v 600k)
if [ "$codec" = libx264 ]; then quality=(-crf 28 -preset veryfast); fi

echo "transcoding with ${codec:?this ffmpeg can write neither H.264 nor MPEG-4}"
run -i "$video" -vf "scale=640:-2" -c:v "$codec" "${quality[@]}" -pix_fmt yuv420p -c:a aac -b:a 96k \
    -movflags +faststart result.mp4

echo "making a contact sheet"
rate="$("$python" "$here/media.py" rate result.mp4 12)"
run -i result.mp4 -vf "fps=$rate:round=up,scale=240:-2,tile=4x3:padding=4" -frames:v 1 -update 1 contact-sheet.png

"$python" "$here/media.py" describe "$video" result.mp4 contact-sheet.png
