"""Where models and data of another system are in a job: on the Hub, or in the storage after `longshore put`."""

import re
from collections import Counter
from collections.abc import Sequence
from pathlib import PurePosixPath
from typing import Final

from longshore_cli.convert.mapping import EntryOutcome, Refused

_REPOSITORY: Final = re.compile(r"[A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9_][\w.-]{0,95}", re.ASCII)
_FORMATS: Final = {".parquet": "Parquet", ".jsonl": "Jsonl", ".json": "Jsonl"}
_UNREAD: Final = {
    ".arrow", ".csv", ".gz", ".npy", ".npz", ".pickle", ".pkl", ".pt", ".tar", ".tsv", ".txt", ".xlsx", ".zip", ".zst",
}  # fmt: skip
"""Endings of files that no format reads."""
_VISION: Final = re.compile(
    r"(^|[^a-z])(vl|vlm|vision|omni|multimodal)([^a-z]|$)|internvl|smolvlm|llava|pixtral|idefics|paligemma|minicpm-[vo]",
    re.IGNORECASE,
)
"""Names of models that read images."""
_CLAIM: Final = "CLAIM"


def with_claim(text: str, claim: str) -> str:
    """Return a command with the name of the PersistentVolumeClaim that it copies into."""
    return text.replace(f"put {_CLAIM} ", f"put {claim} ")


def is_repository(name: str) -> bool:
    """Return whether it reads like a name of the Hub, as `Qwen/Qwen2.5-7B`."""
    return _REPOSITORY.fullmatch(name) is not None and PurePosixPath(name).suffix not in _FORMATS


def model(name: str, key: str) -> EntryOutcome:
    """Return the model, which is a name of the Hub or a directory; `key` has the name.

    Raises:
        Refused: it is a model of images.
    """
    if _VISION.search(_base(name)):
        raise Refused(key, f"{name} reads as a vision-language model, and only models of text are trained: name one")
    if is_repository(name):
        return EntryOutcome({"spec.model.hub": name})
    path = f"models/{_base(name)}"
    return EntryOutcome({"spec.model.path": path}, to_do=(_put(name, path),))


def data(files: Sequence[str], key: str) -> EntryOutcome:
    """Return training files, which `key` names. A file that is named several times weighs as often.

    Raises:
        Refused: no format reads one.
    """
    for name in files:
        if (suffix := PurePosixPath(name).suffix) in _UNREAD:
            raise Refused(
                key, f"{name}: files {suffix} are not read; write the rows as Parquet or JSON lines, and name that file"
            )
    times = Counter(files)
    named = {name: f"data/{_tail(name)}" for name in files}
    to_do = tuple(_put(name, path) for name, path in named.items())
    formats = {path: _FORMATS.get(PurePosixPath(path).suffix, "HuggingFace") for path in named.values()}
    if len(formats) == 1:
        ((path, form),) = formats.items()
        return EntryOutcome({"spec.data.path": path, "spec.data.format": form}, to_do=to_do)
    weights = Counter({path: times[name] for name, path in named.items()})
    sources = [{"name": f"source-{number}", "path": path, "format": form}
               | ({"weight": weights[path]} if weights[path] > 1 else {})
               for number, (path, form) in enumerate(formats.items(), start=1)]  # fmt: skip
    weigh = (
        "Multiply each weight of spec.data.sources by the number of its rows: the other system mixes files by their "
        "sizes, and here a file weighs 1 for each time that it is named."
    )
    return EntryOutcome({"spec.data.sources": sources}, to_do=(*to_do, weigh))


def _base(name: str) -> str:
    return PurePosixPath(name.rstrip("/")).name or "unnamed"


def _tail(name: str) -> str:
    """Return file and directory: files of several data sets often have the same name."""
    parts = [part for part in PurePosixPath(name).parts if part not in ("/", "~", ".", "..", "data")]
    return "/".join(parts[-2:]) or "unnamed"


def _put(name: str, path: str) -> str:
    return f"Copy {name} into the storage: `longshore put {_CLAIM} {name} {path}`."
