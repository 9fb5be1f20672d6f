"""The type in which a trainer's layers compute, and how fast a processor is in each."""

import time
from typing import Final

import torch

from longshore.api.training import TrainerDtype
from longshore_runtime.backends.trainer_protocol import TrainerOptions

_TOKENS: Final = 256
_REPETITIONS: Final = 3


def compute_dtype(options: TrainerOptions, device: torch.device) -> torch.dtype:
    """Return the type in which layers compute: the job's choice, or bfloat16 on GPUs and float32 elsewhere."""
    if options.dtype is not None:
        return torch.float32 if options.dtype is TrainerDtype.FLOAT32 else torch.bfloat16
    return torch.bfloat16 if device.type == "cuda" else torch.float32


def bfloat16_speedup(hidden_size: int, intermediate_size: int) -> float:
    """Return how many times as fast as in float32 this processor multiplies the matrices of an MLP in bfloat16.

    Processors with units for it are 2 to 4 times as fast; others convert every value, and take 5 to 20 times as long.
    Flags of the processor do not tell: hypervisors hide them, and libraries use some of them only.
    """
    samples = torch.randn(_TOKENS, hidden_size), torch.randn(intermediate_size, hidden_size)
    narrow = tuple(sample.to(torch.bfloat16) for sample in samples)
    best = {torch.float32: float("inf"), torch.bfloat16: float("inf")}
    for repetition in range(_REPETITIONS + 1):
        for tensors in (samples, narrow):
            started_s = time.process_time()
            torch.nn.functional.linear(*tensors)
            if repetition:  # The first product of a shape also prepares its kernel.
                dtype = tensors[0].dtype
                best[dtype] = min(best[dtype], time.process_time() - started_s)
    return best[torch.float32] / max(best[torch.bfloat16], 1e-9)
