"""Recorded lengths: what a trace means, and how one that cannot be used is refused."""

import csv
import io
import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longshore.policy.draws import Draw
from longshore.policy.round import ResponseId
from longshore.rounds.messages import EpisodeLength
from longshore.sim import traces
from longshore.sim.traces import LengthTrace

records = st.lists(
    st.tuples(st.integers(0, 9), st.integers(1, 10_000)).map(lambda row: (f"prompt {row[0]}, {row[0]}", row[1])),
    min_size=1,
    max_size=40,
)


def read(parser: Callable[[Path, int, int], LengthTrace], text: str, max_tokens: int, size: int) -> LengthTrace:
    with TemporaryDirectory() as directory:
        path = Path(directory) / "trace"
        path.write_bytes(text.encode())
        return parser(path, max_tokens, size)


csv_trace, jsonl_trace = partial(read, traces.csv_trace), partial(read, traces.jsonl_trace)


def as_csv(rows: list[tuple[str, int]]) -> str:
    out = io.StringIO()
    csv.writer(out).writerows([("prompt", "num_tokens"), *rows])
    return out.getvalue()


def as_jsonl(rows: list[tuple[str, int]]) -> str:
    return "\n".join(json.dumps({"prompt": prompt, "num_tokens": count}) for prompt, count in rows)


@given(records, st.integers(1, 12_000))
def test_every_row_is_kept_and_both_formats_mean_the_same(rows: list[tuple[str, int]], max_tokens: int) -> None:
    trace = csv_trace(as_csv(rows), max_tokens, 4)
    assert trace == jsonl_trace(as_jsonl(rows), max_tokens, 4)
    kept = sorted(count for group in trace.lengths.responses for count in group)
    assert kept == sorted(min(count, max_tokens) for _, count in rows)
    assert trace.num_responses == len(rows)
    assert trace.num_clipped == sum(count > max_tokens for _, count in rows)
    assert trace.num_prompts == len({prompt for prompt, _ in rows})


def test_prompts_come_in_the_order_of_their_first_rows() -> None:
    trace = csv_trace("prompt,num_tokens\nz,5\na,7\nz,6\n", 100, 4)
    assert trace.lengths.responses == ((5, 6), (7,))
    assert trace.lengths.response_tokens(ResponseId(Draw(0, 0), 1)) == 6
    assert trace.has_prompt_ids


def test_without_ids_consecutive_rows_are_the_responses_of_one_prompt() -> None:
    trace = csv_trace("num_tokens\n1\n2\n3\n4\n5\n", 100, 2)
    assert trace.lengths.responses == ((1, 2), (3, 4), (5,))
    assert not trace.has_prompt_ids


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "trace is empty"),
        ("num_tokens\n", "trace is empty"),
        ("prompt,tokens\na,3\n", "line 2: there is no column num_tokens, only prompt, tokens"),
        ("num_tokens,num_tokens\n3,3\n", "line 1: the column 'num_tokens' is there 2 times"),
        ("num_tokens\n5\n0\n", "line 3, column num_tokens: input should be greater than or equal to 1, not 0"),
        ("num_tokens\n-4\n", "line 2, column num_tokens: input should be greater than or equal to 1, not -4"),
        ("num_tokens\n7\nNaN\n", "line 3, column num_tokens: input should be a finite number, not NaN"),
        ("num_tokens\ninf\n", "line 2, column num_tokens: input should be a finite number, not Infinity"),
        ("num_tokens\n2.5\n", "line 2, column num_tokens: input should be a multiple of 1, not 2.5"),
        ("num_tokens\nmany\n", 'line 2, column num_tokens: input should be a valid number, not "many"'),
        ("prompt,num_tokens\na,\n", 'line 2, column num_tokens: input should be a valid number, not ""'),
        ("prompt,num_tokens\n ,3\n", "line 2, column prompt: string should have at least 1 character"),
        ("prompt,num_tokens\na,3\nb\n", "line 3: 1 columns, unlike the header's 2"),
        ('num_tokens\n"3\n', "no CSV"),
    ],
)
def test_a_csv_that_cannot_be_used_is_refused_at_its_line(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message) as caught:
        csv_trace(text, 100, 2)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("\n\n", "trace is empty"),
        ('{"num_tokens": 3}\n{oops}', "line 2: not valid JSON"),
        ("[3]", "line 1: a row must be a JSON object, not list"),
        ('{"tokens": 3}', "line 1: there is no column num_tokens, only tokens"),
        ("{}", "line 1: there is no column num_tokens, only none"),
        ('{"num_tokens": "3"}', 'line 1, column num_tokens: input should be a valid number, not "3"'),
        ('{"num_tokens": true}', "line 1, column num_tokens: input should be a valid number, not true"),
        ('{"num_tokens": null}', "line 1, column num_tokens: input should be a valid number, not null"),
        ('{"num_tokens": NaN}', "line 1: not valid JSON .NaN is no JSON number"),
        ('{"num_tokens": 1e400}', "line 1, column num_tokens: input should be a finite number, not Infinity"),
        ('{"num_tokens": 3}\n{"num_tokens": -1}', "line 2, column num_tokens: .* or equal to 1, not -1"),
        ('{"num_tokens": 3, "prompt": 1}\n{"num_tokens": 3}', "line 2, column prompt: every row needs a prompt id"),
        ('{"num_tokens": 3, "prompt": true}', "line 1, column prompt: input should be a valid string, not true"),
        ('{"num_tokens": 3, "prompt": null}', "line 1, column prompt: input should be a valid string, not null"),
    ],
)
def test_jsonl_that_cannot_be_used_is_refused_at_its_line(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        jsonl_trace(text, 100, 2)


def test_lengths_of_prompts_are_read_where_every_row_has_one() -> None:
    found = csv_trace("prompt,num_tokens,prompt_tokens\na,5,70\na,6,70\nb,7,90\n", 100, 2)
    assert (found.lengths.prompts, found.ignored_columns) == ((70, 90), ())
    with pytest.raises(ValueError, match="line 2, column prompt_tokens: every row needs a number"):
        jsonl_trace('{"num_tokens": 5, "prompt_tokens": 70}\n{"num_tokens": 5}\n', 100, 2)


def test_an_episode_has_turns_and_time_in_both_formats_and_a_cut_one_keeps_them() -> None:
    found = csv_trace("num_tokens,num_turns,environment_s,observed_tokens\n50,3,7.5,20\n500,2,0,0\n", 100, 2)
    assert found.lengths.responses == ((EpisodeLength(50, 3, 7.5, 20), EpisodeLength(100, 2, 0.0, 0)),)
    assert (found.num_clipped, found.ignored_columns) == (1, ())
    mixed = jsonl_trace('{"num_tokens": 50, "num_turns": 3, "environment_s": 7.5}\n{"num_tokens": 8}\n', 100, 1)
    assert mixed.lengths.responses == ((EpisodeLength(50, 3, 7.5),), (8,))
    assert mixed.lengths.episodes == (EpisodeLength(50, 3, 7.5),)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("5,0,1,0", "line 2, column num_turns: input should be greater than or equal to 1, not 0"),
        ("5,1.5,1,0", "line 2, column num_turns: input should be a multiple of 1, not 1.5"),
        ("5,1,-1,0", "line 2, column environment_s: input should be greater than or equal to 0, not -1"),
        ("5,1,soon,0", 'line 2, column environment_s: input should be a valid number, not "soon"'),
        ("5,1,1,6", "line 2, column observed_tokens: it is a part of num_tokens, 5, not more"),
        ("5,1,1,-3", "line 2, column observed_tokens: input should be greater than or equal to 0, not -3"),
    ],
)
def test_an_episode_that_cannot_be_is_refused_at_its_column(row: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        csv_trace(f"num_tokens,num_turns,environment_s,observed_tokens\n{row}\n", 100, 2)


@pytest.mark.parametrize("column", ["environment_s", "observed_tokens"])
def test_a_column_of_episodes_without_turns_is_refused_with_the_fix(column: str) -> None:
    with pytest.raises(
        ValueError, match=f"line 3, column num_turns: an episode has it besides {column}; add its turns"
    ):
        csv_trace(f"num_tokens,{column}\n5,0\n5,2\n", 100, 2)
    with pytest.raises(ValueError, match="line 2, column num_turns: an episode has it besides"):
        jsonl_trace(f'{{"num_tokens": 8, "num_turns": 1}}\n{{"num_tokens": 8, "{column}": 3}}\n', 100, 2)
