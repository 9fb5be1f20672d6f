"""Provide the initial weights: a checkpoint of the user, or the built-in one, warm-started and cached."""

import json
import shutil
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import ray
import structlog

from longshore.api.model import BuiltinTask, Model
from longshore.api.rollout import EngineSettings
from longshore.api.runtime_status import WarmStart
from longshore.api.spec import RLJobSpec
from longshore.api.training import TrainerSettings
from longshore.checks import summary
from longshore.checks.memory import ModelSize
from longshore.checks.model_files import config_of, model_file_mistakes, num_parameters
from longshore.checks.model_limits import limit_mistakes, position_mistakes
from longshore.checks.pod_memory import pod_memory_mistakes, trainer_choices, with_fitting_trainer
from longshore_runtime.backends.trainer_limits import trainer_mistake
from longshore_runtime.cluster.actors import within
from longshore_runtime.cluster.placement import ActorPlacement, set_environment
from longshore_runtime.errors import UserError
from longshore_runtime.process.durable import apply_umask, sync_tree
from longshore_runtime.process.repeated import PROGRESS_EVERY_S
from longshore_runtime.storage import JobStorage

log = structlog.get_logger()

_CACHE = "cache/tiny"
_NOTE: Final = "warm_start.json"
_TRIES: Final = 4
_LIMIT_S: Final = 24 * 3600.0
"""Seconds to build the model: its pod may wait for GPUs that others hold, and building takes minutes."""

OnSteps = Callable[[int, int], None]
"""Function that is called with the steps of a warm start that are done, and with their total."""


@dataclass(frozen=True)
class InitialModel:
    """A Hugging Face directory in the storage, relative to it."""

    path: str
    warm_start: WarmStart | None = None


@dataclass(frozen=True)
class _Built:
    """The built-in model, relative to the storage, and whether it was there already."""

    path: str
    was_there: bool


# No retries of Ray's: it expects the same answers of a generator each time. `_build` begins again instead.
@ray.remote(num_cpus=0, max_retries=0, num_returns="streaming")
def _tiny_model(
    environment: Mapping[str, str], task: BuiltinTask, num_steps: int, seed: int, report_every_s: float
) -> Iterator[int | _Built]:
    """Yield steps of the warm start that are done, from time to time, and at the end the model."""
    set_environment(environment)
    from longshore_runtime.backends.warm_start import fingerprint, warm_start_steps

    relative = f"{_CACHE}-{fingerprint(task, num_steps, seed)}"
    target = JobStorage.from_env("").resolve(relative)
    if target.is_dir():
        yield _Built(relative, was_there=True)
        return
    unfinished = target.with_name(f".unfinished-{uuid.uuid4().hex}-{target.name}")
    unfinished.mkdir(parents=True)
    started_s = reported_s = time.monotonic()
    for step, _ in warm_start_steps(unfinished, task, num_steps, seed):
        if time.monotonic() - reported_s >= report_every_s:
            reported_s = time.monotonic()
            yield step
    (unfinished / _NOTE).write_text(json.dumps({"seconds": time.monotonic() - started_s}))
    apply_umask(unfinished)
    sync_tree(unfinished)
    try:
        unfinished.rename(target)
    except OSError:
        if not target.is_dir():
            raise
        shutil.rmtree(unfinished)  # Another job that shares the storage was quicker: its result is the same.
    yield _Built(relative, was_there=False)


def initial_model(
    model: Model,
    task: BuiltinTask,
    seed: int,
    storage: JobStorage,
    worker: ActorPlacement,
    on_steps: OnSteps,
    report_every_s: float = PROGRESS_EVERY_S,
) -> InitialModel:
    """Return the user's checkpoint; or the built-in model, made on a worker unless an earlier job has.

    `on_steps` is called every `report_every_s` while a warm start runs.
    """
    if model.path is not None:
        return InitialModel(model.path)
    steps = model.warm_start_steps
    log.info("building the tiny model, unless it is in the cache", warm_start_steps=steps)
    built = _build(task, steps, seed, worker, on_steps, report_every_s)
    if not steps:
        return InitialModel(built.path)
    try:
        seconds = json.loads((storage.resolve(built.path) / _NOTE).read_text())["seconds"]
    except (FileNotFoundError, ValueError, LookupError, TypeError) as error:
        raise UserError(
            f"model.builtin: the model in the storage's {built.path} is damaged ({_NOTE}: {error}); remove that "
            "directory, and the next job makes it again"
        ) from error
    return InitialModel(built.path, WarmStart(seconds=round(seconds, 1), cached=built.was_there))


def untrained_model(
    model: Model, task: BuiltinTask, seed: int, storage: JobStorage, worker: ActorPlacement
) -> InitialModel:
    """Return the initial model without its warm start, which a worker makes at once."""
    unchanged = model.model_copy(update={"warm_start_steps": 0})
    return initial_model(unchanged, task, seed, storage, worker, lambda done, total: None)


def _build(
    task: BuiltinTask, steps: int, seed: int, worker: ActorPlacement, on_steps: OnSteps, report_every_s: float
) -> _Built:
    """Build the built-in model on a worker, and begin again if the process or its pod is lost."""
    for tries_left in reversed(range(_TRIES)):
        try:
            for answer in _answers(worker.remote(_tiny_model, task, steps, seed, report_every_s)):
                if isinstance(answer, _Built):
                    return answer
                on_steps(answer, steps)
        except ray.exceptions.RayTaskError:
            raise
        except ray.exceptions.RayError as error:
            if not tries_left:
                raise
            log.warning("building the tiny model again", reason=type(error).__name__)
    raise AssertionError("the last answer is the model")


def _answers(stream: Any) -> Iterator[int | _Built]:
    try:
        for reference in within(stream, _LIMIT_S):
            yield ray.get(reference)
    except TimeoutError as error:
        raise UserError(f"model: worker 0 has not built the model within {_LIMIT_S:.0f} s") from error


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
