"""Prompts that do not suit the model are reported before anything is sampled."""

import pytest

from longshore_runtime.data.dataset import PromptSets
from longshore_runtime.data.prompt_record import PromptRecord
from longshore_runtime.data.suitability import require_known_tokens
from longshore_runtime.errors import UserError


def test_a_token_without_an_embedding_is_reported_with_its_row() -> None:
    records = [PromptRecord(n, "", (1, token), "", source=f"a.jsonl, line {n}") for n, token in enumerate((5, 9), 1)]
    sets = PromptSets((records[0],), (records[1],), 0)
    require_known_tokens(sets, 10)
    require_known_tokens(sets, None)
    with pytest.raises(
        UserError, match=r"model.path: the tokenizer gives a.jsonl, line 2 token 9, and the model knows 9"
    ):
        require_known_tokens(sets, 9)
