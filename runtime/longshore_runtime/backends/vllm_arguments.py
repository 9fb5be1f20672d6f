"""Arguments of vLLM's engine: those that follow from the job, and those that a job may add (`extraArgs`)."""

import dataclasses
import json
from itertools import chain
from pathlib import Path
from typing import Any, Final

from vllm import EngineArgs
from vllm.platforms import current_platform
from vllm.utils.flashinfer import has_flashinfer

from longshore.api.quantity import parse_bytes
from longshore.api.rollout import Quantization
from longshore.checks.engine_arguments import argument_mistakes, unknown_arguments
from longshore.checks.memory import ModelSize
from longshore.checks.pod_memory import CPU_BLOCK_TOKENS, CPU_KV_CACHE_BYTES, cpu_kv_cache_bytes
from longshore_runtime.backends.engine_spec import EngineSpec, EngineStartError
from longshore_runtime.backends.vllm_loading import RANK_EXTENSION
from longshore_runtime.backends.vllm_lora import lora_arguments

_QUANTIZATIONS: Final = {Quantization.FP8: "fp8_per_channel"}
"""Names of vLLM: layers quantise the weights that are loaded into them."""
_BLACKWELL: Final = 10
"""Major compute capability of B200 and GB200."""


def engine_arguments(model: Path, spec: EngineSpec) -> dict[str, Any]:
    """Return the arguments of vLLM's engine; raises EngineStartError for extra arguments that it cannot have."""
    options = spec.options
    _require_possible(spec)
    arguments: dict[str, Any] = {
        "model": str(model),
        "dtype": options.dtype.value,
        "max_model_len": spec.max_context_tokens,
        "max_num_seqs": options.max_num_seqs,
        "tensor_parallel_size": options.tensor_parallel_size,
        "enforce_eager": options.enforce_eager,
        "seed": spec.seed,
        "logprobs_mode": "processed_logprobs",
        "disable_log_stats": False,
        "worker_extension_cls": RANK_EXTENSION,
    }
    if (part := spec.part).num_pods > 1:
        arguments |= {"nnodes": part.num_pods, "node_rank": part.rank, "master_addr": part.host}
        arguments |= {"master_port": part.port, "distributed_executor_backend": "mp"}
    if options.kv_cache is not None:
        # The field is for the whole engine, vLLM's argument for each of its GPUs.
        arguments["kv_cache_memory_bytes"] = parse_bytes(options.kv_cache) // options.tensor_parallel_size
    if spec.returns_experts:
        arguments["enable_return_routed_experts"] = True
    if spec.lora is not None:
        arguments |= lora_arguments(spec.lora, model)
    arguments |= _accelerator_arguments(spec) if spec.accelerator else _cpu_arguments(model, spec)
    return arguments | options.extra_args


def _require_possible(spec: EngineSpec) -> None:
    known = [field.name for field in dataclasses.fields(EngineArgs)]
    refused = argument_mistakes(spec.options, has_accelerator=spec.accelerator)
    for mistake in chain(refused, unknown_arguments(spec.options, known)):
        raise EngineStartError(mistake)


def _accelerator_arguments(spec: EngineSpec) -> dict[str, Any]:
    return {
        "gpu_memory_utilization": spec.options.gpu_memory_utilization,
        "enable_sleep_mode": spec.options.sleep_level > 0,
        "quantization": None if spec.options.quantization is None else _QUANTIZATIONS[spec.options.quantization],
        **_attention(),
    }


def _attention() -> dict[str, Any]:
    """Choose attention where vLLM's own choice could not run.

    On Blackwell it takes FlashInfer, also where that would compile its kernels and there is no compiler.
    """
    capability = current_platform.get_device_capability()
    if capability is None or capability.major != _BLACKWELL or has_flashinfer():
        return {}
    return {"attention_backend": "FLASH_ATTN"}


def _cpu_arguments(model: Path, spec: EngineSpec) -> dict[str, Any]:
    """Return arguments for the CPU; vLLM's defaults (half of the memory, bfloat16) assume a machine of its own."""
    arguments: dict[str, Any] = {
        "block_size": CPU_BLOCK_TOKENS,
        # Prompts wait for a step that has room for them; the engine would die (`checks.engine_arguments`).
        "enable_chunked_prefill": False,
    }
    if spec.options.kv_cache is None:
        size = ModelSize.of(json.loads((model / "config.json").read_bytes()), num_parameters=0)
        arguments["kv_cache_memory_bytes"] = (
            CPU_KV_CACHE_BYTES
            if size is None
            else cpu_kv_cache_bytes(size, spec.max_context_tokens, spec.options.dtype)
        )
    if spec.options.dtype == "auto":
        arguments["dtype"] = "float32"
    return arguments
