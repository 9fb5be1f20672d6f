"""Manifests with the values of papers."""

from pathlib import Path

import pytest

from longshore.checks.memory import ModelSize, memory_mistakes
from longshore_cli.simulate.inputs import read_job

_MANIFESTS = Path(__file__).parents[3] / "manifests"


@pytest.mark.parametrize(
    ("name", "model", "num_updates"),
    [
        ("dapo.yaml", ModelSize(32_763_876_352, 64, 5120, 27648, 152064, 8, 128), 16),
        ("april.yaml", ModelSize(4_022_468_096, 36, 2560, 9728, 151936, 8, 128), 1),
    ],
)
def test_recipes_of_papers_fit_the_gpus_that_they_ask_for(name: str, model: ModelSize, num_updates: int) -> None:
    spec = read_job(_MANIFESTS / name).spec
    assert memory_mistakes(spec, model, 80e9) == []
    assert spec.algorithm.num_updates == num_updates * spec.algorithm.steps
