"""Whether PyTorch computes: CUDA and ROCm through torch.cuda, Apple through mps, Intel through xpu."""

torch = imported("torch", "torch")


def compute(place):
    matrix = torch.tensor(ROWS, device=place)
    return int((matrix @ matrix).sum().item())


def through_torch_cuda(is_of_another):
    def devices():
        if is_of_another:
            raise Unseen("torch.cuda is of another vendor here")
        if not torch.cuda.is_available():
            try:
                torch.cuda.init()
            except Exception as error:
                raise Unseen(first_line(str(error)))
            raise Unseen("torch.cuda.is_available() is False")
        return [lambda place="cuda:%d" % number: compute(place) for number in range(torch.cuda.device_count())]

    return devices


def mps():
    if not torch.backends.mps.is_available():
        raise Unseen("torch.backends.mps.is_available() is False")
    return [lambda: compute("mps")]


def xpu():
    if not torch.xpu.is_available():
        raise Unseen("torch.xpu.is_available() is False")
    return [lambda place="xpu:%d" % number: compute(place) for number in range(torch.xpu.device_count())]


def architectures():
    """Also where no device is seen; then torch itself says none."""
    try:
        return torch.cuda.get_arch_list() or (torch._C._cuda_getArchFlags() or "").split()
    except Exception:
        return []


cuda, hip = torch.version.cuda, getattr(torch.version, "hip", None)
has, build = ["cpu"], "cpu"
if cuda:
    has, build = ["cpu", "cuda"], "cuda " + cuda
if hip:
    has, build = ["cpu", "rocm"], "rocm " + ".".join(hip.split(".")[:2])
if hasattr(torch.backends, "mps") and torch.backends.mps.is_built():
    has, build = [*has, "mps"], "mps"
if getattr(torch.version, "xpu", None):
    has, build = [*has, "xpu"], "xpu " + torch.version.xpu
tell(
    version=torch.__version__,
    build=build,
    has=has,
    architectures=architectures() if cuda or hip else (),
    tries={
        "cpu": lambda: [lambda: compute("cpu")],
        "cuda": through_torch_cuda(is_of_another=hip),
        "rocm": through_torch_cuda(is_of_another=cuda),
        "mps": mps,
        "xpu": xpu,
    },
)
