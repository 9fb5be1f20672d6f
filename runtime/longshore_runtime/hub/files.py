"""Choose the files of a repository that a job needs. Pure: their names and the data set's card decide."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any, Final

_OF_MODELS: Final = (".safetensors", ".json", ".txt", ".model", ".jinja", ".py", ".tiktoken")
_SECOND_COPY: Final = "consolidated"
"""Prefix of files in which Mistral's checkpoints hold the weights once more."""
_OF_DATA: Final = (".parquet", ".jsonl")
_SYNONYMS: Final[Mapping[str, tuple[str, ...]]] = {
    "train": ("train", "training"),
    "validation": ("validation", "valid", "val", "dev"),
    "test": ("test", "testing", "eval", "evaluation"),
}
"""Names of the usual splits in file names, as `datasets` reads them."""
_CONVERTED: Final = "refs/convert/parquet"


class NoSuchFiles(ValueError):
    """Raised when the repository lacks what the job needs; the message has the field, a colon, and what to do."""


def unreadable_card(why: str) -> NoSuchFiles:
    """Return the error for a card of a data set that says nothing usable about its files."""
    return NoSuchFiles(f"hub: the card of the data set is {why}; set revision to {_CONVERTED}, which has no card")


def model_files(names: Iterable[str]) -> list[str]:
    """Return configuration, tokenizer and weights: the files at the top, without copies in other formats."""
    return sorted(
        name
        for name in names
        if "/" not in name and name.endswith(_OF_MODELS) and not name.startswith((_SECOND_COPY, "."))
    )


def data_files(names: Sequence[str], card: Mapping[str, Any], config: str | None, split: str) -> list[str]:
    """Return the files of a configuration and split: those that the data set's card names, or else by their names.

    Raises:
        NoSuchFiles: there are none, or more than one configuration could be meant.
    """
    listed = card.get("configs")
    configs = [one for one in listed if _names_files(one)] if isinstance(listed, list) else []
    found = _by_card(names, configs, config, split) if configs else _by_name(names, config, split)
    chosen = sorted(name for name in found if name.endswith(_OF_DATA))
    if not chosen:
        others = f"{found[0]!r} is neither Parquet nor JSONL" if found else "there are neither Parquet nor JSONL files"
        raise NoSuchFiles(f"hub: {others}; set revision to {_CONVERTED}, where the Hub keeps data sets as Parquet")
    return chosen


def _names_files(config: object) -> bool:
    """Return whether an entry of a card is a configuration with files, whose name and directory are no structures."""
    if not isinstance(config, Mapping) or not config.get("data_files"):
        return False
    return not any(isinstance(config.get(name), list | Mapping) for name in ("config_name", "data_dir"))


def _by_card(names: Sequence[str], configs: Sequence[Mapping[str, Any]], config: str | None, split: str) -> list[str]:
    by_name = {str(one.get("config_name", "default")): one for one in configs}
    if config is None:
        config = _default(by_name)
    if config not in by_name:
        raise NoSuchFiles(f"config: {config!r} is not one of {', '.join(by_name)}")
    chosen = by_name[config]
    prefix = f"{str(chosen['data_dir']).strip('/')}/" if chosen.get("data_dir") else ""
    patterns = [(of, prefix + pattern) for of, pattern in _patterns(chosen["data_files"])]
    if all(of is None for of, _ in patterns):
        return _by_name([name for name in names if _matches(name, [one for _, one in patterns])], None, split)
    splits = list(dict.fromkeys(of for of, _ in patterns if of is not None))
    if split not in splits:
        raise NoSuchFiles(f"split: {split!r} is not one of {', '.join(splits)}")
    return [name for name in names if _matches(name, [pattern for of, pattern in patterns if of == split])]


def _default(configs: Mapping[str, Mapping[str, Any]]) -> str:
    if len(configs) == 1:
        return next(iter(configs))
    for name, one in configs.items():
        if one.get("default") or name == "default":
            return name
    raise NoSuchFiles(f"config: the data set has several: set it to one of {', '.join(configs)}")


def _patterns(data_files: Any) -> Iterator[tuple[str | None, str]]:
    """Yield (split, pattern) of each entry; a card may write them as a text, a list or a mapping."""
    if isinstance(data_files, str):
        yield None, data_files
    elif isinstance(data_files, Mapping):
        entries = [data_files] if "path" in data_files else [{"split": s, "path": p} for s, p in data_files.items()]
        for entry in entries:
            paths = entry["path"] if isinstance(entry["path"], list) else [entry["path"]]
            if not all(isinstance(path, str) for path in paths):
                raise unreadable_card("wrong: data_files holds what is no path")
            yield from ((entry.get("split"), path) for path in paths)
    elif isinstance(data_files, list):
        for entry in data_files:
            if isinstance(entry, list):  # By YAML's references, a list can contain itself.
                raise unreadable_card("wrong: data_files holds what is no path")
            yield from _patterns(entry)


def _matches(name: str, patterns: Iterable[str]) -> bool:
    return any(_is_match(name.split("/"), pattern.removeprefix("./").split("/")) for pattern in patterns)


def _is_match(name: Sequence[str], pattern: Sequence[str]) -> bool:
    """Match part by part, as `datasets` does: `*` stays within a directory, and `**` is any number of them.

    Hidden files and directories are found only where the pattern names them.
    """
    if not pattern:
        return not name
    first, *rest = pattern
    is_hidden = bool(name) and _is_hidden(name[0], is_directory=len(name) > 1)
    if first == "**":
        deeper = bool(name) and not is_hidden and ((len(name) == 1 and not rest) or _is_match(name[1:], pattern))
        return deeper or bool(rest and _is_match(name, rest))
    if not name or (is_hidden and not _is_hidden(first, is_directory=bool(rest))):
        return False
    return fnmatchcase(name[0], first) and _is_match(name[1:], rest)


def _is_hidden(part: str, *, is_directory: bool) -> bool:
    return part.startswith(".") or (is_directory and part.startswith("__"))


def _by_name(names: Sequence[str], config: str | None, split: str) -> list[str]:
    rows = [name for name in names if name.endswith(_OF_DATA)]
    if config is not None:
        rows = [name for name in rows if config in name.split("/")[:-1]]
        if not rows:
            raise NoSuchFiles(f"config: no directory of the data set is named {config!r}")
    of_split = [name for name in rows if _names_split(name, split)]
    known = [one for one in _SYNONYMS if any(_names_split(name, one) for name in rows)]
    if not of_split and split == "train" and not known:
        of_split = rows
    if rows and not of_split:
        raise NoSuchFiles(f"split: {split!r} is not one of {', '.join(known) or 'train'}")
    directories = sorted({name.rpartition("/")[0] for name in of_split})
    if len(directories) > 1:
        raise NoSuchFiles(f"config: files of {split!r} lie in {', '.join(directories)}; set it to one of these")
    return of_split


def _names_split(name: str, split: str) -> bool:
    words = "|".join(map(re.escape, _SYNONYMS.get(split, (split,))))
    return re.search(rf"(^|[-._ 0-9/])({words})($|[-._ 0-9/])", name) is not None
