"""The built-in model and its warm start."""

from pathlib import Path

from safetensors.torch import load_file

from longshore_runtime.backends.tiny_model import build_tiny_model
from longshore_runtime.backends.warm_start import warm_start


def weights_equal(one: Path, other: Path) -> bool:
    first, second = (load_file(directory / "model.safetensors") for directory in (one, other))
    return all(first[name].equal(second[name]) for name in first)


def test_equal_seeds_build_equal_models(model: Path, tmp_path: Path) -> None:
    build_tiny_model(tmp_path / "same", seed=0)
    build_tiny_model(tmp_path / "other", seed=1)
    assert weights_equal(model, tmp_path / "same")
    assert not weights_equal(model, tmp_path / "other")


def test_the_warm_start_is_deterministic_learns_and_reports(tmp_path: Path) -> None:
    reports: list[tuple[int, float]] = []
    for name in ("one", "other"):
        warm_start(tmp_path / name, num_steps=12, seed=3, progress=lambda step, loss: reports.append((step, loss)))
    assert weights_equal(tmp_path / "one", tmp_path / "other")
    assert [step for step, _ in reports] == [*range(1, 13)] * 2
    assert reports[11][1] < 0.8 * reports[0][1]
