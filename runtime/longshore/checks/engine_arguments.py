"""Arguments that a job may not give to vLLM's engine (`rollout.engine.extraArgs`), each with the reason."""

import ast
import importlib.util
import re
from collections.abc import Collection, Iterator, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Final

from longshore.api.rollout import EngineBackend, EngineSettings


def _refused(names: str, why: str) -> dict[str, str]:
    return dict.fromkeys(names.split(), why)


_REFUSED: Final = (
    _refused(
        "model model_weights hf_config_path tokenizer dtype max_model_len max_num_seqs tensor_parallel_size seed "
        "enforce_eager logprobs_mode disable_log_stats enable_sleep_mode kv_cache_memory_bytes quantization "
        "gpu_memory_utilization worker_extension_cls enable_lora max_loras max_cpu_loras max_lora_rank "
        "lora_target_modules enable_return_routed_experts aux_output_config",
        "{name} follows from other fields",
    )
    | _refused(
        "pipeline_parallel_size data_parallel_size data_parallel_size_local data_parallel_backend "
        "distributed_executor_backend nnodes node_rank master_addr master_port worker_cls device_ids",
        "{name} would give an engine other GPUs than those of its tensorParallelSize",
    )
    | _refused(
        "quantization_config cpu_offload_gb cpu_offload_params offload_backend offload_group_size offload_params",
        "with {name} engines could not take the trainer's weights",
    )
    | _refused(
        "hf_overrides",
        "{name} changes the model of engines but not of trainers; change the model's config.json, which both read",
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
"""Why an argument is refused, by its name. With `pipeline_parallel_size`, vLLM 0.32 waits without end on CPUs."""
_REFUSED_ON_CPUS: Final = (
    # vLLM 0.32 with n-grams: tokens of probability e^-12, and log-probabilities that are not numbers.
    _refused("speculative_config spec_method spec_model spec_tokens", "with {name} vLLM samples wrong tokens on CPUs")
    # A chunk of a prompt samples a useless token, and vLLM takes the random number back, which torch's generators for
    # the CPU cannot do.
    | _refused("enable_chunked_prefill", "with {name} vLLM's engine would die on CPUs")
)

_WITHOUT_DRAFT_MODEL: Final = ("ngram", "ngram_gpu", "suffix")
"""Ways to speculate that have no weights."""


def refusal(name: str, *, has_accelerator: bool) -> str | None:
    """Return why an engine of vLLM cannot have this argument from a job; None: nothing is known against it."""
    why = _REFUSED.get(name) or (None if has_accelerator else _REFUSED_ON_CPUS.get(name))
    return None if why is None else why.format(name=name)


def argument_mistakes(engine: EngineSettings, *, has_accelerator: bool) -> Iterator[str]:
    """Yield a sentence for each extra argument that is refused.

    vLLM accepts others; `unknown_arguments` finds those that it does not know.
    """
    if engine.backend is not EngineBackend.VLLM:
        return
    for name in engine.extra_args:
        if (why := refusal(name, has_accelerator=has_accelerator)) is not None:
            fix = "remove it, or use GPUs" if name in _REFUSED_ON_CPUS else "remove it"
            yield f"rollout.engine.extraArgs: {why}; {fix}"
    if has_accelerator and engine.sleep_level == 2 and _has_draft_model(engine.extra_args):
        yield "rollout.engine.sleepLevel: at level 2 the draft model would lose its weights; set it to 1"


def _has_draft_model(arguments: Mapping[str, object]) -> bool:
    config = arguments.get("speculative_config")
    config = config if isinstance(config, Mapping) else {}
    speculates = bool(config) or any(name.startswith("spec_") for name in arguments)
    names = (config.get("method"), arguments.get("spec_method"), config.get("model"), arguments.get("spec_model"))
    method = next((str(name) for name in names if name), "")  # vLLM takes the model's name for that of the method.
    return speculates and method.strip("[]") not in _WITHOUT_DRAFT_MODEL


def unknown_arguments(engine: EngineSettings, known: Collection[str]) -> Iterator[str]:
    """Yield a sentence for each extra argument that vLLM does not have; `known`: the names of those it has."""
    if engine.backend is not EngineBackend.VLLM:
        return
    for name in engine.extra_args:
        if name not in known:
            near = get_close_matches(_as_in_python(name), known, 1)
            fix = f"did you mean {near[0]}?" if near else "remove it"
            yield f"rollout.engine.extraArgs: vLLM has no argument {name}; {fix}"


def _as_in_python(name: str) -> str:
    """Return `--max-model-len` and `maxModelLen` as max_model_len."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name.strip("-")).replace("-", "_").lower()


def installed_arguments() -> frozenset[str] | None:
    """Return the names that vLLM has here, from its source: importing it takes seconds. None: it is not installed."""
    vllm = importlib.util.find_spec("vllm")
    for place in (vllm.submodule_search_locations or ()) if vllm is not None else ():
        source = Path(place, "engine", "arg_utils.py")
        if source.is_file():
            return frozenset(_fields_of(ast.parse(source.read_text(encoding="utf-8")), "EngineArgs")) or None
    return None


def _fields_of(module: ast.Module, name: str) -> Iterator[str]:
    for node in module.body:
        if isinstance(node, ast.ClassDef) and node.name == name:
            for line in node.body:
                if isinstance(line, ast.AnnAssign) and isinstance(line.target, ast.Name):
                    yield line.target.id
