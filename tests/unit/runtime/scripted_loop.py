"""The training loop in this process. Its engines and trainers take turns on one pretended GPU and notice who has it."""

import contextlib
import json
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field, replace
from functools import cache, partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, NoReturn
from unittest.mock import patch

import numpy as np
from prometheus_client import CollectorRegistry

from longshore.api.algorithm import Algorithm
from longshore.api.correction import RolloutCorrection
from longshore.api.model import Evaluation
from longshore.api.rollout import OnFinish, Strategy
from longshore.api.runtime_status import RuntimeStatus
from longshore.api.status import Assignment, Baseline
from longshore.api.training import CheckpointSettings
from longshore.policy.round_policy import RoundPolicy
from longshore.policy.training_alarms import AlarmLimits
from longshore_runtime.backends.engine_protocol import Completion, FinishReason, Request
from longshore_runtime.backends.fake_trainer import FakeTrainer
from longshore_runtime.backends.trainer_protocol import Sample, TrainResult
from longshore_runtime.backends.work_meter import WorkMeter
from longshore_runtime.checkpoints.origin import Origin
from longshore_runtime.checkpoints.store import CheckpointStore
from longshore_runtime.data.dataset import PromptSets
from longshore_runtime.data.prompt_record import PromptRecord
from longshore_runtime.elastic.auto_factors import AutoFactors
from longshore_runtime.errors import Interrupted, LogProbMismatch, TrainerLost, UserError
from longshore_runtime.judge.teacher import RemoteTeacher
from longshore_runtime.rollout.published import Delivered
from longshore_runtime.step.loop import TrainingLoop
from longshore_runtime.step.parts import LoopOptions, Parts
from longshore_runtime.stop import Stop
from longshore_runtime.storage import JobStorage
from longshore_runtime.telemetry.journal import Journal
from longshore_runtime.telemetry.metrics import MetricsWriter
from longshore_runtime.telemetry.recorder import Recorder
from longshore_runtime.telemetry.step_records import NoRecords, StepSink
from longshore_runtime.trainer import recovery
from longshore_runtime.trainer.acceptance import require_trainable
from longshore_runtime.trainer.group import PassResult, PendingUpdate, step_denominator
from longshore_runtime.trajectories.trajectory import Trajectory
from tests.contract.trainers.replicas import OPTIONS
from tests.unit.runtime.elastic_parts import AtOnce, Known
from tests.unit.runtime.scripted import ScriptedEngines, ScriptedScorer, build, by_place
from tests.unit.runtime.test_recorder import Reports
from tests.unit.runtime.test_updates import TickingClock

NUM_STEPS = 4
LIMIT = 0.1
NO_PAUSES = patch.object(recovery, "PAUSES_S", (0.0,) * len(recovery.PAUSES_S))
"""Trainers that are lost start again at once."""
ALGORITHM = Algorithm(steps=NUM_STEPS, prompts_per_step=4, responses_per_prompt=2, max_response_tokens=64)
NUM_GPUS = 4
PROMPTS = PromptSets(tuple(PromptRecord(index, f"p{index}", (index, 1, 2), "answer") for index in range(50)), (), 0)


class Trainers:
    """A world of one replica that is lost at the calls that the test names, counted over all worlds."""

    num_replicas = 1

    def __init__(self, storage: Path, losses: Iterable[int] = ()) -> None:
        self._storage = storage
        self._losses = sorted(losses)
        self.num_calls = 0
        self.generation = 0
        self.has_gpu = True
        self.num_discarded = 0
        self.engines: Engines | None = None
        self._begin()

    def _begin(self) -> None:
        self.meter, self.num_given = WorkMeter(), 0
        self._trainer = FakeTrainer(Path(), OPTIONS, meter=self.meter)
        self._is_lost = self._has_refused = False

    def answer(self) -> None:
        self.num_calls += 1
        if self._losses and self._losses[0] <= self.num_calls:
            del self._losses[0]
            self._is_lost = True
        if self._is_lost:
            raise TrainerLost("a trainer replica is gone (ActorDiedError)")

    def find_death(self) -> None:
        return None

    def restart(self) -> None:
        assert self.engines is not None and not self.engines.has_gpu, "a new world starts on GPUs that engines hold"
        self._begin()
        self.generation += 1
        self.has_gpu = True

    def num_computed(self) -> float:
        return self.meter.num_computed

    def loaded_share(self) -> float:
        return self.meter.loaded_share

    def begin(self) -> PendingUpdate:
        return PendingUpdate()

    def add(self, update: PendingUpdate, samples: Sequence[Sample]) -> None:
        update.samples += samples
        self.num_given += len(samples)

    def end(self, update: PendingUpdate, *, verify: bool = False, max_mismatch: float | None = None) -> None:
        update.steps.append(max_mismatch)

    def log_probs(self, samples: Sequence[Sample]) -> PassResult:
        """Other ones under every version of the weights."""
        assert self.has_gpu, "sleeping trainers compute"
        self.num_given += len(samples)
        with self.meter.call(len(samples)):
            self.answer()
            self._trainer.log_probs(samples)
        version = float(self._trainer.policy_version)
        found = {one.key: np.full(one.num_response_tokens, version, np.float32) for one in samples}
        return PassResult(found, 1.0)

    def values(self, samples: Sequence[Sample]) -> PassResult:
        """Other ones under every version of the weights."""
        return self.log_probs(samples)

    def finish(self, update: PendingUpdate) -> TrainResult:
        return self._train(update.samples, update.steps[0])

    def train(self, samples: Sequence[Sample]) -> TrainResult:
        self.num_given += len(samples)
        return self._train(samples)

    def _train(self, samples: Sequence[Sample], max_mismatch: float | None = None) -> TrainResult:
        assert self.has_gpu, "sleeping trainers train"
        assert not self._has_refused, "gradients of a refused round are added to"
        with self.meter.call(len(samples)):
            self.answer()
            sums = replace(self._trainer.accumulate(samples), mismatch=_mismatch(samples))
        try:
            require_trainable([sums], max_mismatch)
        except LogProbMismatch:
            self._has_refused = True
            raise
        denominator = step_denominator(samples, OPTIONS)
        return TrainResult(sums, self._trainer.update(denominator), denominator)

    def discard(self) -> None:
        self.answer()
        self._trainer.discard()
        self._has_refused = False
        self.num_discarded += 1

    def weights(self, policy_version: int) -> "Sent":
        self.answer()
        return Sent(self, policy_version)

    def send(self, policy_version: int) -> None:
        for _ in range(2):  # Buckets.
            self.answer()
        assert self._trainer.policy_version == policy_version

    def sleep(self) -> None:
        self.answer()
        self.has_gpu = False

    def wake(self) -> None:
        self.answer()
        self.has_gpu = True

    def begin_save(self, directory: str, **limit: float) -> Callable[[], None]:
        self.answer()
        write = self._trainer.begin_save(self._storage / directory)
        try:
            self.answer()
        except TrainerLost as loss:  # While they write, which nobody hears of before the wait.
            return partial(raise_error, loss)
        return write

    def load(self, directory: str) -> None:
        self.answer()
        self._trainer.load(self._storage / directory)


def raise_error(error: Exception) -> NoReturn:
    raise error


def _mismatch(samples: Sequence[Sample]) -> float:
    """Trainers give every token a log-probability of -1, as engines with the same weights do."""
    fresh = (sample.trajectory.log_probs[sample.num_stale_tokens :] for sample in samples)
    return sum(float(np.abs(-1.0 - log_probs).sum()) for log_probs in fresh)


@dataclass(frozen=True)
class Sent:
    """Weights that go straight from the trainers to engines."""

    trainers: Trainers
    policy_version: int


@dataclass
class Engines(ScriptedEngines):
    """Engines of one size on the GPU of the trainers."""

    trainers: Trainers | None = None
    tp_size: int = 1
    has_gpu: bool = True
    current: Sent | None = None
    versions: list[int] = field(default_factory=list)
    """What every request was sampled from, in their order."""
    stale: Callable[[int], bool] = lambda publication: False
    """Publications, counted from 1, after which a layer keeps other weights: behind the protocol's back."""
    num_publications: int = 0
    delivered: Delivered | None = None

    def sleep(self) -> None:
        self.has_gpu, self.current = False, None

    def wake(self) -> None:
        assert self.trainers is not None and not self.trainers.has_gpu, "engines wake beside trainers"
        self.has_gpu = True

    def publish(self, weights: Sent) -> None:
        assert self.has_gpu, "sleeping engines take no weights"
        self.current = None
        weights.trainers.send(weights.policy_version)
        self.current = weights
        self.num_publications += 1

    def regroup(self, tp_size: int) -> None:
        """The new engines have no weights until they are published once more, from the memory of the trainers."""
        self.tp_size = tp_size
        assert self.current is not None
        self.publish(self.current)

    def add(self, engine: int, requests: Sequence[Request]) -> None:
        assert self.has_gpu and self.current is not None, "engines without weights are given requests"
        self.versions += [self.current.policy_version] * len(requests)
        super().add(engine, requests)

    def _completion(self, request: Request, done: int, reason: FinishReason) -> Completion:
        completion = super()._completion(request, done, reason)
        assert self.current is not None
        trajectory = completion.trajectory
        run = trajectory.runs[-1]._replace(policy_version=self.current.policy_version)
        log_probs = trajectory.log_probs.copy()
        if self.stale(self.num_publications):
            log_probs[len(trajectory) - run.num_tokens :] = -4.1
        new = Trajectory(trajectory.tokens, log_probs, (*trajectory.runs[:-1], run))
        return replace(completion, trajectory=new)


class Scorer(ScriptedScorer):
    """What the loop asks a reward pool for beyond a round."""

    def use(self, prompts: Sequence[PromptRecord]) -> None: ...

    def rest(self) -> None: ...

    def export_state(self) -> dict[str, Any]:
        return {}

    def load_state(self, state: dict[str, Any]) -> None: ...


@dataclass(frozen=True)
class Outcome:
    """What a run leaves behind."""

    ledger: list[dict[str, Any]]
    model: dict[str, Any]
    num_calls: int
    sampled: list[tuple[str, int]]
    """(request, policy version) of everything that was sampled."""
    reports: list[RuntimeStatus]
    error: str
    """Why it failed."""

    @property
    def notices(self) -> list[tuple[str, str]]:
        return [(notice.reason, notice.message) for notice in self.reports[-1].notices]


@contextlib.contextmanager
def temporary_storage() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as directory:
        yield Path(directory)


def run(
    losses: Iterable[int] = (),
    *,
    every: int = 2,
    regroups: bool = False,
    stale: Callable[[int], bool] = lambda publication: False,
    strategy: Strategy = Strategy.TAIL_BATCHING,
    reward: Callable[[int, Completion], float] = by_place,
    root: Path | None = None,
    records: StepSink | None = None,
    held_out: tuple[PromptRecord, ...] = (),
    assignments: Known | None = None,
    kinds: "tuple[type[Trainers], type[Engines]]" = (Trainers, Engines),
    auto: Callable[[RoundPolicy], AutoFactors | None] = lambda policy: None,
    scorer: "Callable[[Engines], Scorer] | None" = None,
    clock: TickingClock | None = None,
    stop: Stop | None = None,
    origins: Mapping[str, Origin] = MappingProxyType({}),
    teacher: RemoteTeacher | None = None,
    **options: Any,
) -> Outcome:
    """To the end, or until the job fails."""
    with contextlib.nullcontext(root) if root else temporary_storage() as root:
        storage = JobStorage(root, "output")
        storage.output_dir.mkdir(exist_ok=True)
        trainers = kinds[0](root, losses)
        engines = kinds[1](trainers=trainers, stale=stale)
        reports = Reports()
        trainers.engines = engines
        metrics = MetricsWriter(storage.output_dir, CollectorRegistry())
        recorder = Recorder(
            metrics, Journal(storage.output_dir / "ledger.jsonl"), reports, RuntimeStatus(attempt=1), num_gpus=NUM_GPUS
        )
        sizes = Baseline(tp_size=2)
        elastic: Executor = AtOnce()
        policy = build(strategy)
        parts = Parts(
            policy=policy,
            prompts=replace(PROMPTS, held_out=held_out),
            engines=engines,  # type: ignore[arg-type]
            trainers=trainers,  # type: ignore[arg-type]
            rewards=scorer(engines) if scorer is not None else Scorer(engines, reward=reward),  # type: ignore[arg-type]
            checkpoints=CheckpointStore(storage.output_dir / "checkpoints", keep=2),
            storage=storage,
            recorder=recorder,
            assignments=assignments or Known(Assignment(epoch=1, baseline=sizes) if regroups else Assignment()),
            elastic=elastic,
            events=engines,  # type: ignore[arg-type]
            clock=clock or TickingClock(),
            records=records or NoRecords(),
            auto=auto(policy),
            stop=stop or Stop(),
            origins=origins,
            teacher=teacher,
        )
        job: dict[str, Any] = {"algorithm": ALGORITHM, "max_mismatch": LIMIT, "alarm_limits": AlarmLimits(LIMIT, 64)}
        job |= {
            "evaluation": Evaluation(),
            "on_finish": OnFinish.DRAIN,
            "checkpoint": CheckpointSettings(every_steps=every, every_seconds=31_536_000),
        } | options
        loop, error = TrainingLoop(LoopOptions(**job), parts), ""
        try:
            with NO_PAUSES:
                loop.run()
        except UserError as mistake:
            error = str(mistake)
            loop.finish_save_if_possible(timeout_s=parts.stop.save_limit_s)
        except Interrupted as interruption:
            error = str(interruption)
            loop.save_if_possible(timeout_s=parts.stop.save_limit_s)
        finally:
            metrics.close()
        ledger = [json.loads(line) for line in (storage.output_dir / "ledger.jsonl").read_text().splitlines()]
        model_file = storage.output_dir / "model" / "trainer.json"
        model = json.loads(model_file.read_text()) if model_file.exists() else {}
        sampled = list(zip(engines.seen, engines.versions, strict=True))
        return Outcome(ledger, model, trainers.num_calls, sampled, reports, error)


@cache
def plain_run() -> Outcome:
    """A run that nothing disturbs."""
    return run()


DECOUPLED = ALGORITHM.model_copy(
    update={"prompts_per_update": 2, "epochs_per_step": 2, "rollout_correction": RolloutCorrection()}
)
"""Several updates with one round's responses."""
