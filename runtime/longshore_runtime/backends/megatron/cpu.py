"""Run Megatron-core 0.16 without CUDA: its unconditional CUDA calls are replaced by calls on the host."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from megatron.core.tensor_parallel import random
from torch.overrides import TorchFunctionMode

from longshore_runtime.backends.devices import HOST

_TYPE_NAMES = {torch.float32: "torch.cuda.FloatTensor", torch.float64: "torch.cuda.FloatTensor"}
"""Names of types by which the distributed optimizer tells parameters that need an fp32 copy from others."""


def on_device(device: torch.device) -> AbstractContextManager[None]:
    """Wrap everything that runs Megatron: without CUDA, its CUDA calls are substituted within the block."""
    return nullcontext() if device.type == "cuda" else _on_host()


@contextmanager
def _on_host() -> Iterator[None]:
    substitutes: list[tuple[Any, str, Callable[..., Any]]] = [
        (torch.cuda, "current_device", lambda: HOST),
        (torch.cuda, "synchronize", lambda *_args, **_kwargs: None),
        # What is computed again begins with the random state of the first time.
        (random, "_get_all_rng_states", lambda: (torch.get_rng_state(),)),
        (random, "_set_all_rng_states", torch.set_rng_state),
    ]
    originals = [(module, name, getattr(module, name)) for module, name, _ in substitutes]
    for module, name, substitute in substitutes:
        setattr(module, name, substitute)
    try:
        with _CudaIsHost():
            yield
    finally:
        for module, name, original in originals:
            setattr(module, name, original)


class _CudaIsHost(TorchFunctionMode):
    """Redirect `device="cuda"`, pinned memory, `.cuda()` and names of CUDA tensor types to the host."""

    def __torch_function__(
        self, func: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        # Every operation comes here, and few have what is to be redirected.
        if func is torch.Tensor.cuda:
            return args[0]
        if kwargs:
            return func(*args, **_on_the_host(kwargs))
        if func is torch.Tensor.type and len(args) == 1:
            return _TYPE_NAMES.get(args[0].dtype) or func(*args)
        return func(*args)


def _on_the_host(kwargs: Mapping[str, Any]) -> dict[str, Any]:
    redirected = {name: value for name, value in kwargs.items() if name != "pin_memory"}
    if str(redirected.get("device")).startswith("cuda"):
        redirected["device"] = HOST
    return redirected
