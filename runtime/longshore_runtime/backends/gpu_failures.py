"""Recognise errors of torch, vLLM and CUDA that mean a failed GPU or driver, which a retry or another GPU mends.

Other failures of CUDA, such as an illegal memory access, would come again with the same work.
"""

from typing import Final

_FIRST_CALL: Final = ("cudaGetDeviceCount", "CUDA call failed lazily")
"""Texts of torch's first call to CUDA, which asks for the devices; they appear whatever the reason is."""
_NO_GPU: Final = (
    "No CUDA GPUs are available",
    "no CUDA-capable device",
    "no NVIDIA driver",
    "CUDA driver initialization failed",
    "CUDA unknown error",
    "NVML Shared Library Not Found",
    "GPU is lost",
)
_CUDA: Final = ("CUDA error", "CUDA driver error", "cuDNN error", "NCCL error", "Cuda failure")
_HARDWARE: Final = ("ECC error", "busy or unavailable", "not yet initialized", "initialization error", "NVLink")
_OLD_DRIVER: Final = "driver on your system is too old"
_MEMORY: Final = ("CUDA out of memory", "CUDA error: out of memory", "ALLOC_FAILED", "NVML_SUCCESS == r")
"""Texts of errors for a lack of GPU memory.

Torch writes the last one where it may not ask how much memory there is, as it does to explain that it ran out.
"""


def is_broken_gpu(text: str) -> bool:
    """Return whether the GPU or its driver is to blame, and not what runs on it."""
    if is_old_driver(text) or is_lack_of_memory(text):
        return False
    of_cuda = any(sign in text for sign in _CUDA) and any(sign in text for sign in _HARDWARE)
    return of_cuda or any(sign in text for sign in (*_FIRST_CALL, *_NO_GPU))


def is_old_driver(text: str) -> bool:
    """Return whether the node's driver is older than what the image was built for."""
    return _OLD_DRIVER in text


def is_lack_of_memory(text: str) -> bool:
    """Return whether GPU memory did not suffice."""
    return any(sign in text for sign in _MEMORY)
