"""Trainers that are lost come back as they were: no response is sampled again, and no update is lost or doubled."""

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from longshore_runtime.backends.fake_trainer import FakeTrainer
from longshore_runtime.errors import TrainerLost
from longshore_runtime.trainer import recovery
from longshore_runtime.trainer.recovery import Recovery
from longshore_runtime.trainer.samples import step_denominator
from longshore_runtime.trainer.updates import StepTraining
from longshore_runtime.trainer_protocol import Sample, TrainResult
from tests.contract.trainers.replicas import OPTIONS, make_samples
from tests.properties import examples

BATCHES = [make_samples(4, seed=seed) for seed in range(6)]


@dataclass
class World:
    """A trainer world that loses a rank whenever the test says so."""

    checkpoints: Path
    generation: int = 0
    losses_ahead: list[int] = field(default_factory=list)
    """Calls after which it is lost."""
    num_calls: int = 0
    is_lost: bool = False

    def __post_init__(self) -> None:
        self.trainer = FakeTrainer(Path(), OPTIONS)

    def restart(self) -> None:
        self.trainer = FakeTrainer(Path(), OPTIONS)
        self.generation += 1
        self.is_lost = False

    def wake(self) -> None:
        self._answer()

    def load(self) -> None:
        self._answer()
        newest = max(self.checkpoints.iterdir(), key=lambda path: int(path.name), default=None)
        if newest is not None:
            self.trainer.load(newest)

    def save(self, step: int) -> None:
        self._answer()
        self.trainer.save(self.checkpoints / str(step))

    def train(self, samples: Sequence[Sample]) -> TrainResult:
        self._answer()
        sums = self.trainer.accumulate(samples)
        denominator = step_denominator(samples, OPTIONS)
        return TrainResult(sums, self.trainer.update(denominator), denominator)

    def _answer(self) -> None:
        self.num_calls += 1
        if self.losses_ahead and self.losses_ahead[0] <= self.num_calls:
            self.losses_ahead.pop(0)
            self.is_lost = True
        if self.is_lost:
            raise TrainerLost("a trainer replica is gone (ActorDiedError)")


def run(world: World, every: int = 3) -> dict[str, list[float]]:
    """Every batch is one step with two updates; checkpoints in between; the weights that come out."""
    restored = Recovery(world, world.load)  # type: ignore[arg-type]
    for step, batch in enumerate(BATCHES, start=1):
        halves = (tuple(batch[:2]), tuple(batch[2:]))

        def work(halves: tuple[tuple[Sample, ...], ...] = halves) -> StepTraining:
            return StepTraining(tuple(map(world.train, halves)), halves, 0.0)

        restored.trained(restored.guarded(work))
        if step % every == 0:
            restored.guarded(lambda step=step: world.save(step))  # type: ignore[misc]
            restored.checkpointed()
    return {name: values.tolist() for name, values in world.trainer.weights()}


@settings(deadline=None, max_examples=examples(60))
@given(st.lists(st.integers(1, 40), max_size=3, unique=True).map(sorted), st.integers(1, 4))
def test_whenever_a_rank_is_lost_the_weights_are_those_of_an_undisturbed_run(losses: list[int], every: int) -> None:
    with tempfile.TemporaryDirectory() as calm, tempfile.TemporaryDirectory() as rough:
        expected = run(World(Path(calm)), every)
        assert run(World(Path(rough), losses_ahead=losses), every) == expected


def test_what_is_heard_of_an_older_world_is_no_loss(tmp_path: Path) -> None:
    world = World(tmp_path, generation=2)
    restored = Recovery(world, world.load)  # type: ignore[arg-type]
    restored.lost("a trainer replica is gone", generation=1)
    assert not restored.is_lost
    restored.lost("a trainer replica is gone", generation=2)
    assert restored.is_lost


def test_a_loss_that_was_reported_is_repaired_before_the_next_work(tmp_path: Path) -> None:
    world = World(tmp_path)
    restored = Recovery(world, world.load)  # type: ignore[arg-type]
    world.is_lost = True
    restored.lost("a trainer replica is gone", generation=0)
    done: list[str] = []
    restored.guarded(lambda: done.append("work"), lambda: done.append("again"))
    assert done == ["again", "work"]
    assert world.generation == 1


def test_a_world_that_is_lost_again_and_again_is_given_up(tmp_path: Path) -> None:
    world = World(tmp_path, losses_ahead=list(range(1, 20)))
    with pytest.raises(TrainerLost):
        run(world)


def test_with_too_many_tokens_since_the_checkpoint_the_steps_are_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recovery, "MAX_KEPT_TOKENS", 10)
    world = World(tmp_path)
    restored = Recovery(world, world.load)  # type: ignore[arg-type]
    batch = tuple(BATCHES[0])
    restored.trained(StepTraining((world.train(batch),), (batch,), 0.0))
    world.is_lost = True
    with pytest.raises(TrainerLost):
        restored.guarded(lambda: world.train(batch))
