"""How a layer gets into a device buffer: at once, or on a second CUDA stream beside the computation."""

from collections.abc import Callable
from typing import Any, Final, Protocol

import torch
from torch import Tensor

_cuda: Final[Any] = torch.cuda  # Its streams and events have no types.


class Copies(Protocol):
    """Orders copies into numbered buffers against the computations that read them."""

    def writes(self, memory: Tensor) -> None:
        """This is the memory of a buffer: whoever gets it next gets it after the copies that are under way then."""

    def start(self, buffer: int, copy: Callable[[], None]) -> None:
        """Fill the buffer by calling `copy`, after the last computation that reads it."""

    def await_filled(self, buffer: int) -> None:
        """What is computed from here on finds the buffer filled."""

    def release(self, buffer: int) -> None:
        """What was computed so far is the last that reads the buffer."""

    def wait_all(self) -> None:
        """Wait for all copies and computations: buffers may be given back."""


class ImmediateCopies:
    """Copies and computations one after the other, as called: on the CPU, and on a GPU without pipelining."""

    def writes(self, memory: Tensor) -> None:
        """On the stream that it was allocated on."""

    def start(self, buffer: int, copy: Callable[[], None]) -> None:
        copy()

    def await_filled(self, buffer: int) -> None:
        """Filled already."""

    def release(self, buffer: int) -> None:
        """Nothing runs beside."""

    def wait_all(self) -> None:
        """Nothing is under way but what the allocator orders itself."""


class StreamCopies:
    """Copies on a stream of their own; CUDA events order them, and the host waits for nothing."""

    def __init__(self, device: torch.device, num_buffers: int) -> None:
        self._device = device
        self._stream = _cuda.Stream(device)
        self._filled = [_cuda.Event() for _ in range(num_buffers)]
        self._free = [_cuda.Event() for _ in range(num_buffers)]

    def writes(self, memory: Tensor) -> None:
        memory.record_stream(self._stream)

    def start(self, buffer: int, copy: Callable[[], None]) -> None:
        self._stream.wait_event(self._free[buffer])
        with _cuda.stream(self._stream):
            copy()
            self._filled[buffer].record(self._stream)

    def await_filled(self, buffer: int) -> None:
        _cuda.current_stream(self._device).wait_event(self._filled[buffer])

    def release(self, buffer: int) -> None:
        self._free[buffer].record(_cuda.current_stream(self._device))

    def wait_all(self) -> None:
        _cuda.synchronize(self._device)
