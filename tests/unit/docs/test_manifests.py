"""Manifests with the values of papers: they are valid, fit their GPUs, and predict what the simulator does."""

from pathlib import Path

import pytest
from tools.manifest_predictions import MANIFESTS, predicted

from longshore.checks.memory import ModelSize, memory_mistakes
from longshore.checks.result import CheckOutcome
from longshore.policy.long_round_updates import expected_updates
from longshore_cli.check import run
from longshore_cli.simulate.inputs import read_job

_QWEN2_5_32B = ModelSize(32_763_876_352, 64, 5120, 27648, 152064, 8, 128, is_tied=False)
_PAPERS = ["april", "rolloutpipe", "rollpacker-14b", "rollpacker-32b", "rollpacker-7b"]


@pytest.mark.parametrize(
    ("name", "model", "num_updates"),
    [
        ("dapo", _QWEN2_5_32B, 16),
        ("april", ModelSize(4_022_468_096, 36, 2560, 9728, 151936, 8, 128, is_tied=True), 1),
        ("rollpacker-7b", ModelSize(7_615_616_512, 28, 3584, 18944, 152064, 4, 128, is_tied=False), 1),
        ("rollpacker-14b", ModelSize(14_770_033_664, 48, 5120, 13824, 152064, 8, 128, is_tied=False), 1),
        ("rollpacker-32b", _QWEN2_5_32B, 1),
        ("rolloutpipe", ModelSize(1_720_574_976, 28, 2048, 6144, 151936, 8, 128, is_tied=True), 48),
    ],
)
def test_recipes_of_papers_fit_the_gpus_that_they_ask_for(name: str, model: ModelSize, num_updates: int) -> None:
    spec = read_job(MANIFESTS / f"{name}.yaml", "checked").spec
    gpu_bytes = 24e9 if name == "rolloutpipe" else 80e9
    assert memory_mistakes(spec, model, gpu_bytes) == []
    assert expected_updates(spec.algorithm, spec.rollout) == num_updates * spec.algorithm.steps


@pytest.mark.parametrize("manifest", sorted(MANIFESTS.glob("*.yaml")), ids=lambda path: path.stem)
def test_every_manifest_passes_the_checks_that_need_no_files(manifest: Path) -> None:
    assert [found for found in run.checked(manifest, run.CheckOptions()) if found.outcome is CheckOutcome.FAILED] == []


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[pytest.mark.soak] if name in ("rollpacker-14b", "rollpacker-32b") else [])
        for name in _PAPERS
    ],
)
def test_a_header_predicts_what_the_simulator_does(name: str) -> None:
    manifest = MANIFESTS / f"{name}.yaml"
    line = predicted(manifest).line(read_job(manifest, "simulated").spec.algorithm.steps)
    assert line in manifest.read_text(encoding="utf-8").splitlines(), "run `make predictions`"
