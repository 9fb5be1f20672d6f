"""Decoder layers in host memory, each packed so that it travels in a few large copies."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import Tensor

_ALIGNED_ELEMENTS: Final = 256
"""Number of elements at whose multiples parameters begin, as separately allocated ones would."""
_PIECE_BYTES: Final = 32 << 20
"""Size of the pieces of a pinned layer, in bytes.

Pinned memory is handed out in powers of two: pieces of this size waste less than one of them per layer.
"""


@dataclass(frozen=True)
class _BufferEntry:
    name: str
    shape: torch.Size
    offset: int


class LayerLayout:
    """Places of the parameters of a decoder layer in a flat buffer."""

    def __init__(self, layer: torch.nn.Module) -> None:
        """Describe a layer; raises ValueError for one with buffers or parameters of several types."""
        dtypes = {parameter.dtype for parameter in layer.parameters()}
        if len(dtypes) != 1 or any(True for _ in layer.buffers()):
            raise ValueError("its decoder layers mix types of numbers or hold buffers")
        (self.dtype,) = dtypes
        self._entries: list[_BufferEntry] = []
        self.num_elements = 0
        for name, parameter in layer.named_parameters():
            self._entries.append(_BufferEntry(name, parameter.shape, self.num_elements))
            self.num_elements += -(-parameter.numel() // _ALIGNED_ELEMENTS) * _ALIGNED_ELEMENTS

    def __eq__(self, other: object) -> bool:
        return isinstance(other, LayerLayout) and (self.dtype, self._entries) == (other.dtype, other._entries)

    @property
    def num_bytes(self) -> int:
        """Size of a flat buffer, in bytes."""
        return self.num_elements * self.dtype.itemsize

    def flat(self, device: torch.device) -> Tensor:
        """Allocate a flat buffer."""
        return torch.empty(self.num_elements, dtype=self.dtype, device=device)

    def views(self, flat: Tensor) -> dict[str, Tensor]:
        """Return the parameters by name, as views of a flat buffer."""
        return {
            entry.name: flat[entry.offset : entry.offset + entry.shape.numel()].view(entry.shape)
            for entry in self._entries
        }


class HostLayers:
    """The weights of all decoder layers; pinned, so that a copy can run alongside the computation."""

    def __init__(self, layers: Sequence[Any], pinned: bool) -> None:
        """Take the weights out of `layers`, which are left without any; raises ValueError if the layers differ."""
        self.layout = LayerLayout(layers[0])
        self._pieces: list[list[Tensor]] = []
        for layer in layers:
            if LayerLayout(layer) != self.layout:
                raise ValueError("its decoder layers differ from each other")
            self._pieces.append(self._packed(layer, pinned))
            layer.to("meta")

    def __len__(self) -> int:
        return len(self._pieces)

    def copy_to(self, layer: int, flat: Tensor) -> None:
        """Start copying a layer into a flat buffer, on the current stream."""
        for part, piece in zip(torch.split(flat, self._piece_elements), self._pieces[layer], strict=True):
            part.copy_(piece, non_blocking=True)

    @property
    def _piece_elements(self) -> int:
        return _PIECE_BYTES // self.layout.dtype.itemsize

    @torch.no_grad()
    def _packed(self, layer: torch.nn.Module, pinned: bool) -> list[Tensor]:
        flat = self.layout.flat(torch.device("cpu")).zero_()
        views = self.layout.views(flat)
        for name, parameter in layer.named_parameters():
            views[name].copy_(parameter)
        pieces = torch.split(flat, self._piece_elements)
        return [piece.pin_memory() for piece in pieces] if pinned else [piece.clone() for piece in pieces]
