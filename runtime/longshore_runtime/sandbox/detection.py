"""Find out which layers hold on this machine, by trying each one alone on a program that does nothing."""

import functools
import os
from typing import Final

from longshore_runtime.sandbox.confinement import Confinement
from longshore_runtime.sandbox.layers import Layer, LayerReport, LayerUnavailable, SandboxLimits
from longshore_runtime.sandbox.worker import SandboxWorker, ZygoteDied

_TRIAL_S: Final = 30.0
_TRIAL_USER: Final = 59_999


@functools.cache
def detect(python: str) -> LayerReport:
    """Return what this machine offers to programs that `python` runs; asked once per process."""
    return LayerReport({layer: _try(layer, python) for layer in Layer})


def _try(layer: Layer, python: str) -> str | None:
    if layer is Layer.USER and os.getuid() != 0:
        return f"the pod runs as user {os.getuid()}, not as root, and cannot change to another"
    try:
        worker = SandboxWorker(Confinement(frozenset({layer}), SandboxLimits(), _TRIAL_USER, ()), python)
    except (LayerUnavailable, ZygoteDied) as error:
        return str(error)
    try:
        ran = worker.run(b"pass", b"", is_function=False, wall_s=_TRIAL_S)
    except (LayerUnavailable, ZygoteDied) as error:
        return str(error)
    finally:
        worker.close()
    return None if ran.exit_status == 0 else f"a program that does nothing ends with status {ran.exit_status} in it"
