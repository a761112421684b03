"""Whether TensorFlow computes. Why it sees no GPU it says on the standard error alone."""

os.environ["TF_FORCE_GPU_ALLOW_GROWTH"] = "true"  # or it takes all of a device for itself
tensorflow = imported("tensorflow", r"tensorflow(-cpu|-gpu|-intel|-macos)?")


def compute(place):
    with tensorflow.device(place):
        matrix = tensorflow.constant(ROWS)
        product = tensorflow.linalg.matmul(matrix, matrix)
        if place not in product.device:
            raise RuntimeError("it computed on %s instead" % product.device)
        return int(tensorflow.reduce_sum(product).numpy())


def on(kind):
    return lambda: [
        lambda place="%s:%d" % (kind, number): compute(place)
        for number in range(len(tensorflow.config.list_physical_devices(kind)))
    ]


info = tensorflow.sysconfig.get_build_info()
is_cuda = bool(info.get("is_cuda_build"))
tensorflow.config.set_soft_device_placement(False)
tell(
    version=tensorflow.__version__,
    build=("cuda %s" % info.get("cuda_version", "")).strip() if is_cuda else "cpu",
    has=["cpu", "cuda"] if is_cuda else ["cpu"],
    architectures=info.get("cuda_compute_capabilities") or (),
    tries={"cpu": on("CPU"), "cuda": on("GPU")},
)
