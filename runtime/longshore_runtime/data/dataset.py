"""The prompts of a job: rows, checked, tokenised, and split into those to train on and those to score."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from longshore.api.model import Data, Source
from longshore.api.runtime_status import PromptCounts
from longshore.checks.rows import domain_of, no_domain, row_mistake, unused_templates, value_at
from longshore.policy.draws import DrawCursor, MixedDraws, Share
from longshore_runtime.data.chat import ChatTokenizer, conversation, rendered
from longshore_runtime.data.encoding import Encoder, PromptEncoding, prompt_encoding
from longshore_runtime.data.prompt_record import PromptRecord
from longshore_runtime.data.reading import Row
from longshore_runtime.data.template_arguments import require_arguments_read
from longshore_runtime.errors import UserError
from longshore_runtime.trajectories.trajectory import token_ids

_MOST_LEFT_OUT: Final = 0.1
"""Share of the rows that may be left out of training because they repeat held-out prompts."""


class Tokenizer(ChatTokenizer, Encoder, Protocol):
    """Methods of a Hugging Face tokenizer that data sets use."""


@dataclass(frozen=True)
class PromptSets:
    """Prompts to train on and prompts to score; their rows tell where they are in the data."""

    train: tuple[PromptRecord, ...]
    """Prompts to train on; with several data sets, those of one set after the other."""
    held_out: tuple[PromptRecord, ...]
    num_too_long: int
    """Rows left out because their prompt is too long."""
    shares: tuple[Share, ...] = ()
    """The data sets of `train`, where they are mixed."""
    num_repeating_held_out: int = 0
    """Rows left out of training because their prompt is held out."""

    @property
    def counts(self) -> PromptCounts:
        """Numbers of rows by use, for the status of the job."""
        return PromptCounts(
            train=len(self.train),
            held_out=len(self.held_out),
            too_long=self.num_too_long,
            repeating_held_out=self.num_repeating_held_out,
        )

    def draws(self, seed: int) -> DrawCursor:
        """Return the order in which prompts are trained on."""
        return MixedDraws(self.shares, seed) if self.shares else DrawCursor(len(self.train), seed)


def prompt_sets(rows: Sequence[Row], data: Data, tokenizer: Tokenizer, context_tokens: int) -> PromptSets:
    """Tokenize rows and keep every k-th prompt out of training, so that held-out prompts cover the whole data.

    Args:
        context_tokens: most tokens of a prompt that leave room for a response of full length.

    Raises:
        UserError: a row is no prompt, or a setting of the prompts has no effect.
    """
    encoding = prompt_encoding(tokenizer)
    records = [prompt_record(index, row, data, tokenizer, encoding) for index, row in enumerate(rows)]
    require_arguments_read(data.chat, tokenizer)
    if unused := unused_templates((row.fields, row.data_set) for row in rows):
        raise UserError(unused[0])
    return divided(records, data, context_tokens)


def most_prompt_tokens(data: Data, context_tokens: int) -> int:
    """Return the largest number of tokens of a prompt; longer prompts are left out."""
    return min(data.max_prompt_tokens, context_tokens)


def divided(records: Sequence[PromptRecord], data: Data, context_tokens: int) -> PromptSets:
    """Divide the records into those to train on and those to hold out; see `prompt_sets`."""
    limit = most_prompt_tokens(data, context_tokens)
    fitting = [record for record in records if len(record.prompt_tokens) <= limit]
    if not fitting:
        raise UserError(
            f"data.maxPromptTokens: none of the {len(records)} prompts has at most {limit} tokens; raise it, "
            "or model.maxContextTokens, which must hold a prompt and a response of maxResponseTokens"
        )
    chosen = _chosen(fitting, data.held_out_prompts)
    held_out = tuple(record for place, record in enumerate(fitting) if place in chosen)
    apart = frozenset(record.key for record in held_out)
    others = [record for place, record in enumerate(fitting) if place not in chosen]
    train = tuple(record for record in others if record.key not in apart)
    return PromptSets(
        train,
        held_out,
        num_too_long=len(records) - len(fitting),
        shares=_shares(data.each, train) if data.sources else (),
        num_repeating_held_out=len(others) - len(train),
    )


def _chosen(records: Sequence[PromptRecord], wanted: int) -> frozenset[int]:
    """Return the places of the prompts to hold out: distinct ones, and fewer where many rows repeat them."""
    num_rows = Counter(record.key for record in records)
    places = _first_places(records)
    budget = _MOST_LEFT_OUT * len(records)
    chosen = _spread(places, wanted)
    while len(chosen) > 1 and (left_out := sum(num_rows[records[place].key] - 1 for place in chosen)) > budget:
        chosen = _spread(places, max(1, min(len(chosen) - 1, int(len(chosen) * budget / left_out))))
    return chosen


def _spread(places: Sequence[int], wanted: int) -> frozenset[int]:
    """Return places that are spread over all, but at most half of them, so that others are left to train on."""
    num_chosen = min(wanted, len(places) // 2)
    return frozenset(places[len(places) * k // num_chosen] for k in range(num_chosen))


def _first_places(records: Sequence[PromptRecord]) -> Sequence[int]:
    """Return where each distinct prompt occurs first, in order, but for those that are all that a data set has."""
    first: dict[bytes, int] = {}
    prompts: dict[str, set[bytes]] = {}
    for place, record in enumerate(records):
        first.setdefault(record.key, place)
        prompts.setdefault(record.data_set, set()).add(record.key)
    only = {next(iter(found)) for found in prompts.values() if len(found) == 1}
    return tuple(place for key, place in first.items() if key not in only)


def _shares(sources: Sequence[Source], records: Sequence[PromptRecord]) -> tuple[Share, ...]:
    """Return how many prompts every data set has to train on, in the order of the prompts."""
    counts = Counter(record.data_set for record in records)
    if empty := [source for source in sources if not counts[source.name]]:
        raise UserError(
            f"{empty[0].at}: no prompt of it is left to train on; add rows, raise data.maxPromptTokens or lower "
            "data.heldOutPrompts"
        )
    return tuple(Share(source.name, counts[source.name], source.weight) for source in sources)


def prompt_record(index: int, row: Row, data: Data, tokenizer: ChatTokenizer, encoding: PromptEncoding) -> PromptRecord:
    """Return a row as a prompt; raises UserError, with its line, where it is none."""
    source = row.data_set
    if (mistake := row_mistake(row.fields, source)) is not None:
        raise UserError(f"{row.source}: {mistake}")
    if (domain := domain_of(row.fields, source)) is None:
        raise UserError(f"{row.source}: {no_domain(source)}")
    prompt = value_at(row.fields, source.prompt_field)
    if isinstance(prompt, str):
        prompt = source.prompt_template.replace("{prompt}", prompt)
    messages = conversation(prompt, data.chat)
    text = rendered(messages, data.chat, tokenizer, row.source) if messages else prompt
    tokens = token_ids(encoding.rendered(text) if messages else encoding.plain(text))
    if not len(tokens):
        raise UserError(f"{row.source}: the prompt is empty")
    reference = value_at(row.fields, source.answer_field)
    answer = "" if reference is None else str(reference)
    return PromptRecord(
        index, text, tokens, answer, row.fields, row.source, domain, reference=reference, messages=messages,
        data_set=source.name,
    )  # fmt: skip
