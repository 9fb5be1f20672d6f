"""Read rows of a JSONL file. Every mistake is found on its own line, even if the encoding is wrong."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

MAX_LINE_BYTES: Final = 64 << 20
"""A longer line is no row: mostly it is a whole data set in one JSON value."""

_UTF8_MARK: Final = b"\xef\xbb\xbf"
_UTF16_MARKS: Final = (b"\xff\xfe", b"\xfe\xff")
_OTHER_FORMATS: Final = {
    b"PAR1": "the file is Parquet: set `format` to Parquet",
    b"ARROW1": "the file is Arrow: give the directory that `datasets` has written, and set `format` to HuggingFace",
    b"\x1f\x8b": "the file is compressed with gzip: decompress it",
    b"\x28\xb5\x2f\xfd": "the file is compressed with zstd: decompress it",
    b"PK\x03\x04": "the file is a ZIP archive: unpack it",
}
"""What to do, by the first bytes of a file."""
_ONE_PER_LINE: Final = "each line must be one JSON object"


class RowError(ValueError):
    """A line that is no row: one sentence that names the line."""


def jsonl_rows(path: Path, name: str) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield (line number, fields) of every row except empty lines; `name` is the file in messages.

    Raises:
        RowError: the first line that is no row.
    """
    with path.open("rb") as file:
        number = 0
        while line := file.readline(MAX_LINE_BYTES + 1):
            number += 1
            source = f"{name}, line {number}"
            if number == 1:
                _require_text(line, name)
                line = _without_mark(line, source)
            if len(line) > MAX_LINE_BYTES:
                raise RowError(f"{source}: the line has more than {MAX_LINE_BYTES >> 20} MiB; {_ONE_PER_LINE}")
            if line.strip():
                yield number, _fields(line, source)


def _require_text(line: bytes, name: str) -> None:
    for beginning, advice in _OTHER_FORMATS.items():
        if line.startswith(beginning):
            raise RowError(f"{name}: {advice}")


def _without_mark(line: bytes, source: str) -> bytes:
    if line.startswith(_UTF16_MARKS):
        raise RowError(f"{source}: the file is encoded in UTF-16; save it as UTF-8")
    return line.removeprefix(_UTF8_MARK)


def _fields(line: bytes, source: str) -> dict[str, Any]:
    text = _text(line, source)
    try:
        value = json.loads(text, object_pairs_hook=_unique, parse_constant=_refuse_constant)
    except json.JSONDecodeError as error:
        raise RowError(f"{source}: not valid JSON ({_reason(error, text)})") from error
    except RecursionError as error:
        raise RowError(f"{source}: not valid JSON (it is nested too deeply)") from error
    except ValueError as error:
        if (most := sys.get_int_max_str_digits()) and "max_str_digits" in str(
            error
        ):  # Python's advice is for programs.
            mistake = f"it holds an integer of more than {most:,} digits; write it as a text, in quotes"
            raise RowError(f"{source}: {mistake}") from error
        raise RowError(f"{source}: {error}") from error
    if not isinstance(value, dict):
        raise RowError(f"{source}: a row must be a JSON object, not {type(value).__name__}; {_ONE_PER_LINE}")
    if r"\u" in text:
        _refuse_lone_surrogates(value, source)
    return value


def _text(line: bytes, source: str) -> str:
    if b"\0" in line:
        raise RowError(f"{source}: the line holds NUL bytes: the file is damaged, or not UTF-8; copy it again")
    try:
        return line.decode("utf-8")
    except UnicodeDecodeError as error:
        raise RowError(
            f"{source}: byte {error.start + 1} (0x{line[error.start]:02x}) is not UTF-8; save the file as UTF-8, "
            "for example with `iconv -f latin1 -t utf-8`"
        ) from error


def _reason(error: json.JSONDecodeError, text: str) -> str:
    """Return why a line is not valid JSON, without the parser's line number, which counts from that line."""
    if error.msg == "Extra data" and "\r" in text.rstrip():
        return "several rows in one line: end lines with a line feed, not with a carriage return alone"
    if text.strip() in ("[", "{") or error.msg == "Extra data":
        return f"{error.msg} at column {error.pos + 1}; {_ONE_PER_LINE}"
    return f"{error.msg} at column {error.pos + 1}"


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    if len(fields) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"the key {twice!r} is there twice; remove one")
    return fields


def _refuse_constant(name: str) -> None:
    raise ValueError(f"not valid JSON ({name} is no JSON number)")


def _refuse_lone_surrogates(value: object, source: str) -> None:
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        raise RowError(rf"{source}: not valid JSON (an escape \ud… is half of a character)") from error
