"""A low-rank adapter (LoRA) in a model of transformers, with the layers, names and initial values of PEFT.

A linear layer that gets matrices becomes a layer of PEFT, which has the frozen one as `base_layer`. That changes the
names of the model's parameters: `base_parameters` and `base_parameter` find them by those that they had before.
"""

import json
import math
import re
import zlib
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, Protocol

import torch
from safetensors.torch import save_file
from torch import Tensor

from longshore.api.training import Lora
from longshore.checks.model_files import ADAPTER_CONFIG, ADAPTER_WEIGHTS
from longshore_runtime.backends.devices import META
from longshore_runtime.backends.expert_lora import add_matrices
from longshore_runtime.backends.hf_mapping.files import ALL_ROWS

_PREFIX: Final = "base_model.model."
"""What PEFT writes before the name of a layer."""
_NAME: Final = "default"
_MATRIX: Final = re.compile(rf"(.+)\.(lora_[AB])(?:\.{_NAME}\.weight)?")
"""Pattern of the names of matrices in a model, those of experts included; PEFT leaves the name of the adapter out of
files."""
_BASE: Final = ".base_layer."
_EXPERTS: Final = ".experts."


class FileNames(Protocol):
    """Names of the parameters of a model in its files."""

    def only_part(self, name: str) -> str | None:
        """Return the tensor of the files that is a parameter; None: several make it up."""

    def apart(self, name: str, tensor: Tensor) -> Iterator[tuple[str, Tensor]]:
        """Return a whole parameter of the model as tensors of its files, each with its name."""


class Stored(Protocol):
    """Names, in files, of the parameters that are trained, published and saved."""

    def parameters(self) -> Iterator[tuple[str, torch.nn.Parameter]]:
        """Yield the parameters with their names in the model."""

    def buffers(self) -> Iterator[tuple[str, Tensor]]:
        """Yield the buffers that files have, under their names there."""

    def empty(self) -> dict[str, Tensor]:
        """Return all tensors that `apart` and `buffers` yield, in their order, with shapes and without values."""

    def apart(self, name: str, tensor: Tensor) -> Iterator[tuple[str, Tensor]]:
        """Return a whole parameter of the model as tensors of files, each with its name."""

    def together(self, name: str, files: Any, rows: slice = ALL_ROWS) -> Tensor:
        """Undo `apart`: return a parameter, or some of its rows, from the tensors of files."""


class Adapter:
    """The matrices of a model, with the names that they have in files; see `Stored`."""

    def __init__(
        self,
        model: Any,
        lora: Lora,
        files: FileNames,
    ) -> None:
        """Add matrices in float32 to the linear layers of a model, whose own weights are frozen.

        They have no values before `initialise`.

        Args:
            model: model of transformers, with weights or on the meta device.
            lora: settings.
            files: names of its parameters in files.

        Raises:
            ValueError: the model has no such layers.
        """
        from peft import LoraConfig, inject_adapter_in_model  # Here, because this takes seconds.
        from peft.tuners.lora import LoraLayer

        targets = _target_layers(model, lora.target_modules)
        self._config: Any = LoraConfig(
            r=lora.rank,
            lora_alpha=_whole(lora.alpha),
            target_modules=[f"0.{layer}" for layer in targets],
            task_type="CAUSAL_LM",
        )
        names = {layer: _file_name(layer, files.only_part) for layer in targets}
        # Within a module that has no type of model, for which PEFT 0.21 would take dense layers for routed experts.
        inject_adapter_in_model(self._config, torch.nn.Sequential(model), _NAME)
        self._config.target_modules = targets
        self._model = model
        layers = [layer for layer in model.modules() if isinstance(layer, LoraLayer)]
        for layer in layers:
            layer.cast_input_dtype_enabled = False  # FSDP has cast the matrices.
            for matrices in (layer.lora_A, layer.lora_B):
                matrices.float()
        self._layers: list[Any] = list(layers)
        self._names: dict[str, tuple[str, ...]] = {
            name: (f"{_PREFIX}{names[match[1]]}.{match[2]}.weight",)
            for name, _ in model.named_parameters()
            if (match := _MATRIX.fullmatch(name))
        }
        assert len(self._names) == 2 * len(targets), "PEFT has added two matrices to each layer"
        if lora.experts:
            modules, of_experts = add_matrices(model, lora.rank, lora.alpha / lora.rank, files.apart)
            self._layers += modules
            self._names |= {name: tuple(f"{_PREFIX}{part}" for part in parts) for name, parts in of_experts.items()}
            experts = {part.rpartition(".lora_")[0] for parts in of_experts.values() for part in parts}
            self._config.target_modules = sorted({*targets, *experts})

    @torch.no_grad()
    def initialise(self, seed: int, own: Callable[[Tensor], Tensor], rows: Callable[[Tensor], slice]) -> None:
        """Give the matrices the initial values of PEFT, with which an adapter changes nothing.

        Args:
            seed: seed of the random values. They do not depend on how ranks share the matrices.
            own: function that returns the rows of a parameter that this process has.
            rows: function that returns which those are.
        """
        for name, parameter in self.parameters():
            values = torch.zeros(parameter.shape)
            parts = self._names[name] if "lora_A" in name else ()
            for part, matrix in zip(parts, values.view(-1, *values.shape[-2:]), strict=bool(parts)):
                generator = torch.Generator().manual_seed(zlib.crc32(f"{seed} {part}".encode()))
                torch.nn.init.kaiming_uniform_(matrix, a=math.sqrt(5), generator=generator)
            own(parameter).copy_(values[rows(parameter)])

    @contextmanager
    def off(self) -> Iterator[None]:
        """Have the model compute without the adapter within the block."""
        # PEFT's `enable_adapters` would freeze the matrices, and FSDP copies that at the first pass.
        self._set_off(True)
        try:
            yield
        finally:
            self._set_off(False)

    def parameters(self) -> Iterator[tuple[str, torch.nn.Parameter]]:
        """See `Stored`."""
        return ((name, self._model.get_parameter(name)) for name in self._names)

    def buffers(self) -> Iterator[tuple[str, Tensor]]:
        """See `Stored`; an adapter has none."""
        return iter(())

    def empty(self) -> dict[str, Tensor]:
        """See `Stored`."""
        wholes = ((name, torch.empty(one.shape, device=META)) for name, one in self.parameters())
        return {part: values for name, whole in wholes for part, values in self.apart(name, whole)}

    def apart(self, name: str, tensor: Tensor) -> Iterator[tuple[str, Tensor]]:
        """See `Stored`."""
        yield from zip(self._names[name], tensor.view(-1, *tensor.shape[-2:]), strict=True)

    def together(self, name: str, files: Any, rows: slice = ALL_ROWS) -> Tensor:
        """See `Stored`."""
        parameter = self._model.get_parameter(name)
        if parameter.dim() == 2:
            values: Tensor = files.read(self._names[name][0], rows)
            return values
        parts = [files.read(part) for part in self._names[name][rows]]
        return torch.stack(parts) if parts else torch.empty(0, *parameter.shape[1:])

    def write(self, directory: Path, weights: Mapping[str, Tensor]) -> None:
        """Write the files of PEFT, which take megabytes."""
        directory.mkdir(parents=True, exist_ok=True)
        settings = self._config.to_dict() | {"inference_mode": True}
        content = {name: sorted(value) if isinstance(value, set) else value for name, value in settings.items()}
        (directory / ADAPTER_CONFIG).write_text(json.dumps(content, indent=2, sort_keys=True), encoding="utf-8")
        tensors = {name: tensor.contiguous() for name, tensor in weights.items()}
        save_file(tensors, directory / ADAPTER_WEIGHTS, metadata={"format": "pt"})

    def _set_off(self, is_off: bool) -> None:
        for layer in self._layers:
            layer._disable_adapters = is_off


def base_parameters(model: Any) -> Iterator[tuple[str, torch.nn.Parameter]]:
    """Yield the parameters that a model has without an adapter, by their names without one."""
    for name, parameter in model.named_parameters():
        if not _MATRIX.fullmatch(name):
            yield name.replace(_BASE, "."), parameter


def base_parameter(model: Any, name: str) -> torch.nn.Parameter:
    """Return a parameter of a model by its name without an adapter."""
    path, _, last = name.rpartition(".")
    layer = model.get_submodule(path)
    parameter: torch.nn.Parameter = getattr(getattr(layer, "base_layer", layer), last)
    return parameter


def is_frozen(tensor: Tensor) -> bool:
    """Return whether a tensor of a model is a weight that is not trained, and so never changes."""
    return isinstance(tensor, torch.nn.Parameter) and not tensor.requires_grad


def _target_layers(model: Any, names: Collection[str] | None) -> list[str]:
    head = model.get_output_embeddings()
    linear = [
        name
        for name, layer in model.named_modules()
        if isinstance(layer, torch.nn.Linear) and layer is not head and _EXPERTS not in name
    ]
    chosen = {name: [one for one in linear if f".{one}".endswith(f".{name}")] for name in names or ()}
    known = sorted({name.rpartition(".")[2] for name in linear})
    if unknown := [name for name, layers in chosen.items() if not layers]:
        raise ValueError(
            f"trainer.lora.targetModules: the model has no linear layers called {unknown[0]!r} that can be adapted; "
            f"choose from {', '.join(known)}"
        )
    if not linear:
        raise ValueError("trainer.lora: the model has no linear layers; remove it")
    return linear if names is None else sorted({layer for layers in chosen.values() for layer in layers})


def _file_name(layer: str, file_name: Callable[[str], str | None]) -> str:
    """Return the name of a layer in files, by which engines and other programs find it."""
    weight = file_name(f"{layer}.weight")
    if weight is None:
        name = layer.rpartition(".")[2]
        raise ValueError(
            f"trainer.lora.targetModules: the files of the model hold the weights of {name!r} in several tensors; "
            "leave it out"
        )
    return weight.removesuffix(".weight")


def _whole(alpha: float) -> Any:
    """Return a number as PEFT writes it to files; it may have a fraction, whatever PEFT's types say."""
    return int(alpha) if alpha == int(alpha) else alpha
