"""What determines a trainer."""

from dataclasses import dataclass, field

from longshore.api.training import TrainerBackend
from longshore_runtime.backends.parallel_sizes import ParallelSizes
from longshore_runtime.types import TrainerOptions


@dataclass(frozen=True)
class TrainerSpec:
    """Everything that determines a trainer, except its model and the world that it joins."""

    backend: TrainerBackend
    options: TrainerOptions
    sizes: ParallelSizes = field(default_factory=ParallelSizes)

    @property
    def saves_together(self) -> bool:
        """Whether weights or optimizer's state are spread over ranks; otherwise the first has all of them."""
        return self.backend is TrainerBackend.MEGATRON or self.sizes.fsdp > 1
