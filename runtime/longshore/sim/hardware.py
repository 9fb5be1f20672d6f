"""What the simulator knows of accelerators and models: public data sheets and public model configurations."""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final


@dataclass(frozen=True)
class GpuModel:
    """An accelerator as its data sheet describes it."""

    name: str
    memory_bytes: float
    bandwidth_bytes_per_s: float
    """Memory bandwidth."""
    flops_per_s: float
    """Dense bfloat16 with 32-bit accumulation."""
    link_bytes_per_s: float
    """To the other GPUs of its pod, per direction: NVLink, Infinity Fabric or PCIe."""


@dataclass(frozen=True)
class ModelShape:
    """A dense decoder."""

    name: str
    num_parameters: float
    num_layers: int
    hidden_size: int
    kv_bytes_per_token: int
    """Keys and values of all layers: 2 * layers * KV heads * head size * bytes per value."""
    bytes_per_parameter: int = 2
    """In the engine."""
    num_heads: int | None = None
    """Attention heads, which engines divide among their GPUs; None: unknown, as the next one."""
    num_kv_heads: int | None = None

    @property
    def heads(self) -> dict[str, int]:
        """Counts of attention and KV heads by key of the model's `config.json`; empty where they are unknown."""
        known = {"num_attention_heads": self.num_heads, "num_key_value_heads": self.num_kv_heads}
        return {name: count for name, count in known.items() if count is not None}

    @property
    def weight_bytes(self) -> float:
        """Weights of one copy in the engine."""
        return self.num_parameters * self.bytes_per_parameter


_HEAD_SIZE: Final = 128
_VALUE_BYTES: Final = 2


def _kv_bytes_per_token(num_layers: int, num_kv_heads: int) -> int:
    return 2 * num_layers * num_kv_heads * _HEAD_SIZE * _VALUE_BYTES


def _shape(
    name: str, billions: float, num_layers: int, hidden_size: int, num_kv_heads: int, num_heads: int
) -> ModelShape:
    return ModelShape(
        name,
        billions * 1e9,
        num_layers,
        hidden_size,
        _kv_bytes_per_token(num_layers, num_kv_heads),
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
    )


GPUS: Final[Mapping[str, GpuModel]] = {
    gpu.name: gpu
    for gpu in (
        GpuModel("H100", 80e9, 3.35e12, 989e12, 450e9),
        GpuModel("H800", 80e9, 3.35e12, 989e12, 200e9),
        GpuModel("H200", 141e9, 4.8e12, 989e12, 450e9),
        GpuModel("H20", 96e9, 4.0e12, 148e12, 450e9),
        GpuModel("MI300X", 192e9, 5.3e12, 1307e12, 448e9),
        GpuModel("B200", 180e9, 8.0e12, 2250e12, 900e9),
        GpuModel("A100-40", 40e9, 1.555e12, 312e12, 32e9),
        GpuModel("A100-80", 80e9, 2.039e12, 312e12, 300e9),
        GpuModel("L40S", 48e9, 0.864e12, 362e12, 32e9),
        GpuModel("RTX4090", 24e9, 1.008e12, 165e12, 32e9),
    )
}
"""By name: the vendors' data sheets (A100-40 is the PCIe card, A100-80 the SXM module)."""

_UNKNOWN: Final = GpuModel("", 8e9, 1e10, 5e10, 1e10)
"""About a CPU core. A profile replaces nearly all that is computed from it."""

MODELS: Final[Mapping[str, ModelShape]] = {
    shape.name: shape
    for shape in (
        _shape("Qwen2.5-7B", 7.62, 28, 3584, 4, 28),
        _shape("Qwen2.5-14B", 14.77, 48, 5120, 8, 40),
        _shape("Qwen2.5-32B", 32.76, 64, 5120, 8, 40),
        _shape("Qwen3-1.7B", 1.72, 28, 2048, 8, 16),
        _shape("Qwen3-4B", 4.02, 36, 2560, 8, 32),
        _shape("Qwen3-8B", 8.19, 36, 4096, 8, 32),
    )
}
"""By name: the `config.json` of the published checkpoints."""

_ASPECT: Final = 128
"""Hidden size over layers: 75 (Qwen2.5-32B) to 128 (GPT-3, Qwen2.5-7B) are usual."""
_NUM_KV_HEADS: Final = 8
"""Key-value heads of grouped-query attention, in most models from 8B to 70B."""
_NUMBER: Final = re.compile(r"\d+(\.\d+)?", re.ASCII)
_SIZE: Final = re.compile(r"(\d+(?:\.\d+)?)([bm])", re.ASCII | re.IGNORECASE)
"""Billions or millions of parameters, as `7B` or `135M`."""
_SIZE_ENDS: Final = tuple(re.compile(rf"\d{unit}$", re.ASCII | re.IGNORECASE) for unit in "bm")
"""Billions go first: millions beside them are tokens of context, as in `8B-1M`."""
_MIXTURE: Final = re.compile(r"(?:^|[-_])(?:a\d+(?:\.\d+)?b|\d+x\d+(?:\.\d+)?b)(?:[-_]|$)", re.ASCII | re.IGNORECASE)
"""Active parameters as in `30B-A3B`, or experts as in `8x7B`."""


def model_of(num_parameters: float) -> ModelShape:
    """Return a plausible shape where only the number of parameters is known: 12 * layers * hidden^2 of them.

    Nobody knows its attention heads, so engines of any size count as possible.
    """
    num_layers = max(1, round((num_parameters / (12 * _ASPECT**2)) ** (1 / 3)))
    name = f"{num_parameters / 1e9:g}B" if num_parameters >= 1e9 else f"{num_parameters / 1e6:g}M"
    num_heads = _ASPECT * num_layers // _HEAD_SIZE
    kv_bytes = _kv_bytes_per_token(num_layers, min(_NUM_KV_HEADS, num_heads))
    return ModelShape(name, num_parameters, num_layers, _ASPECT * num_layers, kv_bytes)


def gpu_described(name: str) -> GpuModel:
    """Return the GPU that a driver calls so, as `NVIDIA H100 80GB HBM3`; of others no more than the name is known."""
    words = re.sub(r"[^A-Z0-9]", "", name.upper())
    for gpu in GPUS.values():
        kind, _, gigabytes = gpu.name.partition("-")
        if kind in words and f"{gigabytes}GB" in words + "GB":
            return gpu
    return replace(_UNKNOWN, name=name)


def gpu_named(name: str) -> GpuModel:
    """Return the GPU of that name, in capitals or not; raises ValueError, which lists the known ones."""
    if name.upper() not in GPUS:
        raise ValueError(f"GPU {name} is not known; choose one of {', '.join(sorted(GPUS))}")
    return GPUS[name.upper()]


def model_named(name: str) -> ModelShape:
    """Return the model of that name, or the fallback for a size such as `13B` or `135M`, which may be part of it.

    Raises:
        ValueError: the known models are listed, or what can be done for a mixture of experts.
    """
    if (known := known_model(name)) is not None:
        return known
    num_parameters = 1e9 * (_billions(name) or 0.0)
    if 0 < num_parameters < math.inf:
        return model_of(num_parameters)
    if _MIXTURE.search(_last_part(name)):
        raise ValueError(
            f"model {name} is a mixture of experts by its name, and costs of dense models only are known; "
            "give a measured profile instead"
        )
    names = ", ".join(sorted(MODELS))
    raise ValueError(f"model {name} is not known; choose one of {names}, or a size such as 13B or 135M")


def known_model(name: str) -> ModelShape | None:
    """Return the known model of a repository or directory that is called after it, as `Qwen/Qwen2.5-7B-Instruct`."""
    last = _last_part(name).lower()
    return next((shape for known, shape in MODELS.items() if f"{last}-".startswith(f"{known.lower()}-")), None)


def _billions(name: str) -> float | None:
    """Return the parameters where the name has one size: `30B-A3B` and `8x7B` are mixtures of experts."""
    if _NUMBER.fullmatch(name):
        return float(name)
    parts = re.split(r"[-_]", _last_part(name))
    found = ([part for part in parts if parts[0] and end.search(part)] for end in _SIZE_ENDS)
    sizes = next(filter(None, found), [])
    size = _SIZE.fullmatch(sizes[0]) if len(sizes) == 1 else None
    if size is None:
        return None
    return float(size[1]) * (1e-3 if size[2].lower() == "m" else 1.0)


def _last_part(name: str) -> str:
    return name.rstrip("/").rpartition("/")[2]
