"""Prompts of the built-in tasks, tokenised."""

from typing import Final

from longshore.api.model import Data
from longshore_runtime.data.dataset import PromptSets
from longshore_runtime.data.encoding import Encoder, PromptEncoding, prompt_encoding
from longshore_runtime.data.prompt_record import PromptRecord
from longshore_runtime.tasks import counting
from longshore_runtime.trajectories.trajectory import token_ids

NUM_TRAIN_PROMPTS: Final = 4096


def builtin_prompt_sets(data: Data, seed: int, tokenizer: Encoder) -> PromptSets:
    """Return training and held-out prompts of the task that `data.builtin` names."""
    train = counting.generate(NUM_TRAIN_PROMPTS, seed)
    held_out = counting.held_out(data.held_out_prompts, seed) if data.held_out_prompts else []
    encoding = prompt_encoding(tokenizer)
    return PromptSets(_records(train, encoding), _records(held_out, encoding), num_too_long=0)


def _records(rows: list[counting.CountingRow], encoding: PromptEncoding) -> tuple[PromptRecord, ...]:
    return tuple(
        PromptRecord(index, row.prompt, token_ids(encoding.plain(row.prompt)), row.answer)
        for index, row in enumerate(rows)
    )
