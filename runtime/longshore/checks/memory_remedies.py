"""Which settings make a job fit its GPUs: those that do are found by trying them on the estimate."""

import math
from collections.abc import Callable, Iterator
from typing import Any, Final

from longshore.api.pods import Workers
from longshore.api.shapes import is_possible
from longshore.api.spec import RLJobSpec
from longshore.api.training import DEFAULT_MICRO_BATCH_TOKENS, TrainerBackend, TrainerSettings

Fits = Callable[[RLJobSpec], bool]
"""Whether the estimate of a job stays below what its GPUs have."""

_MAX_NAMED: Final = 2
_MAX_SIZE: Final = 64
"""Largest size of an engine or replica that is looked at."""
_MAX_UTILIZATION: Final = 0.95
"""Share of a GPU that an engine can be given in practice."""


def engine_remedy(spec: RLJobSpec, need_bytes: float, gpu_bytes: float, fits: Fits) -> str:
    """Return what to do about an engine that needs more than its share of a GPU."""
    engine, found = spec.rollout.engine, []
    if need_bytes <= _MAX_UTILIZATION * gpu_bytes:
        found.append(f"raise it to {math.ceil(100 * need_bytes / gpu_bytes) / 100:g}")
    for size in _sizes(spec.workers, engine.tensor_parallel_size):
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
    nothing = "no size of a trainer fits: lower model.maxContextTokens, or give the job more or larger GPUs"
    return ", or ".join(named) or nothing


def _trainers(spec: RLJobSpec) -> Iterator[tuple[str, RLJobSpec]]:
    """Yield changes in the order in which they cost speed."""
    trainer, pods, context = spec.trainer, spec.training_pods, spec.model.max_context_tokens

    def changed(**values: Any) -> RLJobSpec:
        return spec.model_copy(update={"trainer": trainer.model_copy(update=values)})

    tokens = trainer.max_tokens_per_micro_batch or DEFAULT_MICRO_BATCH_TOKENS
    fewer_tokens = {"max_tokens_per_micro_batch": context} if tokens > context else {}
    of_tokens = f"lower maxTokensPerMicroBatch to {context}"
    is_megatron = trainer.backend is TrainerBackend.MEGATRON
    changes = list(_more_stages(trainer, pods) if is_megatron else _more_shards(trainer, pods))
    if fewer_tokens:
        yield of_tokens, changed(**fewer_tokens)
    if spec.algorithm.has_reference and not trainer.offload_reference and trainer.lora is None:
        yield "set offloadReference to true", changed(offload_reference=True)
    for text, sizes in changes:
        yield text, changed(**sizes)
    if fewer_tokens:
        for text, sizes in changes:
            yield f"{text} and {of_tokens}", changed(**sizes, **fewer_tokens)
    if trainer.lora is not None and spec.algorithm.warm_start is not None:
        algorithm = spec.algorithm.model_copy(update={"warm_start": None})
        yield "remove algorithm.warmStart, which trains all weights", spec.model_copy(update={"algorithm": algorithm})
    if not is_megatron and trainer.lora is None:
        for size in _sizes(pods, 1, pods.gpus_per_pod):
            megatron = {"backend": TrainerBackend.MEGATRON, "fsdp_size": 1, "tensor_parallel_size": size}
            yield f"set backend to Megatron and tensorParallelSize to {size}", changed(**megatron, **fewer_tokens)


def _more_shards(trainer: TrainerSettings, pods: Workers) -> Iterator[tuple[str, dict[str, int]]]:
    for size in _sizes(pods, trainer.fsdp_size):
        yield f"set fsdpSize to {size}", {"fsdp_size": size}


def _more_stages(trainer: TrainerSettings, pods: Workers) -> Iterator[tuple[str, dict[str, int]]]:
    """Yield larger tensor-parallel sizes, which stay inside a pod, and then more stages of the pipeline."""
    rest = trainer.ranks_per_replica // trainer.tensor_parallel_size
    for size in _sizes(pods, trainer.tensor_parallel_size, pods.gpus_per_pod):
        if is_possible(pods.gpus_per_pod, pods.replicas, size * rest):
            yield f"set tensorParallelSize to {size}", {"tensor_parallel_size": size}
    rest = trainer.ranks_per_replica // trainer.pipeline_parallel_size
    for size in _sizes(pods, trainer.ranks_per_replica):
        if size % rest == 0:
            yield f"set pipelineParallelSize to {size // rest}", {"pipeline_parallel_size": size // rest}


def _sizes(pods: Workers, above: int, most: int | None = None) -> Iterator[int]:
    """Yield the sizes that fill the pods, above one and at most another, by default all GPUs."""
    gpus, num_pods = pods.gpus_per_pod, pods.replicas
    largest = min(gpus * num_pods, _MAX_SIZE) if most is None else most
    return (size for size in range(above + 1, largest + 1) if is_possible(gpus, num_pods, size))
