"""Whether JAX computes. Builds are told by their plugins: a package for each vendor beside jaxlib."""

os.environ["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"  # or it takes three quarters of a device for itself
jax = imported("jax", "jax")
import numpy


def compute(device):
    matrix = jax.device_put(numpy.array(ROWS, "float32"), device)
    product = matrix @ matrix
    if device not in product.devices():
        raise RuntimeError("it computed on %s instead" % product.devices())
    return int(product.sum())


def on(*platforms):
    def devices():
        for platform in platforms[:-1]:
            try:
                return [lambda device=device: compute(device) for device in jax.devices(platform)]
            except Exception:
                pass  # the last name says why
        return [lambda device=device: compute(device) for device in jax.devices(platforms[-1])]

    return devices


has, build = ["cpu"], "cpu"
for kind, pattern in (("cuda", r"jax-cuda(\d+)-plugin"), ("rocm", r"jax-rocm(\d+)-plugin")):
    name = package(pattern)[0]
    # Until 0.4.30 jaxlib itself was built for CUDA: 0.4.26+cuda12.cudnn89
    older = re.search(r"\+%s(\d+)" % kind, package("jaxlib")[1])
    if name or older:
        has, build = ["cpu", kind], kind + " " + (older or re.fullmatch(pattern, name)).group(1)
if package("jax-metal|jax-mps")[0]:
    has, build = ["cpu", "mps"], "mps"
tell(
    version=jax.__version__,
    build=build,
    has=has,
    tries={"cpu": on("cpu"), "cuda": on("cuda"), "rocm": on("rocm"), "mps": on("METAL", "mps")},
)
