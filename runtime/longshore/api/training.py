"""What turns scored responses into better weights: trainer and checkpoints."""

from collections.abc import Callable
from enum import StrEnum
from typing import Final

from pydantic import Field

from longshore.api.base import ApiModel
from longshore.api.rules import Rule

DEFAULT_MICRO_BATCH_TOKENS: Final = 16_384
"""Padded tokens of a micro-batch where the memory of the pod does not ask for fewer."""


class TrainerBackend(StrEnum):
    """Training library."""

    TORCH = "Torch"
    MEGATRON = "Megatron"
    FAKE = "Fake"


def _needs(backend: TrainerBackend, field: str, size: "Callable[[TrainerSettings], int]") -> "Rule[TrainerSettings]":
    return Rule(
        field,
        f"self.backend == '{backend}' || self.{field} == 1",
        lambda trainer: trainer.backend is backend or size(trainer) == 1,
        f"{field} above 1 needs backend {backend}: choose it, or set {field} to 1",
    )


_RULES: "tuple[Rule[TrainerSettings], ...]" = (
    _needs(TrainerBackend.MEGATRON, "tensorParallelSize", lambda trainer: trainer.tensor_parallel_size),
    _needs(TrainerBackend.MEGATRON, "pipelineParallelSize", lambda trainer: trainer.pipeline_parallel_size),
    _needs(TrainerBackend.MEGATRON, "contextParallelSize", lambda trainer: trainer.context_parallel_size),
    _needs(TrainerBackend.TORCH, "fsdpSize", lambda trainer: trainer.fsdp_size),
)


class TrainerSettings(ApiModel, rules=_RULES):
    """The trainer: data-parallel replicas on the GPUs of the workers."""

    backend: TrainerBackend = TrainerBackend.TORCH
    """Torch: any Hugging Face causal language model, whole on every GPU or sharded over several. Megatron: Llama, Qwen2
    and Qwen3 on Megatron-core, split over the GPUs of a replica. Fake: deterministic arithmetic without a model, for
    tests of the other parts."""
    fsdp_size: int = Field(default=1, ge=1, le=16)
    """Torch: GPUs of one pod (processes in pods without GPUs) over which a replica's weights, gradients and optimizer
    state are sharded; 1: whole on every GPU."""
    tensor_parallel_size: int = Field(default=1, ge=1, le=16)
    """Megatron: GPUs over which every layer is split. The product of the three sizes is the number of GPUs of a replica
    (processes in pods without GPUs), which must fit inside one pod."""
    pipeline_parallel_size: int = Field(default=1, ge=1, le=16)
    """Megatron: stages of consecutive layers, each on separate GPUs."""
    context_parallel_size: int = Field(default=1, ge=1, le=16)
    """Megatron: GPUs over which the tokens of every response are spread."""
    data_parallel_size: int | None = Field(default=None, ge=1, le=65_536)
    """Replicas; unset: as many as the GPUs of the workers hold (one per pod where pods have none)."""
    max_tokens_per_micro_batch: int | None = Field(default=None, ge=1, le=100_000_000)
    """Padded tokens of one forward and backward pass; a longer response is taken alone. Unset: 16,384, and fewer where
    trainers compute on the CPU and the memory of their pod holds no more."""
    offload_gradients: bool = False
    """Keep gradients in the host's memory while they wait for the end of the round."""
    offload_reference: bool = False
    """With a KL penalty: keep the initial weights in the host's memory, and let them replace the trained ones on the
    GPU while they compute."""
    verify_every: int | None = Field(default=None, ge=1, le=1_000_000)
    """Steps from one check to the next, in which the accumulated gradients are compared with those of one pass over the
    whole batch. A check costs a second forward and backward pass; unset: never."""
    verify_tolerance: float | None = Field(default=None, gt=0, le=1)
    """Largest relative difference of a parameter's gradient that counts as rounding; above it, the job fails. Unset:
    0.02 on GPUs, where layers compute in bfloat16 (which reaches 0.01), and 0.0001 elsewhere (fp32 reaches 0.00001)."""

    @property
    def ranks_per_replica(self) -> int:
        """Processes that together hold one copy of the model, each with its own GPU in pods that have GPUs."""
        return self.fsdp_size * self.megatron_ranks

    @property
    def megatron_ranks(self) -> int:
        """Processes over which Megatron splits one copy of the model."""
        return self.tensor_parallel_size * self.pipeline_parallel_size * self.context_parallel_size


class CheckpointSettings(ApiModel):
    """When checkpoints are written. Each one is a directory in the storage of the job, published atomically."""

    every_steps: int = Field(default=10, ge=1, le=1_000_000)
    """Most steps from one checkpoint to the next; the last step always writes one."""
    every_seconds: int = Field(default=600, ge=1, le=31_536_000)
    """Seconds after which the end of a step writes a checkpoint, although fewer steps were done since the last one."""
    keep: int = Field(default=2, ge=1, le=1_000)
    """Newest checkpoints that are kept."""
