"""Which files of a repository are downloaded: those that a job reads, found as their card or their names say."""

from typing import Any

import pytest

from longshore_runtime.hub.files import NoSuchFiles, data_files, model_files

GSM8K = ["README.md", "main/test-00000-of-00001.parquet", "main/train-00000-of-00001.parquet",
         "socratic/test-00000-of-00001.parquet", "socratic/train-00000-of-00001.parquet"]  # fmt: skip
SHARDS = [f"data/train-0000{n}-of-00002.parquet" for n in range(2)]


ENDLESS: list[Any] = ["data/train-*"]
ENDLESS.append(ENDLESS)


def card(**splits: Any) -> dict[str, Any]:
    """A card with one configuration."""
    return {"configs": [{"config_name": "default", "data_files": [{"split": s, "path": p} for s, p in splits.items()]}]}


def test_of_a_model_everything_that_is_read_and_no_second_copy_of_the_weights() -> None:
    kept = ["config.json", "merges.txt", "model-00001-of-00002.safetensors", "model.safetensors.index.json",
            "spiece.model", "tokenization_mine.py", "chat_template.jinja"]  # fmt: skip
    left = [".gitattributes", "README.md", "consolidated.safetensors", "onnx/model.safetensors", "original/params.json",
            "pytorch_model.bin", "tf_model.h5", "model.gguf"]  # fmt: skip
    assert model_files([*left, *kept]) == sorted(kept)


@pytest.mark.parametrize(
    ("names", "described", "config", "split", "found"),
    [
        (GSM8K, {}, "main", "train", ["main/train-00000-of-00001.parquet"]),
        (GSM8K, {}, "socratic", "test", ["socratic/test-00000-of-00001.parquet"]),
        (SHARDS, {}, None, "train", SHARDS),
        (SHARDS, card(train="data/train-*"), None, "train", SHARDS),
        (["train.parquet", "validation.parquet"], {}, None, "validation", ["validation.parquet"]),
        (["data/dapo.parquet"], {}, None, "train", ["data/dapo.parquet"]),
        (["a.parquet", "b.jsonl"], card(train=["a.parquet", "b.jsonl"]), None, "train", ["a.parquet", "b.jsonl"]),
        (["default/train/0000.parquet", "default/test/0000.parquet"], {}, "default", "train",
         ["default/train/0000.parquet"]),
        (["dev.jsonl", "train.jsonl"], {}, None, "validation", ["dev.jsonl"]),
        (["x/train.jsonl", "y/train.jsonl"], {"configs": [{"data_files": "train.jsonl", "data_dir": "y"}]}, None,
         "train", ["y/train.jsonl"]),
        (["a.parquet", "b.parquet"],
         {"configs": [{"config_name": "b", "default": True, "data_files": {"test": "b.parquet"}},
                      {"config_name": "a", "data_files": {"test": "a.parquet"}}]}, None, "test", ["b.parquet"]),
    ],
)  # fmt: skip
def test_the_files_of_a_configuration_and_split_are_found(
    names: list[str], described: dict[str, Any], config: str | None, split: str, found: list[str]
) -> None:
    assert data_files(names, described, config, split) == found


@pytest.mark.parametrize(
    ("names", "described", "config", "split", "message"),
    [
        (GSM8K, {}, None, "train", "config: files of 'train' lie in main, socratic; set it to one of these"),
        (GSM8K, {}, "hard", "train", "config: no directory of the data set is named 'hard'"),
        (GSM8K, {}, "main", "validation", "split: 'validation' is not one of train, test"),
        (SHARDS, card(train="data/train-*"), "main", "train", "config: 'main' is not one of default"),
        (SHARDS, card(train="data/train-*"), None, "test", "split: 'test' is not one of train"),
        (["train.csv"], card(train="train.csv"), None, "train",
         "hub: 'train.csv' is neither Parquet nor JSONL; set revision to refs/convert/parquet, where"),
        (["README.md"], {}, None, "train", "hub: there are neither Parquet nor JSONL files; set revision to"),
        (SHARDS, card(train=[["data/train-*"]]), None, "train",
         "hub: the card of the data set is wrong: data_files holds what is no path; set revision to refs/convert/parq"),
        (SHARDS, {"configs": [{"data_files": ENDLESS}]}, None, "train", "hub: the card of the data set is wrong: "),
    ],
)  # fmt: skip
def test_what_is_not_there_is_reported_with_what_there_is(
    names: list[str], described: dict[str, Any], config: str | None, split: str, message: str
) -> None:
    with pytest.raises(NoSuchFiles) as caught:
        data_files(names, described, config, split)
    assert str(caught.value).startswith(message)
