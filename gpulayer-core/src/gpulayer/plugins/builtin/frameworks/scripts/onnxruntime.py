"""Whether ONNX Runtime computes. It falls back to the processor by itself; that counts as a failure here."""

onnxruntime = imported("onnxruntime", r"onnxruntime(-gpu|-directml|-openvino|-silicon)?")
import numpy


def number(field, value):
    return bytes([field << 3, value])


def part(field, content):
    return bytes([field << 3 | 2, len(content)]) + content


def matrix(name):
    """A ValueInfoProto: 8 × 8 of float32."""
    shape = b"".join(part(1, number(1, 8)) for _ in range(2))
    return part(1, name) + part(2, part(1, number(1, 1) + part(2, shape)))


# A model in protobuf, by hand: https://github.com/onnx/onnx/blob/main/onnx/onnx.proto
NODE = part(1, b"a") + part(1, b"a") + part(2, b"b") + part(4, b"MatMul")
GRAPH = part(1, NODE) + part(2, b"g") + part(11, matrix(b"a")) + part(12, matrix(b"b"))
MODEL = number(1, 7) + part(7, GRAPH) + part(8, number(2, 13))


def compute(provider, options):
    wanted = onnxruntime.SessionOptions()
    if provider != "CPUExecutionProvider":
        wanted.add_session_config_entry("session.disable_cpu_ep_fallback", "1")
    session = onnxruntime.InferenceSession(MODEL, wanted, providers=[(provider, options)])
    if session.get_providers()[0] != provider:
        raise Unseen("it took %s instead" % session.get_providers()[0])
    return int(session.run(None, {"a": numpy.array(ROWS, "float32")})[0].sum())


def cuda():
    if "CUDAExecutionProvider" not in onnxruntime.get_available_providers():
        raise Unseen("CUDAExecutionProvider is not among its providers")
    visible = [name for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name]
    return [
        lambda number=number: compute("CUDAExecutionProvider", {"device_id": str(number)})
        for number in range(len(visible) or 1)
    ]


is_cuda = "CUDAExecutionProvider" in onnxruntime.get_available_providers()
try:
    from onnxruntime.capi.build_and_package_info import cuda_version
except ImportError:
    cuda_version = ""
tell(
    version=onnxruntime.__version__,
    build=("cuda %s" % cuda_version).strip() if is_cuda else "cpu",
    has=["cpu", "cuda"] if is_cuda else ["cpu"],
    tries={"cpu": lambda: [lambda: compute("CPUExecutionProvider", {})], "cuda": cuda},
)
