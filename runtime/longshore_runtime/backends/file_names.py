"""Tensors of a transformers model under the names, and in the shapes, of its files.

transformers fuses what files hold apart, such as the experts of a layer, and renames some parameters. Engines and
checkpoints know the names of the files alone.
"""

import copy
import re
from collections.abc import Callable, Iterator
from typing import Any, Final, Protocol

import torch
from torch import Tensor
from transformers.core_model_loading import (
    WeightConverter,
    WeightRenaming,
    rename_source_key,
    revert_weight_conversion,
)

from longshore.checks.model_files import is_weight
from longshore_runtime.backends.hf_mapping.entries import HEAD

_NUMBERS: Final = re.compile(r"\d+")
_META: Final = torch.device("meta")


class Files(Protocol):
    """The tensors of a checkpoint."""

    def __contains__(self, name: str) -> bool: ...

    @property
    def names(self) -> frozenset[str]:
        """Names of all tensors."""

    def read(self, name: str) -> Tensor:
        """Return a tensor in host memory."""


class FileNames:
    """Map from each parameter of a model to the tensors of its files that make it up."""

    def __init__(self, model: Any, files: Files) -> None:
        """Compare a model that is in host memory with the files that it was loaded from.

        Raises:
            ValueError: a parameter cannot be written as these tensors, bit by bit. Of parameters that differ in numbers
                of layers only, the values of one are compared.
        """
        self._model = model
        self._parts: dict[str, tuple[str, ...]] = {}
        """Parts of parameters by name in the model, where files have other names."""
        kinds: set[str] = set()
        for name, parameter in model.named_parameters():
            if name in files:
                continue
            self._parts[name] = tuple(self._apart(name, parameter.to(_META)))
            if any(part not in files for part in self._parts[name]):
                raise ValueError(_unknown(name, files))
            if (kind := _NUMBERS.sub("", name)) not in kinds:
                self._require_same_values(name, parameter, files)
                kinds.add(kind)
        self._buffers = {name: part for name, part in self._parts_of_buffers() if part in files}
        self._require_all(files)

    def buffers(self) -> Iterator[tuple[str, Tensor]]:
        """Yield the buffers that files have, such as the biases of routers, under their names there."""
        for name, part in self._buffers.items():
            yield part, self._model.get_buffer(name)

    def apart(self, name: str, tensor: Tensor) -> Iterator[tuple[str, Tensor]]:
        """Return a whole parameter of the model as tensors of its files, each with its name."""
        yield from self._apart(name, tensor).items() if name in self._parts else [(name, tensor)]

    def together(self, name: str, read: Callable[[str], Tensor]) -> Tensor:
        """Undo `apart`: return a whole parameter, given how the tensors of files are read."""
        if name not in self._parts:
            return read(name)
        transforms = getattr(self._model, "_weight_conversions", None) or []
        renamings = [one for one in transforms if isinstance(one, WeightRenaming)]
        converters = [one for one in transforms if isinstance(one, WeightConverter)]
        joined: WeightRenaming | WeightConverter | None = None
        target = name
        for part in self._parts[name]:
            target, pattern = rename_source_key(part, renamings, converters)
            if joined is None:
                joined = _joining(converters, pattern, part, target)
            joined.add_tensor(target, part, pattern or part, read(part))
        assert joined is not None, "a parameter has at least one part"
        return _one(joined.convert(target, model=self._model, config=self._model.config).popitem()[1])

    def _require_all(self, files: Files) -> None:
        own = {part for name, _ in self._model.named_parameters() for part in self._parts.get(name, (name,))}
        num_layers = getattr(self._model.config.get_text_config(), "num_hidden_layers", None)
        rest = files.names - own - {*self._buffers.values(), HEAD}
        if others := sorted(name for name in rest if is_weight(name, num_layers)):
            raise ValueError(
                f"its files hold {len(others)} tensors that transformers does not load, first {others[0]!r}; choose "
                "another checkpoint of the model"
            )

    def _apart(self, name: str, tensor: Tensor) -> dict[str, Tensor]:
        found = revert_weight_conversion(self._model, {name: tensor.detach()})
        return {part: _one(values) for part, values in found.items()}

    def _parts_of_buffers(self) -> Iterator[tuple[str, str]]:
        names = self._model.state_dict().keys()
        for name, buffer in self._model.named_buffers():
            if name in names:
                yield from ((name, part) for part in self._apart(name, buffer.to(_META)))

    def _require_same_values(self, name: str, tensor: Tensor, files: Files) -> None:
        for part, values in self._apart(name, tensor).items():
            if not torch.equal(values, files.read(part).to(values.dtype)):
                raise ValueError(f"transformers does not write the parameter {part!r} as it reads it")
        if not torch.equal(self.together(name, files.read).to(tensor.dtype), tensor):
            raise ValueError(f"transformers does not read the parameter {name!r} as it writes it")


def _joining(
    converters: list[WeightConverter], pattern: str | None, part: str, target: str
) -> WeightRenaming | WeightConverter:
    if pattern is None:
        return WeightRenaming(part, target)
    return copy.deepcopy(next(one for one in converters if pattern in one.source_patterns))


def _one(values: Tensor | list[Tensor]) -> Tensor:
    return values[0] if isinstance(values, list) else values


def _unknown(name: str, files: Files) -> str:
    if name.partition(".")[2] in files:
        return (
            f"its files leave out the beginning of names such as {name!r}; load it with transformers, and save it "
            "with save_pretrained"
        )
    return f"transformers gives the parameter {name!r} other names than the files have; choose another architecture"
