"""`longshore check` with a real tokenizer and real reward modules, as a user runs it."""

import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import yaml
from pyarrow import parquet
from typer.testing import CliRunner

from longshore.api.spec import RLJobSpec
from longshore.checks.result import Check, CheckOutcome, CheckResult
from longshore_cli.main import app
from longshore_runtime.check.results import CheckRequest, results

SPEC: dict[str, Any] = {
    "model": {"path": "models/tiny", "maxContextTokens": 128},
    "data": {"path": "data/train.jsonl", "heldOutPrompts": 1, "maxPromptTokens": 100},
    "reward": {"functions": [{"name": "maths", "kind": "Maths"}]},
    "algorithm": {"steps": 1, "promptsPerStep": 2, "responsesPerPrompt": 2, "maxResponseTokens": 64},
    "workers": {"gpusPerPod": 8, "nodeSelector": {"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3"}},
    "storage": {"claimName": "shared"},
}
ROW = {"prompt": "1+1", "answer": "2"}
MINE = {"reward": {"functions": [{"name": "mine", "kind": "Python", "importPath": "rewards_of_mine:score"}]}}


def written(path: Path, *rows: Mapping[str, Any]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def manifest(path: Path, **changes: Any) -> Path:
    job = {"apiVersion": "longshore.dev/v1alpha1", "kind": "RLJob", "metadata": {"name": "j"}, "spec": SPEC | changes}
    path.write_text(yaml.safe_dump(job))
    return path


def command(*arguments: object) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["check", *map(str, arguments)])
    return result.exit_code, result.output


def found(model: Path | None, rows: Path | None, /, **changes: Any) -> dict[Check, CheckResult]:
    spec = RLJobSpec.model_validate(SPEC | changes)
    return {one.name: one for one in results(CheckRequest(spec, model, rows))}


def test_a_job_that_can_work_passes_every_check(model: Path, tmp_path: Path) -> None:
    job, data = manifest(tmp_path / "job.yaml"), written(tmp_path / "train.jsonl", ROW, ROW, ROW)
    code, reported = command(job, "--model", model, "--data", data)
    assert code == 0
    names = [
        "spec",
        "operator-rules",
        "model-files",
        "model-limits",
        "gpu-memory",
        "coordinator-memory",
        "data-rows",
        "tokenizer",
        "references",
        "prompts",
    ]
    assert [line.split()[:2] for line in reported.splitlines()] == [["✓", name] for name in names]


def test_a_mistake_is_a_cross_for_people_and_an_entry_for_programs(tmp_path: Path) -> None:
    job = manifest(tmp_path / "job.yaml")
    data = written(tmp_path / "train.jsonl", ROW, {"prompt": 3, "answer": "1"}, {**ROW, "answer": "#### "}, ROW)
    code, reported = command(job, "--data", data, "--json", "--skip", "model-files")
    assert code == 1
    answer = json.loads(reported)
    outcomes = {one["name"]: one["outcome"] for one in answer["checks"]}
    passed = dict.fromkeys(("spec", "operator-rules", "coordinator-memory"), "Passed")
    assert outcomes == passed | {"data-rows": "Failed", "references": "Failed"}
    rows, reference = answer["mistakes"]
    assert rows == "data/train.jsonl, line 2: 'prompt' must be a text or a list of messages, not int"
    assert reference.startswith("data/train.jsonl, line 3: the reference answer '#### ' holds no answer")
    code, reported = command(job, "--data", data)
    assert code == 1
    assert f"✗ data-rows           1 mistake\n  {rows}\n✗ references          1 mistake\n  {reference}\n" in reported
    assert "– model-files         not checked: name a copy of 'models/tiny' with --model\n" in reported


def test_every_mistake_in_fields_has_its_own_line_and_misspelt_fields_come_first(tmp_path: Path) -> None:
    algorithm = {"steps": 0, "promptsPerStep": 4, "responsesPerPrompt": 2, "maxReponseTokens": 64}
    code, reported = command(manifest(tmp_path / "job.yaml", algorithm=algorithm))
    assert code == 1
    assert reported.splitlines() == [
        "✗ spec  3 mistakes",
        "  spec.algorithm.maxReponseTokens: there is no such field; did you mean maxResponseTokens?",
        "  spec.algorithm.steps: input should be greater than or equal to 1, not 0",
        "  spec.algorithm.maxResponseTokens: the field is required",
    ]


@pytest.mark.parametrize(
    ("changes", "mistake"),
    [
        (
            {"workers": {"template": {"containers": [{"name": "longshore"}]}}},
            "spec.workers.template.containers: a template has metadata and spec only; remove it",
        ),
        (
            {"coordinator": {"template": {"spec": {"hostNetwork": True}}}},
            "spec.coordinator.template.spec.hostNetwork: is not for a template; remove it",
        ),
        ({"workers": {"template": {"spec": {"priorityClassName": "high"}}}}, ""),
    ],
    ids=["shape", "host network", "a class that the operator may allow"],
)
def test_what_the_operator_refuses_is_found_before_it_is_submitted(
    tmp_path: Path, changes: dict[str, Any], mistake: str
) -> None:
    code, reported = command(manifest(tmp_path / "job.yaml", **changes))
    assert (code, "✗ operator-rules" in reported) == (int(bool(mistake)), bool(mistake))
    assert mistake in reported


@pytest.mark.parametrize(
    ("metadata", "changes", "mistake"),
    [
        (
            {"labels": {"team": "My Team"}},
            {},
            "metadata.labels[team]: 'My Team' is no value of a label: use at most 63",
        ),
        ({"labels": {"team": "x" * 64}}, {}, "is no value of a label"),
        ({"labels": {"run": 7}}, {}, "metadata.labels[run]: it must be a text; put it in quotes"),
        ({"labels": ["a"]}, {}, "metadata.labels: it must be an object of texts"),
        ({"labels": {"Team.org/a/b": ""}}, {}, "metadata.labels: 'Team.org/a/b' is no key"),
        ({"annotations": {"-a": "any text"}}, {}, "metadata.annotations: '-a' is no key"),
        ({}, {"workers": {"nodeSelector": {"gpu": "H100 80GB"}}}, "spec.workers.nodeSelector[gpu]: 'H100 80GB' is no"),
        (
            {},
            {"reward": {"template": {"metadata": {"labels": {"a b": "c"}}}, **MINE["reward"]}},
            "spec.reward.template.metadata.labels: 'a b' is no key",
        ),
        (
            {},
            {"coordinator": {"template": {"spec": {"nodeSelector": {"a": "b_"}}}}},
            "spec.coordinator.template.spec.nodeSelector[a]: 'b_' is no value of a label",
        ),
    ],
)
def test_labels_that_the_api_server_refuses_are_mistakes(
    tmp_path: Path, metadata: dict[str, Any], changes: dict[str, Any], mistake: str
) -> None:
    job = yaml.safe_load(manifest(tmp_path / "job.yaml", **changes).read_text())
    job["metadata"] |= metadata
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(job))
    code, reported = command(tmp_path / "job.yaml", "--skip", "reward-imports")
    assert (code, "✗ spec" in reported, mistake in reported) == (1, True, True)


def test_labels_and_annotations_of_every_allowed_form_pass(tmp_path: Path) -> None:
    job = yaml.safe_load(
        manifest(tmp_path / "job.yaml", workers={"nodeSelector": {"a.b-c.io/D_e": "x.Y-z_0"}}).read_text()
    )
    job["metadata"] |= {"labels": {"empty": "", "k" * 63: "v" * 63}, "annotations": {"Example.ORG/a": "any: text\n"}}
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(job))
    assert command(tmp_path / "job.yaml")[0] == 0


PARQUET = {"path": "data/train", "format": "Parquet", "heldOutPrompts": 1}
"""A directory of files."""


def test_rows_of_parquet_files_are_looked_at_like_those_of_jsonl(model: Path, tmp_path: Path) -> None:
    data = tmp_path / "train"
    data.mkdir()
    table = {"question": ["1+1", "2+2", None], "answer": ["2", "4", "0"]}
    parquet.write_table(pa.table(table), data / "part-0.parquet")
    mistyped = found(model, data, data=PARQUET | {"promptField": "prompt"})[Check.DATA_ROWS]
    assert mistyped.mistakes == (
        "data/train/part-0.parquet, row 0: no field 'prompt' (it has 'question', 'answer'); set data.promptField",
    )
    wrong = found(model, data, data=PARQUET | {"promptField": "question"})
    assert wrong[Check.DATA_ROWS].mistakes == (
        "data/train/part-0.parquet, row 2: 'question' must be a text or a list of messages, not NoneType",
    )
    parquet.write_table(pa.table({"prompt": ["1+1"] * 3, "answer": ["2"] * 3}), data / "part-0.parquet")
    code, reported = command(manifest(tmp_path / "job.yaml", data=PARQUET), "--data", data, "--model", model)
    assert code == 0
    names = [line.split()[:2] for line in reported.splitlines()]
    assert ["✓", "data-rows"] in names
    assert [name for _, name in names] == [name for name in Check if ["✓", name] in names], "each once, in their order"


def test_a_prompt_template_around_messages_alone_is_found_in_parquet_files(model: Path, tmp_path: Path) -> None:
    data = tmp_path / "train"
    data.mkdir()
    rows = [{"prompt": [{"role": "user", "content": f"{number}+1"}], "answer": "2"} for number in range(3)]
    parquet.write_table(pa.Table.from_pylist(rows), data / "part-0.parquet")
    (mistake,) = found(model, data, data=PARQUET | {"promptTemplate": "Solve: {prompt}"})[Check.DATA_ROWS].mistakes
    assert mistake.startswith("data.promptTemplate: no prompt is put into it")


def test_an_argument_that_the_models_template_does_not_read_is_found(model: Path, tmp_path: Path) -> None:
    data = written(tmp_path / "train.jsonl", ROW, ROW, ROW)
    chat = {"templateArguments": {"enable_thinking": False}}
    assert found(model, data, data={**SPEC["data"], "chat": chat})[Check.PROMPTS].mistakes == (
        "data.chat.templateArguments: the chat template never reads 'enable_thinking'; remove it",
    )


def test_prompts_that_are_left_out_are_named_by_their_lines(model: Path, tmp_path: Path) -> None:
    data = written(tmp_path / "train.jsonl", ROW, {**ROW, "prompt": "x" * 65}, ROW, ROW)
    prompts = found(model, data)[Check.PROMPTS]
    assert (prompts.outcome, prompts.detail) == (
        CheckOutcome.PASSED,
        "4 prompts, the longest has 65 tokens; 1 with more than 64 (maxContextTokens less maxResponseTokens) are left "
        "out: line 2",
    )


def test_rows_that_repeat_held_out_prompts_are_counted(model: Path, tmp_path: Path) -> None:
    data = written(tmp_path / "train.jsonl", *({**ROW, "prompt": f"{number % 3}+1"} for number in range(9)))
    assert found(model, data)[Check.PROMPTS].detail.endswith("; 2 more repeat held-out prompts and are not trained on")


def test_a_chat_template_that_does_not_begin_the_answer_is_found(model: Path, tmp_path: Path) -> None:
    data = written(tmp_path / "train.jsonl", *({**ROW, "prompt": f"{number}+1"} for number in range(4)))
    turns = "{% for one in messages %}{{ one.role }}: {{ one.content }}\n{% endfor %}"
    (said,) = found(model, data, data={**SPEC["data"], "chat": {"template": turns}})[Check.PROMPTS].mistakes
    assert said.endswith("set a template that ends prompts with 'assistant: '")


def test_a_spec_that_the_api_server_refuses_is_a_cross(tmp_path: Path) -> None:
    data = {"path": "d", "promptTemplate": "Solve it."}
    code, reported = command(manifest(tmp_path / "job.yaml", data=data))
    assert code == 1
    assert reported.startswith("✗ spec  1 mistake\n")
    assert "spec.data.promptTemplate: promptTemplate must contain {prompt}" in reported


def test_options_that_mean_nothing_are_refused(tmp_path: Path) -> None:
    job = manifest(tmp_path / "job.yaml")
    for option, value in (
        ("--gpu-memory", "much"),
        ("--gpu-memory", "1/0"),
        ("--gpu-memory", "0"),
        ("--gpu-memory", "80"),
        ("--gpu-type", "GTX"),
        ("--skip", "everything"),
        ("--model", "no-such-model"),
        ("--data", "no-such-data.jsonl"),
    ):
        code, reported = command(job, option, value)
        assert (code, reported.startswith(f"error: {option}: ")) == (2, True), reported


def test_a_mistake_in_the_data_does_nothing_to_the_terminal(tmp_path: Path) -> None:
    data = written(tmp_path / "train.jsonl", {"\x1b]0;owned\x07": 1})
    assert "\x1b" not in command(manifest(tmp_path / "job.yaml"), "--data", data)[1]


@pytest.mark.parametrize(
    ("source", "reported"),
    [
        (None, "'rewards_of_mine:score' cannot be imported (ModuleNotFoundError: No module named 'rewards_of_mine')"),
        ("def other(): ...", "(AttributeError: module 'rewards_of_mine' has no 'score')"),
        ("def scores(): ...", "(AttributeError: module 'rewards_of_mine' has no 'score'; did you mean 'scores'?)"),
        (
            "raise SystemExit(3)",
            "cannot be imported (SystemExit: 3 at rewards_of_mine.py:1 in <module>: raise SystemExit(3))",
        ),
        ("score = 3", "'rewards_of_mine:score' is no function"),
        ("print('hello')\ndef score(prompt, response, answer): ...", None),
    ],
)
def test_a_reward_is_imported_and_nothing_else_is_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str | None, reported: str | None
) -> None:
    if source is not None:
        (tmp_path / "rewards_of_mine.py").write_text(source)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    (result,) = found(None, None, **MINE).values()
    assert result.name is Check.REWARD_IMPORTS
    if reported is None:
        assert result.outcome is CheckOutcome.PASSED
    else:
        assert reported in result.mistakes[0]
        assert "add --skip reward-imports if only the image has it" in result.mistakes[0]


@pytest.mark.parametrize(
    ("body", "reported"),
    [
        ("return float(response == answer)", None),
        (
            "raise KeyError(prompt)",
            "scores none of the 2 rows that were tried: reward mine: data/train.jsonl, line 1, its",
        ),
        ("return 'good'", "returned 'good' instead of a number. Response: '2'. Row: prompt: '1+1', answer: '2'"),
    ],
)
def test_reward_is_called_with_rows_of_the_data(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, body: str, reported: str | None
) -> None:
    (tmp_path / "rewards_of_mine.py").write_text(f"def score(prompt, response, answer):\n    {body}\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    checks = found(None, written(tmp_path / "train.jsonl", ROW, ROW), **MINE)
    assert checks[Check.REWARD_IMPORTS].outcome is CheckOutcome.PASSED
    called = checks[Check.REWARD_CALLS]
    if reported is None:
        assert called.detail == "rewards_of_mine:score was called with 2 rows of the data"
    else:
        (mistake,) = called.mistakes
        assert mistake.startswith("reward.functions[mine].importPath: ") and reported in mistake
        assert mistake.endswith("correct it, or add --skip reward-calls if it needs what only the pods of the job have")


def test_reward_that_cannot_be_imported_is_not_called(tmp_path: Path) -> None:
    checks = found(None, written(tmp_path / "train.jsonl", ROW), **MINE)
    assert checks[Check.REWARD_IMPORTS].mistakes and Check.REWARD_CALLS not in checks


def test_objective_is_imported_without_model_and_data(tmp_path: Path) -> None:
    algorithm = SPEC["algorithm"] | {"objective": {"name": "Custom", "importPath": "no_such_module:loss"}}
    code, reported = command(manifest(tmp_path / "job.yaml", algorithm=algorithm))
    assert (code, "\n  algorithm.objective.importPath: no_such_module:loss cannot be imported" in reported) == (1, True)


def without_vocabulary(directory: Path) -> None:
    for path in directory.glob("tokenizer*"):
        path.unlink()
    (directory / "tokenizer.json").write_text("{")


def without_chats(directory: Path) -> None:
    (directory / "chat_template.jinja").unlink()


def knowing_fewer_tokens(directory: Path) -> None:
    config = json.loads((directory / "config.json").read_text())
    (directory / "config.json").write_text(json.dumps(config | {"vocab_size": 8}))


@pytest.mark.parametrize(
    ("damage", "row", "check", "reported"),
    [
        (without_vocabulary, ROW, Check.TOKENIZER, "has no usable tokenizer"),
        (without_chats, {**ROW, "prompt": [{"role": "user", "content": "hi"}]}, Check.PROMPTS,
         "data.chat.template: data/train.jsonl, line 1 is a conversation, and the model's"),
        (knowing_fewer_tokens, ROW, Check.PROMPTS, "and the model knows 8 tokens"),
        (lambda directory: None, {**ROW, "prompt": "x" * 65}, Check.PROMPTS, "none of the 1 prompts has at most 64"),
    ],
)  # fmt: skip
def test_a_model_that_does_not_take_the_prompts_is_found(
    model: Path, tmp_path: Path, damage: Callable[[Path], None], row: Any, check: Check, reported: str
) -> None:
    damaged = tmp_path / "model"
    shutil.copytree(model, damaged)
    damage(damaged)
    assert reported in found(damaged, written(tmp_path / "train.jsonl", row))[check].mistakes[0]


def test_a_model_that_megatron_cannot_split_is_found(model: Path) -> None:
    trainer = {"backend": "Megatron", "tensorParallelSize": 8}
    assert found(model, None, trainer=trainer)[Check.TRAINER_SIZES].mistakes == (
        "trainer.tensorParallelSize: 8 does not divide the model's 4 attention heads",
    )


WITHOUT_TRANSFORMERS = """
import sys
sys.modules["transformers"] = None
from longshore_runtime.check.__main__ import main
main()
"""


def test_without_the_runtimes_packages_what_needs_them_is_named(model: Path, tmp_path: Path) -> None:
    data = written(tmp_path / "train.jsonl", ROW)
    spec = RLJobSpec.model_validate(SPEC).model_dump(mode="json")
    request = json.dumps({"spec": spec, "model": str(model), "data": str(data), "warm_start_data": None, "skipped": []})
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_TRANSFORMERS], input=request, capture_output=True, text=True, check=True
    )
    outcomes = {one["name"]: one for one in map(json.loads, done.stdout.splitlines())}
    assert outcomes["tokenizer"]["detail"] == (
        "the Python package transformers is not installed here; install longshore[runtime]"
    )
    assert [name for name, one in outcomes.items() if one["is_checked"]] == ["references"]
