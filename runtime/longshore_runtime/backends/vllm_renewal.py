"""Make all layers of a running vLLM compute with new weights; some would keep computing with a copy of old ones.

vLLM processes a layer when its weights come: kernels for the CPU pack them, and compute with the packed copy from then
on. With tied embeddings no weights come for the output layer. It shares the parameter, but packs a copy of its own.

Checksums cannot see a packed copy, and a numerical probe cannot tell a small update from rounding: what is compared
is which copy a layer holds.
"""

import weakref
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from vllm.config import ModelConfig
from vllm.model_executor.layers.attention import is_deferred_attention_layer
from vllm.model_executor.layers.fused_moe.fused_moe_method_base import FusedMoEMethodBase
from vllm.model_executor.layers.quantization.base_config import QuantizeMethodBase
from vllm.model_executor.model_loader.reload import finalize_layerwise_reload, initialize_layerwise_reload
from vllm.model_executor.model_loader.reload.layerwise import get_layerwise_info
from vllm.platforms import current_platform

_NamedLayers = Sequence[tuple[str, torch.nn.Module]]


class Renewal:
    """One update of all weights of a model, layer by layer."""

    def __init__(self, model: Any, config: ModelConfig) -> None:
        """Prepare every layer to be replaced."""
        self._model = model
        self._config = config
        # A strong reference would keep the memory of old copies until the end of the update.
        self._packed = {name: weakref.ref(packed) for name, packed in _packed(model).items()}
        initialize_layerwise_reload(model)
        for method in _methods_of_packed_experts(model).values():
            # Only a new kernel packs experts; one that is there would compute with plain weights.
            method.moe_kernel = None

    def load(self, named: Iterator[tuple[str, torch.Tensor]]) -> None:
        """Load some parameters, given by their names in the checkpoint."""
        self._model.load_weights(named)

    def finish(self) -> list[str]:
        """Finish the update; return the names of layers that still compute with old weights."""
        idle = _idle(self._model)
        finalize_layerwise_reload(self._model, self._config)
        old = _process_shared(self._model, idle)
        old += [name for name, packed in _packed(self._model).items() if self._is_old(name, packed)]
        old += [name for name, method in _methods_of_packed_experts(self._model).items() if method.moe_kernel is None]
        return sorted(set(old))

    def _is_old(self, name: str, packed: Any) -> bool:
        before = self._packed.get(name)
        return before is not None and before() is packed


def _idle(model: torch.nn.Module) -> _NamedLayers:
    """Return the layers of which no parameter came."""
    return [(name, layer) for name, layer in model.named_modules() if _waits(layer)]


def _waits(layer: torch.nn.Module) -> bool:
    info = get_layerwise_info(layer)
    has_parameters = any(parameter is not None for parameter in layer._parameters.values())
    return info.can_load() and info.load_numel == 0 and has_parameters and not is_deferred_attention_layer(layer)


def _process_shared(model: torch.nn.Module, idle: _NamedLayers) -> list[str]:
    """Process idle layers that share parameters with others; return the names of the rest."""
    waiting = {layer for _, layer in idle}
    loaded = {id(parameter) for layer in model.modules() if layer not in waiting for parameter in _own(layer)}
    rest: list[str] = []
    for name, layer in idle:
        method = getattr(layer, "quant_method", None)
        if any(id(parameter) not in loaded for parameter in _own(layer)):
            rest.append(name)
        elif isinstance(method, QuantizeMethodBase):
            method.process_weights_after_loading(layer)
    return rest


def _own(layer: torch.nn.Module) -> list[torch.nn.Parameter]:
    return [parameter for parameter in layer._parameters.values() if parameter is not None]


def _packed(model: torch.nn.Module) -> dict[str, Any]:
    """Return the packed copies of weights that layers compute with on a CPU."""
    functions = {name: getattr(layer, "cpu_linear", None) for name, layer in model.named_modules()}
    linear = {name: function for name, function in functions.items() if getattr(function, "__closure__", None)}
    kernels = {name: method.moe_kernel for name, method in _methods_of_packed_experts(model).items()}
    return linear | {name: kernel for name, kernel in kernels.items() if kernel is not None}


def _methods_of_packed_experts(model: torch.nn.Module) -> dict[str, Any]:
    """Return how layers of experts compute on a CPU; on GPUs new weights take the places of old ones."""
    if not current_platform.is_cpu():
        return {}
    methods = {name: getattr(layer, "quant_method", None) for name, layer in model.named_modules()}
    return {name: method for name, method in methods.items() if isinstance(method, FusedMoEMethodBase)}
