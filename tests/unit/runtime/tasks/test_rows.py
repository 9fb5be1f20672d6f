"""Rows of the built-in tasks, as the rest of a job reads them."""

from typing import Any

import pytest

from longshore.api.model import BuiltinTask, Data
from longshore_runtime.data.prompt_record import PromptRecord
from longshore_runtime.tasks.guessing import Guessing
from longshore_runtime.tasks.rows import NUM_TRAIN_PROMPTS, builtin_prompt_sets


class Characters:
    """A tokenizer with a token per character."""

    def encode(self, text: str, /, **options: Any) -> list[int]:
        return [ord(character) for character in text]


def records(task: BuiltinTask, num_held_out: int) -> tuple[tuple[PromptRecord, ...], tuple[PromptRecord, ...]]:
    sets = builtin_prompt_sets(Data(builtin=task, held_out_prompts=num_held_out), 0, Characters())
    return sets.train, sets.held_out


@pytest.mark.parametrize("task", BuiltinTask)
def test_a_built_in_task_has_as_many_rows_as_asked_for_and_tokens_of_their_prompts(task: BuiltinTask) -> None:
    train, held_out = records(task, 7)
    assert (len(train), len(held_out)) == (NUM_TRAIN_PROMPTS, 7)
    assert all("".join(map(chr, record.prompt_tokens)) == record.prompt for record in (*train, *held_out))
    assert records(task, 0)[1] == ()


def test_the_fields_of_a_row_of_guessing_begin_an_episode_that_its_answer_wins() -> None:
    train, held_out = records(BuiltinTask.GUESSING, 64)
    for record in (*train, *held_out):
        game = Guessing()
        game.reset(**record.fields)
        assert game.reply(record.answer) is None
        assert game.get_reward() == 1.0
        assert record.prompt == f"{record.fields['low']}-{record.fields['high']}?"
