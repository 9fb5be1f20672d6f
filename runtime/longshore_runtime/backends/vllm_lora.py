"""Bind an adapter to the layers of a running vLLM, from tensors in memory: runs in its workers, by `collective_rpc`.

vLLM itself loads adapters from files. An adapter that fits no layer of its changes nothing, in silence: so what counts
is what the layers hold in the end.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final, get_args

import torch
from torch import Tensor
from vllm.config.lora import MaxLoRARanks
from vllm.lora.layers import FusedMoEWithLoRA, MergedColumnParallelLinearWithLoRA
from vllm.lora.lora_model import LoRAModel
from vllm.lora.peft_helper import PEFTHelper
from vllm.lora.request import LoRARequest
from vllm.lora.utils import parse_fine_tuned_lora_name

from longshore.api.training import Lora
from longshore.checks.model_files import weights_of
from longshore_runtime.backends.hf_mapping.entries import EMBEDDING, HEAD

_EXPERTS: Final = ".experts."
_SLOT: Final = 0
"""Place of the only adapter in the buffers of a layer."""
_Matrices = tuple[Tensor, Tensor]
"""A and B of a layer, [rank, inputs] and [outputs, rank]."""


def lora_arguments(lora: Lora, model: Path) -> dict[str, Any]:
    """Return the arguments of an engine that serves one adapter; vLLM makes room for one of some ranks."""
    rank = min(rank for rank in get_args(MaxLoRARanks) if rank >= lora.rank)
    arguments: dict[str, Any] = {"enable_lora": True, "max_loras": 1, "max_cpu_loras": 1, "max_lora_rank": rank}
    targets = _targets(lora, model)
    return arguments | ({} if targets is None else {"lora_target_modules": targets})


def _targets(lora: Lora, model: Path) -> list[str] | None:
    """Return the last names of the layers that may have an adapter; None: all linear ones.

    In a mixture, vLLM would make room for adapters of all experts, which have none unless `lora.experts`.
    """
    experts = {_EXPERTS.strip(".")} if lora.experts else set[str]()
    if lora.target_modules is not None:
        return sorted({name.rpartition(".")[2] for name in lora.target_modules} | experts)
    tensors = weights_of(model)
    if not any(_EXPERTS in name for name in tensors):
        return None
    matrices = (name for name, tensor in tensors.items() if len(tensor.shape) == 2 and name.endswith(".weight"))
    others = (name for name in matrices if _EXPERTS not in name and name not in (EMBEDDING, HEAD))
    return sorted({name.split(".")[-2] for name in others} | experts)


def lora_request(number: int) -> LoRARequest:
    """Return what a request carries to be sampled with the adapter that was bound as `number`.

    The name is part of the key of cached prefixes, so that none of an older adapter is used.
    """
    return LoRARequest(f"adapter-{number}", number, lora_path="in memory")


class AdapterUpdate:
    """An adapter that comes in parts and takes the place of the one before."""

    def __init__(self, worker: Any, lora: Lora, number: int) -> None:
        """Prepare a worker; `number` counts the adapters of an engine from 1."""
        self._manager = worker.model_runner.lora_manager._adapter_manager
        self._lora = lora
        self._number = number
        self._tensors: dict[str, Tensor] = {}

    def load(self, named: Iterator[tuple[str, Tensor]]) -> None:
        """Take matrices by the names that PEFT gives them in files."""
        self._tensors.update(named)

    @torch.inference_mode()
    def finish(self) -> list[str]:
        """Bind the adapter; return the names of layers that do not compute with their matrices."""
        self._manager.remove_all_adapters()
        if not self._tensors:
            return []
        mapper = getattr(self._manager.model, "hf_to_vllm_mapper", None)
        mapper = None if mapper is None else mapper.get_rename_mapper()
        layers: dict[str, dict[bool, Tensor]] = {}
        for name, values in self._tensors.items():
            layer, is_a = parse_fine_tuned_lora_name(name, mapper)
            layers.setdefault(layer, {})[is_a] = values
        if incomplete := [layer for layer, matrices in layers.items() if len(matrices) < 2]:
            return incomplete
        helper = PEFTHelper(r=self._lora.rank, lora_alpha=self._lora.alpha, target_modules=[])
        dtype = self._manager.lora_config.lora_dtype
        # vLLM multiplies B by alpha / rank in place.
        copies = {name: values.to(dtype, copy=True) for name, values in self._tensors.items()}
        adapter = LoRAModel.from_lora_tensors(self._number, copies, helper, "cpu", dtype, weights_mapper=mapper)
        self._manager.add_adapter(adapter)
        self._manager.activate_adapter(self._number)
        wanted = {
            layer: (matrices[True].to(dtype), matrices[False].to(dtype) * helper.vllm_lora_scaling_factor)
            for layer, matrices in layers.items()
        }
        return sorted(wanted.keys() - self._bound(wanted))

    def _bound(self, wanted: dict[str, _Matrices]) -> set[str]:
        """Return the names of the layers whose matrices are in the buffers with which vLLM computes."""
        bound: set[str] = set()
        for name, layer in self._manager.modules.items():
            parts = self._manager.packed_modules.get(name, [name])
            group = [wanted.get(part) for part in parts]
            if any(matrices is not None for matrices in group) and _holds(layer, group):
                bound.update(part for part in parts if part in wanted)
        return bound


def _holds(layer: Any, group: Sequence[_Matrices | None]) -> bool:
    """Return whether a layer of vLLM holds these matrices, or its rank's part of them; one for each of its slices."""
    every_a: Any = [None if matrices is None else matrices[0] for matrices in group]
    every_b: Any = [None if matrices is None else matrices[1] for matrices in group]
    if isinstance(layer, FusedMoEWithLoRA):
        return _experts_hold(layer, every_a, every_b)
    if isinstance(layer, MergedColumnParallelLinearWithLoRA):
        if len(group) != layer.n_slices:
            every_a, every_b = layer.expand_packed_lora(every_a, every_b)
        if layer.tp_size > 1:
            every_a, every_b = layer.slice_lora_a(every_a), layer.slice_lora_b(every_b)
    elif layer.tp_size > 1:
        every_a, every_b = [layer.slice_lora_a(every_a[0])], [layer.slice_lora_b(every_b[0])]
    return all(map(_is_in, layer.lora_a_stacked, every_a)) and all(map(_is_in, layer.lora_b_stacked, every_b))


def _experts_hold(layer: FusedMoEWithLoRA, every_a: Sequence[Tensor | None], every_b: Sequence[Tensor | None]) -> bool:
    """See `_holds`; matrices and buffers of a mixture are in the order gate, down, up of each expert."""
    if len(every_a) != len(layer.lora_a_stacked) or any(values is None for values in (*every_a, *every_b)):
        return False
    cuts: Any = (
        (layer._slice_w13_a, layer._slice_w13_b),
        (layer._slice_w2_a, layer._slice_w2_b),
        (layer._slice_w13_a, layer._slice_w13_b),
    )
    own_a = [cuts[place % 3][0](values[None]) for place, values in enumerate(every_a) if values is not None]
    own_b = [cuts[place % 3][1](values[None]) for place, values in enumerate(every_b) if values is not None]
    buffers = [*layer.lora_a_stacked, *layer.lora_b_stacked]
    return all(_is_in(held[None, None], values[0]) for held, values in zip(buffers, own_a + own_b, strict=True))


def _is_in(buffer: Tensor, values: Tensor | None) -> bool:
    """Return whether a buffer, [slots, 1, rows, columns], begins with these values and has no others."""
    held = buffer[_SLOT, 0]
    padded = torch.zeros_like(held)
    if values is not None:
        padded[: values.shape[0], : values.shape[1]] = values.to(held.device)
    return torch.equal(held, padded)
