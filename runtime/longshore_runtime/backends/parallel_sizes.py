"""Split a trainer replica over ranks, and refuse models that cannot be split that way. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass

from longshore.api.training import TrainerSettings
from longshore_runtime.backends.hf_mapping.architecture import Architecture


@dataclass(frozen=True)
class ParallelSizes:
    """Ranks along each axis of one data-parallel replica; its ranks are consecutive in the world."""

    tensor: int = 1
    pipeline: int = 1
    context: int = 1
    fsdp: int = 1
    """Number of ranks that have a shard of every tensor each (torch); the other axes are Megatron's."""
    spreads_experts: bool = False
    """Whether tokens of a mixture are sent to the rank whose shard their expert is."""

    @classmethod
    def of(cls, trainer: TrainerSettings) -> "ParallelSizes":
        """Return the sizes of a job."""
        return cls(
            tensor=trainer.tensor_parallel_size,
            pipeline=trainer.pipeline_parallel_size,
            context=trainer.context_parallel_size,
            fsdp=trainer.fsdp_size,
            spreads_experts=trainer.expert_parallel,
        )

    @property
    def ranks_per_replica(self) -> int:
        """Number of processes, each with a GPU, that hold one copy of the model."""
        return self.tensor * self.pipeline * self.context * self.fsdp

    def replica(self, rank: int) -> int:
        """Return the replica that a rank of the world belongs to."""
        return rank // self.ranks_per_replica

    def is_first_of_replica(self, rank: int) -> bool:
        """Return whether a rank is the first of its replica, which alone yields weights and reports for all."""
        return rank % self.ranks_per_replica == 0

    @property
    def deals_samples(self) -> bool:
        """Whether every rank of a replica computes samples of its own; otherwise they compute each one together."""
        return self.fsdp > 1

    def is_cut_alike(self, ranks: Sequence[int]) -> bool:
        """Return whether these ranks have the same parts of parameters as the workers of an engine of that size."""
        return self.tensor > 1 and [rank % self.tensor for rank in ranks] == list(range(self.tensor))

    def check_world(self, size: int) -> None:
        """Raise ValueError unless replicas fill a world of `size` ranks."""
        if size % self.ranks_per_replica:
            fields = (
                "trainer.fsdpSize"
                if self.fsdp > 1
                else "trainer.tensorParallelSize * trainer.pipelineParallelSize * trainer.contextParallelSize"
            )
            raise ValueError(f"{fields} is {self.ranks_per_replica}, which does not divide the trainer's {size} GPUs")

    def check_model(self, model: Architecture) -> None:
        """Raise ValueError, naming the field, if the model cannot be split this way."""
        for count, things in (
            (model.num_heads, "attention heads"),
            (model.num_query_groups, "key-value heads"),
            (model.intermediate_size, "MLP channels"),
        ):
            if count % self.tensor:
                raise ValueError(
                    f"trainer.tensorParallelSize: {self.tensor} does not divide the model's {count} {things}"
                )
        if model.num_layers % self.pipeline:
            raise ValueError(
                f"trainer.pipelineParallelSize: {self.pipeline} does not divide the model's {model.num_layers} layers"
            )
