"""Which settings make a job fit its GPUs: those that do are found by trying them on the estimate."""

import math
from collections.abc import Callable, Iterator
from typing import Any, Final

from longshore.api.spec import RLJobSpec
from longshore.api.training import DEFAULT_MICRO_BATCH_TOKENS, TrainerBackend

Fits = Callable[[RLJobSpec], bool]
"""Whether the estimate of a job stays below what its GPUs have."""

_MAX_NAMED: Final = 2
_MAX_UTILIZATION: Final = 0.95
"""Share of a GPU that an engine can be given in practice."""


def engine_remedy(spec: RLJobSpec, need_bytes: float, gpu_bytes: float, fits: Fits) -> str:
    """Return what to do about an engine that needs more than its share of a GPU."""
    engine, found = spec.rollout.engine, []
    if need_bytes <= _MAX_UTILIZATION * gpu_bytes:
        found.append(f"raise it to {math.ceil(100 * need_bytes / gpu_bytes) / 100:g}")
    for size in _divisors(spec.workers.gpus_per_pod, engine.tensor_parallel_size):
        changed = engine.model_copy(update={"tensor_parallel_size": size})
        if fits(spec.model_copy(update={"rollout": spec.rollout.model_copy(update={"engine": changed})})):
            found.append(f"set tensorParallelSize to {size}")
            break
    found.append("lower kvCache" if engine.kv_cache is not None else "lower model.maxContextTokens")
    return ", or ".join(found[:_MAX_NAMED])


def trainer_remedy(spec: RLJobSpec, fits: Fits) -> str:
    """Return what to do about a trainer that does not fit."""
    found = (text for text, changed in _trainers(spec) if fits(changed))
    named = [text for _, text in zip(range(_MAX_NAMED), found, strict=False)]
    nothing = "no size of a trainer in one pod fits: lower model.maxContextTokens, or give pods more or larger GPUs"
    return ", or ".join(named) or nothing


def _trainers(spec: RLJobSpec) -> Iterator[tuple[str, RLJobSpec]]:
    """Yield changes in the order in which they cost speed."""
    trainer, num_gpus, context = spec.trainer, spec.training_pods.gpus_per_pod, spec.model.max_context_tokens

    def changed(**values: Any) -> RLJobSpec:
        return spec.model_copy(update={"trainer": trainer.model_copy(update=values)})

    tokens = trainer.max_tokens_per_micro_batch or DEFAULT_MICRO_BATCH_TOKENS
    fewer_tokens = {"max_tokens_per_micro_batch": context} if tokens > context else {}
    of_tokens = f"lower maxTokensPerMicroBatch to {context}"
    is_megatron = trainer.backend is TrainerBackend.MEGATRON
    name, field, size_now = (
        ("tensor_parallel_size", "tensorParallelSize", trainer.tensor_parallel_size)
        if is_megatron
        else ("fsdp_size", "fsdpSize", trainer.fsdp_size)
    )
    if fewer_tokens:
        yield of_tokens, changed(**fewer_tokens)
    if spec.algorithm.has_reference and not trainer.offload_reference and trainer.lora is None:
        yield "set offloadReference to true", changed(offload_reference=True)
    for size in _divisors(num_gpus, size_now):
        yield f"set {field} to {size}", changed(**{name: size})
    if fewer_tokens:
        for size in _divisors(num_gpus, size_now):
            yield f"set {field} to {size} and {of_tokens}", changed(**{name: size}, **fewer_tokens)
    if not is_megatron and trainer.lora is None:
        for size in _divisors(num_gpus, 1):
            megatron = {"backend": TrainerBackend.MEGATRON, "fsdp_size": 1, "tensor_parallel_size": size}
            yield f"set backend to Megatron and tensorParallelSize to {size}", changed(**megatron, **fewer_tokens)


def _divisors(number: int, above: int) -> Iterator[int]:
    return (size for size in range(above + 1, number + 1) if number % size == 0)
