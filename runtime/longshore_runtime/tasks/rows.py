"""Prompts of the built-in tasks, tokenised."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Final

from longshore.api.model import BuiltinTask, Data
from longshore_runtime.data.dataset import PromptSets
from longshore_runtime.data.encoding import Encoder, PromptEncoding, prompt_encoding
from longshore_runtime.data.prompt_record import PromptRecord
from longshore_runtime.tasks import counting, guessing
from longshore_runtime.trajectories.trajectory import token_ids

NUM_TRAIN_PROMPTS: Final = 4096

Row = counting.CountingRow | guessing.GuessingRow


def builtin_prompt_sets(data: Data, seed: int, tokenizer: Encoder) -> PromptSets:
    """Return training and held-out prompts of the task that `data.builtin` names."""
    assert data.builtin is not None
    train, held_out = _rows(data.builtin, data.held_out_prompts, seed)
    encoding = prompt_encoding(tokenizer)
    return PromptSets(_records(train, encoding), _records(held_out, encoding), num_too_long=0)


def _rows(task: BuiltinTask, num_held_out: int, seed: int) -> tuple[Sequence[Row], Sequence[Row]]:
    match task:
        case BuiltinTask.COUNTING:
            return counting.generate(NUM_TRAIN_PROMPTS, seed), counting.held_out(num_held_out, seed)
        case BuiltinTask.GUESSING:
            return guessing.generate(NUM_TRAIN_PROMPTS, seed), guessing.held_out(num_held_out, seed)


def _records(rows: Sequence[Row], encoding: PromptEncoding) -> tuple[PromptRecord, ...]:
    return tuple(
        PromptRecord(index, row.prompt, token_ids(encoding.plain(row.prompt)), row.answer, fields=asdict(row))
        for index, row in enumerate(rows)
    )
