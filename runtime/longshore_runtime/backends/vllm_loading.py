"""How far vLLM has read a checkpoint, which takes minutes for a large model and which vLLM tells its log only."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from vllm.model_executor.model_loader.default_loader import DefaultModelLoader

OnLoaded = Callable[[int], None]
"""Called with the bytes that have been read so far."""


@contextmanager
def loading_reported(on_loaded: OnLoaded) -> Iterator[None]:
    """Within the block, engines that start in this process report every tensor that they have read.

    An engine of several GPUs reads in processes of its own, of which nothing is known here.
    """
    all_weights = DefaultModelLoader.get_all_weights

    def counted(*arguments: Any) -> Iterator[tuple[str, Any]]:
        num_bytes = 0
        for name, tensor in all_weights(*arguments):
            yield name, tensor
            num_bytes += tensor.nbytes
            on_loaded(num_bytes)

    DefaultModelLoader.get_all_weights = counted
    try:
        yield
    finally:
        DefaultModelLoader.get_all_weights = all_weights
