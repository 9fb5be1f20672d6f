"""Arguments of vLLM's engine: those that follow from the job, and those that a job may add (`extraArgs`)."""

import dataclasses
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

from vllm import EngineArgs

from longshore.api.quantity import parse_bytes
from longshore_runtime.backends.engine_spec import EngineSpec, EngineStartError
from longshore_runtime.backends.vllm_loading import RANK_EXTENSION

DEFAULT_CPU_KV_CACHE_BYTES: Final = 64 << 20
CPU_BLOCK_TOKENS: Final = 32
"""vLLM's attention kernels for the CPU want a multiple of 32; smaller blocks waste less on short responses."""


def _refused(names: str, why: str) -> dict[str, str]:
    return dict.fromkeys(names.split(), why)


_REFUSED: Final = (
    _refused(
        "model model_weights hf_config_path tokenizer dtype max_model_len max_num_seqs tensor_parallel_size seed "
        "enforce_eager logprobs_mode disable_log_stats async_scheduling enable_sleep_mode kv_cache_memory_bytes "
        "gpu_memory_utilization worker_extension_cls",
        "{name} follows from other fields",
    )
    | _refused(
        "pipeline_parallel_size data_parallel_size data_parallel_size_local data_parallel_backend "
        "distributed_executor_backend nnodes node_rank master_addr master_port worker_cls device_ids",
        "{name} would give an engine other GPUs than those of its tensorParallelSize",
    )
    | _refused(
        "quantization quantization_config cpu_offload_gb cpu_offload_params offload_backend offload_group_size "
        "offload_params",
        "with {name} engines could not take the trainer's weights",
    )
    | _refused(
        "generation_config override_generation_config",
        "{name} has no effect, because every request says how it is sampled (algorithm.temperature)",
    )
    | _refused(
        "otlp_traces_endpoint collect_detailed_traces",
        "{name} has no effect; spans of steps are sent with tracking.openTelemetry",
    )
)
"""Why an argument is refused, by its name."""
_REFUSED_ON_CPUS: Final = (
    # vLLM 0.32 with n-grams: tokens of probability e^-12, and log-probabilities that are not numbers.
    _refused("speculative_config spec_method spec_model spec_tokens", "with {name} vLLM samples wrong tokens on CPUs")
    # A chunk of a prompt samples a useless token, and vLLM takes the random number back, which torch's generators for
    # the CPU cannot do.
    | _refused("enable_chunked_prefill", "with {name} vLLM's engine would die on CPUs")
)


def engine_arguments(model: Path, spec: EngineSpec) -> dict[str, Any]:
    """Return the arguments of vLLM's engine; raises EngineStartError for extra arguments that it cannot have."""
    options = spec.options
    _require_possible(options.extra_args, on_cpu=not spec.accelerator)
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
    if options.kv_cache is not None:
        # The field is for the whole engine, vLLM's argument for each of its GPUs.
        arguments["kv_cache_memory_bytes"] = parse_bytes(options.kv_cache) // options.tensor_parallel_size
    arguments |= _accelerator_arguments(spec) if spec.accelerator else _cpu_arguments(spec)
    return arguments | options.extra_args


def _require_possible(names: Iterable[str], *, on_cpu: bool) -> None:
    known = {field.name for field in dataclasses.fields(EngineArgs)}
    for name in names:
        fix = "remove it"
        why = _REFUSED.get(name)
        if why is None and on_cpu and name in _REFUSED_ON_CPUS:
            why, fix = _REFUSED_ON_CPUS[name], "remove it, or use GPUs"
        if why is None and name not in known:
            why = "vLLM has no engine argument {name!r}"
        if why is not None:
            raise EngineStartError(f"rollout.engine.extraArgs: {why.format(name=name)}; {fix}")


def _accelerator_arguments(spec: EngineSpec) -> dict[str, Any]:
    return {
        "gpu_memory_utilization": spec.options.gpu_memory_utilization,
        "enable_sleep_mode": spec.options.sleep_level > 0,
        # Neither an abort nor new weights may meet a step that is already under way.
        "async_scheduling": False,
    }


def _cpu_arguments(spec: EngineSpec) -> dict[str, Any]:
    """Return arguments for the CPU; vLLM's defaults (half of the memory, bfloat16) assume a machine of its own."""
    arguments: dict[str, Any] = {
        "block_size": CPU_BLOCK_TOKENS,
        # Prompts wait for a step that has room for them (`_REFUSED_ON_CPUS`).
        "enable_chunked_prefill": False,
    }
    if spec.options.kv_cache is None:
        arguments["kv_cache_memory_bytes"] = DEFAULT_CPU_KV_CACHE_BYTES
    if spec.options.dtype == "auto":
        arguments["dtype"] = "float32"
    return arguments
