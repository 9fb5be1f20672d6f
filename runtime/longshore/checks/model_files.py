"""Whether a directory holds a whole Hugging Face checkpoint: configuration, tokenizer and all weights."""

import json
import re
from collections.abc import Iterator, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

from longshore.checks.safetensors import DamagedFile, StoredTensor, stored_tensors

INDEX: Final = "model.safetensors.index.json"
ADAPTER_CONFIG: Final = "adapter_config.json"
ADAPTER_WEIGHTS: Final = "adapter_model.safetensors"
"""Names of the two files of an adapter, which are those of PEFT."""
TOKENIZER_FILES: Final = (
    "tokenizer*", "special_tokens_map.json", "added_tokens.json", "vocab*", "merges.txt", "chat_template*", "*.model",
    "*.tiktoken", "tekken.json", "tokenization_*.py",
)  # fmt: skip
"""Patterns of the names of the files of a tokenizer."""
_SHARD: Final = re.compile(r"(.+)-(\d{5})-of-(\d{5})\.safetensors")
_TOKENIZERS: Final = ("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt", "spiece.model", "tekken.json")
"""One of these holds the vocabulary; slow tokenizers in Python files of their own name others."""
_TOKENIZER_CODE: Final = "tokenization_*.py"
_MAX_NAMES: Final = 3
_FREQUENCIES: Final = ".rotary_emb.inv_freq"


def config_of(directory: Path) -> Mapping[str, Any]:
    """Return the model's `config.json`; empty if it cannot be read, which `model_file_mistakes` reports."""
    try:
        config = json.loads((directory / "config.json").read_bytes())
    except (OSError, ValueError, RecursionError):
        return {}
    return config if isinstance(config, dict) else {}


def weight_files(directory: Path) -> list[Path]:
    """Return the files with the weights, as transformers chooses them: others beside them may hold the same again."""
    single = directory / "model.safetensors"
    if single.is_file():
        return [single]
    try:
        index = json.loads((directory / INDEX).read_bytes())
        return sorted(directory / Path(name).name for name in set(index["weight_map"].values()))
    except (OSError, ValueError, KeyError, AttributeError, TypeError, RecursionError):
        return sorted(directory.glob("*.safetensors"))


def is_weight(name: str, num_layers: int | None) -> bool:
    """Return whether a tensor of a checkpoint is read by the model, which has so many layers (None: unknown).

    Layers beyond these predict further tokens (MTP), which is for speculation; old checkpoints hold frequencies of
    RoPE.
    """
    parts = name.split(".")
    numbers = [number for kind, number in pairwise(parts) if kind == "layers" and number.isdecimal()]
    is_beyond = num_layers is not None and any(int(number) >= num_layers for number in numbers)
    return not (is_beyond or any(part.startswith("mtp") for part in parts) or name.endswith(_FREQUENCIES))


def weights_of(directory: Path) -> dict[str, StoredTensor]:
    """Return the tensors of a checkpoint whose files have no mistake; one that is in several files is there once."""
    return {name: tensor for path in weight_files(directory) for name, tensor in stored_tensors(path).items()}


def num_parameters(directory: Path) -> int:
    """Return the number of parameters of a checkpoint whose files have no mistake."""
    return sum(tensor.num_values for tensor in weights_of(directory).values())


def model_file_mistakes(directory: Path, name: str, field: str = "model.path") -> list[str]:
    """Return what is wrong with the checkpoint in `directory`; `name` is the value of `field`."""
    at = f"{field}: {name!r}"
    if not directory.is_dir():
        is_there = directory.exists()
        return [f"{at} {'is a file, not a directory' if is_there else 'does not exist in the storage of the job'}"]
    mistakes = [*_config_mistakes(directory, at), *_weight_mistakes(directory, at, f"{field}: {name}")]
    if not any((directory / file).is_file() for file in _TOKENIZERS) and not any(directory.glob(_TOKENIZER_CODE)):
        mistakes.append(
            f"{at} has no tokenizer ({', '.join(_TOKENIZERS[:3])} or the like); save it there with "
            "`tokenizer.save_pretrained`, or copy the whole checkpoint"
        )
    return mistakes


def _config_mistakes(directory: Path, at: str) -> Iterator[str]:
    path = directory / "config.json"
    if not path.is_file():
        yield f"{at} has no config.json; give a Hugging Face checkpoint"
    elif not config_of(directory):
        yield f"{at} has a config.json that holds no JSON object; copy it again"


def _weight_mistakes(directory: Path, at: str, within: str) -> Iterator[str]:
    files = sorted(path.name for path in directory.glob("*.safetensors"))
    if not files and not (directory / INDEX).exists():
        others = sorted(path.name for path in directory.glob("*.bin"))
        has = f" but {others[0]}" if others else ""
        yield f"{at} has no safetensors files{has}; save the checkpoint in that format"
        return
    found: dict[str, set[str]] = {}
    for file in files:
        try:
            found[file] = set(stored_tensors(directory / file))
        except DamagedFile as error:
            yield f"{within}/{file} {error}"
        except OSError as error:
            yield f"{within}/{file} cannot be read ({error.strerror})"
    if missing := sorted(_numbered(files) - set(files)):
        yield f"{at} lacks {_some(missing)}; copy the missing files"
    elif len(found) == len(files):
        yield from _index_mistakes(directory, found, at, within)


def _numbered(files: list[str]) -> set[str]:
    """Return the names of all shards of which one is there."""
    return {
        f"{match[1]}-{number:05d}-of-{match[3]}.safetensors"
        for file in files
        if (match := _SHARD.fullmatch(file))
        for number in range(1, int(match[3]) + 1)
    }


def _index_mistakes(directory: Path, found: Mapping[str, set[str]], at: str, within: str) -> Iterator[str]:
    """Yield mistakes of the index, which says in which file each weight is."""
    if not (directory / INDEX).exists():
        return
    try:
        places = json.loads((directory / INDEX).read_bytes())["weight_map"]
        wanted = {str(tensor): str(file) for tensor, file in places.items()}
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
        yield f"{within}/{INDEX} cannot be read; copy it again"
        return
    if missing := sorted(set(wanted.values()) - found.keys()):
        yield f"{at} lacks {_some(missing)}; copy the missing files"
    elif lost := sorted(tensor for tensor, file in wanted.items() if tensor not in found[file]):
        yield f"{within}/{wanted[lost[0]]} lacks {_some(lost)}, which {INDEX} promises; copy the checkpoint again"


def _some(names: list[str]) -> str:
    more = len(names) - _MAX_NAMES
    return ", ".join(names[:_MAX_NAMES]) + (f" and {more} more" if more > 0 else "")
