"""Provide the model before any training: a checkpoint of the user, or the built-in one."""

import shutil
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import ray
import structlog

from longshore.api.model import Model
from longshore.api.rollout import EngineSettings
from longshore.api.spec import RLJobSpec
from longshore.api.training import TrainerSettings
from longshore.checks import summary
from longshore.checks.memory import ModelSize
from longshore.checks.model_files import config_of, model_file_mistakes, num_parameters
from longshore.checks.model_limits import limit_mistakes, position_mistakes
from longshore.checks.pod_memory import pod_memory_mistakes, trainer_choices, with_fitting_trainer
from longshore_runtime.backends.trainer_limits import trainer_mistake
from longshore_runtime.cluster.placement import ActorPlacement, set_environment
from longshore_runtime.errors import UserError
from longshore_runtime.process.durable import apply_umask, sync_tree
from longshore_runtime.storage import JobStorage

log = structlog.get_logger()

_CACHE: Final = "cache/tiny"
_TRIES: Final = 4
_LIMIT_S: Final = 24 * 3600.0
"""Seconds to build the model: its pod may wait for GPUs that others hold, and importing takes long."""


@ray.remote(num_cpus=0, max_retries=0)
def _tiny_model(environment: Mapping[str, str], seed: int) -> str:
    """Return the directory of the built-in model, relative to the storage, which is made unless it is there."""
    set_environment(environment)
    from longshore_runtime.backends.tiny_model import build_tiny_model, fingerprint

    relative = f"{_CACHE}-{fingerprint(seed)}"
    target = JobStorage.from_env("").resolve(relative)
    if target.is_dir():
        return relative
    unfinished = target.with_name(f".unfinished-{uuid.uuid4().hex}-{target.name}")
    unfinished.mkdir(parents=True)
    build_tiny_model(unfinished, seed)
    apply_umask(unfinished)
    sync_tree(unfinished)
    try:
        unfinished.rename(target)
    except OSError:
        if not target.is_dir():
            raise
        shutil.rmtree(unfinished)  # Another job that shares the storage was quicker: its result is the same.
    return relative


def initial_model(model: Model, seed: int, worker: ActorPlacement) -> str:
    """Return the directory of the user's checkpoint or of the built-in model, which a worker makes, with no training.

    It is relative to the storage. The worker begins again if its process or its pod is lost.
    """
    if model.path is not None:
        return model.path
    log.info("building the tiny model, unless it is in the cache")
    for tries_left in reversed(range(_TRIES)):
        try:
            built: str = ray.get(worker.remote(_tiny_model, seed), timeout=_LIMIT_S)
            return built
        except ray.exceptions.GetTimeoutError as error:
            raise UserError(f"model: worker 0 has not built the model within {_LIMIT_S:.0f} s") from error
        except ray.exceptions.RayTaskError:
            raise
        except ray.exceptions.RayError as error:
            if not tries_left:
                raise
            log.warning("building the tiny model again", reason=type(error).__name__)
    raise AssertionError("the last try raises or returns")


def check_model(
    model: Model,
    engine: EngineSettings,
    trainer: TrainerSettings,
    storage: JobStorage,
    *,
    has_accelerator: bool,
    repository: str | None = None,
) -> None:
    """Raise UserError for a checkpoint of the user that cannot be trained as the job asks.

    Args:
        repository: repository of the Hub from which the checkpoint was downloaded, if it was.
    """
    if model.path is None:
        return
    directory = storage.resolve(model.path)
    name, field = (model.path, "model.path") if repository is None else (repository, "model.hub")
    mistakes = model_file_mistakes(directory, name, field)
    if not mistakes:
        config, context_tokens = config_of(directory), model.max_context_tokens
        mistakes = limit_mistakes(config, engine, context_tokens, has_accelerator=has_accelerator, field=field)
        mistakes += position_mistakes(config, context_tokens)
    if mistakes:
        raise UserError(summary(mistakes))
    if (mistake := trainer_mistake(trainer, directory, name)) is not None:
        raise UserError(mistake)


def with_fitting_memory(spec: RLJobSpec, model: ModelSize) -> RLJobSpec:
    """Return the job with what it leaves open of its trainers, as the memory of its training pods allows.

    Raises:
        UserError: engines and trainers do not fit the memory of their pods, whatever is chosen.
    """
    if mistakes := pod_memory_mistakes(spec, model):
        raise UserError(mistakes[0])
    fitted = with_fitting_trainer(spec, model)
    log.info("trainers", chosen=trainer_choices(fitted))
    return fitted


def model_size(directory: Path) -> ModelSize | None:
    """Return the sizes of a checkpoint; None if its configuration does not have them."""
    return ModelSize.of(config_of(directory), num_parameters(directory))
