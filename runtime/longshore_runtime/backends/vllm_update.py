"""New weights for a running vLLM, part by part: functions that run in each of its workers, by `collective_rpc`.

vLLM's own `reload_weights` wants all weights in one call, which would ship a whole model through its message queue.
A layer is replaced when all of its parameters have come, in whichever buckets.
"""

from collections.abc import Iterator
from typing import Any

import torch
from vllm.config import set_current_vllm_config
from vllm.model_executor.model_loader.reload import finalize_layerwise_reload, initialize_layerwise_reload

from longshore_runtime.backends.shared_buffer import open_buffer
from longshore_runtime.backends.weight_sender import read
from longshore_runtime.types import Weights
from longshore_runtime.weights.shared import BufferHandle, SharedBucket


def begin_update(worker: Any) -> None:
    """Prepare every layer to be replaced."""
    with set_current_vllm_config(worker.vllm_config):
        initialize_layerwise_reload(worker.model_runner.get_model())


def load_arrays(worker: Any, bucket: Weights) -> None:
    """Load some parameters, given by their names in the checkpoint; a worker takes its share of each."""
    # Arrays from the object store are read-only, which torch does not know: it gets copies, one by one.
    _load(worker, ((name, torch.tensor(values)) for name, values in bucket.items()))


def load_shared(worker: Any, bucket: SharedBucket) -> None:
    """Likewise, from the memory that the worker shares with a rank of the trainer; raises ValueError if it differs.

    vLLM keeps what it is given until a layer is complete, and by then the trainer has written the next bucket: `read`
    gives it copies, and has waited for them.
    """
    part = bucket.part(worker.rank)
    _load(worker, read(part, _opened(worker, part.buffer)))


def finish_update(worker: Any) -> None:
    """Put the layers to work; one that lacked parameters holds values of no meaning until the next update."""
    with set_current_vllm_config(worker.vllm_config):
        finalize_layerwise_reload(worker.model_runner.get_model(), worker.model_config)
    _open_buffers(worker).clear()


def _load(worker: Any, named: Iterator[tuple[str, torch.Tensor]]) -> None:
    with set_current_vllm_config(worker.vllm_config):
        worker.model_runner.get_model().load_weights(named)


def _opened(worker: Any, handle: BufferHandle) -> torch.Tensor:
    """The trainer writes to two buffers by turns: an older one is not read again."""
    buffers = _open_buffers(worker)
    if handle not in buffers:
        while len(buffers) > 1:
            del buffers[next(iter(buffers))]
        buffers[handle] = open_buffer(handle, worker.device)
    return buffers[handle]


def _open_buffers(worker: Any) -> dict[BufferHandle, torch.Tensor]:
    """Of the update under way, the older first."""
    buffers: dict[BufferHandle, torch.Tensor] = vars(worker).setdefault("longshore_buffers", {})
    return buffers
