"""Note which backend wrote the trainer's part of a checkpoint: weights suit them all, optimizer states do not."""

from pathlib import Path
from typing import Final

from longshore.api.training import TrainerBackend
from longshore_runtime.errors import UserError

BACKEND_FILE: Final = "trainer_backend"


def sign(directory: Path, backend: TrainerBackend) -> None:
    """Note the backend next to what it saved."""
    (directory / BACKEND_FILE).write_text(backend)


def require_own(directory: Path, backend: TrainerBackend) -> None:
    """Raise UserError if another backend saved this."""
    saved_by = (directory / BACKEND_FILE).read_text()
    if saved_by != backend:
        raise UserError(
            f"trainer.backend: the newest checkpoint was saved by {saved_by}, whose optimizer state {backend} cannot "
            f"read; set it back to {saved_by}, or start a new job with another storage.output"
        )
