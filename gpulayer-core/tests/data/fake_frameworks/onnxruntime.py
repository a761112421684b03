from fakes import FAKE, on_device, say

__version__ = "1.21.0"


def get_available_providers():
    return [*(["CUDAExecutionProvider"] if FAKE.get("cuda") else []), "CPUExecutionProvider"]


class SessionOptions:
    def add_session_config_entry(self, name, value):
        pass


class InferenceSession:
    def __init__(self, model, options, providers):
        assert b"MatMul" in model
        ((self._provider, self._options),) = providers
        if self._provider != "CPUExecutionProvider" and "said" in FAKE:
            say(FAKE["said"])
            self._provider = "CPUExecutionProvider"  # all by itself

    def get_providers(self):
        return [self._provider]

    def run(self, names, inputs):
        matrix = inputs["a"]
        if self._provider != "CPUExecutionProvider":
            matrix = on_device(matrix.rows, int(self._options["device_id"]))
        return [matrix @ matrix]
