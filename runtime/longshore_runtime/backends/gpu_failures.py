"""What torch, vLLM and CUDA say when a GPU or its driver fails, which a retry or another GPU mends."""

from typing import Final

_CUDA: Final = ("CUDA error", "CUDA driver", "cuDNN error", "NCCL error")
_NO_GPU: Final = (
    "No CUDA GPUs are available",
    "no CUDA-capable device",
    "no NVIDIA driver",
    "CUDA unknown error",
    "NVML",
)
_HARDWARE: Final = (
    "ECC error",
    "unspecified launch failure",
    "busy or unavailable",
    "not yet initialized",
    "initialization error",
    "unknown error",
    "hardware",
    "NVLink",
)
_MEMORY: Final = ("out of memory", "ALLOC_FAILED")


def is_cuda_failure(text: str) -> bool:
    """Return whether CUDA failed; its context is of no use any more. Lack of memory is no such failure."""
    return any(sign in text for sign in (*_CUDA, *_NO_GPU)) and not is_lack_of_memory(text)


def is_lack_of_memory(text: str) -> bool:
    """Return whether GPU memory did not suffice."""
    return any(sign in text for sign in _MEMORY)


def is_broken_gpu(text: str) -> bool:
    """Return whether the GPU or its driver is to blame for a failure of CUDA, and not what runs on it."""
    return is_cuda_failure(text) and any(sign in text for sign in (*_NO_GPU, *_HARDWARE))
