from fakes import FAKE, Matrix, on_device, say

__version__ = "0.6.0"


def devices(platform):
    if "said" in FAKE and platform == "cpu":  # it looks for all kinds at once
        say(FAKE["said"])
    here = {"cpu": 1, FAKE.get("platform", ""): len(FAKE.get("devices", ()))}
    if not here.get(platform):
        raise RuntimeError(FAKE.get("failure") or f"Unknown backend {platform}. Available backends are ['cpu']")
    return [(platform, number) for number in range(here[platform])]


def device_put(matrix, device):
    platform, number = device
    return Matrix(matrix.rows, device) if platform == "cpu" else on_device(matrix.rows, number, device)
