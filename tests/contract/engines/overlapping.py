"""Asynchronous scheduling of vLLM on a CPU, which vLLM has for GPUs alone.

Its scheduler and our bookkeeping are those of GPUs; nothing runs at the same time, and the model runner is another one.
"""

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest
import torch


class _Stream:
    """A stream of CUDA, or an event in one: on a CPU everything has been computed when it is asked for."""

    device = torch.device("cpu")

    def __init__(self, *_: Any, **__: Any) -> None:
        """Take what CUDA's take."""

    def record(self, *_: Any) -> None:
        """Nothing is under way."""

    def synchronize(self) -> None:
        """Nothing is under way."""

    def wait_stream(self, *_: Any) -> None:
        """Nothing is under way."""


@contextlib.contextmanager
def steps_that_overlap() -> Iterator[None]:
    """Make engines that start meanwhile begin a step before they return the tokens of the one before."""
    from vllm.platforms.cpu import CpuPlatform

    assert not torch.cuda.is_available(), "the streams of a GPU are real"
    check = CpuPlatform.check_and_update_config.__func__

    def check_and_turn_on(platform: Any, config: Any) -> None:
        check(platform, config)
        config.scheduler_config.async_scheduling = True

    with pytest.MonkeyPatch.context() as patch:
        for name in ("Event", "Stream", "current_stream"):
            patch.setattr(torch.cuda, name, _Stream)
        patch.setattr(torch.cuda, "stream", contextlib.nullcontext)
        patch.setattr(CpuPlatform, "check_and_update_config", classmethod(check_and_turn_on))
        yield
