"""Settings that determine a trainer."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from longshore.api.algorithm import Algorithm
from longshore.api.training import DEFAULT_MICRO_BATCH_TOKENS, Recompute, TrainerBackend, TrainerSettings
from longshore_runtime.backends.parallel_sizes import ParallelSizes
from longshore_runtime.backends.trainer_protocol import TrainerOptions

_LOWEST_TEMPERATURE: Final = 0.01
"""Lowest temperature at which vLLM samples; it takes this one where a lower one is asked for."""


@dataclass(frozen=True)
class TrainerSpec:
    """Everything that determines a trainer, except its model and the world that it joins."""

    backend: TrainerBackend
    options: TrainerOptions
    sizes: ParallelSizes = field(default_factory=ParallelSizes)
    teacher: str | None = None
    """Directory of the model that is the reference, relative to the storage; None: the initial model."""
    pod_memory_bytes: int = 0
    """Bytes of memory that a pod with trainers may use."""

    @classmethod
    def of(
        cls,
        algorithm: Algorithm,
        trainer: TrainerSettings,
        num_updates: int,
        *,
        is_colocated: bool,
        recompute_needs: Mapping[Recompute, float] | None = None,
    ) -> "TrainerSpec":
        """Return the spec of a job's trainer, which makes so many updates.

        Args:
            algorithm: its settings.
            trainer: its settings.
            num_updates: number of updates of the job.
            is_colocated: whether it sleeps between two steps. Where a step makes one update, moments are on the host
                during its passes, then. They are there in long rounds, too, so that these need no more memory.
            recompute_needs: see `TrainerOptions`.
        """
        options = TrainerOptions(
            learning_rate=algorithm.learning_rate,
            learning_rate_schedule=algorithm.learning_rate_schedule,
            warmup_steps=algorithm.warmup_steps,
            min_learning_rate_ratio=algorithm.min_learning_rate_ratio,
            num_updates=num_updates,
            adam_beta1=algorithm.adam_beta1,
            adam_beta2=algorithm.adam_beta2,
            adam_epsilon=algorithm.adam_epsilon,
            weight_decay=algorithm.weight_decay,
            max_grad_norm=algorithm.max_grad_norm,
            objective=algorithm.objective,
            rollout_correction=algorithm.rollout_correction,
            max_response_tokens=algorithm.max_response_tokens,
            kl_coefficient=algorithm.kl_coefficient,
            kl_estimator=algorithm.kl_estimator,
            kl_bias_correction=algorithm.kl_bias_correction,
            entropy_coefficient=algorithm.entropy_coefficient,
            temperature=max(algorithm.temperature, _LOWEST_TEMPERATURE),
            max_tokens_per_micro_batch=trainer.max_tokens_per_micro_batch or DEFAULT_MICRO_BATCH_TOKENS,
            seed=algorithm.seed,
            recompute=trainer.recompute,
            recompute_needs=recompute_needs or {},
            torch_compile=trainer.torch_compile,
            dtype=trainer.dtype,
            lora=trainer.lora,
            router_replay=trainer.router_replay,
            offload_gradients=trainer.offload_gradients,
            offload_reference=trainer.offload_reference,
            offload_moments=is_colocated and algorithm.makes_one_update,
        )
        return cls(trainer.backend, options, ParallelSizes.of(trainer))

    @property
    def saves_together(self) -> bool:
        """Whether weights or optimizer's state are spread over ranks; otherwise the first has all of them."""
        return self.backend is TrainerBackend.MEGATRON or self.sizes.fsdp > 1
