"""Layers of a model that torch.compile fuses: what lies between products of matrices and attention."""

from collections.abc import Iterator
from typing import Any, Final

import torch

from longshore_runtime.backends.vllm_environment import has_compiler

_MAX_VARIANTS: Final = 64
"""Number of variants that torch may compile of a layer: with and without gradients, an adapter or a window, say."""


def layers(module: Any) -> Iterator[Any]:
    """Yield the layers of a model of transformers, also of one whose classes FSDP2 has derived from them."""
    names = getattr(module, "_no_split_modules", None) or ()
    return (one for one in module.modules() if any(base.__name__ in names for base in type(one).__mro__))


def compile_layers(module: Any) -> None:
    """Have each layer of a model of transformers compiled when it computes first.

    Layers of one class share what is compiled, because their weights are inputs of it; sizes are symbols, so that
    micro-batches of other lengths need no compilation. Only `forward` is compiled: the hooks of FSDP2, and the
    checkpoint that computes a whole layer again, stay around it.

    Raises:
        ValueError: no C++ compiler is installed, or layers cannot be found.
    """
    if not has_compiler():
        raise ValueError(
            "trainer.torchCompile: the image has no C++ compiler; add g++ to the image, or remove torchCompile"
        )
    found = list(layers(module))
    if not found:
        raise ValueError(
            "trainer.torchCompile: transformers does not name the layers of the model; remove torchCompile"
        )
    for layer in found:
        # Torch's overloads for type checkers leave the limit out.
        layer.forward = torch.compile(layer.forward, dynamic=True, recompile_limit=_MAX_VARIANTS)  # type: ignore[call-overload]
