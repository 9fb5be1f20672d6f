"""Data sets in a directory, as Hugging Face's library reads and writes them."""

from pathlib import Path

import pytest

from longshore.api.model import Data, DataFormat, Source
from longshore_runtime.data.reading import read_rows
from longshore_runtime.errors import UserError
from longshore_runtime.hub.files import data_files

datasets = pytest.importorskip("datasets")

ROWS = [{"prompt": "1+1", "answer": "2"}, {"prompt": "2+2", "answer": "4"}]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the library keeps of data sets that it has read."""
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")


@pytest.fixture
def source() -> Source:
    [source] = Data(path="set", format=DataFormat.HUGGING_FACE).each
    return source


def write(directory: Path, **files: str) -> Path:
    """A directory with these JSONL files."""
    directory.mkdir()
    for name, text in files.items():
        (directory / f"{name}.jsonl").write_text(text)
    return directory


def test_files_of_a_directory_are_read(tmp_path: Path, source: Source) -> None:
    path = write(tmp_path / "set", train='{"prompt": "1+1", "answer": "2"}\n', test='{"prompt": "x", "answer": "y"}\n')
    assert [(row.source, row.fields) for row in read_rows(path, source)] == [("set, row 0", ROWS[0])]


def test_what_is_still_being_copied_into_a_directory_is_no_part_of_it(tmp_path: Path, source: Source) -> None:
    path = write(tmp_path / "set", train='{"prompt": "1+1", "answer": "2"}\n')
    write(path / ".longshore-k3x9", train='{"prompt": "2+2", "answer": "4"}\n')
    assert [row.fields for row in read_rows(path, source)] == ROWS[:1]


@pytest.mark.parametrize("has_splits", [False, True])
def test_what_was_saved_to_disk_is_read(tmp_path: Path, source: Source, has_splits: bool) -> None:
    saved = datasets.Dataset.from_list(ROWS)
    (datasets.DatasetDict({"train": saved}) if has_splits else saved).save_to_disk(tmp_path / "set")
    assert [row.fields for row in read_rows(tmp_path / "set", source)] == ROWS


def test_a_split_that_is_missing_is_reported_with_those_that_there_are(tmp_path: Path, source: Source) -> None:
    path = write(tmp_path / "set", test='{"prompt": "x", "answer": "y"}\n')
    with pytest.raises(UserError, match=r"data\.split: 'train' is not one of test"):
        read_rows(path, source)


@pytest.mark.parametrize(
    ("files", "reason"),
    [
        ({"train-0": '{"prompt": "a", "answer": "b"}\n', "train-1": '{"prompt": "a", "other": "c"}\n'}, "column"),
        ({"train": '{"prompt": "a", "answer": "b"}\n{"prompt": \n'}, "JSON"),
        ({}, "set"),
    ],
    ids=["files with different columns", "a line that is cut off", "no file"],
)
def test_what_cannot_be_read_is_a_mistake_of_the_user(
    tmp_path: Path, source: Source, files: dict[str, str], reason: str
) -> None:
    path = write(tmp_path / "set", **files)
    with pytest.raises(UserError, match=rf"data\.path: 'set' is not a Hugging Face data set \(.*{reason}"):
        read_rows(path, source)


NAMES = (
    "a.jsonl",
    "data/x.jsonl",
    "data/sub/y.jsonl",
    "data/.hidden/h.jsonl",
    "__w/w.jsonl",
    "test/t.jsonl",
    "data/__g.jsonl",
    "b-1.jsonl",
)
PATTERNS = [
    "*.jsonl", "data/*.jsonl", "**/*.jsonl", "data/**/*.jsonl", "**", "data/**", "data/*", "*/*.jsonl", "?.jsonl",
    "b-[0-9].jsonl", "**/x.jsonl", "data/.hidden/*", "./a.jsonl", "**/sub/*", "te*/*",
]  # fmt: skip


@pytest.mark.parametrize("pattern", PATTERNS)
def test_a_card_names_the_files_that_the_library_takes(tmp_path: Path, pattern: str) -> None:
    for name in NAMES:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    taken = datasets.data_files.resolve_pattern(pattern, str(tmp_path))
    card = {"configs": [{"data_files": [{"split": "train", "path": pattern}]}]}
    found = data_files(NAMES, card, None, "train")
    assert found == sorted(Path(one).relative_to(tmp_path).as_posix() for one in taken)
