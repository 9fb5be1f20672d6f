"""Read the rows of a data set in any format. Messages about mistakes name file and row."""

import itertools
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from longshore.api.model import DataFormat, Source
from longshore.checks.jsonl import RowError, jsonl_rows
from longshore.checks.rows import is_wanted, none_wanted, row_mistake
from longshore_runtime.errors import UserError, first_line

_PARQUET: Final = ".parquet"
_ROWS_AT_ONCE: Final = 4_096
"""Rows that are turned into Python's values at a time."""


@dataclass(frozen=True)
class Row:
    """One row with where it came from: for error messages, and for what its data set says about fields."""

    source: str
    fields: Mapping[str, Any]
    data_set: Source


@dataclass(frozen=True)
class DataFile:
    """A file of rows, and its name for people."""

    name: str
    path: Path


Fields = Collection[str] | None
"""Columns that are read of a Parquet file, if it has them; None: all. Others may be many times as large."""


def read_rows(path: Path, source: Source, fields: Fields = None) -> list[Row]:
    """Return all rows of a data set in the storage; raises UserError for the first mistake."""
    name, data_format = source.origin.path, source.origin.format
    if not path.exists():
        raise UserError(f"{source.at}.path: {name!r} does not exist in the storage of the job")
    if data_format is DataFormat.HUGGING_FACE:
        return _chosen(_hugging_face(path, source), source)
    if data_format is DataFormat.PARQUET and path.is_dir():
        parts = [DataFile(f"{name}/{part.relative_to(path)}", part) for part in _parts(path)]
        return read_files(parts, source, fields)
    if not path.is_file():
        raise UserError(
            f"{source.at}.path: {name!r} is not a file; set {source.at}.format to Parquet or HuggingFace for a "
            "directory"
        )
    file = DataFile(str(name), path)
    rows = _parquet(file, source, fields) if data_format is DataFormat.PARQUET else _jsonl(file, source)
    return _chosen(rows, source)


def read_files(files: Sequence[DataFile], source: Source, fields: Fields = None) -> list[Row]:
    """Return all rows of a data set in several files, each Parquet or JSONL by its name."""
    each = (_parquet(file, source, fields) if file.name.endswith(_PARQUET) else _jsonl(file, source) for file in files)
    return _chosen(itertools.chain.from_iterable(each), source)


def _parts(directory: Path) -> list[Path]:
    """Return the Parquet files of a directory; what is being copied into it has a hidden name and is left out."""
    found = sorted(directory.rglob(f"*{_PARQUET}"))
    return [part for part in found if not any(name.startswith(".") for name in part.relative_to(directory).parts)]


def _chosen(rows: Iterator[Row], source: Source) -> list[Row]:
    """Return the rows that the job selects; there must be at least one."""
    where, num_rows, chosen = source.origin.where, 0, []
    for row in rows:
        num_rows += 1
        if is_wanted(row.fields, where):
            chosen.append(row)
    if not chosen:
        raise UserError(none_wanted(num_rows, source))
    return chosen


def _jsonl(file: DataFile, source: Source) -> Iterator[Row]:
    try:
        for number, fields in jsonl_rows(file.path, file.name):
            yield Row(f"{file.name}, line {number}", fields, source)
    except RowError as error:
        raise UserError(str(error)) from error


def _parquet(file: DataFile, source: Source, fields: Fields) -> Iterator[Row]:
    from pyarrow import ArrowException, parquet

    number = 0
    try:
        with parquet.ParquetFile(file.path) as table:
            names = table.schema_arrow.names
            is_complete = _has_all(source, names)
            read = fields if is_complete else _columns_of_mistake(source)
            columns = [name for name in names if read is None or name in read]
            for batch in table.iter_batches(batch_size=_ROWS_AT_ONCE, columns=columns):
                for row in batch.to_pylist():
                    place = f"{file.name}, row {number}"
                    if not is_complete and is_wanted(row, source.origin.where):
                        raise UserError(f"{place}: {row_mistake(dict.fromkeys(names) | row, source)}")
                    yield Row(place, row, source)
                    number += 1
    except UnicodeDecodeError as error:
        raise UserError(f"{file.name} holds text that is not UTF-8 ({error}); write it again as UTF-8") from error
    except (ArrowException, OSError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise  # The disk or the network fails: another attempt may read it.
        reason = first_line(error)
        raise UserError(f"{file.name} is no Parquet file, or a damaged one ({reason}); copy it again") from error


def _has_all(source: Source, columns: Collection[str]) -> bool:
    """Return whether there are columns for the prompt and the answer."""
    wanted = (source.prompt_field, source.answer_field)
    return all(name in columns or name.partition(".")[0] in columns for name in wanted)


def _columns_of_mistake(source: Source) -> frozenset[str]:
    """Return the columns that show which row is the first without a prompt or an answer, and what it lacks."""
    names = (source.prompt_field, source.answer_field, *source.origin.where)
    return frozenset(names) | {name.partition(".")[0] for name in names}


def _hugging_face(path: Path, source: Source) -> Iterator[Row]:
    import datasets

    name, split = source.origin.path, source.origin.split
    try:
        loaded = datasets.load_from_disk(str(path)) if _saved_to_disk(path) else datasets.load_dataset(str(path))
    except (OSError, ValueError, datasets.exceptions.DatasetsError) as error:
        reason = " ".join(str(error.__cause__ or error).split())
        raise UserError(f"{source.at}.path: {name!r} is not a Hugging Face data set ({reason})") from error
    if isinstance(loaded, datasets.DatasetDict):
        if split not in loaded:
            raise UserError(f"{source.at}.split: {split!r} is not one of {', '.join(loaded)}")
        loaded = loaded[split]
    for number, fields in enumerate(loaded):
        yield Row(f"{name}, row {number}", fields, source)


def _saved_to_disk(path: Path) -> bool:
    return (path / "dataset_info.json").exists() or (path / "dataset_dict.json").exists()
