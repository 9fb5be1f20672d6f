"""Rows with a response to imitate, as tokens; and which of them each supervised step takes."""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from longshore.api.model import Chat
from longshore.api.warm_start import AT, WarmStartData
from longshore.checks.rows import supervised_mistake, value_at
from longshore_runtime.data.chat import conversation, rendered
from longshore_runtime.data.encoding import PromptEncoding, prompt_encoding
from longshore_runtime.data.reading import Row
from longshore_runtime.data.suitability import require_known
from longshore_runtime.data.turn_end import turn_end
from longshore_runtime.errors import UserError
from longshore_runtime.trajectories.trajectory import Run, TokenIds, Trajectory, joined, token_ids


@dataclass(frozen=True)
class Exchange:
    """A prompt, and what follows it."""

    prompt_tokens: TokenIds
    trajectory: Trajectory
    """What the model is to write, as sampled tokens, and what it only reads in between, as observed ones."""

    @classmethod
    def of(cls, prompt: Sequence[int], turns: Sequence[tuple[Sequence[int], bool]]) -> "Exchange":
        """Return a prompt with turns after it; each has its tokens, and whether the model writes them."""
        tokens = token_ids([token for turn, _ in turns for token in turn])
        runs = tuple(Run(0 if is_models else None, len(turn)) for turn, is_models in turns)
        return cls(token_ids(prompt), Trajectory(tokens, np.zeros(len(tokens), np.float32), runs))

    @property
    def num_tokens(self) -> int:
        """Number of all tokens."""
        return len(self.prompt_tokens) + len(self.trajectory)


ExchangesOf = Callable[[int], Sequence[Exchange]]
"""Function that returns the exchanges of a supervised step, the first of which is 1; equal steps, equal exchanges."""


def exchanges(
    rows: Sequence[Row],
    data: WarmStartData,
    chat: Chat | None,
    tokenizer: Any,
    max_tokens: int,
    vocab_size: int | None = None,
) -> tuple[list[Exchange], int]:
    """Return rows with at most `max_tokens` tokens as exchanges, and the number of longer ones, which are left out.

    Args:
        rows: rows of the data set `data`.
        data: names of their fields.
        chat: settings of the chat template.
        tokenizer: tokenizer of the model.
        max_tokens: largest number of tokens of a prompt and its response.
        vocab_size: number of tokens that the model knows; None: unknown.

    Raises:
        UserError: a row has no prompt or response, or a token that the model does not know, or no row is short enough.
    """
    encoding, end = prompt_encoding(tokenizer), turn_end(chat, tokenizer)
    found = [_exchange(row, data, chat, tokenizer, encoding, end) for row in rows]
    for one, row in zip(found, rows, strict=True):
        require_known(joined(one.prompt_tokens, one.trajectory.tokens), row.source, vocab_size)
    fitting = [one for one in found if one.num_tokens <= max_tokens]
    if not fitting:
        raise UserError(
            f"{AT}: none of the {len(found):,} rows has at most {max_tokens:,} tokens with its response; raise "
            "model.maxContextTokens, or choose other rows"
        )
    return fitting, len(found) - len(fitting)


def too_long_remark(num_too_long: int, num_rows: int) -> str:
    """Return a warning about rows that are left out."""
    return (
        f"{AT}: {num_too_long:,} of {num_rows:,} rows are left out, because they have more tokens than "
        "model.maxContextTokens with their responses; raise it, or shorten them"
    )


def shuffled(rows: Sequence[Exchange], rows_per_step: int, seed: int) -> ExchangesOf:
    """Return the rows of each step: in every pass over them, each row comes once, in an order of its own."""

    @lru_cache(maxsize=2)  # A step may begin in one and end in the next.
    def order(epoch: int) -> Sequence[int]:
        places = list(range(len(rows)))
        random.Random(f"warm-start/{seed}/{epoch}").shuffle(places)
        return places

    def of_step(step: int) -> Sequence[Exchange]:
        first = (step - 1) * rows_per_step
        each = (divmod(number, len(rows)) for number in range(first, first + rows_per_step))
        return [rows[order(epoch)[place]] for epoch, place in each]

    return of_step


def _exchange(
    row: Row, data: WarmStartData, chat: Chat | None, tokenizer: Any, encoding: PromptEncoding, end: int | None
) -> Exchange:
    if (mistake := supervised_mistake(row.fields, data)) is not None:
        raise UserError(f"{row.source}: {mistake}")
    prompt = value_at(row.fields, data.prompt_field)
    if data.response_field is not None:
        response = value_at(row.fields, data.response_field)
    else:
        prompt, response = prompt[:-1], prompt[-1]["content"]
    if isinstance(prompt, str):
        prompt = data.prompt_template.replace("{prompt}", prompt)
    messages = conversation(prompt, chat)
    if not messages:
        return _ended(encoding.plain(prompt), encoding.rendered(response), tokenizer.eos_token_id, row)
    text = rendered(messages, chat, tokenizer, row.source)
    answered = (*messages, {"role": "assistant", "content": response})
    whole = rendered(answered, chat, tokenizer, row.source, is_prompt=False)
    if not whole.startswith(text):
        raise UserError(
            f"{row.source}: the chat template begins the assistant's turn in one way before a response and in another "
            "way around it, so the two cannot be told apart; set data.chat.template or data.chat.templateArguments "
            "(such as enable_thinking: false)"
        )
    written = encoding.rendered(whole.removeprefix(text))
    return _ended(encoding.rendered(text), written, tokenizer.eos_token_id if end is None else end, row)


def _ended(prompt: Sequence[int], response: Sequence[int], end: int | None, row: Row) -> Exchange:
    if end is None:
        raise UserError("model.path: the tokenizer has no token that ends a response; set eos_token in its files")
    if end in response:  # Nothing is sampled after it.
        response = response[: response.index(end)]
    if not response:
        raise UserError(f"{row.source}: the response is empty")
    return Exchange.of(prompt, [((*response, end), True)])
