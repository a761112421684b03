"""Render one frame of a short film: the one whose number this element of an array has been given.

    gpulayer submit --array 24 --source examples/render -- python3 render.py [--size 320x180]

Writes frames/frame-0000.png and so on. With POV-Ray where the worker has it (scene.pov), else with the ray tracer
below, which needs nothing but Python and draws the same balls. Run by hand it renders the only frame of one.
"""

import argparse
import math
import os
import shutil
import subprocess
import sys
from pathlib import Path

from png import write_png

Vector = tuple[float, float, float]

HERE = Path(__file__).parent
CAMERA: Vector = (0.0, 2.6, -6.2)
TARGET: Vector = (0.0, 0.7, 0.0)
LIGHT: Vector = (-5.0, 8.0, -5.0)
VIEW_DEGREES = 50.0
BOUNCES = 2


def main() -> int:
    """Returns the exit code."""
    parser = argparse.ArgumentParser(description="Render one frame of a film.")
    parser.add_argument("--size", default="320x180", metavar="WxH")
    parser.add_argument("--tracer", choices=["any", "python", "povray"], default="any")
    parser.add_argument("--frames", default="frames", metavar="FOLDER")
    options = parser.parse_args()
    width, height = (int(part) for part in options.size.split("x"))
    index = int(os.environ.get("GPULAYER_ARRAY_INDEX", "0"))
    count = int(os.environ.get("GPULAYER_ARRAY_COUNT", "1"))
    povray = shutil.which("povray") if options.tracer != "python" else None
    if povray is None and options.tracer == "povray":
        print("there is no povray on this worker", file=sys.stderr)
        return 1
    file = Path(options.frames, f"frame-{index:04d}.png")
    file.parent.mkdir(parents=True, exist_ok=True)
    clock = index / count
    if povray is not None:
        done = render_with_povray(povray, file, width, height, clock)
        if done.returncode:
            print(f"POV-Ray failed ({done.returncode}):\n{done.stderr[-2000:]}", file=sys.stderr)
            return 1
    else:
        write_png(file, width, height, render(width, height, clock))
    print(f"{file}: frame {index + 1} of {count}, by {'POV-Ray' if povray else 'the ray tracer in Python'}")
    return 0


def render_with_povray(
    povray: str, file: Path, width: int, height: int, clock: float
) -> subprocess.CompletedProcess[str]:
    """Its many words come back unread."""
    options = [f"+W{width}", f"+H{height}", f"+K{clock:.6f}", "+A0.2", "-D", "-V", "+FN"]
    command = [povray, f"+I{HERE / 'scene.pov'}", f"+O{file}", *options]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def render(width: int, height: int, clock: float) -> bytes:
    """Rows of red, green and blue, from the top. clock: from 0 to 1 once round."""
    spheres = scene(clock)
    forward = unit(minus(TARGET, CAMERA))
    right = unit(cross((0.0, 1.0, 0.0), forward))
    up = cross(forward, right)
    reach = math.tan(math.radians(VIEW_DEGREES / 2))
    rows = bytearray()
    for y in range(height):
        rise = (1 - 2 * (y + 0.5) / height) * reach * height / width
        for x in range(width):
            side = (2 * (x + 0.5) / width - 1) * reach
            ray = unit(plus(forward, plus(times(right, side), times(up, rise))))
            rows += bytes(encoded(part) for part in trace(CAMERA, ray, spheres, BOUNCES))
    return bytes(rows)


def encoded(light: float) -> int:
    """As a screen wants it."""
    return min(255, int(255 * max(0.0, light) ** (1 / 2.2)))


def scene(clock: float) -> list[tuple[Vector, float, Vector]]:
    """Middle, size and colour of each ball; those of scene.pov."""
    balls = [((0.0, 1.0, 0.0), 1.0, (0.85, 0.25, 0.2))]
    for number in range(3):
        angle = 2 * math.pi * (clock + number / 3)
        middle = (2.2 * math.cos(angle), 0.5, 2.2 * math.sin(angle))
        balls.append((middle, 0.5, (0.2 + 0.3 * number, 0.7 - 0.2 * number, 0.9 - 0.3 * number)))
    return balls


def trace(start: Vector, ray: Vector, spheres: list[tuple[Vector, float, Vector]], bounces: int) -> Vector:
    """The light that comes from where the ray goes."""
    nearest, colour, normal, mirror = math.inf, (0.0, 0.0, 0.0), (0.0, 1.0, 0.0), 0.0
    if ray[1] < -1e-9 and start[1] > 0:
        nearest = -start[1] / ray[1]
        spot = plus(start, times(ray, nearest))
        is_light = (math.floor(spot[0]) + math.floor(spot[2])) % 2 == 0
        colour, mirror = ((0.9, 0.9, 0.85) if is_light else (0.2, 0.25, 0.3)), 0.15
    for middle, size, paint in spheres:
        distance = hit(start, ray, middle, size)
        if distance < nearest:
            nearest, colour, mirror = distance, paint, 0.3
            normal = unit(minus(plus(start, times(ray, distance)), middle))
    if nearest == math.inf:
        height = max(0.0, ray[1])
        return (0.75 - 0.5 * height, 0.85 - 0.4 * height, 1.0 - 0.15 * height)
    spot = plus(plus(start, times(ray, nearest)), times(normal, 1e-6))
    to_light = unit(minus(LIGHT, spot))
    is_lit = all(hit(spot, to_light, middle, size) == math.inf for middle, size, _ in spheres)
    shine = 0.15 + (0.75 * max(0.0, dot(normal, to_light)) if is_lit else 0.0)
    seen = times(colour, shine)
    if bounces:
        bounced = minus(ray, times(normal, 2 * dot(ray, normal)))
        seen = plus(times(seen, 1 - mirror), times(trace(spot, bounced, spheres, bounces - 1), mirror))
    return seen


def hit(start: Vector, ray: Vector, middle: Vector, size: float) -> float:
    """How far along the ray the ball begins; infinite where it does not."""
    away = minus(start, middle)
    half = dot(away, ray)
    inside = half * half - dot(away, away) + size * size
    if inside < 0:
        return math.inf
    distance = -half - math.sqrt(inside)
    return distance if distance > 1e-4 else math.inf


def plus(a: Vector, b: Vector) -> Vector:
    return (a[0] + b[0], a[1] + b[1], a[2] + b[2])


def minus(a: Vector, b: Vector) -> Vector:
    return (a[0] - b[0], a[1] - b[1], a[2] - b[2])


def times(a: Vector, number: float) -> Vector:
    return (a[0] * number, a[1] * number, a[2] * number)


def dot(a: Vector, b: Vector) -> float:
    return a[0] * b[0] + a[1] * b[1] + a[2] * b[2]


def cross(a: Vector, b: Vector) -> Vector:
    return (a[1] * b[2] - a[2] * b[1], a[2] * b[0] - a[0] * b[2], a[0] * b[1] - a[1] * b[0])


def unit(a: Vector) -> Vector:
    return times(a, 1 / math.sqrt(dot(a, a)))


if __name__ == "__main__":
    sys.exit(main())
