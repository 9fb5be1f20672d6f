"""Provide the weights of each layer when it runs: resident, or in a ring of buffers that is filled ahead."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from longshore_runtime.backends.streamed_lm.copies import Copies
from longshore_runtime.backends.streamed_lm.host_layers import HostLayers

Weights = dict[str, Tensor]


class LayerRing:
    """Resident layers, and a ring in which streamed layers follow each other in the order in which they run.

    Layers run 0, 1, ..., n - 1, again and again. While one runs, the next streamed ones are being copied; at the end
    of a pass these are the first ones, so a decode step finds them in place.
    """

    def __init__(self, host: HostLayers, device: torch.device, num_buffers: int, copies: Copies) -> None:
        """Begin with every layer streamed."""
        self._host = host
        self._device = device
        self._num_buffers = num_buffers
        self._copies = copies
        self._resident: dict[int, Weights] = {}
        self._streamed: list[int] = []
        self._buffers: list[Tensor] = []
        self._turn = 0
        self.arrange(())

    @property
    def resident(self) -> frozenset[int]:
        """Numbers of the layers that stay on the device."""
        return frozenset(self._resident)

    @property
    def held_bytes(self) -> int:
        """Bytes that resident layers and buffers take of the device."""
        return (len(self._resident) + len(self._buffers)) * self._host.layout.num_bytes

    def arrange(self, resident: Iterable[int]) -> None:
        """Keep these layers on the device from here on, and stream the others."""
        wanted = frozenset(resident)
        streamed = [layer for layer in range(len(self._host)) if layer not in wanted]
        if wanted == self.resident and streamed == self._streamed:
            return
        self._give_back(wanted, keep_buffers=bool(streamed))
        for layer in sorted(wanted - self.resident):
            flat = self._host.layout.flat(self._device)
            self._host.copy_to(layer, flat)
            self._resident[layer] = self._host.layout.views(flat)
        if streamed and not self._buffers:
            self._buffers = self._new_buffers()
        self._streamed = streamed  # Not before there is memory for all: else this looks done to who tries again.
        if streamed:
            self._restart(streamed[0])

    @contextmanager
    def weights(self, layer: int) -> Iterator[Weights]:
        """Yield the weights of a layer for the computation inside the block; they may be gone after it."""
        if layer in self._resident:
            yield self._resident[layer]
            return
        if self._layer_of(self._turn) != layer:
            self._restart(layer)  # The last pass broke off.
        buffer = self._turn % len(self._buffers)
        self._copies.await_filled(buffer)
        yield self._host.layout.views(self._buffers[buffer])
        self._copies.release(buffer)
        self._turn += 1
        self._fill(self._turn + len(self._buffers) - 1)

    def _new_buffers(self) -> list[Tensor]:
        buffers = [self._host.layout.flat(self._device) for _ in range(self._num_buffers)]
        for buffer in buffers:
            self._copies.writes(buffer)
        return buffers

    def _restart(self, layer: int) -> None:
        """Fill every buffer again, beginning with the layer that runs next."""
        self._turn = self._streamed.index(layer)
        for turn in range(self._turn, self._turn + len(self._buffers)):
            self._copies.release(turn % len(self._buffers))
            self._fill(turn)

    def _fill(self, turn: int) -> None:
        buffer, layer = turn % len(self._buffers), self._layer_of(turn)
        self._copies.start(buffer, lambda: self._host.copy_to(layer, self._buffers[buffer]))

    def _layer_of(self, turn: int) -> int:
        return self._streamed[turn % len(self._streamed)]

    def _give_back(self, wanted: frozenset[int], keep_buffers: bool) -> None:
        self._copies.wait_all()
        for layer in self.resident - wanted:
            del self._resident[layer]
        if not keep_buffers:
            self._buffers = []
        if self._device.type == "cuda":
            torch.cuda.empty_cache()  # Another actor may use it, and the next batch wants it in other pieces.
