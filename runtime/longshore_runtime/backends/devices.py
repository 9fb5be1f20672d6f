"""The device that computes."""

import os
from typing import Final

import torch

from longshore_runtime.errors import UserError

HOST: Final = torch.device("cpu")


def compute_device() -> torch.device:
    """Return the device on which trainers compute: a GPU if this process was given one (see `placement`).

    Raises:
        RuntimeError: it was given one that cannot be used. Training would otherwise take days on processors.
        UserError: its torch is built for processors.
    """
    if os.environ.get("CUDA_VISIBLE_DEVICES"):
        if not torch.backends.cuda.is_built():  # type: ignore[no-untyped-call]
            raise UserError("image: trainers have GPUs, but the torch of this image is built for the CPU")
        torch.cuda.init()  # type: ignore[no-untyped-call]
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")
