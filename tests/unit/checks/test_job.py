"""One job, its model and its data, checked together; and the command that does so."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from safetensors.numpy import save_file
from typer.testing import CliRunner

from longshore.checks.job import few_prompts
from longshore_cli.main import app

SPEC: dict[str, Any] = {
    "model": {"path": "models/mine", "maxContextTokens": 2048},
    "data": {"path": "data/train.jsonl", "heldOutPrompts": 1, "domainField": "domain"},
    "reward": {"functions": [{"name": "maths", "kind": "Maths", "domains": ["algebra"]}]},
    "algorithm": {"steps": 1, "promptsPerStep": 2, "responsesPerPrompt": 2, "maxResponseTokens": 64},
    "storage": {"claimName": "shared"},
}
ROW = {"prompt": "1+1", "answer": "2", "domain": "algebra"}


class Files:
    """A manifest with its model and data."""

    def __init__(self, root: Path) -> None:
        self.manifest, self.model, self.data = root / "job.yaml", root / "model", root / "train.jsonl"
        self.model.mkdir()
        (self.model / "config.json").write_text('{"max_position_embeddings": 4096}')
        (self.model / "tokenizer.json").write_text("{}")
        save_file({"a": np.ones(4)}, self.model / "model.safetensors")
        self.rows(ROW, ROW, ROW)
        self.spec()

    def rows(self, *rows: Any) -> None:
        self.data.write_text("".join(json.dumps(row) + "\n" for row in rows))

    def spec(self, **changes: Any) -> None:
        job = {"apiVersion": "longshore.dev/v1alpha1", "kind": "RLJob", "metadata": {"name": "j"}}
        self.manifest.write_text(yaml.safe_dump({**job, "spec": SPEC | changes}))

    def check(self, *options: str) -> tuple[int, str]:
        files = ["--model", str(self.model), "--data", str(self.data)]
        result = CliRunner().invoke(app, ["check", str(self.manifest), *files, *options])
        return result.exit_code, result.output


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return Files(tmp_path)


def test_a_job_that_can_work_has_no_mistakes(files: Files) -> None:
    assert files.check() == (0, "No mistakes were found.\n")


def test_every_mistake_is_a_line_of_its_own(files: Files) -> None:
    files.rows(ROW, {"prompt": "a"}, {**ROW, "prompt": 3}, {**ROW, "domain": "taste"}, {**ROW, "prompt": []})
    (files.model / "tokenizer.json").unlink()
    code, told = files.check()
    assert code == 1
    tokenizer, *rows = told.splitlines()
    assert tokenizer.startswith("model.path: 'models/mine' has no tokenizer")
    assert rows == [
        "data/train.jsonl, line 2: no field 'answer' (it has 'prompt'); set data.answerField",
        "data/train.jsonl, line 3: 'prompt' must be a text or a list of messages, not int",
        "data/train.jsonl, line 4: no reward function scores domain 'taste'; add it to reward.functions[].domains",
        "data/train.jsonl, line 5: 'prompt' is a list without messages",
    ]


def test_what_the_model_cannot_do_and_too_few_rows_are_mistakes(files: Files) -> None:
    files.spec(model={"path": "models/mine", "maxContextTokens": 8192})
    files.rows(ROW)
    code, told = files.check("--json")
    context, rows = json.loads(told)["mistakes"]
    assert code == 1
    assert context.startswith("model.maxContextTokens: 8192 exceeds the 4096 tokens of the model")
    assert rows.startswith("data: 1 prompts to train on are fewer than algorithm.promptsPerStep (2)")


def test_a_rule_of_the_spec_is_refused_as_the_api_server_would(files: Files) -> None:
    files.spec(data={"path": "../train.jsonl"})
    code, told = files.check()
    assert code != 0
    assert "spec.data.path: the path must stay inside the storage of the job: remove the '..'" in told


def test_what_is_not_looked_at_is_named(files: Files) -> None:
    files.spec(reward={"functions": [{"name": "mine", "kind": "Python", "importPath": "a:b"}]})
    told = CliRunner().invoke(app, ["check", str(files.manifest)]).output
    assert "not checked: the model 'models/mine': name a copy of it with --model" in told
    assert "not checked: the data 'data/train.jsonl': name a copy of it with --data" in told
    assert "not checked: the import path of reward 'mine'" in told


def test_a_mistake_in_the_data_does_nothing_to_the_terminal(files: Files) -> None:
    files.rows({"\x1b]0;owned\x07": 1})
    assert "\x1b" not in files.check()[1]


def test_fewer_prompts_than_a_step_wants_are_worth_a_word() -> None:
    assert few_prompts(8, 8) is None
    assert "7 prompts to train on are fewer than algorithm.promptsPerStep (8)" in str(few_prompts(7, 8))
