"""PyTorch on GPUlayer. Importing this, and the plugin in it, does not import torch: the job's Python has its own."""

from gpulayer_torch.launcher import TorchLauncher

__all__ = ["TorchLauncher"]
