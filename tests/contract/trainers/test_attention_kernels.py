"""Attention that computes with kernels for every shape, and context parallelism that needs no mask for it."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from longshore_runtime.backends.streamed_lm.model import StreamedLM, StreamOptions
from tests.contract.trainers.replicas import Kind, make_samples, without_kl
from tests.contract.trainers.tiny_models import Family, build


@pytest.fixture(autouse=True)
def all_kernels() -> Iterator[None]:
    """As a process begins; nothing else in it asks which are on."""
    torch.backends.cuda.enable_cudnn_sdp(True)
    yield
    torch.backends.cuda.enable_cudnn_sdp(True)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("model"), Family("qwen3", tied=False))


@pytest.mark.parametrize("name", ["torch", "megatron"])
def test_a_trainer_computes_without_kernels_that_are_planned_for_each_shape(name: str, model: Path) -> None:
    Kind(name, model).start(without_kl()).accumulate(make_samples()[:2])
    assert not torch.backends.cuda.cudnn_sdp_enabled()


def test_so_does_a_judge(model: Path) -> None:
    StreamedLM.load(model, torch.device("cpu"), StreamOptions()).generate([[3, 4, 5]], 2, ())
    assert not torch.backends.cuda.cudnn_sdp_enabled()
