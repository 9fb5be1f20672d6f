"""Recorded response lengths: a CSV or JSONL file becomes lengths to simulate with.

Every row is one response: `num_tokens`, and perhaps `prompt`, the id of its prompt, and `prompt_tokens`, its length. An
episode has `num_turns` besides, and perhaps `environment_s` and `observed_tokens`: time that its environment took, and
those of its tokens that it said. Without ids, every R0 rows in a row are the responses of one prompt. A row that cannot
be used is an error that names its line and column; none is left out.
"""

import csv
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final, TypeVar

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError

from longshore.api.mistakes import sentence
from longshore.checks.jsonl import jsonl_rows
from longshore.rounds.messages import EpisodeLength, ResponseLength
from longshore.sim.lengths import TraceLengths, tokens_of

NUM_TOKENS: Final = "num_tokens"
"""Column: tokens of the response."""
PROMPT: Final = "prompt"
"""Column: id of the prompt."""
PROMPT_TOKENS: Final = "prompt_tokens"
"""Column: tokens of the prompt."""
NUM_TURNS: Final = "num_turns"
"""Column: turns of an episode."""
ENVIRONMENT_S: Final = "environment_s"
"""Column: seconds that the environment of an episode took."""
OBSERVED_TOKENS: Final = "observed_tokens"
"""Column: those of the tokens of an episode that its environment said."""
_NUMBERS: Final = (NUM_TOKENS, PROMPT_TOKENS, NUM_TURNS, ENVIRONMENT_S, OBSERVED_TOKENS)
COLUMNS: Final = (PROMPT, *_NUMBERS)
Value = TypeVar("Value")
_Count = Annotated[float, Field(strict=True, ge=1, multiple_of=1, allow_inf_nan=False)]


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

    num_tokens: _Count
    prompt: Annotated[str, StringConstraints(strip_whitespace=True, min_length=1)] = ""
    prompt_tokens: _Count | None = None
    num_turns: _Count | None = None
    environment_s: Annotated[float, Field(strict=True, ge=0, allow_inf_nan=False)] = 0.0
    observed_tokens: Annotated[float, Field(strict=True, ge=0, multiple_of=1, allow_inf_nan=False)] = 0.0

    def length(self, max_tokens: int) -> ResponseLength:
        """Return the length of the response, cut at `max_tokens`."""
        num_tokens = round(self.num_tokens)
        if self.num_turns is None:
            return _clipped(num_tokens, max_tokens)
        episode = EpisodeLength(num_tokens, round(self.num_turns), self.environment_s, round(self.observed_tokens))
        return _clipped(episode, max_tokens)


def csv_trace(path: Path, max_tokens: int, responses_per_prompt: int) -> LengthTrace:
    """Read a trace with a header line; ValueError names the line and the column that are wrong."""
    return _trace(_csv_rows(path), path, max_tokens, responses_per_prompt)


def jsonl_trace(path: Path, max_tokens: int, responses_per_prompt: int) -> LengthTrace:
    """Read a trace of one JSON object per line; ValueError names the line and the column that are wrong."""
    return _trace(jsonl_rows(path, str(path)), path, max_tokens, responses_per_prompt)


def recorded_trace(groups: Sequence[Sequence[ResponseLength]], max_tokens: int) -> LengthTrace:
    """Return the lengths that a job has recorded, by draw."""
    num_clipped = sum(tokens_of(length) > max_tokens for group in groups for length in group)
    return LengthTrace(
        TraceLengths(tuple(tuple(_clipped(length, max_tokens) for length in group) for group in groups)),
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
    has_ids = PROMPT in columns

    def grouped(values: Sequence[Value]) -> tuple[tuple[Value, ...], ...]:
        return _by_prompt(rows, values) if has_ids else _in_turn(values, responses_per_prompt)

    lengths = grouped([row.length(max_tokens) for row in rows])
    prompts = grouped([round(row.prompt_tokens) for row in rows if row.prompt_tokens is not None])
    return LengthTrace(
        TraceLengths(lengths, tuple(of_responses[0] for of_responses in prompts)),
        num_responses=len(rows),
        num_clipped=sum(row.num_tokens > max_tokens for row in rows),
        has_prompt_ids=has_ids,
        ignored_columns=tuple(sorted(columns.difference(COLUMNS))),
    )


def _clipped(length: ResponseLength, max_tokens: int) -> ResponseLength:
    """Return the length of a response that is cut at `max_tokens`; its environment is not known to take less."""
    if isinstance(length, EpisodeLength):
        return length._replace(num_tokens=min(length.num_tokens, max_tokens))
    return min(length, max_tokens)


def _row(fields: Mapping[str, Any], at: str) -> _TraceRow:
    if NUM_TOKENS not in fields:
        raise ValueError(f"{at}: there is no column {NUM_TOKENS}, only {', '.join(fields) or 'none'}")
    try:
        row = _TraceRow.model_validate(fields)
    except ValidationError as error:
        raise ValueError(f"{at}, column {sentence(error)}") from error
    for name in (ENVIRONMENT_S, OBSERVED_TOKENS):
        if row.num_turns is None and getattr(row, name):
            raise ValueError(
                f"{at}, column {NUM_TURNS}: an episode has it besides {name}; add its turns, or remove {name}"
            )
    if row.observed_tokens > row.num_tokens:
        raise ValueError(f"{at}, column {OBSERVED_TOKENS}: it is a part of {NUM_TOKENS}, {row.num_tokens:g}, not more")
    return row


def _by_prompt(rows: Sequence[_TraceRow], values: Sequence[Value]) -> tuple[tuple[Value, ...], ...]:
    """Return the prompts in the order of their first rows."""
    groups: dict[str, list[Value]] = {}
    for row, value in zip(rows, values, strict=bool(values)):
        groups.setdefault(row.prompt, []).append(value)
    return tuple(tuple(group) for group in groups.values())


def _in_turn(values: Sequence[Value], size: int) -> tuple[tuple[Value, ...], ...]:
    """Return values by prompt, `size` each in turn; the last prompt has what is left."""
    return tuple(tuple(values[start : start + size]) for start in range(0, len(values), size))


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
                    yield reader.line_num, {name: _number(text) if name in _NUMBERS else text for name, text in named}
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
