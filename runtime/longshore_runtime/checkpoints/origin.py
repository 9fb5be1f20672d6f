"""Tell to which model, tokenizer and prompts the checkpoints of a job belong."""

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from longshore.api.model import BuiltinTask, Data, Model
from longshore.api.objectives.with_critic import AT as VALUE_MODEL
from longshore.api.training import Lora
from longshore.api.warm_start import WarmStart
from longshore.checks.model_files import config_of, weight_files
from longshore.checks.rows import value_at
from longshore.checks.safetensors import stored_tensors
from longshore_runtime.data.reading import Row
from longshore_runtime.errors import UserError

MODEL: Final = "model"
BASE: Final = "base"
"""Model that an adapter changes: the initial one, after its warm start."""
TRAINED: Final = "trained"
"""What is trained: an adapter, or all weights."""
TOKENIZER: Final = "tokenizer"
WARM_START: Final = "warmStart"
_OF_NO_EFFECT: Final = frozenset({"_name_or_path", "transformers_version"})
"""Fields of a configuration that say where it is from."""
_MOST_SAMPLES: Final = 256
"""Largest number of tensors of which content is read: a model has gigabytes, on a slow disk."""
_SAMPLE_BYTES: Final = 4096


@dataclass(frozen=True)
class Origin:
    """Something that a job is given, as far as its checkpoints depend on it."""

    field: str
    """Field of the spec that names the origin."""
    name: str
    """Value of that field."""
    fingerprint: str
    """Hash of its content."""

    def require(self, saved: Mapping[str, str], step: int) -> None:
        """Raise UserError unless the checkpoint of a step, which was saved with the origin `saved`, belongs to this."""
        if saved["fingerprint"] == self.fingerprint:
            return
        checkpoint = f"the checkpoint of step {step} in storage.output"
        if (saved["field"], saved["name"]) == (self.field, self.name):
            what = f"{self.name!r} has changed since {checkpoint} was written; restore it"
        else:
            what = f"{checkpoint} belongs to {saved['field']} {saved['name']!r}, not to {self.name!r}; set it back"
        raise UserError(f"{self.field}: {what}, or start a new job with another storage.output")


def model_origin(model: Model, repository: str | None, directory: Path) -> Origin:
    """Return the origin of a model whose files are in `directory`; `repository`: of the Hub, where it is from."""
    if model.builtin is not None:  # Its files are made again if they are lost, with other roundings.
        return Origin("model.builtin", model.builtin, model.builtin)
    field, name = ("model.path", model.path or "") if repository is None else ("model.hub", repository)
    return Origin(field, name, _model_fingerprint(directory))


def warm_start_origin(settings: WarmStart, task: BuiltinTask | None) -> Origin:
    """Return the origin that a warm start is; `task`: that of the job, if it is a built-in one."""
    shown = task if settings.data is None else settings.data.path or settings.data.hub
    fingerprint = json.dumps([settings.model_dump(mode="json"), task])
    return Origin("algorithm.warmStart", f"{settings.steps} steps on {shown}", fingerprint)


def base_origin(model: Origin, directory: Path) -> Origin:
    """Return the origin of the model that an adapter changes: an adapter fits no weights that differ by a rounding."""
    return replace(model, fingerprint=_model_fingerprint(directory))


def trained_origin(lora: Lora | None) -> Origin:
    """Return what is trained as an origin, because checkpoints hold nothing else."""
    name = "unset" if lora is None else str(lora)
    return Origin("trainer.lora", name, name)


def critic_origin(value_model: str | None) -> Origin:
    """Return the model that a critic begins as: checkpoints of another one may not fit it."""
    name = value_model or "unset"
    return Origin(VALUE_MODEL, name, name)


def tokenizer_origin(model: Origin, tokenizer: Any) -> Origin:
    """Return the origin of the tokenizer of a model."""
    content = json.dumps(sorted(tokenizer.get_vocab().items()), separators=(",", ":"))
    return Origin(model.field, f"tokenizer of {model.name}", hashlib.sha256(content.encode()).hexdigest())


def prompt_origins(data: Data, rows: Iterable[Row]) -> dict[str, Origin]:
    """Return the origin of every data set, from its prompts in their order. Answers may be corrected later."""
    if data.builtin is not None:
        return {"data": Origin("data.builtin", str(data.builtin), str(data.builtin))}
    hashes = {source.at: hashlib.sha256() for source in data.each}
    for row in rows:
        prompt = value_at(row.fields, row.data_set.prompt_field)
        hashes[row.data_set.at].update(json.dumps(prompt, sort_keys=True, default=str).encode() + b"\n")
    found = {}
    for source in data.each:
        kind, name = ("path", source.origin.path) if source.origin.path is not None else ("hub", source.origin.hub)
        found[source.at] = Origin(f"{source.at}.{kind}", name or "", hashes[source.at].hexdigest())
    return found


def _model_fingerprint(directory: Path) -> str:
    """Hash configuration, names, types and shapes of all tensors, and a piece of the content of some.

    It does not matter how the tensors are spread over files.
    """
    config = {name: value for name, value in config_of(directory).items() if name not in _OF_NO_EFFECT}
    found = hashlib.sha256(json.dumps(config, sort_keys=True).encode())
    tensors = {
        name: (path, tensor) for path in weight_files(directory) for name, tensor in stored_tensors(path).items()
    }
    between = -(-len(tensors) // _MOST_SAMPLES)
    for number, (name, (path, tensor)) in enumerate(sorted(tensors.items())):
        found.update(f"{name} {tensor.dtype} {tensor.shape}\n".encode())
        if number % between == 0:
            with path.open("rb") as file:
                file.seek((tensor.begin + tensor.end) // 2)
                found.update(file.read(min(_SAMPLE_BYTES, tensor.end - file.tell())))
    return found.hexdigest()
