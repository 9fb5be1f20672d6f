"""Supervised steps before the first round, with trainers that end before those of the rounds start.

<output>/warm-start/metrics.jsonl, tensorboard/    loss and norm of each step
<output>/warm-start/checkpoints/step-000040/       where another attempt goes on; removed at the end
<output>/warm-start/model/                         the result, complete or absent; of demonstrations in the cache
"""

import hashlib
import shutil
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Final

import orjson
import structlog
from prometheus_client import CollectorRegistry

from longshore.api.algorithm import Algorithm, LearningRateSchedule
from longshore.api.objectives.imitation import Imitation
from longshore.api.reasons import NoticeReason
from longshore.api.runtime_status import ProgressUnit, WarmStartReport
from longshore.api.spec import RLJobSpec
from longshore.api.training import CheckpointSettings, Recompute, TrainerSettings
from longshore.api.warm_start import WarmStart
from longshore.checks.pod_memory import KEPT_TOKENS
from longshore.checks.rows import fields_read
from longshore.policy.draws import Draw
from longshore_runtime.backends.trainer_protocol import Sample, TrainResult
from longshore_runtime.backends.trainer_spec import TrainerSpec
from longshore_runtime.checkpoints.model_export import ModelExport
from longshore_runtime.checkpoints.origin import Origin
from longshore_runtime.checkpoints.store import CheckpointStore
from longshore_runtime.checkpoints.tensor_types import TensorTypes
from longshore_runtime.clock import Clock
from longshore_runtime.data.supervised import Exchange, ExchangesOf, exchanges, shuffled, too_long_remark
from longshore_runtime.errors import Interrupted, TrainerLost, UserError
from longshore_runtime.process.durable import sync, sync_tree
from longshore_runtime.process.repeated import PROGRESS_EVERY_S
from longshore_runtime.session.inputs import JobInputs
from longshore_runtime.stop import Stop
from longshore_runtime.storage import JobStorage
from longshore_runtime.tasks.curriculum import demonstrated
from longshore_runtime.telemetry.metrics import MetricsWriter
from longshore_runtime.telemetry.recorder import Recorder
from longshore_runtime.trainer.group import TrainerGroup
from longshore_runtime.trainer.recovery import Recovery
from longshore_runtime.trainer.updates import StepTraining

log = structlog.get_logger()

DIRECTORY: Final = "warm-start"
_NOTE: Final = "warm_start.json"
_FINAL_RATE_SHARE: Final = 0.1
STATE_FIELDS: Final = ("origins", "metrics", "report")
"""Fields of the state of a checkpoint."""


def trainer_spec(
    algorithm: Algorithm,
    settings: WarmStart,
    trainer: TrainerSettings,
    recompute_needs: Mapping[Recompute, float] | None = None,
    *,
    is_colocated: bool = False,
) -> TrainerSpec:
    """Return the spec of trainers that imitate: those of the job with another loss and another learning rate.

    They train all weights, because the result is the base of an adapter, if the job trains one. Colocated ones have
    their moments on the host during passes, as those of the rounds: a job that fits its GPUs then also fits here.
    """
    imitating = algorithm.model_copy(
        update={
            "objective": Imitation(aggregation=settings.aggregation),
            "learning_rate": settings.learning_rate,
            "learning_rate_schedule": LearningRateSchedule.LINEAR,
            "warmup_steps": settings.warmup_steps,
            "min_learning_rate_ratio": _FINAL_RATE_SHARE,
            "kl_coefficient": 0.0,
            "entropy_coefficient": 0.0,
            "temperature": 1.0,
            "rollout_correction": None,
        }
    )
    whole = trainer.model_copy(update={"lora": None})
    spec = TrainerSpec.of(imitating, whole, settings.steps, is_colocated=is_colocated, recompute_needs=recompute_needs)
    return replace(spec, options=replace(spec.options, learning_rate_field="algorithm.warmStart.learningRate"))


def supervised_rows(
    spec: RLJobSpec,
    settings: WarmStart,
    inputs: JobInputs,
    tokenizer: Any,
    vocab_size: int | None,
    recorder: Recorder,
) -> ExchangesOf:
    """Return the rows of each step; raises UserError for one that cannot be imitated."""
    seed, data, max_tokens = spec.algorithm.seed, spec.data, spec.model.max_context_tokens
    if settings.data is None:
        assert data.builtin is not None, "validation refuses it"
        return demonstrated(data.builtin, settings, seed, tokenizer)
    rows = inputs.rows_of(settings.data.source, fields_read(settings.data.source, ()))
    found, num_too_long = exchanges(rows, settings.data, data.chat, tokenizer, max_tokens, vocab_size)
    if num_too_long:
        recorder.notice(NoticeReason.WARM_START_ROWS, too_long_remark(num_too_long, len(rows)))
    log.info("rows of the warm start", rows=len(found), too_long=num_too_long)
    return shuffled(found, settings.rows_per_step, seed)


def cache_key(origin: Origin, spec: TrainerSpec) -> str:
    """Return a name for the result of these trainers: equal keys mean weights that are equal but for rounding."""
    options = spec.options
    adam = options.adam_beta1, options.adam_beta2, options.adam_epsilon, options.weight_decay, options.max_grad_norm
    return hashlib.sha256(f"{origin.fingerprint}{adam}".encode()).hexdigest()[:16]


def imitated(step: int, exchanges: Sequence[Exchange]) -> list[Sample]:
    """Return the exchanges of a step as samples, whose loss is that of `Imitation`."""
    return [
        Sample(
            draw=Draw(step, place),
            index=0,
            prompt_tokens=one.prompt_tokens,
            trajectory=one.trajectory,
            advantage=1.0,
            reward=0.0,
            loss_mask=None if (mask := one.trajectory.mask).all() else mask,
        )
        for place, one in enumerate(exchanges)
    ]


@dataclass(frozen=True)
class WarmStartParts:
    """What supervised steps need of a session."""

    start_trainers: Callable[[], TrainerGroup]
    """Function that starts trainers with the spec of `trainer_spec`, from the model before the warm start."""
    exchanges_of: Callable[[], ExchangesOf]
    """Function that reads the rows."""
    origins: Mapping[str, Origin]
    """The model before the warm start, and the warm start itself."""
    storage: JobStorage
    recorder: Recorder
    stop: Stop
    clock: Clock
    checkpoint: CheckpointSettings
    require_own: Callable[[], None]
    """Function that raises an error if another job writes to this output."""
    types: TensorTypes = field(default_factory=TensorTypes)
    """Types of the weights of the result."""
    tensor_board: bool = True
    cache: str | None = None
    """Directory in the storage where other jobs look for the same result; None: nobody does."""


class WarmStartRun:
    """The supervised steps of a job, from the newest of their checkpoints to the end."""

    def __init__(self, settings: WarmStart, parts: WarmStartParts) -> None:
        """Take settings and parts; nothing is read or started before `run`."""
        self._settings = settings
        self._parts = parts
        self._output = parts.storage.output_dir / DIRECTORY
        self._checkpoints = CheckpointStore(self._output / "checkpoints", 1, parts.require_own, STATE_FIELDS)
        self._report = WarmStartReport()
        self._began_s = self._saved_s = self._told_s = parts.clock.now_s()
        self.num_steps = 0
        """Number of steps that this session has made."""

    def run(self) -> str:
        """Return the directory of the result, relative to the storage, after the steps that it still lacks.

        Raises:
            UserError: a row cannot be imitated, or what is there belongs to another model or to other settings.
            Interrupted, KeyboardInterrupt, TrainerLost: another session goes on from the newest checkpoint.
        """
        storage = self._parts.storage
        result = storage.relative(self._output / "model")
        for done in (self._parts.cache, result):
            if done is not None and storage.resolve(done).is_dir():
                self._parts.recorder.warm_start(self._noted(storage.resolve(done), done))
                return done
        self._train(storage.resolve(result))
        return result if self._parts.cache is None else self._cached(storage.resolve(result))

    def _train(self, target: Path) -> None:
        exchanges_of = self._parts.exchanges_of()
        with ExitStack() as ending:
            trainers = self._parts.start_trainers()
            ending.callback(trainers.stop)
            metrics = MetricsWriter(self._output, CollectorRegistry(), tensor_board=self._parts.tensor_board)
            ending.callback(metrics.close)
            recovery = Recovery(trainers, partial(self._load, trainers), notify=self._parts.recorder.notice)
            first = self._restore(trainers, metrics) + 1
            self._began_s = self._parts.clock.now_s()
            log.info("warm start", first_step=first, steps=self._settings.steps)
            try:
                for step in range(first, self._settings.steps + 1):
                    self._parts.stop.require_none()
                    self._step(step, imitated(step, exchanges_of(step)), trainers, recovery, metrics)
                self._save(trainers, metrics)
            except (Interrupted, KeyboardInterrupt):
                self._save_if_possible(trainers, recovery, metrics)
                raise
            newest = self._checkpoints.newest()
            assert newest is not None and newest.step == self._settings.steps
            (newest.model / _NOTE).write_bytes(orjson.dumps(self._note()))
            ModelExport(types=self._parts.types).write(newest, target, self._parts.require_own)
        self._tell()
        shutil.rmtree(self._output / "checkpoints", ignore_errors=True)

    def _step(
        self, step: int, samples: list[Sample], trainers: TrainerGroup, recovery: Recovery, metrics: MetricsWriter
    ) -> None:
        result = recovery.guarded(partial(trainers.train, samples))
        recovery.trained(StepTraining((result,), (tuple(samples),), 0.0))
        self.num_steps += 1
        values = _metrics(result)
        metrics.write(step, values)
        loss, now_s = round(values["warm_start/loss"], 4), self._parts.clock.now_s()
        first_loss = loss if self._report.first_loss is None else self._report.first_loss
        seconds = round(self._report.seconds + now_s - self._began_s, 1)
        self._began_s = now_s
        self._report = WarmStartReport(step=step, first_loss=first_loss, loss=loss, seconds=seconds)
        if step == 1 or now_s - self._told_s >= PROGRESS_EVERY_S:
            self._tell()
        unsaved_s = now_s - self._saved_s
        if unsaved_s >= self._parts.checkpoint.every_seconds or recovery.num_kept_tokens >= KEPT_TOKENS:
            self._save(trainers, metrics)
            recovery.saving()
            recovery.saved()

    def _restore(self, trainers: TrainerGroup, metrics: MetricsWriter) -> int:
        """Return the number of steps that the newest checkpoint has, after loading it."""
        newest = self._checkpoints.newest_whole(lambda sentence: None)
        if newest is None:
            metrics.rewind(0, 0)
            return 0
        state = newest.state()
        self._require_origins(state["origins"], newest.step)
        self._report = WarmStartReport.model_validate(state["report"])
        self._load(trainers)
        metrics.rewind(newest.step, state["metrics"])
        return newest.step

    def _load(self, trainers: TrainerGroup) -> None:
        if (newest := self._checkpoints.newest()) is not None:
            trainers.load(self._parts.storage.relative(newest.model))

    def _save(self, trainers: TrainerGroup, metrics: MetricsWriter, **limit: float) -> None:
        state = {**self._note(), "metrics": metrics.journal.position}

        def begin_save(directory: Path) -> Callable[[], None]:
            return trainers.begin_save(self._parts.storage.relative(directory), **limit)

        self._checkpoints.begin(self._report.step, state, {}, begin_save)()
        self._saved_s = self._parts.clock.now_s()

    def _save_if_possible(self, trainers: TrainerGroup, recovery: Recovery, metrics: MetricsWriter) -> None:
        """Save the last finished step when the pod must stop, unless the weights are those of another one."""
        try:
            if not recovery.is_lost and trainers.policy_version() == self._report.step:
                self._save(trainers, metrics, timeout_s=self._parts.stop.save_limit_s)
        except (TrainerLost, UserError, OSError, RuntimeError) as error:
            log.warning("no checkpoint of the warm start at the end", reason=str(error))

    def _tell(self) -> None:
        self._told_s = self._parts.clock.now_s()
        recorder, report = self._parts.recorder, self._report
        recorder.warm_start(report)
        recorder.progress(ProgressUnit.STEPS, report.step, self._settings.steps, f"warm start, loss {report.loss:.3g}")

    def _note(self) -> dict[str, Any]:
        """Return what is kept beside the weights: the origins of what they depend on, and the report of their steps."""
        origins = {kind: asdict(origin) for kind, origin in self._parts.origins.items()}
        return {"origins": origins, "report": self._report.model_dump()}

    def _noted(self, directory: Path, name: str) -> WarmStartReport:
        """Return the report of a result; raises UserError for one that is damaged, or belongs to something else."""
        try:
            note: dict[str, Any] = orjson.loads((directory / _NOTE).read_bytes())
            report = WarmStartReport.model_validate({**note["report"], "cached": True})
            self._require_origins(note["origins"], report.step)
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise UserError(
                f"algorithm.warmStart: the model in the storage's {name} is damaged ({_NOTE}: {error}); remove that "
                "directory, and the next attempt makes it again"
            ) from error
        return report

    def _require_origins(self, saved: Mapping[str, Mapping[str, str]], step: int) -> None:
        for kind, origin in self._parts.origins.items():
            origin.require(saved[kind], step)

    def _cached(self, result: Path) -> str:
        """Move the result to the cache, where another job may have put the same one meanwhile."""
        assert self._parts.cache is not None
        target = self._parts.storage.resolve(self._parts.cache)
        unfinished = target.with_name(f".unfinished-{uuid.uuid4().hex}-{target.name}")
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copytree(result, unfinished)
        sync_tree(unfinished)
        try:
            unfinished.rename(target)
        except OSError:
            if not target.is_dir():
                raise
            shutil.rmtree(unfinished)
        sync(target.parent)
        shutil.rmtree(result)
        return self._parts.cache


def _metrics(result: TrainResult) -> dict[str, float]:
    sums = result.sums
    return {
        "warm_start/loss": sums.policy_loss / result.denominator,
        "warm_start/grad_norm": result.update.grad_norm,
        "warm_start/lr": result.update.learning_rate,
        "warm_start/loss_tokens": sums.num_loss_tokens,
    }
