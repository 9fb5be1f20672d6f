"""The GPUs of this container as the driver describes them."""

import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

_FIELDS: Final = ("index", "compute_cap", "compute_mode", "mig.mode.current")
_TIMEOUT_S: Final = 30.0
_LEAST_CAPABILITY: Final = (7, 0)
"""Compute capability of Volta: since then, clients have separate address spaces and limits."""


@dataclass(frozen=True)
class Gpu:
    """One GPU."""

    index: int
    compute_capability: tuple[int, int]
    compute_mode: str
    mig_mode: str


def visible_gpus(environment: Mapping[str, str]) -> list[Gpu] | str:
    """Return the GPUs, or one sentence on why there are none."""
    program = shutil.which("nvidia-smi", path=environment.get("PATH"))
    if program is None:
        return "there is no NVIDIA driver: nvidia-smi is not in this container"
    command = [program, f"--query-gpu={','.join(_FIELDS)}", "--format=csv,noheader"]
    try:
        done = subprocess.run(
            command, env=dict(environment), capture_output=True, text=True, timeout=_TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"nvidia-smi does not answer ({error})"
    lines = [line for line in (done.stdout + done.stderr).splitlines() if line.strip()]
    if done.returncode != 0 or not lines:
        return f"nvidia-smi sees no GPU ({lines[0] if lines else 'it says nothing'})"
    try:
        return [_parsed(line) for line in lines]
    except ValueError:
        return f"nvidia-smi answers {lines[0]!r}, which is no description of a GPU"


def obstacle(gpus: Sequence[Gpu]) -> str | None:
    """Return why these GPUs cannot be shared through MPS: one sentence."""
    for gpu in gpus:
        if gpu.compute_capability < _LEAST_CAPABILITY:
            found, least = (".".join(map(str, version)) for version in (gpu.compute_capability, _LEAST_CAPABILITY))
            return f"GPU {gpu.index} has compute capability {found}: limits per client need {least}"
        if gpu.compute_mode.lower() == "prohibited":
            return f"GPU {gpu.index} is in compute mode {gpu.compute_mode}"
        if gpu.mig_mode.lower() == "enabled":
            return f"GPU {gpu.index} is divided by MIG: give the judge a separate instance"
    return None


def _parsed(line: str) -> Gpu:
    index, capability, compute_mode, mig_mode = (value.strip() for value in line.split(","))
    major, minor = capability.split(".")
    return Gpu(int(index), (int(major), int(minor)), compute_mode, mig_mode)
