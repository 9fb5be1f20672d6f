"""Episodes of the built-in model are plain texts: its chat template has no turns."""

import pytest

from longshore_runtime.backends.tiny_model import build_tokenizer
from longshore_runtime.environments.conversation import Conversations
from longshore_runtime.environments.tool_calls import Turn
from longshore_runtime.errors import UserError


def test_the_built_in_model_acts_in_plain_texts() -> None:
    tokenizer = build_tokenizer()
    conversations = Conversations(None, tokenizer)
    observed = conversations.text_delta("higher>")
    assert tokenizer.decode(observed) == "higher>"
    assert conversations.turn([*observed, tokenizer.eos_token_id], ()) == Turn("higher>")


def test_conversations_of_the_built_in_model_cannot_be_answered() -> None:
    with pytest.raises(
        UserError, match=r"^data\.chat\.template: the chat template ends what the assistant says without"
    ):
        Conversations(None, build_tokenizer()).check()
