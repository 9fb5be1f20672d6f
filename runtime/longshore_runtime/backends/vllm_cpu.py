"""The engine on the CPU, with what vLLM does at the start of each engine and rank done when this module is imported.

Forks of a process that has imported it have it done: half a second of CPU time for each of them.
"""

import torch
import vllm.model_executor.layers.quantization.online.base
import vllm.renderers.hf
import vllm.v1.attention.backends.cpu_attn
import vllm.v1.core.sched.scheduler
import vllm.v1.sample.sampler
import vllm.v1.worker.cpu_worker
from vllm.platforms import current_platform

import longshore_runtime.backends.vllm_engine  # noqa: F401


def _override_kernels() -> None:
    """Put vLLM's kernels for the CPU in place of those of Triton; vLLM looks for these in all modules, each time."""
    current_platform.register_triton_kernel_overrides()
    type(current_platform).register_triton_kernel_overrides = classmethod(lambda cls: None)


def _no_ranks(log_probs: torch.Tensor, _values: torch.Tensor) -> torch.Tensor:
    """Stand in for the ranks of sampled tokens, which nobody reads: each is a pass over the vocabulary."""
    return torch.zeros(len(log_probs), dtype=torch.int64)


if current_platform.is_cpu():
    _override_kernels()
    vllm.v1.sample.sampler.batched_count_greater_than = _no_ranks
