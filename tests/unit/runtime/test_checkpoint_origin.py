"""A checkpoint knows which model, tokenizer and prompts it belongs to."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from longshore.api.model import BuiltinTask, Data, Model
from longshore.api.warm_start import WarmStart
from longshore_runtime.checkpoints.origin import (
    Origin,
    critic_origin,
    model_origin,
    prompt_origins,
    tokenizer_origin,
    warm_start_origin,
)
from longshore_runtime.data.reading import Row
from longshore_runtime.errors import UserError

NUM_TENSORS = 600


def write_model(directory: Path, *, num_files: int = 1, changed: int | None = None, **config: Any) -> Path:
    """Tensors of one size whose values follow from their numbers, but for one that is `changed`."""
    directory.mkdir()
    (directory / "config.json").write_text(json.dumps({"hidden_size": 4, **config}))
    tensors = {f"layers.{n:03}": np.full(8, n, np.float32) for n in range(NUM_TENSORS)}
    if changed is not None:
        tensors[f"layers.{changed:03}"] = np.zeros(8, np.float32)
    names = list(tensors)
    for number in range(num_files):
        save_file({name: tensors[name] for name in names[number::num_files]}, directory / f"part-{number}.safetensors")
    return directory


def of_model(directory: Path) -> Origin:
    return model_origin(Model(path=f"models/{directory.name}"), None, directory)


def refusal(saved: Origin, now: Origin) -> str:
    with pytest.raises(UserError) as caught:
        now.require(asdict(saved), 4)
    return str(caught.value)


def test_a_model_of_the_same_shape_with_other_values_is_another_one(tmp_path: Path) -> None:
    a = of_model(write_model(tmp_path / "a"))
    b = of_model(write_model(tmp_path / "b", changed=300))
    assert refusal(a, b) == (
        "model.path: the checkpoint of step 4 in storage.output belongs to model.path 'models/a', not to 'models/b'; "
        "set it back, or start a new job with another storage.output"
    )


def test_a_model_with_another_configuration_is_another_one(tmp_path: Path) -> None:
    assert refusal(
        of_model(write_model(tmp_path / "a")), of_model(write_model(tmp_path / "b", num_hidden_layers=3))
    ).startswith("model.path")


def test_a_model_that_was_only_copied_or_saved_again_is_the_same(tmp_path: Path) -> None:
    a = of_model(write_model(tmp_path / "a"))
    b = of_model(write_model(tmp_path / "b", num_files=3, transformers_version="5.19.0"))
    b.require(asdict(a), 4)


def test_a_model_whose_files_were_replaced_is_to_be_restored(tmp_path: Path) -> None:
    now = Origin("model.path", "models/a", "1")
    assert refusal(Origin("model.path", "models/a", "0"), now) == (
        "model.path: 'models/a' has changed since the checkpoint of step 4 in storage.output was written; restore it, "
        "or start a new job with another storage.output"
    )


def test_little_of_a_large_model_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    directory = write_model(tmp_path / "a")
    opened: list[str] = []
    original = Path.open

    def counted(path: Path, *arguments: Any, **options: Any) -> Any:
        opened.append(path.name)
        return original(path, *arguments, **options)

    monkeypatch.setattr(Path, "open", counted)
    of_model(directory)
    assert len(opened) < 300


def test_a_checkpoint_belongs_to_its_warm_start() -> None:
    counting, guessing, long = (
        warm_start_origin(WarmStart(steps=steps), task)
        for steps, task in ((5, BuiltinTask.COUNTING), (5, BuiltinTask.GUESSING), (10, BuiltinTask.COUNTING))
    )
    counting.require(asdict(counting), 1)
    assert len({one.fingerprint for one in (counting, guessing, long)}) == 3
    assert refusal(counting, long) == (
        "algorithm.warmStart: the checkpoint of step 4 in storage.output belongs to algorithm.warmStart '5 steps on "
        "Counting', not to '10 steps on Counting'; set it back, or start a new job with another storage.output"
    )


def test_another_beginning_of_a_critic_is_refused() -> None:
    assert refusal(critic_origin(None), critic_origin("models/other")).startswith(
        "algorithm.objective.valueModel: the checkpoint of step"
    )
    critic_origin("models/other").require(asdict(critic_origin("models/other")), 1)


def test_the_files_of_the_built_in_model_may_be_lost() -> None:
    origin = model_origin(Model(builtin="Tiny"), None, Path("gone"))
    origin.require(asdict(origin), 1)


def prompts(*texts: Any, answer: str = "1") -> Origin:
    data = Data(path="data/rows.jsonl")
    rows = [Row("", {"prompt": text, "answer": answer}, data.each[0]) for text in texts]
    return prompt_origins(data, rows)["data"]


def test_other_prompts_or_another_order_are_refused_and_other_answers_are_not() -> None:
    saved = prompts("a", [{"role": "user", "content": "b"}], "c")
    prompts("a", [{"role": "user", "content": "b"}], "c", answer="2").require(asdict(saved), 2)
    for now in (prompts("a", "b", "c"), prompts("c", [{"role": "user", "content": "b"}], "a")):
        assert refusal(saved, now).startswith("data.path: 'data/rows.jsonl' has changed since")


def test_each_of_several_data_sets_is_named() -> None:
    data = Data(sources=[{"name": "a", "path": "a.jsonl"}, {"name": "b", "hub": "acme/b"}])  # type: ignore[list-item]
    a, b = data.each
    found = prompt_origins(data, [Row("", {"prompt": "x"}, a), Row("", {"prompt": "y"}, b)])
    assert {kind: origin.field for kind, origin in found.items()} == {
        "data.sources[a]": "data.sources[a].path",
        "data.sources[b]": "data.sources[b].hub",
    }


def test_another_vocabulary_is_refused_by_the_field_of_its_model() -> None:
    class Tokenizer:
        def __init__(self, *words: str) -> None:
            self.words = words

        def get_vocab(self) -> dict[str, int]:
            return {word: number for number, word in enumerate(self.words)}

    model = Origin("model.hub", "acme/tiny", "0")
    saved, now = (tokenizer_origin(model, Tokenizer(*words)) for words in (("a", "b"), ("b", "a")))
    assert refusal(saved, now).startswith("model.hub: 'tokenizer of acme/tiny' has changed")
