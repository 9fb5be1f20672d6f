"""Environment variables that vLLM, torch and OpenMP read when they are imported."""

import os
import shutil
from typing import Final

_FLASHINFER: Final = "VLLM_ALLREDUCE_USE_FLASHINFER"

_TORCH_WITH_GPUS: Final = {
    # vLLM sets both when it is imported, which is too late in forks of a process that has imported torch. It would load
    # the driver, and no fork could use a GPU, if an import asked CUDA for devices and not NVML; and forks would start
    # processes that compile.
    "PYTORCH_NVML_BASED_CUDA_CHECK": "1",
    "TORCHINDUCTOR_COMPILE_THREADS": "1",
}

VLLM_ENVIRONMENT = {
    # The engine runs in the process of its actor: an abort takes effect at the next step, and nothing is serialised.
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_LOGGING_LEVEL": "ERROR",
    "TOKENIZERS_PARALLELISM": "false",
}


def has_compiler() -> bool:
    """Return whether there is a C++ compiler, with which vLLM compiles what runs on processors."""
    return shutil.which(os.environ.get("CXX", "g++")) is not None


def vllm_environment(*, accelerator: bool, enforce_eager: bool) -> dict[str, str]:
    """Return the variables to set before vLLM is imported."""
    if accelerator:
        # FlashInfer, vLLM's first choice for tensor parallelism on Hopper and Blackwell, compiles its kernels when an
        # engine starts, with nvcc, which images lack. A pod that has it may say otherwise.
        return {**VLLM_ENVIRONMENT, **_TORCH_WITH_GPUS, _FLASHINFER: os.environ.get(_FLASHINFER, "0")}
    # Several engines share the cores of a CPU node: bound to cores, all would choose the same ones.
    cpu = {"OMP_NUM_THREADS": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind"}
    # Some of vLLM's functions are decorated for compilation even when the model runs eagerly.
    eager = {"TORCHDYNAMO_DISABLE": "1"} if enforce_eager else {}
    return {**VLLM_ENVIRONMENT, **cpu, **eager}
