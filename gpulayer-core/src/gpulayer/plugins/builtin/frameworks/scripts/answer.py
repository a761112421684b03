"""What the scripts of the framework checks share: it stands above each of them, in one program.

For another Python: 3.9 or newer, with nothing installed but what is looked for. A script calls ``imported`` and then
``tell``; ``ACCELERATORS`` stands between this file and the script.
"""

import contextlib
import importlib
import importlib.metadata
import importlib.util
import json
import logging
import os
import re
import sys
import warnings

ROWS = [[float((5 * row + 3 * column) % 7) for column in range(8)] for row in range(8)]
WANTED = sum(int(sum(ROWS[i][k] * ROWS[k][j] for k in range(8))) for i in range(8) for j in range(8))
"""The sum of all of ``ROWS @ ROWS``: exact in any precision that a device multiplies in."""

HELD, FULL = "another process holds it", "its memory is full"
CAUSES = (
    # What keeps it from computing, by what the libraries say then. The first that fits counts.
    ("the driver is too old", r"driver (on your system )?is too old|driver version is insufficient|InsufficientDriver"),
    ("no driver", r"no nvidia driver|could not find cuda drivers|libcuda\.so|libamdhip|failed call to cuInit.*UNKNOWN"),
    (
        "no device is seen",
        r"no (cuda-capable|visible gpu|rocm-capable) device|no (cuda|hip|xpu) (gpus|devices) are|NO_DEVICE",
    ),
    (
        "no code for this device in this build",
        r"no kernel image|NoKernelImage|no_binary_for_gpu|NoBinaryForGpu|invalid device function",
    ),
    (HELD, r"busy or unavailable|DEVICES?_?UNAVAILABLE|already in use by a different thread|DeviceAlreadyInUse"),
    (FULL, r"out of memory|out_of_memory|OutOfMemory|MemoryAllocation|resource_exhausted|bad_alloc"),
    (
        "a shared library is missing",
        r"cannot open shared object|could not load (dynamic )?library|failed to load library|cannot dlopen|Library not loaded|DLL load failed",
    ),
)
WORDS = 600  # of a library in one reason
SHOWN = 8  # devices of one reason
SAID = []  # all that was warned of: a library may look for devices when it is imported, or first asked for others


class Unseen(Exception):
    """The library sees no device. What it has warned of meanwhile says why, and else the text."""

    def __init__(self, text, cause=""):
        super().__init__(text)
        self.cause = cause


def imported(name, packages):
    """The module ``name``. Ends the program where it is not installed, or can't be imported.

    packages: a pattern of the names of the packages that it may come from.
    """
    top = name.partition(".")[0]
    if importlib.util.find_spec(top) is None:
        print(json.dumps({"version": None}))
        sys.exit()
    said = []
    try:
        with listening(said):
            module = importlib.import_module(name)
    except Exception as error:
        version = package(packages)[1]
        if isinstance(error, ModuleNotFoundError) and error.name in (top, name) and not version:
            print(json.dumps({"version": None}))  # a folder of that name, left behind
            sys.exit()
        why = "it can't be imported: " + reason(error, said)[1]
        print(json.dumps({"version": version, "devices": dict.fromkeys(ACCELERATORS, why)}))
        sys.exit()
    if getattr(module, "__file__", None) is None and not package(packages)[1]:
        print(json.dumps({"version": None}))
        sys.exit()
    return module


def package(pattern):
    """Name and version of the first installed package whose whole name fits; empty texts: none."""
    for found in importlib.metadata.distributions():
        name = (found.metadata["Name"] or "").lower().replace("_", "-")
        if re.fullmatch(pattern, name):
            return name, found.version
    return "", ""


def tell(*, version, build, has, tries, architectures=()):
    """Try all accelerators, and print the answer.

    build: what for, as ``cuda 12.6``; ``cpu``. has: the accelerators that are in the build. tries: by accelerator a
    function that gives a function for each device, which computes there and gives the sum of ``ROWS @ ROWS``.
    """
    answer = {"version": str(version), "build": build, "architectures": list(architectures), "devices": {}}
    answer.update(failed={}, again=[])
    # The processor first: it is known then whatever a driver does to this program.
    for kind in sorted(ACCELERATORS, key=lambda kind: kind != "cpu"):
        cause, why, failed = tried(tries[kind], list(SAID) if kind in has and kind != "cpu" else [])
        if not why and kind not in has:
            answer["build"] = kind  # what has computed is right
        elif why and kind not in has:
            other = "a CPU-only build" if build == "cpu" else "a build for %s, not for %s" % (build, kind)
            cause, why = other, other + (": " + why if kind in why.lower() else "")
        answer["devices"][kind] = why
        if failed:
            answer["failed"][kind] = failed
        if cause in (HELD, FULL):
            answer["again"].append(kind)
        print(json.dumps(dict(answer, so_far=True)), flush=True)
    print(json.dumps(answer), flush=True)


def tried(devices, before):
    """Why it computes on none of them, as cause and text; empty where it does on any. And by number why it does not on
    some, where that will last. before: what may say why, too."""
    said = []
    try:
        with listening(said):
            computes = list(devices())
            if not computes:
                raise Unseen("no device is seen")
    except Exception as error:
        return (*reason(error, said + before), {})
    failed = {}
    for number, compute in enumerate(computes):
        said = []
        try:
            with listening(said):
                found = compute()
            if found != WANTED:
                failed[number] = "", "its answer is wrong: %r, not %d" % (found, WANTED)
        except Exception as error:
            failed[number] = reason(error, said)
    worked = len(computes) - len(failed)
    lasting = {number: why for number, why in failed.items() if why[0] not in (HELD, FULL)}
    alone = {number: why for number, (_, why) in lasting.items()}
    if worked or not failed:
        return "", "", alone  # what is in use by others now says nothing against it
    causes = {cause for cause, _ in failed.values()}
    cause = HELD if len(lasting) < len(failed) else causes.pop() if len(causes) == 1 else ""
    if len(computes) == 1:
        return cause, failed[0][1], alone
    texts = ["device %s: %s" % (device_name(number), why) for number, (_, why) in list(failed.items())[:SHOWN]]
    if len(failed) > SHOWN:
        texts.append("and %d more" % (len(failed) - SHOWN))
    return cause, "; ".join(texts), alone


def device_name(number):
    """As the worker names it, where it has told this program which ones it may see."""
    for variable in ("CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES"):
        names = [name for name in os.environ.get(variable, "").split(",") if name]
        if number < len(names) and not names[number].isdigit():
            return names[number]
    return str(number)


def reason(error, said):
    """Cause and text: of the error, or of what was said before it; in the library's own words, after the cause."""
    own = first_line(str(error)) or type(error).__name__
    if isinstance(error, Unseen) and error.cause:
        return error.cause, error.cause + ": " + own
    texts = [*said, own] if isinstance(error, Unseen) else [own, *said]
    for cause, pattern in CAUSES:
        for text in texts:
            if re.search(pattern, text, re.IGNORECASE):
                return cause, cause + ": " + text
    return "", own + (": " + said[0][:WORDS] if isinstance(error, Unseen) and said else "")


def first_line(text):
    """With those after it, as long as a colon says that more is to come."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    if lines and lines[0].startswith("Traceback"):
        lines = lines[-1:]
    end = next((number for number, line in enumerate(lines) if not line.endswith(":")), len(lines))
    return " ".join(lines[: end + 1])[:WORDS]


@contextlib.contextmanager
def listening(said):
    """Add to ``said``, and to ``SAID``, what is warned of meanwhile: by warnings, by loggers, and by C++ on the standard error."""

    class Handler(logging.Handler):
        def emit(self, record):
            said.append(first_line(record.getMessage()))

    handler, begin = Handler(logging.WARNING), stderr_size()
    logging.getLogger().addHandler(handler)
    try:
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            yield
    finally:
        logging.getLogger().removeHandler(handler)
        native = stderr_since(begin)
        for warning in warned:
            text = " ".join(str(warning.message).split())[:WORDS]
            if not issubclass(warning.category, (DeprecationWarning, PendingDeprecationWarning, FutureWarning)):
                said.append(re.sub(r" \(Triggered internally at .*", "", text))
            print(text, file=sys.stderr)
        said.extend(line[:WORDS] for line in native if any(re.search(one, line, re.IGNORECASE) for _, one in CAUSES))
        SAID.extend(said)


def stderr_size():
    """Where the next line on the standard error will stand; 0 where that is not known."""
    try:
        return os.fstat(2).st_size
    except OSError:
        return 0


def stderr_since(begin):
    """Lines on the standard error, without dates and places. It is a file where the worker runs this."""
    try:
        text = os.pread(2, 1 << 16, begin).decode(errors="replace")
    except (OSError, AttributeError):
        return []
    text = re.sub(r"\x1b\[[\d;]*m", "", text)
    place = r"^.*(\[ONNXRuntimeError\] : \d+ : \w+ : )|^.*?\.\w+:\d+( \w+)?[]:] +"
    return [re.sub(place, "", line).strip() for line in text.splitlines()]
