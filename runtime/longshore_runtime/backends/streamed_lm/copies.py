"""Copy layers into device buffers: at once, or on a second CUDA stream during the computation."""

from collections.abc import Callable
from typing import Any, Final, Protocol

import torch
from torch import Tensor

_cuda: Final[Any] = torch.cuda  # Its streams and events have no types.


class Copies(Protocol):
    """Order of copies into numbered buffers and computations that read these."""

    def writes(self, memory: Tensor) -> None:
        """Register the memory of a buffer, which must not be used for anything else before its copies are done."""

    def start(self, buffer: int, copy: Callable[[], None]) -> None:
        """Fill the buffer by calling `copy`, after the last computation that reads it."""

    def await_filled(self, buffer: int) -> None:
        """Let computations from here on wait until the buffer is filled."""

    def release(self, buffer: int) -> None:
        """Allow the next copy after the computations so far, which are the last to read the buffer."""

    def wait_all(self) -> None:
        """Wait for all copies and computations, so that buffers can be freed."""


class ImmediateCopies:
    """Copies and computations in the order of the calls: on the CPU, and on a GPU without pipelining."""

    def writes(self, memory: Tensor) -> None:
        """Do nothing: copies run on the stream that the buffer was allocated on."""

    def start(self, buffer: int, copy: Callable[[], None]) -> None:
        copy()

    def await_filled(self, buffer: int) -> None:
        """Do nothing: the buffer is filled."""

    def release(self, buffer: int) -> None:
        """Do nothing: nothing runs concurrently."""

    def wait_all(self) -> None:
        """Do nothing: the allocator orders computations itself."""


class StreamCopies:
    """Copies on a CUDA stream of their own, ordered by CUDA events, so that the host never waits."""

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
