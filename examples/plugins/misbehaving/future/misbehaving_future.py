"""Not wrong, but of another time: it says that it needs an API which this GPUlayer does not have."""

GPULAYER_API = "9.0"
