"""The final model is served with the conversations that it was trained on."""

import json
from pathlib import Path
from typing import Any

import pytest

from longshore_runtime.checkpoints.model_export import ModelExport
from longshore_runtime.checkpoints.store import CheckpointStore
from longshore_runtime.checkpoints.trained_chat import TrainedChat
from tests.checkpoints import write_checkpoint


def files(directory: Path, **contents: Any) -> Path:
    for name, content in contents.items():
        (directory / f"{name}.json").write_text(json.dumps(content))
    return directory


@pytest.mark.parametrize(
    ("contents", "ends"),
    [
        ({"config": {"eos_token_id": 2}}, [2, 9]),
        ({"config": {}}, [9]),
        ({"config": {"eos_token_id": 2}, "generation_config": {"eos_token_id": [3, 4], "top_p": 0.9}}, [3, 4, 9]),
        ({"config": {"eos_token_id": 2}, "generation_config": {"top_p": 0.9}}, [2, 9]),
        ({"generation_config": {"eos_token_id": [9, 2]}}, [9, 2]),
        ({"config": {"eos_token_id": 2}, "generation_config": {"eos_token_id": None}}, [2, 9]),
        ({"config": {"text_config": {"eos_token_id": [1, 2]}}}, [1, 2, 9]),
    ],
)
def test_tokens_that_ended_responses_end_those_of_the_final_model(
    contents: dict[str, Any], ends: list[int], tmp_path: Path
) -> None:
    TrainedChat(end_tokens=(9,)).write(files(tmp_path, **contents))
    generation = json.loads((tmp_path / "generation_config.json").read_text())
    assert generation == {**contents.get("generation_config", {}), "eos_token_id": ends}


def test_the_end_tokens_stay_when_transformers_opens_the_model(tmp_path: Path) -> None:
    """It replaces settings of generation that say they came from the configuration of the model."""
    files(tmp_path, config={"eos_token_id": 2}, generation_config={"_from_model_config": True, "eos_token_id": 2})
    TrainedChat(end_tokens=(9,)).write(tmp_path)
    assert json.loads((tmp_path / "generation_config.json").read_text()) == {"eos_token_id": [2, 9]}


def test_a_model_whose_files_say_it_all_stays_as_it_is(tmp_path: Path) -> None:
    TrainedChat().write(files(tmp_path, config={"eos_token_id": 2}))
    TrainedChat(end_tokens=(2,)).write(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["config.json"]


def test_the_chat_template_of_the_job_goes_with_the_final_model(tmp_path: Path) -> None:
    def save(directory: Path) -> None:
        (directory / "chat_template.jinja").write_text("that of the tokenizer")

    checkpoint = write_checkpoint(CheckpointStore(tmp_path / "checkpoints", keep=1), 1, {}, {}, save)
    ModelExport(TrainedChat(template="{{ messages }} ü")).write(checkpoint, tmp_path / "model")
    assert (tmp_path / "model" / "chat_template.jinja").read_text(encoding="utf-8") == "{{ messages }} ü"
    assert (checkpoint.model / "chat_template.jinja").read_text() == "that of the tokenizer"


def test_a_configuration_may_hold_what_json_does_not_know(tmp_path: Path) -> None:
    files(tmp_path, config={"eos_token_id": 2, "time_step_limit": [0.0, float("inf")]})
    TrainedChat(end_tokens=(9,)).write(tmp_path)
    assert json.loads((tmp_path / "generation_config.json").read_text()) == {"eos_token_id": [2, 9]}
