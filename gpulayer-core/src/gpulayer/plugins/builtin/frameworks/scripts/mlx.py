"""Whether MLX computes: on Apple's GPU through Metal, and on the processor."""

mx = imported("mlx.core", "mlx")


def compute(device):
    matrix = mx.array(ROWS)
    return int(mx.sum(mx.matmul(matrix, matrix, stream=device), stream=device).item())


def metal():
    if not mx.metal.is_available():
        raise Unseen("mlx.core.metal.is_available() is False")
    return [lambda: compute(mx.gpu)]


has_metal = mx.metal.is_available()
tell(
    version=getattr(mx, "__version__", "") or package("mlx")[1],
    build="mlx" if has_metal else "cuda" if package(r"mlx-cuda.*")[0] else "cpu",
    has=["cpu", "mlx"] if has_metal else ["cpu"],
    tries={"cpu": lambda: [lambda: compute(mx.cpu)], "mlx": metal},
)
