"""Whether CuPy computes. It compiles for the device when it runs, so no architectures are built in."""

os.environ["CUPY_CACHE_IN_MEMORY"] = "1"  # what it compiles here stays out of the user's folder
NAMES = r"cupy|cupy-cuda(\w+)|cupy-rocm([\w-]+)"
cupy = imported("cupy", NAMES)
runtime = cupy.cuda.runtime


def compute(number):
    with cupy.cuda.Device(number):
        matrix = cupy.array(ROWS, "float32")
        return int((matrix @ matrix).sum())


def devices():
    try:
        count = runtime.getDeviceCount()
    except Exception as error:
        if runtime.is_hip or runtime.driverGetVersion():
            raise
        # It says "driver version is insufficient" also where there is no driver at all.
        raise Unseen(str(error), "no driver")
    return [lambda number=number: compute(number) for number in range(count)]


def none():
    return []


kind = "rocm" if runtime.is_hip else "cuda"
built = cupy.cuda.driver.get_build_version()
tell(
    version=cupy.__version__,
    build="%s %d.%d" % (kind, built // 1000, built % 1000 // 10) if kind == "cuda" else kind,
    has=[kind],
    tries={"cuda": none, "rocm": none, kind: devices},
)
