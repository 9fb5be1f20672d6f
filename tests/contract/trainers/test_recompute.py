"""Parts of layers that are computed again for the gradient."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from longshore.api.training import Recompute
from longshore_runtime.backends.recompute import chosen_recompute
from tests.contract.trainers.replicas import OPTIONS, Kind, make_samples, step
from tests.contract.trainers.tiny_models import Family, build

GPU = torch.device("cuda")
NEEDS = {Recompute.NONE: 80.0, Recompute.SELECTIVE: 60.0, Recompute.FULL: 30.0}


@pytest.mark.parametrize("name", ["torch", "megatron"])
@pytest.mark.parametrize("recompute", [Recompute.SELECTIVE, Recompute.FULL])
def test_a_step_is_the_same_whatever_is_computed_again(name: str, recompute: Recompute, tmp_path: Path) -> None:
    model = build(tmp_path, Family("qwen3", tied=True))
    weights = []
    for options in (OPTIONS, replace(OPTIONS, recompute=recompute)):
        trainer = Kind(name, model).start(options)
        step(trainer, [make_samples()])
        weights.append(dict(trainer.weights()))
    for key, values in weights[0].items():
        np.testing.assert_allclose(weights[1][key], values, rtol=1e-6, atol=1e-8, err_msg=key)


@pytest.mark.parametrize(("num_bytes", "chosen"), [(90, "None"), (70, "Selective"), (40, "Full"), (20, "Full")])
def test_a_gpu_computes_again_as_little_as_its_memory_allows(
    num_bytes: int, chosen: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = type("Properties", (), {"total_memory": num_bytes})
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: found)
    assert chosen_recompute(replace(OPTIONS, recompute_needs=NEEDS), GPU) == chosen


def test_a_gpu_recomputes_all_layers_of_a_model_whose_needs_are_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        torch.cuda, "get_device_properties", lambda _: type("Properties", (), {"total_memory": 1 << 40})
    )
    assert chosen_recompute(OPTIONS, GPU) is Recompute.FULL


def test_nothing_is_computed_again_on_the_cpu_unless_the_job_says_so() -> None:
    assert chosen_recompute(OPTIONS, torch.device("cpu")) is Recompute.NONE
    assert chosen_recompute(replace(OPTIONS, recompute=Recompute.SELECTIVE), torch.device("cpu")) == "Selective"
