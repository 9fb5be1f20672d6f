"""AdamW whose state is distributed over the data-parallel ranks (Megatron's distributed optimizer)."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
import torch.distributed as dist
from megatron.core.distributed import DistributedDataParallel, finalize_model_grads
from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer
from torch import Tensor

from longshore_runtime.backends.host_copies import Move
from longshore_runtime.backends.trainer_protocol import TrainerOptions

MOMENTS = ("exp_avg", "exp_avg_sq")


@dataclass(frozen=True)
class _Owned:
    """The part of a parameter that this rank updates."""

    parameter: Tensor
    part: Tensor
    """A view of the parameter."""
    where: slice
    """Place of the part in the flattened parameter."""


class DistributedAdamW:
    """One optimizer over all ranks; weight decay applies to every parameter, as in the torch trainer."""

    def __init__(self, model: DistributedDataParallel, options: TrainerOptions) -> None:
        """Take over the gradient buffers of `model`."""
        self._model = model
        config = OptimizerConfig(
            optimizer="adam",
            lr=options.learning_rate,
            weight_decay=options.weight_decay,
            adam_beta1=options.adam_beta1,
            adam_beta2=options.adam_beta2,
            adam_eps=options.adam_epsilon,
            use_distributed_optimizer=True,
        )
        chained = get_megatron_optimizer(config, [model], config_overrides={}, use_gloo_process_groups=False)
        (self._optimizer,) = chained.chained_optimizers
        for group in self._optimizer.param_groups:
            group["fused"] = True  # See `TorchTrainer`.
        self._owned = list(self._owned_parts())

    def reduce(self, denominator: float) -> float:
        """Sum gradients over all ranks that share a parameter, divide them, and return the norm of all."""
        finalize_model_grads([self._model])
        self._model.scale_gradients(1.0 / denominator)
        for owned in self._owned:
            owned.part.grad = owned.parameter.main_grad.view(-1)[owned.where]  # type: ignore[attr-defined]
        return self._norm()

    def step(self, learning_rate: float, scale: float) -> None:
        """Scale the reduced gradients, update every owned part, and send the result to all ranks."""
        for owned in self._owned:
            assert owned.part.grad is not None, "reduce comes first"
            owned.part.grad *= scale
        for group in self._optimizer.param_groups:
            group["lr"] = learning_rate
        self._optimizer.step_with_ready_grads()

    def owned_moments(self, moment: str) -> Iterator[tuple[Tensor, int, Tensor]]:
        """Yield parameters and this rank's part of one of `MOMENTS`: where that begins, and its values."""
        for owned in self._owned:
            if state := self._optimizer.state.get(owned.part):
                yield owned.parameter, owned.where.start, state[moment]

    def add_up(self, values: Tensor) -> Tensor:
        """Sum values over the data-parallel ranks, context-parallel ones included, in place."""
        dist.all_reduce(values, group=self._model.dp_cp_group)
        return values

    def begin_at(self, num_steps: int) -> None:
        """Begin with moments of zeros after so many steps, in the order in which steps would make them."""
        self._optimizer.state.clear()
        for owned in self._owned if num_steps else ():
            part = owned.part
            self._optimizer.state[part] = {
                "step": torch.tensor(float(num_steps), device=part.device),  # Where fused steps need it.
                **{moment: torch.zeros_like(part) for moment in MOMENTS},
            }

    def restore(self, moment: str, parameter: Tensor, values: Tensor) -> None:
        """Restore a moment of a parameter; each rank keeps what it owns."""
        for owned in self._owned:
            if owned.parameter is parameter:
                self._optimizer.state[owned.part][moment].copy_(values.reshape(-1)[owned.where])

    def apply_to_moments(self, move: Move) -> None:
        """Replace all moments by what `move` returns; steps need them on the device of the parameters."""
        for state in self._optimizer.state.values():
            for moment in MOMENTS:
                state[moment] = move(state[moment])

    def _owned_parts(self) -> Iterator[_Owned]:
        optimizer = self._optimizer
        for parameters, parts in zip(optimizer.model_fp32_groups, optimizer.shard_fp32_groups, strict=True):
            for parameter, part in zip(parameters, parts, strict=True):
                place = optimizer._get_model_param_range_map(parameter)["param"]
                yield _Owned(parameter, part, slice(place.start, place.end))

    def _norm(self) -> float:
        """Return the norm over every parameter once, without copies on tensor-parallel ranks or of tied embeddings."""
        gradients = self._optimizer.get_main_grads_for_grad_norm()
        device = self._model.buffers[0].grad_data.device
        squares = torch.zeros([], dtype=torch.float64, device=device)
        for gradient in gradients:
            squares += torch.linalg.vector_norm(gradient, dtype=torch.float64).square()
        dist.all_reduce(squares, group=self._optimizer.get_grad_stats_parallel_group())
        return squares.sqrt().item()
