"""The device that computes."""

from typing import Final

import torch

HOST: Final = torch.device("cpu")


def compute_device() -> torch.device:
    """Return the device on which trainers compute."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")
