"""New weights for a running vLLM, part by part: functions that run in each of its workers, by `collective_rpc`.

vLLM's own `reload_weights` wants all weights in one call, which would ship a whole model through its message queue.
A layer is replaced when all of its parameters have come, in whichever buckets.
"""

from typing import Any

import torch
from vllm.config import set_current_vllm_config
from vllm.model_executor.model_loader.reload import finalize_layerwise_reload, initialize_layerwise_reload

from longshore_runtime.types import Weights


def begin_update(worker: Any) -> None:
    """Prepare every layer to be replaced."""
    with set_current_vllm_config(worker.vllm_config):
        initialize_layerwise_reload(worker.model_runner.get_model())


def load_bucket(worker: Any, bucket: Weights) -> None:
    """Load some parameters, given by their names in the checkpoint; a worker takes its share of each."""
    # Arrays from the object store are read-only, which torch does not know: it gets copies, one by one.
    tensors = ((name, torch.tensor(values)) for name, values in bucket.items())
    with set_current_vllm_config(worker.vllm_config):
        worker.model_runner.get_model().load_weights(tensors)


def finish_update(worker: Any) -> None:
    """Put the layers to work; one that lacked parameters holds values of no meaning until the next update."""
    with set_current_vllm_config(worker.vllm_config):
        finalize_layerwise_reload(worker.model_runner.get_model(), worker.model_config)
