"""Reads the prompts of a job. Every mistake in the data is told with its file and line."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from jinja2 import TemplateError

from longshore.api.model import Data, DataFormat
from longshore.checks.jsonl import RowError, jsonl_rows
from longshore.checks.rows import row_mistake
from longshore_runtime.errors import UserError
from longshore_runtime.types import PromptRecord


class Tokenizer(Protocol):
    """What is used of a Hugging Face tokenizer."""

    def encode(self, text: str, /, **options: Any) -> list[int]:
        """Token ids of a text."""

    def decode(self, tokens: Sequence[int], /, **options: Any) -> str:
        """Text of token ids."""

    def apply_chat_template(self, messages: Sequence[Mapping[str, str]], /, **options: Any) -> str:
        """One text for a conversation."""


@dataclass(frozen=True)
class Row:
    """One row with where it came from, for error messages."""

    source: str
    fields: Mapping[str, Any]


@dataclass(frozen=True)
class PromptSets:
    """Prompts to train on and prompts to score; a record's index is its row in the data."""

    train: tuple[PromptRecord, ...]
    held_out: tuple[PromptRecord, ...]
    num_too_long: int
    """Rows left out because their prompt is too long."""


def read_rows(path: Path, data: Data) -> list[Row]:
    """All rows of `data.path`; raises UserError with the line of the first mistake."""
    if not path.exists():
        raise UserError(f"data.path: {data.path!r} does not exist in the storage of the job")
    rows = list(_jsonl(path, data) if data.format is DataFormat.JSONL else _hugging_face(path, data))
    if not rows:
        raise UserError(f"data.path: {data.path!r} holds no row")
    return rows


def prompt_sets(rows: Sequence[Row], data: Data, tokenizer: Tokenizer, context_tokens: int) -> PromptSets:
    """Tokenises rows and keeps every k-th one out of training, so that held-out prompts cover the whole file.

    Prompts with more than `context_tokens` tokens would leave no room for a response of full length.
    """
    records = [prompt_record(index, row, data, tokenizer) for index, row in enumerate(rows)]
    return divided(records, data, context_tokens)


def most_prompt_tokens(data: Data, context_tokens: int) -> int:
    """Longer prompts are left out."""
    return min(data.max_prompt_tokens, context_tokens)


def divided(records: Sequence[PromptRecord], data: Data, context_tokens: int) -> PromptSets:
    """Records in training and held-out ones; see `prompt_sets`."""
    limit = most_prompt_tokens(data, context_tokens)
    fitting = [record for record in records if len(record.prompt_tokens) <= limit]
    num_held_out = min(data.held_out_prompts, len(fitting) // 2)
    chosen = {len(fitting) * k // num_held_out for k in range(num_held_out)} if num_held_out else set()
    train = tuple(record for place, record in enumerate(fitting) if place not in chosen)
    held_out = tuple(record for place, record in enumerate(fitting) if place in chosen)
    if not train:
        raise UserError(
            f"data.maxPromptTokens: none of the {len(records)} prompts has at most {limit} tokens; raise it, "
            "or model.maxContextTokens, which must hold a prompt and a response of maxResponseTokens"
        )
    return PromptSets(train, held_out, len(records) - len(fitting))


def _jsonl(path: Path, data: Data) -> Iterator[Row]:
    if not path.is_file():
        raise UserError(f"data.path: {data.path!r} is not a file; set data.format to HuggingFace for a directory")
    try:
        for number, fields in jsonl_rows(path, str(data.path)):
            yield Row(f"{data.path}, line {number}", fields)
    except RowError as error:
        raise UserError(str(error)) from error


def _hugging_face(path: Path, data: Data) -> Iterator[Row]:
    import datasets

    try:
        loaded = datasets.load_from_disk(str(path)) if _saved_to_disk(path) else datasets.load_dataset(str(path))
    except (OSError, ValueError) as error:
        raise UserError(f"data.path: {data.path!r} is not a Hugging Face data set ({error})") from error
    if isinstance(loaded, datasets.DatasetDict):
        if data.split not in loaded:
            raise UserError(f"data.split: {data.split!r} is not one of {', '.join(loaded)}")
        loaded = loaded[data.split]
    for number, fields in enumerate(loaded):
        yield Row(f"{data.path}, row {number}", fields)


def _saved_to_disk(path: Path) -> bool:
    return (path / "dataset_info.json").exists() or (path / "dataset_dict.json").exists()


def prompt_record(index: int, row: Row, data: Data, tokenizer: Tokenizer) -> PromptRecord:
    """A row as a prompt; raises UserError, with its line, where it is none."""
    if (mistake := row_mistake(row.fields, data)) is not None:
        raise UserError(f"{row.source}: {mistake}")
    value = row.fields[data.prompt_field]
    is_chat = isinstance(value, list)
    text = _chat(row, value, tokenizer) if is_chat else data.prompt_template.replace("{prompt}", value)
    # A chat template writes the special tokens itself.
    tokens = tuple(tokenizer.encode(text, add_special_tokens=not is_chat))
    if not tokens:
        raise UserError(f"{row.source}: the prompt is empty")
    answer = row.fields[data.answer_field]
    return PromptRecord(index, text, tokens, "" if answer is None else str(answer), row.fields, row.source)


def _chat(row: Row, messages: Any, tokenizer: Tokenizer) -> str:
    try:
        return tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    except (ValueError, TypeError, TemplateError) as error:
        reason = str(error).splitlines()[0]
        raise UserError(f"{row.source}: the model's chat template does not take its messages ({reason})") from error
