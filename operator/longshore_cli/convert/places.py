"""Where models and data of another system are in a job: on the Hub, or in the storage after `longshore put`."""

import re
from collections.abc import Sequence
from pathlib import PurePosixPath
from typing import Final

from longshore_cli.convert.mapping import EntryOutcome

_REPOSITORY: Final = re.compile(r"[A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9_][\w.-]{0,95}", re.ASCII)
_FORMATS: Final = {".parquet": "Parquet", ".jsonl": "Jsonl", ".json": "Jsonl"}


def is_repository(name: str) -> bool:
    """Return whether it reads like a name of the Hub, as `Qwen/Qwen2.5-7B`."""
    return _REPOSITORY.fullmatch(name) is not None and PurePosixPath(name).suffix not in _FORMATS


def model(name: str) -> EntryOutcome:
    """Return the model, which is a name of the Hub or a directory."""
    if is_repository(name):
        return EntryOutcome({"spec.model.hub": name})
    path = f"models/{_base(name)}"
    return EntryOutcome({"spec.model.path": path}, to_do=(_put(name, path),))


def data(files: Sequence[str]) -> EntryOutcome:
    """Training files."""
    named = {name: f"data/{_tail(name)}" for name in files}
    to_do = tuple(_put(name, path) for name, path in named.items())
    formats = {path: _FORMATS.get(PurePosixPath(path).suffix, "HuggingFace") for path in named.values()}
    if len(formats) == 1:
        ((path, form),) = formats.items()
        return EntryOutcome({"spec.data.path": path, "spec.data.format": form}, to_do=to_do)
    sources = [{"name": f"source-{number}", "path": path, "format": form}
               for number, (path, form) in enumerate(formats.items(), start=1)]  # fmt: skip
    weigh = "Weigh spec.data.sources: the other system mixes them by their sizes, and here each has weight 1."
    return EntryOutcome({"spec.data.sources": sources}, to_do=(*to_do, weigh))


def _base(name: str) -> str:
    return PurePosixPath(name.rstrip("/")).name or "unnamed"


def _tail(name: str) -> str:
    """File and directory: files of several data sets often have the same name."""
    parts = [part for part in PurePosixPath(name).parts if part not in ("/", "~", ".", "..", "data")]
    return "/".join(parts[-2:]) or "unnamed"


def _put(name: str, path: str) -> str:
    return f"Copy {name} into the storage: `longshore put CLAIM {name} {path}`."
