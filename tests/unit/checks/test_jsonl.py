"""Rows of a JSONL file: what is right is read, what is wrong is reported with its own line."""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longshore.checks import jsonl
from longshore.checks.jsonl import RowError, jsonl_rows

GOOD = b'{"prompt": "a", "answer": "b"}\n'


def write(tmp_path: Path, content: bytes) -> Path:
    path = tmp_path / "rows.jsonl"
    path.write_bytes(content)
    return path


def rows(path: Path) -> list[tuple[int, dict[str, Any]]]:
    return list(jsonl_rows(path, "data/rows.jsonl"))


@pytest.mark.parametrize(
    "content",
    [
        b"\xef\xbb\xbf" + GOOD,
        GOOD.replace(b"\n", b"\r\n"),
        GOOD.rstrip(),
        b"\n" + GOOD + b"  \r\n",
    ],
    ids=["byte-order mark", "CRLF", "no end of line", "empty lines"],
)
def test_files_of_other_systems_are_read(tmp_path: Path, content: bytes) -> None:
    ((_, fields),) = rows(write(tmp_path, content))
    assert fields == {"prompt": "a", "answer": "b"}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (GOOD + '{"prompt": "é"}'.encode("latin-1"), "line 2: byte 13 (0xe9) is not UTF-8; save the file as UTF-8"),
        (GOOD.decode().encode("utf-16"), "line 1: the file is encoded in UTF-16; save it as UTF-8"),
        (GOOD + b"\0" * 64, "line 2: the line holds NUL bytes: the file is damaged"),
        (GOOD + GOOD + b'{"prompt": "cut', "line 3: not valid JSON (Unterminated string starting at at column 12)"),
        (b'[{"a": 1}]', "line 1: a row must be a JSON object, not list; each line must be one JSON object"),
        (b'[\n{"a": 1}\n]', "line 1: not valid JSON (Expecting value at column 3; each line must be one JSON object)"),
        (GOOD.replace(b"\n", b"\r") * 2, "line 1: not valid JSON (several rows in one line: end lines with"),
        (GOOD + b'{"a": 1, "b": {"c": 1, "c": 2}}', "line 2: the key 'c' is there twice; remove one"),
        (b'{"a": NaN}', "line 1: not valid JSON (NaN is no JSON number)"),
        (rb'{"a": "\ud83d"}', r"line 1: not valid JSON (an escape \ud… is half of a character)"),
        (b'{"a": ' + b"[" * 100_000, "line 1: not valid JSON (it is nested too deeply)"),
    ],
)
def test_a_line_that_is_no_row_is_reported_with_its_number_and_no_other(
    tmp_path: Path, content: bytes, message: str
) -> None:
    with pytest.raises(RowError) as caught:
        rows(write(tmp_path, content))
    assert str(caught.value).startswith(f"data/rows.jsonl, {message}")


def test_a_line_without_end_is_refused_before_it_fills_the_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jsonl, "MAX_LINE_BYTES", 1 << 20)
    with pytest.raises(RowError, match="line 2: the line has more than 1 MiB; each line must be one JSON object"):
        rows(write(tmp_path, GOOD + b" " * (1 << 20) + b"  "))


@given(st.lists(st.dictionaries(st.text(), st.text() | st.integers() | st.lists(st.text())), max_size=8))
def test_whatever_json_writes_is_read_again(tmp_path_factory: pytest.TempPathFactory, values: list[Any]) -> None:
    path = tmp_path_factory.mktemp("rows") / "rows.jsonl"
    path.write_text("".join(json.dumps(value, ensure_ascii=False) + "\n" for value in values), encoding="utf-8")
    assert [fields for _, fields in rows(path)] == values


@given(st.binary(max_size=200))
def test_no_content_is_too_ugly_for_a_sentence(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    path = tmp_path_factory.mktemp("rows") / "rows.jsonl"
    path.write_bytes(content)
    try:
        rows(path)
    except RowError as error:
        assert "\n" not in str(error)


@pytest.mark.parametrize(
    ("beginning", "advice"),
    [
        (b"PAR1\x15\x04\x15", "the file is Parquet: set `format` to Parquet"),
        (b"ARROW1\0\0", "the file is Arrow: give the directory"),
        (gzip.compress(GOOD, mtime=0), "the file is compressed with gzip: decompress it"),
        (b"PK\x03\x04\x14", "the file is a ZIP archive: unpack it"),
    ],
)
def test_a_file_of_another_format_is_not_called_damaged(tmp_path: Path, beginning: bytes, advice: str) -> None:
    with pytest.raises(RowError, match=rf"^data/rows\.jsonl: {advice}"):
        rows(write(tmp_path, beginning + b"\0" * 100 + b"\n"))


def test_an_integer_that_python_does_not_read_is_reported_with_the_fix(tmp_path: Path) -> None:
    path = write(tmp_path, GOOD + b'{"prompt": "a", "answer": ' + b"9" * 5000 + b"}\n")
    with pytest.raises(RowError, match=r"line 2: it holds an integer of more than 4,300 digits; write it as a text"):
        rows(path)
