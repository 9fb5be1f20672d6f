"""The updates of a step: pipelined or after the round, the trainers do the same optimizer steps on the same groups."""

import queue
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from longshore.api.algorithm import Algorithm
from longshore.api.correction import RolloutCorrection
from longshore.api.model import Evaluation
from longshore.api.objectives.gspo import Gspo
from longshore.api.objectives.ppo import Ppo
from longshore.api.objectives.registry import OBJECTIVES
from longshore.api.objectives.tppo import Tppo
from longshore.api.rollout import Handover, OnFinish
from longshore.policy.draws import Draw
from longshore.policy.handover import HandoverQueue
from longshore.policy.round import ResponseId
from longshore_runtime.backends.engine_protocol import Completion, FinishReason
from longshore_runtime.backends.fake_trainer import FakeTrainer
from longshore_runtime.backends.trainer_protocol import Sample, TrainResult
from longshore_runtime.data.prompt_record import PromptRecord
from longshore_runtime.rollout.batch import ScoredGroup, ScoredResponse
from longshore_runtime.step.parts import LoopOptions
from longshore_runtime.step.step_work import step_work
from longshore_runtime.trainer.group import PassResult, PendingUpdate, step_denominator
from longshore_runtime.trainer.updates import (
    StepTraining,
    StepUpdates,
    batch_samples,
    max_tokens_per_batch,
    unfinished_samples,
)
from longshore_runtime.trajectories.episode import Branch, Episode
from longshore_runtime.trajectories.trajectory import Trajectory, token_ids
from tests.contract.trainers.replicas import OPTIONS

ALGORITHM = Algorithm(steps=1, prompts_per_step=6, responses_per_prompt=2, max_response_tokens=64)
PROMPTS = [PromptRecord(index, f"p{index}", (index, 1, 2), "answer") for index in range(8)]
ARRIVAL = (4, 0, 5, 2, 1, 3)
"""Rows in the order in which their groups become trainable."""
NO_LIMIT = 10_000
ABORT = FinishReason.ABORT


def group(row: int, num_tokens: int = 4, epoch: int = 0) -> ScoredGroup:
    """Two responses with different rewards."""
    draw = Draw(epoch, row)
    responses = [ResponseId(draw, index) for index in range(2)]
    trajectory = Trajectory.sampled(0, range(row, row + num_tokens), [-1.0] * num_tokens)
    return ScoredGroup(
        draw,
        tuple(
            ScoredResponse(one, Completion(str(one), trajectory, FinishReason.STOP, 1), float(one.index), False)
            for one in responses
        ),
    )


def samples_of(groups: Sequence[ScoredGroup]) -> list[Sample]:
    return batch_samples(groups, PROMPTS, ALGORITHM, policy_version=0)


@dataclass
class TickingClock:
    """One second later whenever it is read."""

    seconds: float = 0.0

    def now_s(self) -> float:
        self.seconds += 1.0
        return self.seconds


@dataclass
class OneReplica:
    """A trainer world of a single replica in this process: what it is asked to do is done at once, and noted."""

    trainer: FakeTrainer
    calls: list[tuple[object, ...]] = field(default_factory=list)
    limits: list[float | None] = field(default_factory=list)
    num_given: int = 0
    num_replicas: int = 1

    def num_computed(self) -> float:
        return self.num_given

    def begin(self) -> PendingUpdate:
        return PendingUpdate()

    def add(self, update: PendingUpdate, samples: Sequence[Sample]) -> None:
        rows = [sample.draw.index for sample in samples]
        self.calls.append(("add", *dict.fromkeys(rows)))
        self.num_given += len(samples)
        update.samples += samples
        update.passes.append(self.trainer.accumulate(samples))

    def end(self, update: PendingUpdate, *, verify: bool = False, max_mismatch: float | None = None) -> None:
        self.calls.append(("step",))
        self.limits.append(max_mismatch)
        update.denominator = step_denominator(update.samples, OPTIONS)
        update.steps.append(self.trainer.update(update.denominator))

    def log_probs(self, samples: Sequence[Sample]) -> PassResult:
        self.calls.append(("log_probs", *dict.fromkeys(sample.draw.index for sample in samples)))
        self.num_given += len(samples)
        version = self.trainer.policy_version
        found = {one.key: np.full(one.num_response_tokens, version, np.float32) for one in samples}
        return PassResult(found, 3.0)

    def values(self, samples: Sequence[Sample]) -> PassResult:
        """Values that grow by 1 from token to token, at any version a different one."""
        self.calls.append(("values", *dict.fromkeys(sample.draw.index for sample in samples)))
        version = self.trainer.policy_version
        found = {one.key: np.arange(one.num_response_tokens, dtype=np.float32) + version for one in samples}
        return PassResult(found, 5.0)

    def finish(self, update: PendingUpdate) -> TrainResult:
        sums = update.passes[0]
        for one in update.passes[1:]:
            sums = sums + one
        return TrainResult(sums, update.steps[0], update.denominator)


@dataclass
class Step:
    """A step whose groups come one by one."""

    pipelined: bool
    groups_per_update: int = 2
    max_tokens: int = NO_LIMIT
    max_mismatch: float | None = None
    num_epochs: int = 1
    computes_old_log_probs: bool = False
    compares_later_with_engine: bool = False
    critic: Ppo | None = None

    def __post_init__(self) -> None:
        self.trainers = OneReplica(FakeTrainer(Path(), OPTIONS))
        self.updates = StepUpdates(
            self.trainers,  # type: ignore[arg-type]
            HandoverQueue((self.groups_per_update,), self.max_tokens),
            samples_of,
            PROMPTS,
            TickingClock(),
            begins_during_rollout=self.pipelined,
            num_epochs=self.num_epochs,
            computes_old_log_probs=self.computes_old_log_probs,
            compares_later_with_engine=self.compares_later_with_engine,
            critic=self.critic,
            max_mismatch=self.max_mismatch,
        )

    def train(self, rows: Sequence[int] = ARRIVAL, num_tokens: int = 4, epoch: int = 0) -> StepTraining:
        """To its end."""
        for row in rows:
            self.updates.train_on(group(row, num_tokens, epoch))
        return self.updates.finish()

    def weights(self) -> dict[str, list[float]]:
        """Weights of the trainer."""
        return {name: values.tolist() for name, values in self.trainers.trainer.weights()}

    def rows(self) -> list[tuple[int, ...]]:
        """Rows of each call of the trainers that computes gradients, in order within it."""
        return [rows for name, *rows in self.trainers.calls if name == "add"]  # type: ignore[misc]


def order_after_round(rows: Sequence[int] = ARRIVAL, epoch: int = 0) -> list[int]:
    """In which updates take groups."""
    step = Step(pipelined=False, groups_per_update=1)
    step.train(rows, epoch=epoch)
    return [row for (row,) in step.rows()]


def test_progress_counts_the_samples_of_all_branches() -> None:
    whole = group(0)
    one, other = whole.responses
    branch = Branch(token_ids([7]), None, [], one.completion.trajectory)
    episode = replace(one.completion, episode=Episode((branch, branch), None, 1.0, 2, 0, 0.0, 0))
    step = Step(pipelined=True, groups_per_update=1)
    step.updates.train_on(replace(whole, responses=(replace(one, completion=episode), other)))
    step.updates.finish()
    assert step.updates.progress() == (3, 3)


@pytest.mark.parametrize("groups_per_update", [1, 2, 4, 6])
def test_trainers_do_the_same_in_the_same_order_pipelined_and_after_the_round(
    groups_per_update: int,
) -> None:
    overlapped, serial = (
        Step(pipelined=True, groups_per_update=groups_per_update),
        Step(pipelined=False, groups_per_update=groups_per_update),
    )
    first, second = overlapped.train(order_after_round()), serial.train(ARRIVAL)
    assert overlapped.trainers.calls == serial.trainers.calls
    assert overlapped.weights() == serial.weights()
    assert first.updates == second.updates
    assert first.samples == second.samples


@given(arrival=st.permutations(ARRIVAL), groups_per_update=st.integers(1, 6), num_epochs=st.integers(1, 2))
def test_after_the_round_neither_lengths_nor_rewards_decide_which_groups_come_first(
    arrival: list[int], groups_per_update: int, num_epochs: int
) -> None:
    one, other = (Step(pipelined=False, groups_per_update=groups_per_update, num_epochs=num_epochs) for _ in range(2))
    trained = [one.train(ARRIVAL), other.train(arrival)]
    assert one.trainers.calls == other.trainers.calls
    assert one.weights() == other.weights()
    assert trained[0] == trained[1]
    assert sorted(row for rows in one.rows() for row in rows) == sorted(list(ARRIVAL) * num_epochs)


def test_after_the_round_no_update_prefers_the_first_or_the_last_rows_of_the_data() -> None:
    """Data sets follow each other in the rows, and files may be sorted by difficulty."""
    firsts = sum(row < 4 for epoch in range(50) for row in order_after_round(range(8), epoch)[:4])
    assert 80 <= firsts <= 120, "of 200, half"


def test_while_the_round_runs_updates_take_u_groups_in_order_of_becoming_trainable() -> None:
    """Within a batch they are ordered by draw: sums do not depend on who was quicker by a moment."""
    step = Step(pipelined=True)
    trained = step.train()
    assert step.trainers.calls == [
        ("add", 0, 4), ("step",),
        ("add", 2, 5), ("step",),
        ("add", 1, 3), ("step",),
    ]  # fmt: skip
    assert [update.update.policy_version for update in trained.updates] == [1, 2, 3]
    assert trained.policy_version == 3
    assert len(trained.samples) == 12


def test_the_last_update_of_a_round_may_be_smaller() -> None:
    step = Step(pipelined=True, groups_per_update=4)
    trained = step.train()
    assert step.trainers.calls == [("add", 0, 2, 4, 5), ("step",), ("add", 1, 3), ("step",)]
    assert trained.updates[1].sums.num_tokens == 2 * 2 * 4


def test_a_large_update_reaches_the_trainers_in_batches_and_steps_once() -> None:
    """Each group has 2 * (3 + 4) = 14 tokens with its prompts, so that two fit into 30."""
    step = Step(pipelined=True, groups_per_update=6, max_tokens=30)
    whole = Step(pipelined=True, groups_per_update=6)
    one, other = step.train(), whole.train()
    assert step.trainers.calls == [("add", 0, 4), ("add", 2, 5), ("add", 1, 3), ("step",)]
    assert step.weights() == whole.weights()
    assert one.updates[0].denominator == other.updates[0].denominator


@pytest.mark.parametrize("pipelined", [True, False])
def test_only_the_first_update_is_held_to_the_limit_since_later_weights_differ(pipelined: bool) -> None:
    step = Step(pipelined=pipelined, max_mismatch=0.1)
    step.train()
    assert step.trainers.limits == [0.1, None, None]


@pytest.mark.parametrize("pipelined", [True, False])
def test_the_trainers_have_begun_once_they_were_given_anything(pipelined: bool) -> None:
    step = Step(pipelined=pipelined)
    step.updates.train_on(group(4))
    assert not step.updates.may_have_updated, "the first update is not complete"
    step.updates.train_on(group(0))
    assert step.updates.may_have_updated is pipelined
    trained = step.updates.finish()
    assert step.updates.may_have_updated
    assert trained.first_dispatch_s == 1.0


def test_every_epoch_makes_the_same_updates_and_the_batch_counts_once() -> None:
    step = Step(pipelined=False, groups_per_update=3, num_epochs=2, max_mismatch=0.1)
    trained = step.train()
    order = order_after_round()
    halves = [("add", *sorted(order[:3])), ("step",), ("add", *sorted(order[3:])), ("step",)]
    assert step.trainers.calls == halves * 2
    assert step.trainers.limits == [0.1, None, None, None]
    assert [update.update.policy_version for update in trained.updates] == [1, 2, 3, 4]
    assert trained.batches[:2] == trained.batches[2:], "lost trainers repeat every update"
    assert len(trained.samples) == 12
    assert trained.num_tokens == 12 * 4
    assert trained.sums.num_tokens == 2 * 12 * 4


def test_old_log_probs_are_those_of_the_steps_start_in_all_updates() -> None:
    step = Step(pipelined=False, groups_per_update=3, num_epochs=2, computes_old_log_probs=True)
    trained = step.train()
    order = order_after_round()
    assert step.trainers.calls[0] == ("log_probs", *sorted(order[:3]), *sorted(order[3:]))
    assert [call[0] for call in step.trainers.calls[1:]] == ["add", "step"] * 4
    assert {old for batch in trained.batches for old in old_log_probs_of(batch)} == {(0.0,) * 4}, "of version 0"
    assert trained.old_log_probs_s == 3.0
    assert trained.compute_s == 3.0 + sum(update.compute_s for update in trained.updates)


def test_values_of_the_steps_start_give_tokens_their_advantages_in_all_updates() -> None:
    step = Step(pipelined=False, groups_per_update=3, num_epochs=2, critic=Ppo(whiten=False))
    trained = step.train()
    assert step.trainers.calls[0] == ("values", *sorted(order_after_round()[:3]), *sorted(order_after_round()[3:]))
    assert trained.batches[:2] == trained.batches[2:], "also of the second epoch, whose weights are others"
    for sample in trained.samples:
        assert sample.values is not None and sample.values.tolist() == [0.0, 1.0, 2.0, 3.0]
        assert sample.returns is not None and set(sample.returns) == {sample.reward}
        assert sample.token_advantages.tolist() == [sample.reward - value for value in sample.values]
    whitened = Step(pipelined=False, groups_per_update=3, critic=Ppo()).train()
    advantages = np.concatenate([sample.token_advantages for sample in whitened.samples])
    assert (advantages.mean(), advantages.std(ddof=1)) == pytest.approx((0.0, 1.0), abs=1e-5), "of the whole batch"
    assert (whitened.values_s, whitened.compute_s) == (5.0, 5.0)


def test_responses_that_go_on_are_trained_on_with_the_batch_and_are_not_in_it() -> None:
    algorithm = Algorithm(
        steps=1, prompts_per_step=6, responses_per_prompt=1, max_response_tokens=8, objective=Tppo(), epochs_per_step=2
    )
    kept = {
        ResponseId(Draw(0, row), 0): Completion("", Trajectory.sampled(version, [7] * 3, [-1.0] * 3), ABORT, 1)
        for row, version in ((6, 1), (7, 0))
    }
    (unfinished,) = unfinished_samples(kept, PROMPTS, algorithm, policy_version=1)
    assert unfinished.draw == Draw(0, 6), "this round sampled nothing of the other one"
    step = Step(pipelined=False, groups_per_update=6, num_epochs=2, critic=Tppo(whiten=False, gamma=0.5))
    step.updates.train_on_unfinished([unfinished])
    trained = step.train()
    assert step.trainers.calls[1:] == [("add", 0, 1, 2, 3, 4, 5, 6), ("step",)] * 2
    *finished, last = trained.trained
    assert trained.samples == tuple(finished)
    assert last.returns is None
    # Values are 0, 1, 2, and the state after the last token is taken to have the value 2, too.
    assert last.token_advantages.tolist() == [0.25, -0.5, -1.0]
    for sample in finished:
        assert sample.returns is not None
        assert np.allclose(sample.returns, sample.reward * 0.5 ** np.arange(3, -1, -1)), "the discounted reward"


def test_tppo_trains_on_every_token_once_and_with_the_reward_on_the_last_ones() -> None:
    algorithm = Algorithm(steps=1, prompts_per_step=6, responses_per_prompt=1, max_response_tokens=64, objective=Tppo())
    response, record = ResponseId(Draw(0, 0), 0), PROMPTS
    pieces = [Trajectory.sampled(version, [7] * 2, [-1.0] * 2) for version in range(3)]
    sampled, trained = Trajectory.sampled(0, [], []), list[Sample]()
    for version, piece in enumerate(pieces):
        sampled += piece
        is_last = piece is pieces[-1]
        left = Completion("", sampled, FinishReason.STOP if is_last else ABORT, 1)
        trained += unfinished_samples({response: left}, record, algorithm, version)
    assert unfinished_samples({response: left}, record, algorithm, 3) == [], "it waits for its reward"
    waited = ScoredGroup(response.draw, (ScoredResponse(response, left, 1.0, False),))
    trained += batch_samples([waited], record, algorithm, policy_version=4)
    assert [one.is_finished for one in trained] == [False, False, True]
    assert [np.flatnonzero(one.in_loss).tolist() for one in trained] == [[0, 1], [2, 3], [4, 5]]
    assert trained[-1].num_stale_tokens == 6, "of which engines and trainers cannot be compared"
    cut_before = Completion("", sampled, ABORT, 1)
    assert unfinished_samples({response: cut_before}, record, algorithm, 3) == [], "this round has not gone on with it"


def test_trainers_that_came_back_compute_old_log_probs_again() -> None:
    step = Step(pipelined=False, computes_old_log_probs=True, num_epochs=2)
    step.train()
    calls = list(step.trainers.calls)
    step.trainers.calls.clear()
    step.updates.restart()
    step.updates.finish()
    assert step.trainers.calls == calls


def test_pipelined_updates_compare_with_the_engine_once_sampling_weights_are_gone() -> None:
    step = Step(pipelined=True, max_tokens=20, compares_later_with_engine=True)
    trained = step.train()
    step.updates.restart()
    for one in (trained, step.updates.finish()):
        first, *later = one.batches
        assert len(later) == 2
        assert {sample.old_log_probs for sample in first} == {None}, "of the weights that are trained"
        assert all(sample.old_log_probs is sample.trajectory.log_probs for batch in later for sample in batch)
        assert one.old_log_probs_s is None


def step_of(
    algorithm: Algorithm, handover: Handover, *, on_own_gpus: bool = True, num_updates: int = 1
) -> StepTraining:
    """The step of a job with this algorithm."""
    work = step_work(
        LoopOptions(algorithm, Evaluation(), OnFinish.DRAIN, 1, trains_during_rollout=on_own_gpus),
        OneReplica(FakeTrainer(Path(), OPTIONS)),  # type: ignore[arg-type]
        PROMPTS,
        queue.SimpleQueue(),
        TickingClock(),
        step=1,
        policy_version=0,
        handover=handover,
        num_updates=num_updates,
    )
    for row in ARRIVAL:
        work.train_on(group(row))
    return work.finish()


OWN, FROM_A_PASS, FROM_THE_ENGINE = None, (0.0,) * 4, (-1.0,) * 4
"""Old log-probabilities of a sample."""


def old_log_probs_of(batch: Sequence[Sample]) -> set[tuple[float, ...] | None]:
    return {None if one.old_log_probs is None else tuple(one.old_log_probs.tolist()) for one in batch}


GSPO, CORRECTED = {"objective": Gspo()}, {"rollout_correction": RolloutCorrection()}


@pytest.mark.parametrize("relative", [GSPO, CORRECTED])
@pytest.mark.parametrize(
    ("fields", "handover", "num_updates", "found"),
    [
        ({}, Handover.AFTER_ROUND, 1, [OWN]),
        ({}, Handover.PIPELINED, 1, [OWN]),
        ({"prompts_per_update": 3}, Handover.AFTER_ROUND, 1, [FROM_A_PASS] * 2),
        ({"epochs_per_step": 2}, Handover.AFTER_ROUND, 1, [FROM_A_PASS] * 2),
        ({}, Handover.AFTER_ROUND, 3, [FROM_A_PASS] * 3),
        ({}, Handover.PIPELINED, 3, [OWN]),
    ],
)
def test_only_several_updates_make_a_pass_to_compare_with_the_trainer_at_step_start(
    relative: dict[str, Any],
    fields: dict[str, Any],
    handover: Handover,
    num_updates: int,
    found: list[tuple[float, ...] | None],
) -> None:
    trained = step_of(ALGORITHM.model_copy(update=fields | relative), handover, num_updates=num_updates)
    assert [old_log_probs_of(batch) for batch in trained.batches] == [{one} for one in found]
    assert (trained.old_log_probs_s is not None) is (FROM_A_PASS in found)


@pytest.mark.parametrize(
    ("on_own_gpus", "found"), [(True, [OWN, FROM_THE_ENGINE]), (False, [FROM_A_PASS, FROM_A_PASS])]
)
def test_several_pipelined_updates_compare_with_the_trainer_while_its_weights_exist(
    on_own_gpus: bool, found: list[tuple[float, ...] | None]
) -> None:
    """On shared GPUs they begin after the round."""
    algorithm = ALGORITHM.model_copy(update=GSPO | {"prompts_per_update": 3})
    trained = step_of(algorithm, Handover.PIPELINED, on_own_gpus=on_own_gpus)
    assert [old_log_probs_of(batch) for batch in trained.batches] == [{one} for one in found]


@pytest.mark.parametrize("handover", [Handover.AFTER_ROUND, Handover.PIPELINED])
def test_ratios_of_tokens_ask_for_no_pass(handover: Handover) -> None:
    trained = step_of(ALGORITHM.model_copy(update={"prompts_per_update": 3}), handover)
    assert trained.old_log_probs_s is None
    assert {sample.old_log_probs for sample in trained.samples} == {None}


def test_a_step_of_one_update_asks_for_no_pass_of_its_own() -> None:
    trained = Step(pipelined=False, groups_per_update=6).train()
    assert trained.old_log_probs_s is None
    assert all(sample.old_log_probs is None for sample in trained.samples)


def test_only_a_pipeline_has_a_token_budget_and_only_where_advantages_allow_it() -> None:
    grpo, whitened = OBJECTIVES["GRPO"], OBJECTIVES["ReinforcePlusPlus"]
    assert max_tokens_per_batch(grpo, 1, is_pipelined=True) == 131_072
    assert max_tokens_per_batch(grpo, 3, is_pipelined=True) == 3 * 131_072, "of each replica"
    assert max_tokens_per_batch(grpo, 1, is_pipelined=False) > 10**12
    assert max_tokens_per_batch(whitened, 1, is_pipelined=True) > 10**12
