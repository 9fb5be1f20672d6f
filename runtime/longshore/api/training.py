"""What turns scored responses into better weights: trainer and checkpoints."""

from enum import StrEnum
from typing import Annotated, Final

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


class TrainerDtype(StrEnum):
    """Type in which the layers of a trainer compute, by its name in torch."""

    FLOAT32 = "float32"
    BFLOAT16 = "bfloat16"


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
    Rule(
        "expertParallel",
        "!self.expertParallel || self.fsdpSize > 1",
        "expertParallel spreads experts over fsdpSize GPUs, with backend Torch: raise fsdpSize, or remove it",
    ),
    Rule(
        "expertParallel",
        "!self.expertParallel || !self.?lora.?experts.orValue(false)",
        "expertParallel does not apply to lora.experts, whose matrices every GPU needs: remove one of them",
    ),
    Rule(
        "lora",
        "!has(self.lora) || self.backend == 'Torch'",
        "lora needs backend Torch: choose it, or remove lora",
    ),
    Rule(
        "routerReplay",
        "!self.routerReplay || self.backend == 'Torch'",
        "routerReplay needs backend Torch: choose it, or remove routerReplay",
    ),
    Rule(
        "torchCompile",
        "!self.torchCompile || self.backend == 'Torch'",
        "torchCompile needs backend Torch: choose it, or remove torchCompile",
    ),
    Rule(
        "torchCompile",
        "!self.torchCompile || !self.routerReplay",
        "torchCompile does not go with routerReplay, which changes what routers of compiled layers choose: remove one "
        "of them",
    ),
    Rule(
        "torchCompile",
        "!self.torchCompile || !has(self.lora) || !self.lora.experts",
        "torchCompile does not go with lora.experts, whose products torch cannot trace in every type: remove one of "
        "them",
    ),
    Rule(
        "offloadReference",
        "!has(self.lora) || !self.offloadReference",
        "offloadReference does not apply to lora, where the reference is the model itself without its adapter: remove "
        "it",
    ),
)
LayerName = Annotated[str, Field(min_length=1, max_length=128, pattern=r"^[A-Za-z0-9_.]+$")]
"""Last part of the name of a layer, or several, as in `q_proj` and `self_attn.q_proj`."""


class Lora(ApiModel):
    """Low-rank adapter (LoRA): small matrices beside linear layers, trained instead of the weights of the model."""

    rank: int = Field(default=32, ge=1, le=512)
    """Rank of the matrices that are added to a layer's weights."""
    alpha: float = Field(default=32.0, gt=0, le=1_000_000)
    """Scale of what is added: it is multiplied by alpha / rank."""
    target_modules: Annotated[list[LayerName], Field(min_length=1, max_length=64)] | None = None
    """Names of the linear layers that get matrices, such as `q_proj`. Unset: all linear layers but the output layer and
    those of routed experts."""
    experts: bool = False
    """Whether the routed experts of a mixture get matrices too, each its own; with engines on GPUs."""

    def __str__(self) -> str:
        layers = "all linear layers" if self.target_modules is None else ", ".join(sorted(self.target_modules))
        return f"rank {self.rank}, alpha {self.alpha:g}, {layers}{' and all experts' if self.experts else ''}"


class TrainerSettings(ApiModel, rules=_RULES):
    """Training library, how it splits the model over GPUs, and how much it computes at once."""

    backend: TrainerBackend = TrainerBackend.TORCH
    """Training library. Torch: PyTorch with causal language models of Hugging Face, sharded with fsdpSize. Megatron:
    Megatron-core with Llama, Qwen2 and Qwen3. Fake: arithmetic without a model, for tests."""
    fsdp_size: int = Field(default=1, ge=1, le=1_024)
    """Number of GPUs over which weights, gradients and optimizer state are sharded, with backend Torch (processes in
    pods without GPUs). It divides gpusPerPod or is a multiple of it: then a replica has several whole pods. 1: every
    GPU holds the whole model."""
    expert_parallel: bool = False
    """Whether each of these GPUs computes the experts of a mixture that it holds, and tokens are sent there, instead of
    putting all experts of a layer together on every GPU. fsdpSize divides the number of experts."""
    tensor_parallel_size: int = Field(default=1, ge=1, le=16)
    """Number of GPUs of one pod over which every layer is split, with backend Megatron. The product of the three sizes
    divides gpusPerPod or is a multiple of it: then a replica has several whole pods."""
    pipeline_parallel_size: int = Field(default=1, ge=1, le=1_024)
    """Number of stages of consecutive layers, each on separate GPUs, with backend Megatron."""
    context_parallel_size: int = Field(default=1, ge=1, le=1_024)
    """Number of GPUs over which the tokens of every response are spread, with backend Megatron."""
    data_parallel_size: int | None = Field(default=None, ge=1, le=65_536)
    """Number of trainer replicas. Unset: as many as the pods hold."""
    max_tokens_per_micro_batch: int | None = Field(default=None, ge=1, le=100_000_000)
    """Largest number of tokens of one forward and backward pass, padding included. A longer response is computed alone.
    Unset: 16,384, and fewer on CPUs with little memory."""
    recompute: Recompute | None = None
    """What is computed a second time for the gradient, to save memory. Selective: all but matrix products and attention
    (Megatron: the MLPs). Full: every layer, from its input; with torchCompile Selective too. Unset: the first of None,
    Selective and Full that fits."""
    torch_compile: bool = False
    """Whether the layers of the trained model are compiled by torch.compile, with backend Torch. It takes up to a few
    minutes in the first step and needs a C++ compiler, which the image for GPUs has."""
    dtype: TrainerDtype | None = None
    """Data type in which layers compute; weights, sums of gradients and optimizer state are float32. Unset: bfloat16 on
    GPUs. On CPUs the type of `rollout.engine.dtype`; where that is auto too, the coordinator measures products of
    matrices at the start, and engines and trainers use bfloat16 if it is faster."""
    lora: Lora | None = None
    """Adapter to train, with backend Torch, in place of all weights. Unset: all weights are trained."""
    router_replay: bool = False
    """Whether tokens of a mixture of experts pass through the experts that the engine chose for them, with backend
    Torch and engines on GPUs. A token then takes a byte more per layer and chosen expert, 384 bytes with 48 layers and
    8 experts, from the engine to the trainer."""
    offload_gradients: bool = False
    """Whether gradients wait in host memory for the end of the round."""
    offload_reference: bool = False
    """Whether the initial weights, which a KL penalty needs, are kept in host memory."""
    verify_every: int | None = Field(default=None, ge=1, le=1_000_000)
    """Number of steps between checks of the accumulated gradients against one pass over the whole batch, which costs a
    second forward and backward pass. The job fails if they differ by more than rounding. Unset: no checks."""

    @property
    def ranks_per_replica(self) -> int:
        """Processes that together hold one copy of the model, each with its own GPU in pods that have GPUs."""
        megatron_ranks = self.tensor_parallel_size * self.pipeline_parallel_size * self.context_parallel_size
        return self.fsdp_size * megatron_ranks


class CheckpointSettings(ApiModel):
    """How often checkpoints are written, and how many are kept.

    Each one is a directory in the storage of the job, published atomically. The next round runs while it is written.
    """

    every_steps: int = Field(default=10, ge=1, le=1_000_000)
    """Largest number of steps between checkpoints. The last step always writes one."""
    every_seconds: int = Field(default=600, ge=1, le=31_536_000)
    """Seconds after which the end of a step writes a checkpoint although fewer than `everySteps` were done."""
    keep: int = Field(default=2, ge=1, le=1_000)
    """Number of newest checkpoints that are kept."""
