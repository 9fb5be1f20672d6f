"""Start vLLM's engine: its arguments, its model class, and the reason if it does not start."""

import dataclasses
import gc
import importlib
import json
from pathlib import Path
from typing import Any, Final

from pydantic import ValidationError
from vllm import EngineArgs, SamplingParams
from vllm.model_executor.models import ModelRegistry
from vllm.platforms import current_platform
from vllm.v1.engine.llm_engine import LLMEngine
from vllm.v1.executor import Executor
from vllm.v1.metrics.loggers import StatLoggerBase

from longshore.api.quantity import parse_bytes
from longshore_runtime.backends.engine_spec import EngineSpec, EngineStartError
from longshore_runtime.backends.vllm_loading import RANK_EXTENSION, OnLoaded, loading_reported
from longshore_runtime.backends.vllm_outputs import OutputReader
from longshore_runtime.backends.vllm_processes import adapt_processes

DEFAULT_CPU_KV_CACHE_BYTES = 64 << 20
CPU_BLOCK_TOKENS = 32
"""vLLM's attention kernels for the CPU want a multiple of 32; smaller blocks waste less on short responses."""

_OWN_ARGUMENTS = frozenset(
    {
        "model", "tokenizer", "dtype", "max_model_len", "max_num_seqs", "tensor_parallel_size", "seed", "enforce_eager",
        "logprobs_mode", "disable_log_stats", "async_scheduling", "enable_sleep_mode", "kv_cache_memory_bytes",
        "gpu_memory_utilization",
    }
)  # fmt: skip
_OTHER_WEIGHTS = frozenset({"quantization", "quantization_config", "cpu_offload_gb"})
"""Arguments with which layers hold something else than the published weights, and cannot be replaced by them."""
_MAX_REASON_CHARACTERS: Final = 500


def start(model: Path, spec: EngineSpec, logger: StatLoggerBase, on_loaded: OnLoaded) -> LLMEngine:
    """Start an engine that reports its statistics to `logger`; raises EngineStartError with one sentence.

    Its `step` returns `SampledTokens`.
    """
    arguments = engine_arguments(model, spec)
    if spec.accelerator and current_platform.is_cpu():
        raise EngineStartError("worker.gpus: GPUs were assigned to the engine, but this vLLM is built for the CPU")
    try:
        modules = import_model_class(model)
        if not spec.accelerator:
            adapt_processes(modules)
        config = EngineArgs(**arguments).create_engine_config()
        gc.freeze()  # Garbage collections, of which vLLM makes several now, leave out what has been imported.
        with loading_reported(on_loaded, config.parallel_config.world_size):
            engine = LLMEngine(config, Executor.get_class(config), log_stats=True, stat_loggers=[logger])
        engine.output_processor = OutputReader()
        _sample_a_token(engine)
        return engine
    except (ValueError, TypeError, RuntimeError, OSError, AssertionError, NotImplementedError, ImportError) as error:
        raise EngineStartError(f"rollout.engine: vLLM does not start with these options: {reason(error)}") from error


def import_model_class(model: Path) -> list[str]:
    """Make vLLM inspect the model's class in this process, which needs it anyway; return the modules that define it.

    vLLM would start another process for that, which imports vLLM once more: seconds of every engine's start, as no pod
    has the cache of an earlier one.
    """
    modules = []
    for architecture in _architectures(model):
        registered = ModelRegistry.models.get(architecture)
        module_name, class_name = (getattr(registered, name, None) for name in ("module_name", "class_name"))
        if module_name is not None and class_name is not None:
            ModelRegistry.register_model(architecture, getattr(importlib.import_module(module_name), class_name))
            modules.append(module_name)
    return modules


def _architectures(model: Path) -> list[str]:
    try:
        config = json.loads((model / "config.json").read_text())
    except (OSError, ValueError):
        return []  # vLLM reads it next, and says what is wrong.
    return config.get("architectures") or []


def _sample_a_token(engine: LLMEngine) -> None:
    """Sample a token, so that kernels that do not support the model fail now and not in the first round."""
    sampling = SamplingParams(max_tokens=1, ignore_eos=True, detokenize=False)
    engine.add_request("trial", {"prompt_token_ids": [0]}, sampling)
    while engine.has_unfinished_requests():
        engine.step()
    engine.reset_prefix_cache()


def engine_arguments(model: Path, spec: EngineSpec) -> dict[str, Any]:
    """Return the arguments of vLLM's engine; raises EngineStartError for extra arguments that it does not know."""
    options = spec.options
    known = {field.name for field in dataclasses.fields(EngineArgs)}
    for name in options.extra_args:
        if name in _OWN_ARGUMENTS:
            raise EngineStartError(f"rollout.engine.extraArgs: {name} follows from other fields; remove it")
        if name in _OTHER_WEIGHTS:
            raise EngineStartError(
                f"rollout.engine.extraArgs: with {name} engines could not take the trainer's weights; remove it"
            )
        if name == "speculative_config" and not spec.accelerator:
            # vLLM 0.32 with n-grams: tokens of probability e^-12, and log-probabilities that are not numbers.
            raise EngineStartError(
                f"rollout.engine.extraArgs: with {name} vLLM samples wrong tokens on CPUs; remove it, or use GPUs"
            )
        if name not in known:
            raise EngineStartError(f"rollout.engine.extraArgs: vLLM has no engine argument {name!r}; remove it")
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
        # A chunk of a prompt samples a useless token, and vLLM takes the random number back, which torch's generators
        # for the CPU cannot do: the engine would die. Prompts wait for a step that has room for them.
        "enable_chunked_prefill": False,
    }
    if spec.options.kv_cache is None:
        arguments["kv_cache_memory_bytes"] = DEFAULT_CPU_KV_CACHE_BYTES
    if spec.options.dtype == "auto":
        arguments["dtype"] = "float32"
    return arguments


def reason(error: Exception) -> str:
    """Return the first line of an error; for pydantic, without the number of errors and the class name."""
    if isinstance(error, ValidationError):
        reasons = [str(one["msg"]).removeprefix("Value error, ") for one in error.errors(include_url=False)]
        text = "; ".join(reasons)
    else:
        text = str(error).strip()
    return (text.splitlines() or [type(error).__name__])[0][:_MAX_REASON_CHARACTERS].rstrip(". ")
