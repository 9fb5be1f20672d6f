"""The built-in model and its warm start."""

from pathlib import Path

import pytest
from safetensors.torch import load_file

from longshore.api.model import BuiltinTask
from longshore_runtime.backends.tiny_model import EOS_ID, build_tiny_model, build_tokenizer
from longshore_runtime.backends.warm_start import IGNORED, encode, fingerprint, warm_start
from longshore_runtime.tasks import counting
from longshore_runtime.tasks.demonstration import Segment
from longshore_runtime.tasks.guessing import GuessingDemonstration


def weights_equal(one: Path, other: Path) -> bool:
    first, second = (load_file(directory / "model.safetensors") for directory in (one, other))
    return all(first[name].equal(second[name]) for name in first)


def test_equal_seeds_build_equal_models(model: Path, tmp_path: Path) -> None:
    build_tiny_model(tmp_path / "same", seed=0)
    build_tiny_model(tmp_path / "other", seed=1)
    assert weights_equal(model, tmp_path / "same")
    assert not weights_equal(model, tmp_path / "other")


@pytest.mark.parametrize("task", BuiltinTask)
def test_the_warm_start_is_deterministic_learns_and_reports(tmp_path: Path, task: BuiltinTask) -> None:
    reports: list[tuple[int, float]] = []
    for name in ("one", "other"):
        warm_start(tmp_path / name, task, 12, seed=3, progress=lambda step, loss: reports.append((step, loss)))
    assert weights_equal(tmp_path / "one", tmp_path / "other")
    assert [step for step, _ in reports] == [*range(1, 13)] * 2
    assert reports[9][1] < 0.8 * reports[0][1]


def test_warm_starts_of_different_tasks_have_different_names() -> None:
    assert len({fingerprint(task, 300, 0) for task in BuiltinTask}) == len(BuiltinTask)


def test_the_warm_start_imitates_what_the_model_writes_and_not_what_it_reads() -> None:
    texts = [("d-t?", False), ("l", True), ("<", False), ("g", True)]
    episode = GuessingDemonstration(tuple(Segment(text, is_models) for text, is_models in texts))
    response = counting.Demonstration("k2:", "k2")
    assert [learnt(tokens, targets) for tokens, targets in encode([episode, response])] == [
        [("?", "l"), ("l", "<eos>"), ("<", "g"), ("g", "<eos>")],
        [(":", "k"), ("k", "2"), ("2", "<eos>")],
    ]


def learnt(tokens: list[int], targets: list[int]) -> list[tuple[str, str]]:
    """Return the tokens after which something is to be predicted, with that; check the end of the text."""
    assert tokens[-1] == EOS_ID
    assert all(
        target in (IGNORED, following) for target, following in zip(targets, [*tokens[1:], IGNORED], strict=True)
    )
    decode = build_tokenizer().convert_ids_to_tokens
    return [(decode(token), decode(target)) for token, target in zip(tokens, targets, strict=True) if target != IGNORED]
