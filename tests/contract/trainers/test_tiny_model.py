"""The built-in model and its warm start."""

from pathlib import Path

import numpy as np
from safetensors.torch import load_file

from longshore_runtime.backends.tiny_model import EOS_ID, build_tiny_model, build_tokenizer
from longshore_runtime.data.supervised import Exchange
from longshore_runtime.session.warm_start import imitated
from longshore_runtime.tasks import counting
from longshore_runtime.tasks.curriculum import exchange
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


def test_the_warm_start_imitates_what_the_model_writes_and_not_what_it_reads() -> None:
    texts = [("d-t?", False), ("l", True), ("<", False), ("g", True)]
    episode = GuessingDemonstration(tuple(Segment(text, is_models) for text, is_models in texts))
    response = counting.Demonstration("k2:", "k2")
    assert [learnt(exchange(one, build_tokenizer())) for one in (episode, response)] == [
        [("?", "l"), ("l", "<eos>"), ("<", "g"), ("g", "<eos>")],
        [(":", "k"), ("k", "2"), ("2", "<eos>")],
    ]


def learnt(one: Exchange) -> list[tuple[str, str]]:
    """Return the tokens that are predicted, each with the one before it; check the end of the text."""
    (sample,) = imitated(1, [one])
    tokens = [*one.prompt_tokens.tolist(), *one.trajectory.tokens.tolist()]
    assert tokens[-1] == EOS_ID
    first, decode = len(one.prompt_tokens), build_tokenizer().convert_ids_to_tokens
    return [(decode(tokens[at - 1]), decode(tokens[at])) for at in first + np.flatnonzero(sample.in_loss)]
