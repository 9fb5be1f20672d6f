"""The loop as a whole: whenever the trainers are lost, no round is run again and the same weights come out.

Engines and trainers are in this process and take turns on one pretended GPU; both notice when the other has it.
"""

import contextlib
import itertools
import json
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry

from longshore.api.algorithm import Algorithm
from longshore.api.correction import RolloutCorrection
from longshore.api.model import Evaluation
from longshore.api.rollout import OnFinish, Strategy
from longshore.api.runtime_status import JobSize, ProgressUnit, RuntimeStatus
from longshore.api.status import Assignment, Baseline
from longshore.policy.round_policy import RoundPolicy
from longshore.policy.training_alarms import AlarmLimits
from longshore_runtime.backends.fake_trainer import FakeTrainer
from longshore_runtime.checkpoint import Checkpoint, CheckpointStore, export_progress
from longshore_runtime.data.dataset import PromptSets
from longshore_runtime.data.prompt_record import PromptRecord
from longshore_runtime.durable import sync_tree
from longshore_runtime.elastic.auto_factors import AutoFactors
from longshore_runtime.elastic.shared_gpus import Gpus, OwnGpus
from longshore_runtime.engine_protocol import Completion, FinishReason, Request
from longshore_runtime.errors import Interrupted, LogProbMismatch, SizeChanged, TrainerLost, UserError
from longshore_runtime.loop_options import LoopOptions
from longshore_runtime.loop_parts import Parts
from longshore_runtime.rollout.published import Delivered
from longshore_runtime.storage import JobStorage
from longshore_runtime.telemetry.journal import Journal
from longshore_runtime.telemetry.metrics import MetricsWriter
from longshore_runtime.telemetry.recorder import Recorder
from longshore_runtime.telemetry.step_records import NoRecords, StepSink
from longshore_runtime.trainer.acceptance import require_trainable
from longshore_runtime.trainer.group import OldLogProbs, PendingUpdate
from longshore_runtime.trainer.samples import step_denominator
from longshore_runtime.trainer_protocol import Sample, TrainResult
from longshore_runtime.training import TrainingLoop
from longshore_runtime.work_meter import WorkMeter
from tests.contract.trainers.replicas import OPTIONS
from tests.properties import examples
from tests.unit.runtime.elastic_parts import AtOnce, Known
from tests.unit.runtime.scripted import ScriptedEngines, ScriptedScorer, build, by_place
from tests.unit.runtime.test_recorder import Reports
from tests.unit.runtime.test_updates import TickingClock

NUM_STEPS = 4
LIMIT = 0.1
ALGORITHM = Algorithm(steps=NUM_STEPS, prompts_per_step=4, responses_per_prompt=2, max_response_tokens=64)
NUM_GPUS = 4
PROMPTS = PromptSets(tuple(PromptRecord(index, f"p{index}", (index, 1, 2), "answer") for index in range(50)), (), 0)


class Trainers:
    """A world of one replica that is lost at the calls that the test names, counted over all worlds."""

    num_replicas = 1
    saves_on_gpus = False

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

    def log_probs(self, samples: Sequence[Sample]) -> OldLogProbs:
        """Other ones under every version of the weights."""
        assert self.has_gpu, "sleeping trainers compute"
        self.num_given += len(samples)
        with self.meter.call(len(samples)):
            self.answer()
            self._trainer.log_probs(samples)
        version = float(self._trainer.policy_version)
        return OldLogProbs({one.response: (version,) * len(one.response_tokens) for one in samples}, 1.0)

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

    def save(self, directory: str, *, timeout_s: float | None = None) -> None:
        self.answer()
        self._trainer.save(self._storage / directory)

    def load(self, directory: str) -> None:
        self.answer()
        self._trainer.load(self._storage / directory)


def _mismatch(samples: Sequence[Sample]) -> float:
    """Trainers give every token a log-probability of -1, as engines with the same weights do."""
    return sum(abs(-1.0 - value) for sample in samples for value in sample.rollout_log_probs[sample.num_stale_tokens :])


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
        run = replace(completion.runs[-1], policy_version=self.current.policy_version)
        if self.stale(self.num_publications):
            run = replace(run, log_probs=(-4.1,) * len(run.tokens))
        return replace(completion, runs=(*completion.runs[:-1], run))


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
    gpus: "Callable[[Engines, Trainers], Gpus]" = lambda engines, trainers: OwnGpus(),
    scorer: "Callable[[Engines], Scorer] | None" = None,
    clock: TickingClock | None = None,
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
            gpus=gpus(engines, trainers),
            auto=auto(policy),
        )
        job: dict[str, Any] = {"algorithm": ALGORITHM, "max_mismatch": LIMIT, "alarm_limits": AlarmLimits(LIMIT, 64)}
        job |= {"evaluation": Evaluation(), "on_finish": OnFinish.DRAIN, "checkpoint_every_steps": every} | options
        loop, error = TrainingLoop(LoopOptions(**job), parts), ""
        try:
            loop.run()
        except UserError as mistake:
            error = str(mistake)
        except Interrupted as interruption:
            error = str(interruption)
            loop.save_if_possible(timeout_s=60.0)
        finally:
            metrics.close()
        ledger = [json.loads(line) for line in (storage.output_dir / "ledger.jsonl").read_text().splitlines()]
        model_file = storage.output_dir / "model" / "trainer.json"
        model = json.loads(model_file.read_text()) if model_file.exists() else {}
        sampled = list(zip(engines.seen, engines.versions, strict=True))
        return Outcome(ledger, model, trainers.num_calls, sampled, reports, error)


UNDISTURBED = run()


def test_a_run_that_nothing_disturbs_samples_every_round_from_the_weights_before_it() -> None:
    assert [row["policy_versions"] for row in UNDISTURBED.ledger] == [[step] for step in range(len(UNDISTURBED.ledger))]
    assert len(UNDISTURBED.ledger) >= NUM_STEPS


def test_evaluations_and_checkpoints_are_activities_of_their_own_that_say_how_far_they_are() -> None:
    outcome = run(held_out=PROMPTS.train[:20], every=2)
    reports = outcome.reports
    activities = [str(one) for one, _ in itertools.groupby(report.activity for report in reports)]
    assert activities[:5] == ["Publish", "Evaluate", "Checkpoint", "Rollout", "Train"]
    assert activities[-3:] == ["Evaluate", "Checkpoint", "Done"]
    checkpoints = [report.checkpoint_step for report in reports if report.activity == "Checkpoint"]
    assert set(checkpoints) >= {0, 2, 4}
    evaluated = [report.progress for report in reports if report.activity == "Evaluate" and report.progress]
    assert evaluated[0].total == 20 * Evaluation().responses_per_prompt
    assert len(evaluated) <= 2 * 11, "two evaluations, each reported in tenths"
    assert max(progress.done for progress in evaluated) <= evaluated[0].total
    assert reports[-1].progress is None


def test_a_checkpoint_that_takes_long_says_how_many_bytes_are_written(monkeypatch: pytest.MonkeyPatch) -> None:
    asked, measure = threading.Semaphore(0), CheckpointStore.progress

    def measured(store: CheckpointStore, step: int) -> tuple[int, int]:
        asked.release()
        return measure(store, step)

    class Slow(Trainers):
        def save(self, directory: str, *, timeout_s: float | None = None) -> None:
            """Lasts until its progress was asked for a second time, and so told once."""
            super().save(directory, timeout_s=timeout_s)
            while asked.acquire(blocking=False):
                pass
            assert asked.acquire(timeout=60) and asked.acquire(timeout=60)

    monkeypatch.setattr("longshore_runtime.run_checkpoints.PROGRESS_EVERY_S", 0.001)
    monkeypatch.setattr(CheckpointStore, "progress", measured)
    told = [one.progress for one in run(kinds=(Slow, Engines)).reports if one.activity == "Checkpoint" and one.progress]
    assert {progress.unit for progress in told} == {ProgressUnit.BYTES}
    assert any(progress.done > 0 == progress.total for progress in told), "how large the first will be is not known"
    assert any(progress.done > 0 and progress.total > 0 for progress in told)


def test_the_copy_of_the_final_model_says_how_many_bytes_are_written(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = threading.Semaphore(0)

    def measured(newest: Checkpoint, target: Path) -> tuple[int, int]:
        asked.release()
        return export_progress(newest, target)

    def slow(copied: Path) -> None:
        """Lasts until the progress was asked for twice after the files were there, and so told once."""
        sync_tree(copied)
        if copied.parent.name == "output":
            while asked.acquire(blocking=False):
                pass
            assert all(asked.acquire(timeout=60) for _ in range(3))

    monkeypatch.setattr("longshore_runtime.run_checkpoints.PROGRESS_EVERY_S", 0.001)
    monkeypatch.setattr("longshore_runtime.run_checkpoints.export_progress", measured)
    monkeypatch.setattr("longshore_runtime.checkpoint.sync_tree", slow)
    reports = run().reports
    told = [one.progress for one in reports if one.progress and one.progress.detail == "the final model"]
    (num_bytes,) = {progress.total for progress in told}
    assert {progress.unit for progress in told} == {ProgressUnit.BYTES}
    assert max(progress.done for progress in told) == num_bytes > 0
    assert (reports[-1].activity, reports[-1].progress) == ("Done", None)


def test_a_run_that_continues_restores_its_checkpoint_first(tmp_path: Path) -> None:
    run(root=tmp_path)
    again = run(root=tmp_path).reports
    activities = [str(one) for one, _ in itertools.groupby(report.activity for report in again)]
    assert activities[:2] == ["Restore", "Publish"]
    assert all(report.activity != "Restore" for report in UNDISTURBED.reports)


def test_a_restore_says_how_many_bytes_the_trainers_have_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = threading.Semaphore(0)

    class Slow(Trainers):
        def loaded_share(self) -> float:
            asked.release()
            return super().loaded_share()

        def load(self, directory: str) -> None:
            """Last until the progress was asked for a second time, half of the way."""
            with self.meter.loading():
                self.meter.loaded(1, 2)
                assert asked.acquire(timeout=60) and asked.acquire(timeout=60)
                super().load(directory)

    run(root=tmp_path)
    monkeypatch.setattr("longshore_runtime.run_checkpoints.PROGRESS_EVERY_S", 0.001)
    reports = run(root=tmp_path, kinds=(Slow, Engines)).reports
    seen = [one.progress for one in reports if one.activity == "Restore" and one.progress]
    assert {progress.unit for progress in seen} == {ProgressUnit.BYTES}
    assert seen[0].done == seen[0].total // 2 > 0


@pytest.mark.parametrize("call", range(1, UNDISTURBED.num_calls + 1))
def test_whenever_the_trainers_are_lost_nothing_is_sampled_again(call: int) -> None:
    outcome = run([call])
    assert outcome.num_calls > UNDISTURBED.num_calls
    assert (outcome.sampled, outcome.model) == (UNDISTURBED.sampled, UNDISTURBED.model)
    assert outcome.ledger == UNDISTURBED.ledger


@settings(deadline=None, max_examples=examples(20))
@given(st.sets(st.integers(1, 2 * UNDISTURBED.num_calls), max_size=3), st.integers(1, 5), st.booleans())
def test_nor_when_they_are_lost_again_while_they_come_back(losses: set[int], every: int, regroups: bool) -> None:
    outcome = run(losses, every=every, regroups=regroups)
    assert (outcome.sampled, outcome.model) == (UNDISTURBED.sampled, UNDISTURBED.model)


def asked_for(num_workers: int, epoch: int = 1) -> Known:
    """The operator wants the job to run with so many worker pods."""
    size = JobSize(epoch=epoch, workers=num_workers, held=num_workers)
    return Known(Assignment(epoch=epoch, baseline=Baseline(tp_size=1), size=size))


class AskedLater(Known):
    """Another number of worker pods is asked for when some steps are done."""

    def __init__(self, root: Path, step: int) -> None:
        super().__init__(asked_for(1).assignment)
        self._metrics, self._step = root / "output" / "ledger.jsonl", step

    def newest(self) -> Assignment:
        is_time = len(self._metrics.read_text().splitlines()) >= self._step
        return asked_for(2, epoch=2).assignment if is_time else self.assignment


@pytest.mark.parametrize("step", range(NUM_STEPS))
def test_with_other_worker_pods_from_any_step_on_a_job_learns_the_same(tmp_path: Path, step: int) -> None:
    with pytest.raises(SizeChanged) as change:
        run(root=tmp_path, every=1_000, num_workers=1, assignments=AskedLater(tmp_path, step))
    assert change.value.num_workers == 2
    assert CheckpointStore(tmp_path / "output" / "checkpoints", keep=1).newest().step == step  # type: ignore[union-attr]
    rest = run(root=tmp_path, num_workers=2, assignments=asked_for(2, epoch=2))
    assert (rest.ledger, rest.model) == (UNDISTURBED.ledger, UNDISTURBED.model)
    assert rest.sampled == UNDISTURBED.sampled[-len(rest.sampled) :], "nothing is sampled twice"
    assert rest.reports[-1].size == JobSize(epoch=2, workers=2, held=2)


def test_a_size_that_the_job_has_is_acknowledged_without_an_interruption() -> None:
    outcome = run(num_workers=3, assignments=asked_for(3, epoch=7))
    assert outcome.reports[-1].size == JobSize(epoch=7, workers=3, held=3)
    assert (outcome.sampled, outcome.model) == (UNDISTURBED.sampled, UNDISTURBED.model)


def test_trainers_that_are_lost_again_and_again_are_given_up() -> None:
    with pytest.raises(TrainerLost):
        run(range(1, 100))


DECOUPLED = ALGORITHM.model_copy(
    update={"prompts_per_update": 2, "epochs_per_step": 2, "rollout_correction": RolloutCorrection()}
)
"""Several updates with one round's responses."""


def test_several_updates_on_one_rollout_survive_the_loss_of_trainers_at_any_moment() -> None:
    undisturbed = run(algorithm=DECOUPLED)
    for loss in range(3, undisturbed.num_calls, 5):
        recovered = run([loss], algorithm=DECOUPLED)
        assert recovered.error == ""
        assert recovered.model == undisturbed.model, loss
        assert recovered.ledger == undisturbed.ledger


def test_figures_of_a_step_count_its_batch_once_and_throughput_is_per_gpu(tmp_path: Path) -> None:
    run(algorithm=DECOUPLED, root=tmp_path)
    rows = [json.loads(line) for line in (tmp_path / "output" / "metrics.jsonl").read_text().splitlines()]
    steps = [row for row in rows if "perf/throughput" in row]
    assert len(steps) >= NUM_STEPS
    for row in steps:
        num_samples = ALGORITHM.prompts_per_step * ALGORITHM.responses_per_prompt
        mean_tokens = row["response_length/mean"] + row["prompt_length/mean"]
        assert row["actor/num_updates"] == 2 * ALGORITHM.prompts_per_step // 2
        assert row["perf/total_num_tokens"] == pytest.approx(num_samples * mean_tokens)
        assert row["perf/throughput"] * row["perf/time_per_step"] * NUM_GPUS == pytest.approx(num_samples * mean_tokens)
        assert row["timing_s/old_log_prob"] == 1.0
