"""The device that computes."""

import os
from typing import Final

import torch

from longshore_runtime.backends.gpu_failures import is_old_driver
from longshore_runtime.errors import UserError

HOST: Final = torch.device("cpu")
META: Final = torch.device("meta")
"""Device of tensors that have a shape and no values."""


def compute_device() -> torch.device:
    """Return the device on which trainers compute: a GPU if this process was given one (see `placement`).

    Raises:
        Exception: it was given one that cannot be used. Training would otherwise take days on processors.
        UserError: its torch is built for processors, or for a newer driver.
    """
    if os.environ.get("CUDA_VISIBLE_DEVICES"):
        if not torch.backends.cuda.is_built():  # type: ignore[no-untyped-call]
            raise UserError("image: trainers have GPUs, but the torch of this image is built for the CPU")
        try:
            torch.cuda.init()  # type: ignore[no-untyped-call]
        except RuntimeError as error:
            if is_old_driver(str(error)):
                raise UserError(f"image: its torch needs a newer driver than this node has: {error}") from error
            raise
        return torch.device("cuda")
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")
