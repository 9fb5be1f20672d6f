"""Which models a trainer cannot train, known from their configuration before anything starts. No torch."""

from pathlib import Path

from longshore.api.training import TrainerBackend, TrainerSettings
from longshore_runtime.backends.hf_mapping.architecture import read_architecture
from longshore_runtime.backends.parallel_sizes import ParallelSizes


def trainer_mistake(trainer: TrainerSettings, directory: Path, name: str) -> str | None:
    """Why the trainer of a job cannot train the model, whose `name` is for the message; None: it can."""
    if trainer.backend is not TrainerBackend.MEGATRON:
        return None
    from transformers import AutoConfig

    try:
        architecture = read_architecture(AutoConfig.from_pretrained(directory, local_files_only=True))
        ParallelSizes.of(trainer).check_model(architecture)
    except (OSError, ValueError, KeyError) as error:
        return loading_mistake(error, name)
    return None


def loading_mistake(error: Exception, name: str) -> str:
    """A field of the trainer that does not suit the model is the user's to change; anything else is about the model."""
    text = str(error)
    return text if text.startswith("trainer.") else f"model: {name!r} cannot be loaded for training ({text})"
