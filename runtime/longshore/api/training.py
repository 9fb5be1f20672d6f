"""What turns scored responses into better weights: trainer and checkpoints."""

from enum import StrEnum
from typing import Final

from pydantic import Field

from longshore.api.base import ApiModel
from longshore.api.rules import Rule

DEFAULT_MICRO_BATCH_TOKENS: Final = 16_384
"""Tokens of a micro-batch where the memory of the pod does not ask for fewer."""


class Recompute(StrEnum):
    """What a trainer computes a second time for the gradient, instead of keeping it; what comes first is fastest."""

    NONE = "None"
    SELECTIVE = "Selective"
    FULL = "Full"


class TrainerBackend(StrEnum):
    """Training library."""

    TORCH = "Torch"
    MEGATRON = "Megatron"
    FAKE = "Fake"


_RULES: Final = (
    Rule(
        "backend",
        "self.backend == 'Megatron' || "
        "self.tensorParallelSize * self.pipelineParallelSize * self.contextParallelSize == 1",
        "backend must be Megatron with tensorParallelSize, pipelineParallelSize or contextParallelSize above 1: choose "
        "it, or set them to 1",
    ),
    Rule(
        "fsdpSize",
        "self.backend == 'Torch' || self.fsdpSize == 1",
        "fsdpSize above 1 needs backend Torch: choose it, or set fsdpSize to 1",
    ),
)


class TrainerSettings(ApiModel, rules=_RULES):
    """Training library, how it splits the model over GPUs, and how much it computes at once."""

    backend: TrainerBackend = TrainerBackend.TORCH
    """Training library. Torch: PyTorch with any Hugging Face causal language model, whole on every GPU or sharded over
    several. Megatron: Megatron-core with Llama, Qwen2 and Qwen3, split over the GPUs of a replica. Fake: deterministic
    arithmetic without a model, for tests of the other parts."""
    fsdp_size: int = Field(default=1, ge=1, le=16)
    """Number of GPUs of one pod over which the weights, gradients and optimizer state of a replica are sharded, with
    backend Torch; in pods without GPUs, the number of processes. 1: every GPU holds the whole model."""
    tensor_parallel_size: int = Field(default=1, ge=1, le=16)
    """Number of GPUs over which every layer is split, with backend Megatron. The product of tensorParallelSize,
    pipelineParallelSize and contextParallelSize is the number of GPUs of a replica (of processes in pods without GPUs),
    which must fit inside one pod."""
    pipeline_parallel_size: int = Field(default=1, ge=1, le=16)
    """Number of stages of consecutive layers, each on separate GPUs, with backend Megatron."""
    context_parallel_size: int = Field(default=1, ge=1, le=16)
    """Number of GPUs over which the tokens of every response are spread, with backend Megatron."""
    data_parallel_size: int | None = Field(default=None, ge=1, le=65_536)
    """Number of trainer replicas. Unset: as many as fit the GPUs of the pods that train, or one for each pod without
    GPUs."""
    max_tokens_per_micro_batch: int | None = Field(default=None, ge=1, le=100_000_000)
    """Largest number of tokens of one forward and backward pass, padding included where there is any. A longer response
    is computed alone. Unset: 16,384, and fewer where trainers compute on the CPU and the memory of their pod holds no
    more."""
    recompute: Recompute | None = None
    """What is computed a second time for the gradient, which saves memory. None: nothing. Selective: all but matrix
    products and attention; with backend Megatron, the MLPs. Full: every layer, from its input; it takes up to a third
    more time. Unset: the first of these
    for which the estimated memory suffices."""
    offload_gradients: bool = False
    """Whether gradients are kept in the memory of the host while they wait for the end of the round."""
    offload_reference: bool = False
    """Whether the initial weights, which a KL penalty needs, are kept in the memory of the host. They replace the
    trained weights on the GPU while they compute."""
    verify_every: int | None = Field(default=None, ge=1, le=1_000_000)
    """Number of steps from one check of the gradients to the next. A check compares the accumulated gradients with
    those of one pass over the whole batch, and costs a second forward and backward pass. The job fails if those of a
    parameter differ by more than 0.02 on GPUs, where layers compute in bfloat16 (which reaches 0.01), or by more than
    0.0001 elsewhere (fp32 reaches 0.00001), relative to their norm. Unset: gradients are not checked."""

    @property
    def ranks_per_replica(self) -> int:
        """Processes that together hold one copy of the model, each with its own GPU in pods that have GPUs."""
        megatron_ranks = self.tensor_parallel_size * self.pipeline_parallel_size * self.context_parallel_size
        return self.fsdp_size * megatron_ranks


class CheckpointSettings(ApiModel):
    """How often checkpoints are written, and how many are kept.

    Each one is a directory in the storage of the job, published atomically.
    """

    every_steps: int = Field(default=10, ge=1, le=1_000_000)
    """Largest number of steps from one checkpoint to the next; it is less where steps have millions of tokens. The last
    step always writes one."""
    every_seconds: int = Field(default=600, ge=1, le=31_536_000)
    """Time since the last checkpoint, in seconds, after which the end of a step writes one although fewer than
    `everySteps` were done."""
    keep: int = Field(default=2, ge=1, le=1_000)
    """Number of newest checkpoints that are kept."""
