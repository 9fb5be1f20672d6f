"""The whole loop on a real engine and a real trainer: an output layer that stays behind is noticed, and not trained on.

vLLM and the trainer are in this process. A publication may leave the engine with the output layer of the weights before
it, which no checksum of the protocol sees.
"""

import json
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from prometheus_client import CollectorRegistry

from longshore.api.algorithm import Algorithm
from longshore.api.model import Evaluation
from longshore.api.rollout import OnFinish, Strategy
from longshore.api.runtime_status import RuntimeStatus
from longshore.api.status import Assignment
from longshore.policy.log_prob_mismatch import FLOAT32_LIMIT
from longshore.policy.training_alarms import AlarmLimits
from longshore_runtime.backends.torch_trainer import TorchTrainer
from longshore_runtime.checkpoint import CheckpointStore
from longshore_runtime.clock import SystemClock
from longshore_runtime.data.dataset import PromptSets
from longshore_runtime.data.prompt_record import PromptRecord
from longshore_runtime.engine_protocol import EngineStats, Request
from longshore_runtime.errors import UserError
from longshore_runtime.loop_options import LoopOptions
from longshore_runtime.loop_parts import Parts
from longshore_runtime.rollout.events import EngineOutput, Event
from longshore_runtime.storage import JobStorage
from longshore_runtime.sums import GradientSums
from longshore_runtime.telemetry.journal import Journal
from longshore_runtime.telemetry.metrics import MetricsWriter
from longshore_runtime.telemetry.recorder import Recorder
from longshore_runtime.trainer.acceptance import require_trainable
from longshore_runtime.trainer.group import PendingUpdate
from longshore_runtime.trainer.samples import step_denominator
from longshore_runtime.trainer_protocol import Sample, TrainResult
from longshore_runtime.training import TrainingLoop
from longshore_runtime.weights.slices import Weights
from tests.contract.engines.harness import Harness
from tests.contract.trainers.replicas import OPTIONS
from tests.unit.runtime.elastic_parts import AtOnce, Known
from tests.unit.runtime.scripted import build, by_place
from tests.unit.runtime.scripted_loop import Scorer
from tests.unit.runtime.test_recorder import Reports

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")

NUM_STEPS = 3
ALGORITHM = Algorithm(steps=NUM_STEPS, prompts_per_step=4, responses_per_prompt=2, max_response_tokens=24)
PROMPTS = PromptSets(tuple(PromptRecord(i, f"p{i}", (10 + i, 11, 12), "answer") for i in range(50)), (), 0)


def head_of(worker: Any) -> torch.Tensor:
    """A copy of a worker's output layer."""
    values: torch.Tensor = worker.model_runner.get_model().lm_head.weight.detach().clone()
    return values


def use_head(worker: Any, values: torch.Tensor) -> None:
    """Put another output layer to work, packed as vLLM packs it on the CPU."""
    head = worker.model_runner.get_model().lm_head
    with torch.no_grad():
        head.weight.copy_(values)
    head.quant_method.process_weights_after_loading(head)


@dataclass(frozen=True)
class Published:
    weights: Weights
    policy_version: int


@dataclass
class OneEngine:
    """One real engine, which steps while the driver waits for an event."""

    harness: Harness
    stale: Callable[[int], bool]
    """Publications, counted from 1, after which the output layer is the one before."""
    tp_size: int = 1
    num_publications: int = 0
    pending: deque[Event] = field(default_factory=deque)

    def publish(self, published: Published) -> None:
        before = self._rpc(head_of)
        self.harness.publish(published.policy_version, published.weights)
        self.num_publications += 1
        if self.stale(self.num_publications):
            self._rpc(use_head, before)

    def serving(self) -> Sequence[int]:
        return [0]

    def add(self, engine: int, requests: Sequence[Request]) -> None:
        self.harness.engine.add(requests)

    def abort(self, engine: int, request_ids: Sequence[str]) -> None:
        aborted = self.harness.engine.abort(request_ids)
        self.pending.append(EngineOutput(0, aborted, self.harness.engine.stats()))

    def stats(self) -> dict[int, EngineStats]:
        return {0: self.harness.engine.stats()}

    def put(self, event: Event) -> None:
        self.pending.append(event)

    def get(self) -> Event:
        while not self.pending:
            assert self.harness.engine.has_work(), "the driver waits for an event that never comes"
            if ended := self.harness.engine.step():
                self.pending.append(EngineOutput(0, ended, self.harness.engine.stats()))
        return self.pending.popleft()

    def _rpc(self, function: Callable[..., Any], *arguments: Any) -> Any:
        engine: Any = self.harness.engine
        return engine._engine.collective_rpc(function, args=arguments)[0]


class OneTrainer:
    """One real rank, driven as `trainer.actor` drives it."""

    num_replicas = 1
    generation = 0

    def __init__(self, model: Path, root: Path) -> None:
        self._root = root
        self.num_given = 0
        self.rank = TorchTrainer(model, replace(OPTIONS, temperature=1.0, kl_coefficient=0.0))

    def begin(self) -> PendingUpdate:
        return PendingUpdate()

    def add(self, update: PendingUpdate, samples: Sequence[Sample]) -> None:
        update.samples += samples
        self.num_given += len(samples)

    def num_computed(self) -> float:
        return self.num_given

    def end(self, update: PendingUpdate, *, verify: bool = False, max_mismatch: float | None = None) -> None:
        update.steps.append(max_mismatch)

    def finish(self, update: PendingUpdate) -> TrainResult:
        sums: GradientSums = self.rank.accumulate(update.samples)
        require_trainable([sums], update.steps[0])
        denominator = step_denominator(update.samples, OPTIONS)
        return TrainResult(sums, self.rank.update(denominator), denominator)

    def weights(self, policy_version: int) -> Published:
        assert policy_version == self.rank.policy_version
        return Published(dict(self.rank.weights()), policy_version)

    def save(self, directory: str, *, timeout_s: float | None = None) -> None:
        self.rank.save(self._root / directory)

    def discard(self) -> None:
        self.rank.discard()

    def wake(self) -> None: ...


@dataclass(frozen=True)
class Outcome:
    error: str
    notices: list[str]
    mismatches: list[float]
    """Of the steps that were trained."""
    versions: int
    """Optimizer steps."""


def train(vllm: Harness, model: Path, root: Path, stale: Callable[[int], bool]) -> Outcome:
    """Run the loop to the end, or until the job fails."""
    storage = JobStorage(root, "output")
    storage.output_dir.mkdir()
    engine, trainer, reports = OneEngine(vllm, stale), OneTrainer(model, root), Reports()
    metrics = MetricsWriter(storage.output_dir, CollectorRegistry())
    unscripted: Any = engine
    parts = Parts(
        policy=build(Strategy.SYNCHRONOUS),
        prompts=PROMPTS,
        engines=unscripted,
        trainers=trainer,  # type: ignore[arg-type]
        rewards=Scorer(unscripted, reward=by_place),  # type: ignore[arg-type]
        checkpoints=CheckpointStore(storage.output_dir / "checkpoints", keep=1),
        storage=storage,
        recorder=Recorder(metrics, Journal(storage.output_dir / "ledger.jsonl"), reports, RuntimeStatus(attempt=1)),
        assignments=Known(Assignment()),
        elastic=AtOnce(),
        events=unscripted,
        clock=SystemClock(),
    )
    options = LoopOptions(
        ALGORITHM,
        Evaluation(),
        OnFinish.DRAIN,
        checkpoint_every_steps=10,
        is_colocated=False,
        max_mismatch=FLOAT32_LIMIT,
        alarm_limits=AlarmLimits(FLOAT32_LIMIT, ALGORITHM.max_response_tokens),
    )
    error = ""
    try:
        TrainingLoop(options, parts).run()
    except UserError as mistake:
        error = str(mistake)
    finally:
        metrics.close()
    rows = [json.loads(line) for line in (storage.output_dir / "metrics.jsonl").read_text().splitlines()]
    mismatches = [row["rollout_corr/log_prob_mismatch_mean"] for row in rows]
    notices = [notice.reason for notice in reports[-1].notices]
    return Outcome(error, notices, mismatches, trainer.rank.policy_version)


def test_engine_and_trainer_agree_to_rounding_and_no_alarm_is_raised(
    vllm: Harness, model: Path, tmp_path: Path
) -> None:
    outcome = train(vllm, model, tmp_path, lambda publication: False)
    assert (outcome.error, outcome.notices, outcome.versions) == ("", [], NUM_STEPS)
    assert max(outcome.mismatches) < 1e-5


def test_an_output_layer_that_is_one_step_old_is_noticed_and_reloading_mends_it(
    vllm: Harness, model: Path, tmp_path: Path
) -> None:
    outcome = train(vllm, model, tmp_path, lambda publication: publication == 2)
    assert (outcome.error, outcome.notices, outcome.versions) == ("", ["LogProbMismatch"], NUM_STEPS)
    assert max(outcome.mismatches) < 1e-5, "of what was trained on"


def test_an_output_layer_that_stays_behind_fails_the_job_before_a_step_is_made_with_it(
    vllm: Harness, model: Path, tmp_path: Path
) -> None:
    outcome = train(vllm, model, tmp_path, _stays_behind())
    assert outcome.error.startswith("rollout.maxLogProbMismatch: in step 2 the log-probabilities of engines and")
    assert outcome.notices == ["LogProbMismatch"]
    assert (outcome.versions, len(outcome.mismatches)) == (1, 1)


def _stays_behind() -> Callable[[int], bool]:
    """From the second publication: each takes the layer over from the one before, the oldest of all."""
    return lambda publication: publication >= 2
