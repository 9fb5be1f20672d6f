"""Tensors of a transformers model under the names, and in the shapes, of its files.

transformers fuses what files hold apart, such as the experts of a layer, and renames some parameters. Engines and
checkpoints know the names of the files alone.
"""

import copy
import re
from collections.abc import Callable, Iterable, Iterator
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
from longshore_runtime.backends.devices import META
from longshore_runtime.backends.hf_mapping.entries import HEAD
from longshore_runtime.backends.hf_mapping.files import ALL_ROWS
from longshore_runtime.backends.lora import base_parameter, base_parameters

_NUMBERS: Final = re.compile(r"\d+")


class Files(Protocol):
    """The tensors of a checkpoint."""

    def __contains__(self, name: str) -> bool: ...

    @property
    def names(self) -> frozenset[str]:
        """Names of all tensors."""

    def read(self, name: str, rows: slice = ALL_ROWS) -> Tensor:
        """Return a tensor, or some of its rows, in host memory."""


class FileNames:
    """Map from each parameter of a model to the tensors of its files that make it up."""

    def __init__(self, model: Any, files: Files) -> None:
        """Compare the names of a model with those of the files that it is loaded from.

        Raises:
            ValueError: a parameter cannot be written as these tensors, or some would not be trained.
        """
        self._model = model
        self._files = files
        self._parts: dict[str, tuple[str, ...]] = {}
        """Parts of parameters by name in the model, where files have other names."""
        for name, parameter in model.named_parameters():
            if name in files:
                continue
            self._parts[name] = tuple(self._apart(name, parameter.to(META)))
            if any(part not in files for part in self._parts[name]):
                raise ValueError(_unknown(name, files))
        self._buffers = {name: part for name, part in self._parts_of_buffers() if part in files}
        self._require_all(files)

    def parameters(self) -> Iterator[tuple[str, torch.nn.Parameter]]:
        """Yield the parameters that files have, with their names in the model before it got an adapter."""
        return base_parameters(self._model)

    def only_part(self, name: str) -> str | None:
        """Return the tensor of the files that is a parameter; None: several make it up."""
        first, *others = self._parts.get(name, (name,))
        return None if others else first

    def buffers(self) -> Iterator[tuple[str, Tensor]]:
        """Yield the buffers that files have, such as the biases of routers, under their names there."""
        for name, part in self._buffers.items():
            yield part, self._model.get_buffer(name)

    def empty(self) -> dict[str, Tensor]:
        """Return all tensors that `apart` and `buffers` yield, in their order, with shapes and without values."""
        wholes = ((name, torch.empty(one.shape, dtype=one.dtype, device=META)) for name, one in self.parameters())
        parts = {part: values for name, whole in wholes for part, values in self.apart(name, whole)}
        return parts | {part: buffer.to(META) for part, buffer in self.buffers()}

    def apart(self, name: str, tensor: Tensor) -> Iterator[tuple[str, Tensor]]:
        """Return a whole parameter of the model as tensors of its files, each with its name."""
        yield from self._apart(name, tensor).items() if name in self._parts else [(name, tensor)]

    def together(self, name: str, files: Files, rows: slice = ALL_ROWS) -> Tensor:
        """Undo `apart`: return a parameter, or some of its rows, from the tensors of files, which may be other ones."""
        if name not in self._parts:
            return files.read(name, rows)
        if rows != ALL_ROWS and (parts := self._parts_with(name, rows)) is not None:
            shape = base_parameter(self._model, name).shape
            return self._joined(name, parts, files.read) if parts else torch.empty(0, *shape[1:])
        return self._joined(name, self._parts[name], files.read)[rows]

    def _joined(self, name: str, parts: Iterable[str], read: Callable[[str], Tensor]) -> Tensor:
        transforms = getattr(self._model, "_weight_conversions", None) or []
        renamings = [one for one in transforms if isinstance(one, WeightRenaming)]
        converters = [one for one in transforms if isinstance(one, WeightConverter)]
        joined: WeightRenaming | WeightConverter | None = None
        target = name
        for part in parts:
            target, pattern = rename_source_key(part, renamings, converters)
            if joined is None:
                joined = _joining(converters, pattern, part, target)
            joined.add_tensor(target, part, pattern or part, read(part))
        assert joined is not None, "a parameter has at least one part"
        return _one(joined.convert(target, model=self._model, config=self._model.config).popitem()[1])

    def require_same_values(self, own: Callable[[Tensor], Tensor], rows: Callable[[Tensor], slice]) -> None:
        """Compare the values of a loaded model, of which this process has some rows, with those of the files.

        Args:
            own: function that returns the rows of a parameter that this process has.
            rows: function that returns which those are.

        Raises:
            ValueError: a parameter cannot be written as the tensors of the files, bit by bit. Of parameters that differ
                in numbers of layers only, the values of one are compared.
        """
        names = {_NUMBERS.sub("", name): name for name in reversed(self._parts)}
        for name in reversed(names.values()):
            parameter = base_parameter(self._model, name)
            self._require_same_values(name, own(parameter), rows(parameter))

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
                yield from ((name, part) for part in self._apart(name, buffer.to(META)))

    def _parts_with(self, name: str, rows: slice) -> tuple[str, ...] | None:
        """Return the parts that make up some rows of a parameter; None: its parts are not those of one row each.

        The parts of a fused parameter are: each row has the weights of one expert.
        """
        shape = base_parameter(self._model, name).shape
        numbers = torch.arange(shape[0]).view(-1, *[1] * (len(shape) - 1)).expand(shape)
        parts = self._apart(name, numbers)
        if any(values.dim() == len(shape) for values in parts.values()):
            return None
        own = range(rows.start, rows.stop)
        return tuple(part for part, values in parts.items() if int(values[(0,) * values.dim()]) in own)

    def _require_same_values(self, name: str, tensor: Tensor, rows: slice) -> None:
        parts = None if rows == ALL_ROWS else self._parts_with(name, rows)
        if parts is None:
            parts = self._parts[name]
            if rows != ALL_ROWS:
                tensor, rows = self.together(name, self._files), ALL_ROWS
        # Some rows are taken apart in the order of all, under names that begin with the number 0.
        for part, values in zip(parts, self._apart(name, tensor).values() if len(tensor) else (), strict=True):
            if not torch.equal(values, self._files.read(part).to(values.device, values.dtype)):
                raise ValueError(f"transformers does not write the parameter {part!r} as it reads it")
        if not torch.equal(self.together(name, self._files, rows).to(tensor.device, tensor.dtype), tensor):
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
