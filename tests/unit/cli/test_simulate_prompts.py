"""`longshore simulate --data`: prompts are as long as those of the job's data."""

import json
from pathlib import Path
from typing import Any

import pytest

from longshore_cli.simulate.inputs import SimulateOptions, read
from tests.unit.cli.simulated import manifest, refusal, simulated


def data(directory: Path, *prompts: Any, **fields: Any) -> Path:
    path = directory / "maths.jsonl"
    path.write_text("".join(json.dumps({"prompt": one, "answer": "1", **fields}) + "\n" for one in prompts))
    return path


def prompt_tokens(directory: Path, path: Path | None, **changes: Any) -> int:
    return read(SimulateOptions(manifest(directory, **changes), model="Qwen2.5-7B", data=path)).prompt_tokens


def test_prompts_have_the_mean_length_of_the_data_at_four_characters_a_token(tmp_path: Path) -> None:
    path = data(tmp_path, "x" * 400, "x" * 1200)
    assert prompt_tokens(tmp_path, path) == 200
    assert prompt_tokens(tmp_path, None) == 256


def test_the_text_around_a_prompt_and_all_messages_of_a_conversation_count(tmp_path: Path) -> None:
    template = {"path": "d.jsonl", "promptTemplate": "y" * 40 + "{prompt}"}
    assert prompt_tokens(tmp_path, data(tmp_path, "x" * 400), data=template) == 110
    turns = [{"role": "system", "content": "x" * 40}, {"role": "user", "content": "x" * 80}]
    assert prompt_tokens(tmp_path, data(tmp_path, turns)) == 30


def test_prompts_that_the_job_leaves_out_do_not_count(tmp_path: Path) -> None:
    long = data(tmp_path, "x" * 400, "x" * 40_000)
    assert prompt_tokens(tmp_path, long) == 100
    where = {"path": "d.jsonl", "where": {"level": "1"}}
    path = tmp_path / "levels.jsonl"
    rows = [{"prompt": "x" * 40 * level, "answer": "1", "level": level} for level in (1, 2)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert prompt_tokens(tmp_path, path, data=where) == 10


def test_the_output_says_how_prompts_were_measured(tmp_path: Path) -> None:
    path = data(tmp_path, "x" * 400)
    shown = simulated(manifest(tmp_path), "--data", path, "--steps", "2", "--strategies", "Synchronous").stdout
    assert f"prompts of 100 tokens (4 characters of {path} are a token)" in " ".join(shown.split())


def test_recorded_responses_get_prompts_of_the_data(tmp_path: Path) -> None:
    lengths = tmp_path / "lengths.csv"
    lengths.write_text("num_tokens\n100\n200\n300\n400\n")
    options = SimulateOptions(manifest(tmp_path), "Qwen2.5-7B", lengths=lengths, data=data(tmp_path, "x" * 400))
    trace = read(options).trace
    assert trace is not None and trace.lengths.prompts == (100,)


@pytest.mark.parametrize(
    ("changes", "row", "sentence"),
    [
        (
            {"data": {"path": "d", "format": "Parquet"}},
            {"prompt": "x", "answer": "1"},
            "a JSONL file of a job with one",
        ),
        ({}, {"question": "x"}, "line 1: no field 'prompt'"),
        ({}, {"prompt": "x" * 40_000, "answer": "1"}, "has no prompt for the job of at most 1,024 tokens"),
        ({}, [], "line 1: a row must be a JSON object"),
    ],
)
def test_data_that_cannot_be_measured_is_refused(
    tmp_path: Path, changes: dict[str, Any], row: Any, sentence: str
) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps(row))
    assert sentence in refusal(manifest(tmp_path, **changes), "--model", "7B", "--data", path)


def test_lengths_that_have_prompts_and_data_exclude_each_other(tmp_path: Path) -> None:
    lengths = tmp_path / "lengths.csv"
    lengths.write_text("num_tokens,prompt_tokens\n100,20\n")
    arguments = ("--lengths", lengths, "--data", data(tmp_path, "x"))
    assert "has the lengths of prompts already" in refusal(manifest(tmp_path), "--model", "7B", *arguments)
