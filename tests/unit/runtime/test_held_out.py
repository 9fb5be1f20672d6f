"""Prompts that are held out are not trained on, however often the data repeats them."""

import json
import string
from pathlib import Path

import pytest

from longshore.api.model import Data
from longshore_runtime.data.dataset import PromptSets, prompt_sets
from longshore_runtime.data.reading import Row
from longshore_runtime.data.suitability import held_out_remark
from tests.unit.runtime.test_dataset import Letters, data, prompts, write


def repeated(tmp_path: Path, texts: str) -> Path:
    """A row for each letter."""
    return write(tmp_path, *(json.dumps({"prompt": text, "answer": ""}) for text in texts))


def split(sets: PromptSets) -> tuple[str, str]:
    train, held_out = ("".join(one.prompt for one in part) for part in (sets.train, sets.held_out))
    return train, held_out


def test_no_prompt_that_is_held_out_is_trained_on_however_often_it_is_repeated(tmp_path: Path) -> None:
    path = repeated(tmp_path, string.ascii_lowercase + "aab")
    sets = prompts(path, data(held_out_prompts=2))
    assert split(sets) == ("bcdefghijklmopqrstuvwxyzb", "an")
    assert sets.num_repeating_held_out == 2
    assert held_out_remark(sets, 2) is None
    assert prompts(path, data(held_out_prompts=0)).num_repeating_held_out == 0


def test_held_out_prompts_differ_from_each_other_and_are_at_most_half_of_all_prompts(tmp_path: Path) -> None:
    assert split(prompts(repeated(tmp_path, "abcd"), data(held_out_prompts=3))) == ("bd", "ac")
    assert split(prompts(repeated(tmp_path, "aaaaaa"), data(held_out_prompts=3))) == ("aaaaaa", "")


@pytest.mark.parametrize(("times", "num_held_out"), [(1, 10), (2, 10), (3, 7), (10, 5), (100, 5)])
def test_the_more_often_prompts_repeat_the_fewer_are_held_out_and_the_job_says_so(
    times: int, num_held_out: int, tmp_path: Path
) -> None:
    sets = prompts(repeated(tmp_path, string.ascii_letters * times), data(held_out_prompts=10))
    assert len(sets.held_out) == num_held_out
    assert len(sets.train) == times * (52 - num_held_out)
    assert 10 * sets.num_repeating_held_out <= 52 * times
    remark = held_out_remark(sets, 10)
    assert (remark is None) == (num_held_out == 10)
    assert remark is None or f"data.heldOutPrompts: {num_held_out} prompts are held out instead of 10" in remark


def test_a_data_set_of_a_mix_keeps_its_only_prompt() -> None:
    settings = Data.model_validate({"sources": [{"name": "a", "path": "a"}, {"name": "b", "path": "b"}]})
    rows = [Row("", {"prompt": text, "answer": ""}, settings.each[0]) for text in "xyz"]
    rows += [Row("", {"prompt": "x", "answer": ""}, settings.each[1])]
    assert split(prompt_sets(rows, settings, Letters(), 1000)) == ("xzx", "y")
