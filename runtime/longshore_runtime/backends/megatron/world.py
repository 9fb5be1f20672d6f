"""Join the trainer's world, and divide it into Megatron's process groups."""

import torch
import torch.distributed as dist
from megatron.core import parallel_state

from longshore_runtime.backends import torch_world
from longshore_runtime.backends.parallel_sizes import ParallelSizes
from longshore_runtime.backends.world import World

_ORDER = "tp-cp-ep-pp-dp"
"""Order of the parallel axes, with data parallelism outermost.

A replica's ranks are consecutive, so that it can be placed, slept and woken as one.
"""


def join(world: World, sizes: ParallelSizes, device: torch.device) -> None:
    """Meet the other ranks, and form the groups; a process belongs to one world, which later trainers share."""
    sizes.check_world(world.size)
    if not dist.is_initialized():
        torch_world.join(world, device)
    assert (dist.get_rank(), dist.get_world_size()) == (world.rank, world.size), "this process is in another world"
    if parallel_state.model_parallel_is_initialized():
        if _current_sizes() == sizes:
            return
        parallel_state.destroy_model_parallel()
    parallel_state.initialize_model_parallel(
        tensor_model_parallel_size=sizes.tensor,
        pipeline_model_parallel_size=sizes.pipeline,
        context_parallel_size=sizes.context,
        # There are no experts, but their groups must have as many replicas.
        expert_tensor_parallel_size=sizes.tensor * sizes.context,
        order=_ORDER,
        create_gloo_process_groups=False,
    )


def group_that_writes(sizes: ParallelSizes) -> dist.ProcessGroup | None:
    """Return the ranks that gather the weights of this rank's stage while others compute; None: it needs no others.

    They are the tensor-parallel ranks of the first replica. All ranks of the world call this together.
    """
    found = None
    per_stage = sizes.tensor * sizes.context
    for first in range(0, per_stage * sizes.pipeline, per_stage) if sizes.tensor > 1 else ():
        ranks = range(first, first + sizes.tensor)
        group = dist.new_group(ranks, torch_world.TIMEOUT, backend="gloo")
        if dist.get_rank() in ranks:
            found = group
    return found


def _current_sizes() -> ParallelSizes:
    return ParallelSizes(
        parallel_state.get_tensor_model_parallel_world_size(),
        parallel_state.get_pipeline_model_parallel_world_size(),
        parallel_state.get_context_parallel_world_size(),
    )
