"""Recorded response lengths: the text of a CSV or JSONL file becomes lengths to simulate with.

Every row is one response: `num_tokens`, and `prompt`, the id of its prompt. Without ids, every R0 rows in a row are the
responses of one prompt. A row that cannot be used is an error that names its line and column; none is left out.
"""

import csv
import io
import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from longshore.sim.lengths import TraceLengths

NUM_TOKENS: Final = "num_tokens"
"""Column: tokens of the response."""
PROMPT: Final = "prompt"
"""Column: id of the prompt."""


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


@dataclass(frozen=True)
class _TraceRow:
    """One line of a trace, checked."""

    line: int
    num_tokens: int
    prompt: str | None
    others: tuple[str, ...]
    """Names of its other columns."""


def csv_trace(text: str, max_tokens: int, responses_per_prompt: int) -> LengthTrace:
    """A trace with a header line; ValueError names the line and the column that are wrong."""
    return _trace(_csv_rows(text), max_tokens, responses_per_prompt)


def jsonl_trace(text: str, max_tokens: int, responses_per_prompt: int) -> LengthTrace:
    """A trace of one JSON object per line; ValueError names the line and the column that are wrong."""
    return _trace(_jsonl_rows(text), max_tokens, responses_per_prompt)


def recorded_trace(groups: Sequence[Sequence[int]], max_tokens: int) -> LengthTrace:
    """Lengths that a job has recorded, by draw."""
    num_clipped = sum(num_tokens > max_tokens for group in groups for num_tokens in group)
    return LengthTrace(
        TraceLengths(tuple(tuple(min(num_tokens, max_tokens) for num_tokens in group) for group in groups)),
        num_responses=sum(map(len, groups)),
        num_clipped=num_clipped,
        has_prompt_ids=True,
        ignored_columns=(),
    )


def _trace(found: Iterator[_TraceRow], max_tokens: int, responses_per_prompt: int) -> LengthTrace:
    rows = list(found)
    if not rows:
        raise ValueError("the trace is empty: it needs at least one response")
    has_ids = rows[0].prompt is not None
    for row in rows:
        if (row.prompt is not None) != has_ids:
            raise ValueError(f"line {row.line}, column {PROMPT}: every row needs a prompt id, or none has one")
    clipped = [min(row.num_tokens, max_tokens) for row in rows]
    groups = _by_prompt(rows, clipped) if has_ids else _in_turn(clipped, responses_per_prompt)
    return LengthTrace(
        TraceLengths(groups),
        num_responses=len(rows),
        num_clipped=sum(row.num_tokens > max_tokens for row in rows),
        has_prompt_ids=has_ids,
        ignored_columns=tuple(sorted({name for row in rows for name in row.others})),
    )


def _by_prompt(rows: Sequence[_TraceRow], lengths: Sequence[int]) -> tuple[tuple[int, ...], ...]:
    """Prompts in the order of their first rows."""
    groups: dict[str | None, list[int]] = {}
    for row, num_tokens in zip(rows, lengths, strict=True):
        groups.setdefault(row.prompt, []).append(num_tokens)
    return tuple(tuple(group) for group in groups.values())


def _in_turn(lengths: Sequence[int], size: int) -> tuple[tuple[int, ...], ...]:
    """The last prompt has what is left."""
    return tuple(tuple(lengths[start : start + size]) for start in range(0, len(lengths), size))


# CSV ----------------------------------------------------------------------------------------------------------------


def _csv_rows(text: str) -> Iterator[_TraceRow]:
    reader = csv.reader(io.StringIO(text.removeprefix("\ufeff"), newline=""), strict=True)
    header: list[str] | None = None
    try:
        for fields in reader:
            if not fields:
                continue
            if header is None:
                header = _header(fields, reader.line_num)
                continue
            if len(fields) != len(header):
                raise ValueError(f"line {reader.line_num}: {len(fields)} columns, unlike the header's {len(header)}")
            yield _row(reader.line_num, dict(zip(header, fields, strict=True)), _number_in_text)
    except csv.Error as error:
        raise ValueError(f"line {reader.line_num}: no CSV: {error}") from error


def _header(fields: Sequence[str], line: int) -> list[str]:
    names = [name.strip() for name in fields]
    for name in names:
        if names.count(name) > 1:
            raise ValueError(f"line {line}: the column {name!r} is there {names.count(name)} times")
    if NUM_TOKENS not in names:
        raise ValueError(f"line {line}: there is no column {NUM_TOKENS}, only {', '.join(names)}")
    return names


def _number_in_text(value: object) -> float | int:
    text = str(value).strip()
    if not text:
        raise ValueError("empty; a number of tokens is needed")
    try:
        return int(text)
    except ValueError:
        pass
    try:
        return float(text)
    except ValueError:
        raise ValueError(f"{text!r} is no number") from None


# JSONL --------------------------------------------------------------------------------------------------------------


def _jsonl_rows(text: str) -> Iterator[_TraceRow]:
    for line, content in enumerate(text.removeprefix("\ufeff").split("\n"), start=1):
        if not content.strip():
            continue
        try:
            found = json.loads(content)
        except json.JSONDecodeError as error:
            raise ValueError(f"line {line}, character {error.colno}: no JSON: {error.msg}") from error
        if not isinstance(found, dict):
            raise ValueError(f"line {line}: a JSON object is needed, such as {{{json.dumps(NUM_TOKENS)}: 512}}")
        if NUM_TOKENS not in found:
            raise ValueError(f"line {line}: there is no column {NUM_TOKENS}, only {', '.join(found) or 'none'}")
        yield _row(line, found, _json_number)


def _json_number(value: object) -> float | int:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"{json.dumps(value)} is no number")
    return value


# Both ---------------------------------------------------------------------------------------------------------------


def _row(line: int, columns: Mapping[str, object], number: Callable[[object], float | int]) -> _TraceRow:
    try:
        num_tokens = _tokens(number(columns[NUM_TOKENS]))
    except ValueError as error:
        raise ValueError(f"line {line}, column {NUM_TOKENS}: {error}") from None
    others = tuple(name for name in columns if name not in (NUM_TOKENS, PROMPT))
    return _TraceRow(line, num_tokens, _prompt(line, columns), others)


def _tokens(value: float | int) -> int:
    if not math.isfinite(value):
        raise ValueError(f"{value} is no length")
    if value != int(value):
        raise ValueError(f"{value} is no whole number of tokens")
    if value < 1:
        raise ValueError(f"{int(value)}, but a response has at least 1 token")
    return int(value)


def _prompt(line: int, columns: Mapping[str, object]) -> str | None:
    if PROMPT not in columns:
        return None
    value = columns[PROMPT]
    is_id = isinstance(value, str | int) and not isinstance(value, bool)
    if not is_id or not str(value).strip():
        raise ValueError(
            f"line {line}, column {PROMPT}: {json.dumps(value)} is no prompt id; a text or a number is needed"
        )
    return str(value).strip()
