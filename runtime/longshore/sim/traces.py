"""Recorded response lengths: a CSV or JSONL file becomes lengths to simulate with.

Every row is one response: `num_tokens`, and perhaps `prompt`, the id of its prompt, and `prompt_tokens`, its length.
Without ids, every R0 rows in a row are the responses of one prompt. A row that cannot be used is an error that names
its line and column; none is left out.
"""

import csv
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError

from longshore.api.mistakes import sentence
from longshore.checks.jsonl import jsonl_rows
from longshore.sim.lengths import TraceLengths

NUM_TOKENS: Final = "num_tokens"
"""Column: tokens of the response."""
PROMPT: Final = "prompt"
"""Column: id of the prompt."""
PROMPT_TOKENS: Final = "prompt_tokens"
"""Column: tokens of the prompt."""


@dataclass(frozen=True)
class LengthTrace:
    """Lengths of a trace, and what was done to them."""

    lengths: TraceLengths
    num_responses: int
    num_clipped: int
    """Responses that were longer than `max_tokens`, and were cut there as a job would."""
    has_prompt_ids: bool
    ignored_columns: tuple[str, ...]

    @property
    def num_prompts(self) -> int:
        """Prompts in the trace."""
        return len(self.lengths.responses)


class _TraceRow(BaseModel):
    """One response. A number may be an id, and is the same id as its digits in quotes."""

    model_config = ConfigDict(coerce_numbers_to_str=True)

    num_tokens: Annotated[float, Field(strict=True, ge=1, multiple_of=1, allow_inf_nan=False)]
    prompt: Annotated[str, StringConstraints(strip_whitespace=True, min_length=1)] = ""
    prompt_tokens: Annotated[float, Field(strict=True, ge=1, multiple_of=1, allow_inf_nan=False)] | None = None


def csv_trace(path: Path, max_tokens: int, responses_per_prompt: int) -> LengthTrace:
    """Read a trace with a header line; ValueError names the line and the column that are wrong."""
    return _trace(_csv_rows(path), path, max_tokens, responses_per_prompt)


def jsonl_trace(path: Path, max_tokens: int, responses_per_prompt: int) -> LengthTrace:
    """Read a trace of one JSON object per line; ValueError names the line and the column that are wrong."""
    return _trace(jsonl_rows(path, str(path)), path, max_tokens, responses_per_prompt)


def recorded_trace(groups: Sequence[Sequence[int]], max_tokens: int) -> LengthTrace:
    """Return the lengths that a job has recorded, by draw."""
    num_clipped = sum(num_tokens > max_tokens for group in groups for num_tokens in group)
    return LengthTrace(
        TraceLengths(tuple(tuple(min(num_tokens, max_tokens) for num_tokens in group) for group in groups)),
        num_responses=sum(map(len, groups)),
        num_clipped=num_clipped,
        has_prompt_ids=True,
        ignored_columns=(),
    )


def _trace(
    found: Iterable[tuple[int, Mapping[str, Any]]], path: Path, max_tokens: int, responses_per_prompt: int
) -> LengthTrace:
    rows: list[_TraceRow] = []
    columns: set[str] = set()
    for line, fields in found:
        row = _row(fields, f"{path}, line {line}")
        if rows and bool(row.prompt) != bool(rows[0].prompt):
            raise ValueError(f"{path}, line {line}, column {PROMPT}: every row needs a prompt id, or none has one")
        if rows and (row.prompt_tokens is None) != (rows[0].prompt_tokens is None):
            raise ValueError(f"{path}, line {line}, column {PROMPT_TOKENS}: every row needs a number, or none has one")
        rows.append(row)
        columns |= fields.keys()
    if not rows:
        raise ValueError(f"{path}: the trace is empty: it needs at least one response")
    lengths = [round(row.num_tokens) for row in rows]
    clipped = [min(num_tokens, max_tokens) for num_tokens in lengths]
    has_ids = PROMPT in columns

    def grouped(values: Sequence[int]) -> tuple[tuple[int, ...], ...]:
        return _by_prompt(rows, values) if has_ids else _in_turn(values, responses_per_prompt)

    prompts = grouped([round(row.prompt_tokens) for row in rows if row.prompt_tokens is not None])
    return LengthTrace(
        TraceLengths(grouped(clipped), tuple(of_responses[0] for of_responses in prompts)),
        num_responses=len(rows),
        num_clipped=sum(num_tokens > max_tokens for num_tokens in lengths),
        has_prompt_ids=has_ids,
        ignored_columns=tuple(sorted(columns - {NUM_TOKENS, PROMPT, PROMPT_TOKENS})),
    )


def _row(fields: Mapping[str, Any], at: str) -> _TraceRow:
    if NUM_TOKENS not in fields:
        raise ValueError(f"{at}: there is no column {NUM_TOKENS}, only {', '.join(fields) or 'none'}")
    try:
        return _TraceRow.model_validate(fields)
    except ValidationError as error:
        raise ValueError(f"{at}, column {sentence(error)}") from error


def _by_prompt(rows: Sequence[_TraceRow], lengths: Sequence[int]) -> tuple[tuple[int, ...], ...]:
    """Return the prompts in the order of their first rows."""
    groups: dict[str, list[int]] = {}
    for row, num_tokens in zip(rows, lengths, strict=bool(lengths)):
        groups.setdefault(row.prompt, []).append(num_tokens)
    return tuple(tuple(group) for group in groups.values())


def _in_turn(lengths: Sequence[int], size: int) -> tuple[tuple[int, ...], ...]:
    """Return lengths by prompt, `size` each in turn; the last prompt has what is left."""
    return tuple(tuple(lengths[start : start + size]) for start in range(0, len(lengths), size))


def _csv_rows(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    header: list[str] | None = None
    with path.open(encoding="utf-8-sig", newline="") as file:
        reader = csv.reader(file, strict=True)
        try:
            for fields in filter(None, reader):
                at = f"{path}, line {reader.line_num}"
                if header is None:
                    header = _header(fields, at)
                elif len(fields) != len(header):
                    raise ValueError(f"{at}: {len(fields)} columns, unlike the header's {len(header)}")
                else:
                    named = zip(header, fields, strict=True)
                    numbers = (NUM_TOKENS, PROMPT_TOKENS)
                    yield reader.line_num, {name: _number(text) if name in numbers else text for name, text in named}
        except csv.Error as error:
            raise ValueError(f"{path}, line {reader.line_num}: no CSV: {error}") from error


def _header(fields: Sequence[str], at: str) -> list[str]:
    names = [name.strip() for name in fields]
    for name in names:
        if names.count(name) > 1:
            raise ValueError(f"{at}: the column {name!r} is there {names.count(name)} times")
    return names


def _number(text: str) -> float | str:
    try:
        number = float(text)
    except ValueError:
        return text
    return int(number) if number.is_integer() else number
