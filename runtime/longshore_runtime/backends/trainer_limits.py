"""Find models that a trainer cannot train by their configuration, before anything starts. Without torch."""

from pathlib import Path

from longshore.api.training import TrainerBackend, TrainerSettings
from longshore_runtime.backends.hf_mapping.architecture import read_architecture
from longshore_runtime.backends.parallel_sizes import ParallelSizes


def trainer_mistake(trainer: TrainerSettings, directory: Path, name: str) -> str | None:
    """Return why the trainer of a job cannot train the model called `name`, or None if it can."""
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
    """Return the sentence for an error of loading: about the field of the trainer to change, or about the model."""
    text = str(error)
    return text if text.startswith("trainer.") else f"model: {name!r} cannot be loaded for training ({text})"
