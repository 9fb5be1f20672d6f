"""Run micro-batches through the pipeline stages, forward and backward (Megatron's 1F1B schedule)."""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from megatron.core import parallel_state
from megatron.core.pipeline_parallel import get_forward_backward_func
from torch import Tensor

from longshore_runtime.backends.megatron.batch import MicroBatch
from longshore_runtime.backends.work_meter import WorkMeter

T = TypeVar("T")


def run(
    model: torch.nn.Module,
    batches: Sequence[MicroBatch],
    finish: Callable[[int, Tensor], tuple[Tensor, T]],
    *,
    backward: bool,
    meter: WorkMeter,
) -> list[T]:
    """Return the results of `finish` for each micro-batch; empty on all stages but the last. `meter` counts them.

    `finish` gets a micro-batch's number and its hidden states, and returns a loss to be differentiated (without
    `backward`: ignored) and the result. Every rank of a replica calls this with the same micro-batches.
    """
    if not batches:
        return []

    def forward_step(numbered: Iterator[tuple[int, MicroBatch]], stage: Any) -> tuple[Tensor, Any]:
        number, batch = next(numbered)
        return stage(batch.tokens, batch.positions, None), partial(_finish, number)

    def _finish(number: int, hidden: Tensor) -> tuple[Tensor, Tensor, T]:
        loss, result = finish(number, hidden)
        return loss, torch.zeros([], dtype=torch.int, device=loss.device), result

    numbered = meter.each(list(enumerate(batches)), sum(len(batch.samples) for batch in batches))
    with torch.set_grad_enabled(backward):
        results: list[T] = get_forward_backward_func()(
            forward_step_func=forward_step,
            data_iterator=numbered,
            model=model,
            num_microbatches=len(batches),
            # Lengths differ: stages tell each other the real shapes.
            seq_length=max(batch.tokens.shape[1] for batch in batches),
            micro_batch_size=max(batch.tokens.shape[0] for batch in batches),
            forward_only=not backward,
        )
    assert next(numbered, None) is None, "micro-batches were left out"  # Asked for, so that the last one counts.
    return results


def from_last_stage(value: T) -> T:
    """Return the last stage's value on every stage of the replica."""
    group = parallel_state.get_pipeline_model_parallel_group()
    if group.size() == 1:
        return value
    values = [value]
    dist.broadcast_object_list(values, parallel_state.get_pipeline_model_parallel_last_rank(), group=group)
    return values[0]
