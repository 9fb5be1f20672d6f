"""The whole loop on a real engine and a real trainer: an output layer that stays behind is noticed, and not trained on.

vLLM and the trainer are in this process. A publication may leave the engine with the output layer of the weights before
it, which no checksum of the protocol sees.
"""

import json
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from longshore.api.algorithm import Algorithm
from longshore.api.rollout import Strategy
from longshore.api.training import TrainerDtype
from longshore.policy.log_prob_mismatch import FLOAT32_LIMIT, SIXTEEN_BIT_LIMIT, default_limit
from longshore.policy.training_alarms import AlarmLimits
from longshore_runtime.backends.engine_protocol import EngineStats, Request
from longshore_runtime.backends.sums import GradientSums
from longshore_runtime.backends.torch_trainer import TorchTrainer
from longshore_runtime.backends.trainer_protocol import Sample, TrainResult
from longshore_runtime.rollout.events import EngineOutput, Event
from longshore_runtime.trainer.acceptance import require_trainable
from longshore_runtime.trainer.group import PendingUpdate, step_denominator
from longshore_runtime.weights.slices import Weights
from tests.contract.engines.harness import Harness
from tests.contract.trainers.replicas import OPTIONS
from tests.unit.runtime.scripted_loop import Outcome, run

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")

NUM_STEPS = 3
ALGORITHM = Algorithm(steps=NUM_STEPS, prompts_per_step=4, responses_per_prompt=2, max_response_tokens=24)


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
    trainers: "OneTrainer"
    tp_size: int = 1
    num_publications: int = 0
    pending: deque[Event] = field(default_factory=deque)
    seen: tuple[str, ...] = ()
    versions: tuple[int, ...] = ()

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
    num_calls = 0
    engines: Any = None

    def __init__(self, model: Path, root: Path, dtype: TrainerDtype) -> None:
        self._root = root
        self.num_given = 0
        self.rank = TorchTrainer(model, replace(OPTIONS, temperature=1.0, kl_coefficient=0.0, dtype=dtype))

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

    def begin_save(self, directory: str, **limit: float) -> Callable[[], None]:
        return self.rank.begin_save(self._root / directory)

    def discard(self) -> None:
        self.rank.discard()

    def wake(self) -> None: ...


@dataclass(frozen=True)
class Trained:
    """What a run leaves behind."""

    outcome: Outcome
    mismatches: list[float]
    """Mismatches of the steps that were trained."""
    versions: int
    """Optimizer steps."""

    @property
    def notices(self) -> list[str]:
        return [reason for reason, _ in self.outcome.notices]


def train(
    vllm: Harness,
    model: Path,
    root: Path,
    stale: Callable[[int], bool],
    dtype: TrainerDtype = TrainerDtype.FLOAT32,
) -> Trained:
    """Run the loop to the end, or until the job fails."""
    trainer = OneTrainer(model, root, dtype)
    limit = default_limit(engine_dtype=dtype, engines_have_accelerators=False, dtype=dtype)
    kinds: Any = (lambda *_: trainer, partial(OneEngine, vllm))
    outcome = run(
        kinds=kinds,
        stale=stale,
        root=root,
        strategy=Strategy.SYNCHRONOUS,
        every=10,
        algorithm=ALGORITHM,
        is_colocated=False,
        max_mismatch=limit,
        alarm_limits=AlarmLimits(limit, ALGORITHM.max_response_tokens),
    )
    rows = [json.loads(line) for line in (root / "output" / "metrics.jsonl").read_text().splitlines()]
    mismatches = [row["rollout_corr/log_prob_mismatch_mean"] for row in rows]
    return Trained(outcome, mismatches, trainer.rank.policy_version)


def test_an_output_layer_that_is_one_step_old_is_noticed_and_reloading_mends_it(
    vllm: Harness, model: Path, tmp_path: Path
) -> None:
    """In all other steps engine and trainer agree to rounding, and no alarm is raised."""
    trained = train(vllm, model, tmp_path, lambda publication: publication == 2)
    assert (trained.outcome.error, trained.notices, trained.versions) == ("", ["LogProbMismatch"], NUM_STEPS)
    assert len(trained.mismatches) == NUM_STEPS
    assert max(trained.mismatches) < 1e-5, "of what was trained on"


def test_a_stale_output_layer_fails_the_job_before_a_step_is_made_with_it(
    vllm: Harness, model: Path, tmp_path: Path
) -> None:
    """From the second publication on each takes the layer over from the one before, the oldest of all."""
    trained = train(vllm, model, tmp_path, lambda publication: publication >= 2)
    error = "rollout.maxLogProbMismatch: in step 2 the log-probabilities of engines and"
    assert trained.outcome.error.startswith(error)
    assert trained.notices == ["LogProbMismatch"]
    assert (trained.versions, len(trained.mismatches)) == (1, 1)


def test_engine_and_trainer_in_bfloat16_agree_within_the_limit_of_that_type(
    narrow_vllm: Harness, model: Path, tmp_path: Path
) -> None:
    trained = train(narrow_vllm, model, tmp_path, lambda publication: False, TrainerDtype.BFLOAT16)
    assert (trained.outcome.error, trained.notices, trained.versions) == ("", [], NUM_STEPS)
    assert FLOAT32_LIMIT < max(trained.mismatches) < SIXTEEN_BIT_LIMIT / 2
