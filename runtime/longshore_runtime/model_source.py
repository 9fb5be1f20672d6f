"""Where the initial weights come from: a checkpoint of the user, or the built-in one, warm-started and cached."""

import json
import shutil
import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import ray
import structlog

from longshore.api.model import Model
from longshore.api.rollout import Engine
from longshore.api.runtime_status import WarmStart
from longshore.api.training import Trainer
from longshore.checks import summary
from longshore.checks.model_files import config_of, model_file_mistakes
from longshore.checks.model_limits import limit_mistakes
from longshore_runtime.backends.trainer_limits import trainer_mistake
from longshore_runtime.cluster.placement import ActorPlacement, set_environment
from longshore_runtime.errors import UserError
from longshore_runtime.storage import JobStorage

log = structlog.get_logger()

_CACHE = "cache/tiny"
_LIMIT_S: Final = 24 * 3600.0
"""The pod that builds the model may wait for GPUs that others hold; building takes minutes."""


@dataclass(frozen=True)
class InitialModel:
    """A Hugging Face directory in the storage, relative to it."""

    path: str
    warm_start: WarmStart | None = None


@ray.remote(num_cpus=0, max_retries=3, max_calls=1)
def _tiny_model(environment: Mapping[str, str], num_steps: int, seed: int) -> tuple[str, bool]:
    """The built-in model, relative to the storage, and whether it was there already."""
    set_environment(environment)
    from longshore_runtime.backends.warm_start import fingerprint, warm_start

    relative = f"{_CACHE}-{fingerprint(num_steps, seed)}"
    target = JobStorage.from_env("").resolve(relative)
    if target.is_dir():
        return relative, True
    unfinished = target.with_name(f".unfinished-{uuid.uuid4().hex}-{target.name}")
    unfinished.mkdir(parents=True)
    started_s = time.monotonic()
    warm_start(unfinished, num_steps, seed)
    (unfinished / "warm_start.json").write_text(json.dumps({"seconds": time.monotonic() - started_s}))
    try:
        unfinished.rename(target)
    except OSError:
        if not target.is_dir():
            raise
        shutil.rmtree(unfinished)  # Another job that shares the storage was quicker: its result is the same.
    return relative, False


def initial_model(model: Model, seed: int, storage: JobStorage, worker: ActorPlacement) -> InitialModel:
    """The user's checkpoint; or the built-in model, made on a worker unless an earlier job has."""
    if model.path is not None:
        return InitialModel(model.path)
    steps = model.warm_start_steps
    log.info("building the tiny model, unless it is in the cache", warm_start_steps=steps)
    relative, was_cached = _get(worker.remote(_tiny_model, steps, seed))
    if not steps:
        return InitialModel(relative)
    seconds = json.loads((storage.resolve(relative) / "warm_start.json").read_text())["seconds"]
    return InitialModel(relative, WarmStart(seconds=round(seconds, 1), cached=was_cached))


def _get(answer: Any) -> Any:
    try:
        return ray.get(answer, timeout=_LIMIT_S)
    except ray.exceptions.GetTimeoutError as error:
        raise UserError(f"model: worker 0 has not built the model within {_LIMIT_S:.0f} s") from error


def check_model(
    model: Model,
    engine: Engine,
    trainer: Trainer,
    storage: JobStorage,
    *,
    has_accelerator: bool,
    repository: str | None = None,
) -> None:
    """Raise UserError for a checkpoint of the user that cannot be trained as the job asks.

    `repository`: of the Hub, where it was downloaded from.
    """
    if model.path is None:
        return
    directory = storage.resolve(model.path)
    name, field = (model.path, "model.path") if repository is None else (repository, "model.hub")
    mistakes = model_file_mistakes(directory, name, field) or limit_mistakes(
        config_of(directory), engine, model.max_context_tokens, has_accelerator=has_accelerator, field=field
    )
    if mistakes:
        raise UserError(summary(mistakes))
    if (mistake := trainer_mistake(trainer, directory, name)) is not None:
        raise UserError(mistake)
