"""What the files of a job tell, all of them together."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from longshore.api.spec import RLJobSpec
from longshore.checks import engine_arguments
from longshore.checks.job import few_prompts, file_checks
from longshore.checks.result import Check, CheckOutcome

SPEC: dict[str, Any] = {
    "model": {"path": "models/mine", "maxContextTokens": 2048},
    "data": {"path": "data/train.jsonl", "heldOutPrompts": 1, "domainField": "domain"},
    "reward": {"functions": [{"name": "maths", "kind": "Maths", "domains": ["algebra"]}]},
    "algorithm": {"steps": 1, "promptsPerStep": 2, "responsesPerPrompt": 2, "maxResponseTokens": 64},
    "storage": {"claimName": "shared"},
}
ROW = {"prompt": "1+1", "answer": "2", "domain": "algebra"}
CONFIG = {
    "max_position_embeddings": 4096, "num_hidden_layers": 2, "hidden_size": 64, "intermediate_size": 128,
    "vocab_size": 100, "num_attention_heads": 2,
}  # fmt: skip
GIB = float(1 << 30)


class Files:
    """A spec with its model and data."""

    def __init__(self, root: Path) -> None:
        self.model, self.data = root / "model", root / "train.jsonl"
        self.model.mkdir()
        (self.model / "config.json").write_text(json.dumps(CONFIG))
        (self.model / "tokenizer.json").write_text("{}")
        save_file({"a": np.ones((4, 3))}, self.model / "model.safetensors")
        self.rows(ROW, ROW, ROW)
        self.spec()

    def rows(self, *rows: Any) -> None:
        self.data.write_text("".join(json.dumps(row) + "\n" for row in rows))

    def spec(self, **changes: Any) -> None:
        self.job = RLJobSpec.model_validate(SPEC | changes)

    def found(self, gpu_bytes: float | None = 80 * GIB) -> dict[Check, tuple[CheckOutcome, tuple[str, ...], str]]:
        results = file_checks(self.job, self.model, self.data, gpu_bytes)
        return {one.name: (one.outcome, one.mistakes, one.detail) for one in results}

    def mistakes(self, check: Check) -> tuple[str, ...]:
        outcome, mistakes, _ = self.found()[check]
        assert (outcome is CheckOutcome.FAILED) == bool(mistakes)
        return mistakes


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return Files(tmp_path)


def test_a_job_that_can_work_passes_every_check(files: Files) -> None:
    found = files.found()
    assert list(found) == [
        Check.MODEL_FILES,
        Check.MODEL_LIMITS,
        Check.GPU_MEMORY,
        Check.COORDINATOR_MEMORY,
        Check.DATA_ROWS,
    ]
    assert {outcome for outcome, _, _ in found.values()} == {CheckOutcome.PASSED}
    assert found[Check.MODEL_FILES][2].startswith("12 parameters")


def test_every_row_that_is_wrong_is_a_mistake_of_its_own(files: Files) -> None:
    files.rows(ROW, {"prompt": "a"}, {**ROW, "prompt": 3}, {**ROW, "domain": "taste"}, {**ROW, "prompt": []})
    assert files.mistakes(Check.DATA_ROWS) == (
        "data/train.jsonl, line 2: no field 'answer' (it has 'prompt'); set data.answerField",
        "data/train.jsonl, line 3: 'prompt' must be a text or a list of messages, not int",
        "data/train.jsonl, line 4: no reward function scores domain 'taste'; add it to reward.functions[].domains",
        "data/train.jsonl, line 5: 'prompt' is a list without messages",
    )


def test_a_conversation_that_ends_with_an_answer_is_a_mistake_of_its_row(files: Files) -> None:
    asked = {"role": "user", "content": "1+1"}
    files.rows({**ROW, "prompt": [asked]}, {**ROW, "prompt": [asked, {"role": "assistant", "content": "2"}]}, ROW)
    assert files.mistakes(Check.DATA_ROWS) == (
        "data/train.jsonl, line 2: 'prompt': the last message is from the assistant, and the prompt would contain it; "
        "remove it, so that the last one is from the user or a tool",
    )


def test_a_prompt_template_that_no_prompt_is_put_into_is_a_mistake(files: Files) -> None:
    files.spec(data=SPEC["data"] | {"promptTemplate": "Solve: {prompt}"})
    chat = {**ROW, "prompt": [{"role": "user", "content": "1+1"}]}
    files.rows(chat, chat, chat)
    (mistake,) = files.mistakes(Check.DATA_ROWS)
    assert mistake.startswith("data.promptTemplate: no prompt is put into it, because all are lists of messages")
    files.rows(chat, chat, ROW)
    assert not files.mistakes(Check.DATA_ROWS)


def test_nothing_more_is_said_of_a_model_whose_files_are_wrong(files: Files) -> None:
    (files.model / "tokenizer.json").unlink()
    assert list(files.found()) == [Check.MODEL_FILES, Check.COORDINATOR_MEMORY, Check.DATA_ROWS]
    assert files.mistakes(Check.MODEL_FILES)[0].startswith("model.path: 'models/mine' has no tokenizer")


def test_what_the_model_cannot_do_and_too_few_rows_are_mistakes(files: Files) -> None:
    files.spec(model={"path": "models/mine", "maxContextTokens": 8192})
    files.rows(ROW)
    (context,), (rows,) = files.mistakes(Check.MODEL_LIMITS), files.mistakes(Check.DATA_ROWS)
    assert context.startswith("model.maxContextTokens: 8192 exceeds the 4096 tokens of the model")
    assert rows.startswith("data: 1 prompts to train on are fewer than algorithm.promptsPerStep (2)")


def test_a_coordinator_that_cannot_hold_the_experts_of_all_tokens_is_a_mistake(files: Files) -> None:
    mixture = {"num_hidden_layers": 48, "num_experts": 128, "num_experts_per_tok": 8, "moe_intermediate_size": 96}
    (files.model / "config.json").write_text(json.dumps(CONFIG | mixture))
    replay = {"trainer": {"routerReplay": True}, "workers": {"gpusPerPod": 1}}
    files.spec(coordinator={"resources": {"memory": "4Gi"}}, **replay)
    (mistake,) = files.mistakes(Check.COORDINATOR_MEMORY)
    assert mistake.endswith("set memory to 9Gi")
    files.spec(coordinator={"resources": {"memory": "9Gi"}}, **replay)
    assert not files.mistakes(Check.COORDINATOR_MEMORY)


@pytest.mark.parametrize(
    ("engine", "workers", "mistakes"),
    [
        ({"extraArgs": {"block_size": 64, "speculative_config": {}}}, {"gpusPerPod": 1}, []),
        (
            {"extraArgs": {"spec_tokens": 3}},
            {"gpusPerPod": 0},
            ["spec_tokens vLLM samples wrong tokens on CPUs; remove it, or use GPUs"],
        ),
        (
            {"extraArgs": {"seed": 1, "nnodes": 2}},
            {"gpusPerPod": 1},
            ["seed follows from other fields; remove it", "other GPUs than those of its tensorParallelSize; remove it"],
        ),
        (
            {"extraArgs": {"hf_overrides": {"rope_theta": 1e6}}},
            {"gpusPerPod": 1},
            ["of trainers; change the model's config.json, which both read; remove it"],
        ),
        ({"backend": "Fake", "extraArgs": {"seed": 1}}, {"gpusPerPod": 0}, []),
    ],
)
def test_arguments_that_vllm_cannot_have_are_mistakes(
    files: Files, engine: dict[str, Any], workers: dict[str, Any], mistakes: list[str]
) -> None:
    files.spec(rollout={"engine": engine}, workers=workers)
    found = files.mistakes(Check.ENGINE_ARGUMENTS)
    assert all(mistake.endswith(end) for mistake, end in zip(found, mistakes, strict=True))
    assert all(mistake.startswith("rollout.engine.extraArgs: ") for mistake in found)


@pytest.mark.parametrize(
    ("arguments", "level", "is_refused"),
    [
        ({"speculative_config": {"method": "eagle3", "model": "draft"}}, 2, True),
        ({"spec_model": "draft", "spec_tokens": 3}, 2, True),
        ({"speculative_config": {"method": "eagle3", "model": "draft"}}, 1, False),
        ({"speculative_config": {"method": "ngram"}}, 2, False),
        ({"speculative_config": {"model": "[ngram]"}}, 2, False),
        ({"block_size": 64}, 2, False),
    ],
)
def test_a_draft_model_does_not_survive_deep_sleep(
    files: Files, arguments: dict[str, Any], level: int, is_refused: bool
) -> None:
    files.spec(rollout={"engine": {"extraArgs": arguments, "sleepLevel": level}}, workers={"gpusPerPod": 1})
    sentence = "rollout.engine.sleepLevel: at level 2 the draft model would lose its weights; set it to 1"
    assert list(files.mistakes(Check.ENGINE_ARGUMENTS)) == ([sentence] if is_refused else [])


@pytest.mark.parametrize(
    ("name", "fix"),
    [
        ("max_num_batched_token", "did you mean max_num_batched_tokens?"),
        ("--block-size", "did you mean block_size?"),
        ("enablePrefixCaching", "did you mean enable_prefix_caching?"),
        ("xyzzy", "remove it"),
    ],
)
def test_an_argument_unknown_to_vllm_is_a_mistake_with_the_one_that_was_meant(
    files: Files, name: str, fix: str
) -> None:
    files.spec(rollout={"engine": {"extraArgs": {name: 1, "block_size": 32}}}, workers={"gpusPerPod": 1})
    assert files.mistakes(Check.ENGINE_ARGUMENTS) == (
        f"rollout.engine.extraArgs: vLLM has no argument {name}; {fix}; add --skip engine-arguments if the image has "
        "another version of vLLM that knows it",
    )


@pytest.mark.parametrize("places", [None, (), ("/nowhere",)])
def test_names_of_arguments_are_not_checked_where_vllm_is_not_installed(
    files: Files, places: tuple[str, ...] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = None if places is None else SimpleNamespace(submodule_search_locations=places)
    monkeypatch.setattr(engine_arguments.importlib.util, "find_spec", lambda name: spec)
    files.spec(rollout={"engine": {"extraArgs": {"xyzzy": 1}}}, workers={"gpusPerPod": 1})
    outcome, mistakes, detail = files.found()[Check.ENGINE_ARGUMENTS]
    assert (outcome, mistakes) == (CheckOutcome.PASSED, ())
    assert detail.endswith("names are not checked, because vLLM is not installed here")


def test_memory_is_checked_against_a_gpu_that_is_known(files: Files) -> None:
    outcome, _, detail = files.found(gpu_bytes=None)[Check.GPU_MEMORY]
    assert outcome is CheckOutcome.NOT_CHECKED
    assert "an engine needs about" in detail and "name the GPU with --gpu-type" in detail
    engine, trainer = files.found(gpu_bytes=GIB)[Check.GPU_MEMORY][1]
    assert engine.startswith("rollout.engine.gpuMemoryUtilization: 0.5 of a GPU's 1.0 GiB are 0.5 GiB")
    assert trainer.startswith("trainer: a GPU has 0.0 GiB for it")


@pytest.mark.parametrize("workers", [{"gpusPerPod": 0}, {"gpuResourceName": "longshore.dev/pretend"}])
def test_pods_without_real_gpus_have_no_gpu_memory_to_check(files: Files, workers: dict[str, Any]) -> None:
    (files.model / "config.json").write_text(json.dumps(CONFIG | {"head_dim": 64}))
    files.spec(workers=workers)
    assert Check.GPU_MEMORY not in files.found()


def test_what_is_not_looked_at_is_named(files: Files) -> None:
    model, coordinator, rows = file_checks(files.job, None, None, None)
    assert (model.outcome, model.detail) == (CheckOutcome.NOT_CHECKED, "name a copy of 'models/mine' with --model")
    assert (rows.outcome, rows.detail) == (CheckOutcome.NOT_CHECKED, "name a copy of 'data/train.jsonl' with --data")
    assert coordinator.detail.startswith("it requests 2Gi by default, for steps of up to ")


def test_fewer_prompts_than_a_step_wants_are_worth_a_word() -> None:
    assert few_prompts(8, 8) is None
    assert "7 prompts to train on are fewer than algorithm.promptsPerStep (8)" in str(few_prompts(7, 8))
