"""The built-in model and its warm start."""

from pathlib import Path

import pytest
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from longshore_runtime.backends.tiny_model import EOS_ID, build_tiny_model
from longshore_runtime.backends.warm_start import fingerprint, warm_start


def weights_equal(one: Path, other: Path) -> bool:
    first, second = (load_file(directory / "model.safetensors") for directory in (one, other))
    return all(first[name].equal(second[name]) for name in first)


def test_it_has_fewer_than_a_million_parameters(model: Path) -> None:
    assert sum(p.numel() for p in AutoModelForCausalLM.from_pretrained(model).parameters()) < 1_000_000


def test_equal_seeds_build_equal_models(model: Path, tmp_path: Path) -> None:
    build_tiny_model(tmp_path / "same", seed=0)
    build_tiny_model(tmp_path / "other", seed=1)
    assert weights_equal(model, tmp_path / "same")
    assert not weights_equal(model, tmp_path / "other")


def test_every_printable_character_is_one_token_and_survives(model: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(model)
    text = "k17: k16 k15\n!~Zz"
    assert len(tokenizer.encode(text)) == len(text)
    assert tokenizer.decode(tokenizer.encode(text)) == text
    assert tokenizer.eos_token_id == EOS_ID


def test_the_warm_start_is_deterministic_learns_and_reports(tmp_path: Path) -> None:
    reports: list[tuple[int, float]] = []
    for name in ("one", "other"):
        warm_start(tmp_path / name, num_steps=12, seed=3, progress=lambda step, loss: reports.append((step, loss)))
    assert weights_equal(tmp_path / "one", tmp_path / "other")
    assert [step for step, _ in reports] == [*range(1, 13)] * 2
    assert reports[11][1] < 0.8 * reports[0][1]


def test_no_steps_leave_the_model_as_built(model: Path, tmp_path: Path) -> None:
    warm_start(tmp_path, num_steps=0, seed=0)
    assert weights_equal(model, tmp_path)


@pytest.mark.parametrize("arguments", [(10, 1), (11, 0)])
def test_the_fingerprint_distinguishes_results(arguments: tuple[int, int]) -> None:
    assert fingerprint(10, 0) == fingerprint(10, 0) != fingerprint(*arguments)
