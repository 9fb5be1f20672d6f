"""The samples of a run, loaded with the libraries that people use."""

from pathlib import Path

import pytest

from tests.unit.runtime.telemetry.test_step_records import run, samples


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("run")
    run(root)
    return root


def test_datasets_loads_all_steps_as_one_table(root: Path, tmp_path: Path) -> None:
    from datasets import load_dataset

    files = str(root / "output" / "samples" / "*.parquet")
    loaded = load_dataset("parquet", data_files=files, split="train", cache_dir=str(tmp_path))
    expected = [row for rows in samples(root).values() for row in rows]
    assert len(loaded) == len(expected)
    assert loaded[0]["versions"] == expected[0]["versions"]
    assert loaded.filter(lambda row: row["step"] == 2).num_rows == len(samples(root)[2])


def test_pandas_loads_the_directory(root: Path) -> None:
    import pandas

    frame = pandas.read_parquet(root / "output" / "samples")
    assert frame.groupby("step").size().to_dict() == {step: len(rows) for step, rows in samples(root).items()}
    assert frame["reward"].notna().all()
