"""Trainers compute on the GPU that they were given, or not at all."""

import pytest
import torch

from longshore_runtime.backends.devices import HOST, compute_device
from longshore_runtime.errors import UserError


def test_a_process_without_gpus_computes_on_processors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert compute_device() == HOST


@pytest.mark.skipif(torch.version.cuda is not None, reason="needs a torch without CUDA")
def test_an_image_for_processors_is_a_mistake_where_there_are_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    with pytest.raises(UserError, match=r"^image: .* built for the CPU"):
        compute_device()


@pytest.mark.parametrize(
    ("said", "error", "match"),
    [
        ("Found no NVIDIA driver on your system.", RuntimeError, "no NVIDIA driver"),
        ("The NVIDIA driver on your system is too old", UserError, "^image: its torch needs a newer driver"),
    ],
)
def test_a_gpu_that_cannot_be_used_is_an_error(
    said: str, error: type[Exception], match: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def init() -> None:
        raise RuntimeError(said)

    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    monkeypatch.setattr(torch.backends.cuda, "is_built", lambda: True)
    monkeypatch.setattr(torch.cuda, "init", init)
    with pytest.raises(error, match=match):
        compute_device()


def test_a_gpu_that_can_be_used_is_used_whatever_nvml_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    monkeypatch.setattr(torch.backends.cuda, "is_built", lambda: True)
    monkeypatch.setattr(torch.cuda, "init", lambda: None)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert compute_device() == torch.device("cuda")
