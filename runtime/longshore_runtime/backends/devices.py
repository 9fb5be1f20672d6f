"""Where tensors are."""

from typing import Final

import torch

HOST: Final = torch.device("cpu")


def compute_device() -> torch.device:
    """Where trainers compute."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")
