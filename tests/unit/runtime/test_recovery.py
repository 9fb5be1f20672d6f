"""When lost trainers start again, and when not; `test_training_loop` shows that they come back as they were."""

from dataclasses import dataclass
from typing import Any

import pytest

from longshore_runtime.errors import TrainerLost
from longshore_runtime.trainer import recovery
from longshore_runtime.trainer.recovery import Recovery
from longshore_runtime.trainer.updates import StepTraining
from tests.contract.trainers.replicas import make_samples


@dataclass
class World:
    """A trainer world that counts its starts."""

    generation: int = 0

    def restart(self) -> None:
        self.generation += 1

    def wake(self) -> None: ...


def recovery_of(world: Any) -> Recovery:
    return Recovery(world, load=lambda: None)


def test_what_is_heard_of_an_older_world_is_no_loss() -> None:
    restored = recovery_of(World(generation=2))
    restored.lost("a trainer replica is gone", generation=1)
    assert not restored.is_lost
    restored.lost("a trainer replica is gone", generation=2)
    assert restored.is_lost


def test_a_loss_that_was_reported_is_repaired_before_the_next_work() -> None:
    world = World()
    restored = recovery_of(world)
    restored.lost("a trainer replica is gone", generation=0)
    done: list[str] = []
    restored.guarded(lambda: done.append("work"), lambda: done.append("again"))
    assert done == ["again", "work"]
    assert world.generation == 1


def test_with_too_many_tokens_since_the_checkpoint_the_steps_are_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recovery, "MAX_KEPT_TOKENS", 10)
    world = World()
    restored = recovery_of(world)
    restored.trained(StepTraining((), (tuple(make_samples(4)),), 0.0))

    def lose() -> None:
        raise TrainerLost("a trainer replica is gone (ActorDiedError)")

    with pytest.raises(TrainerLost):
        restored.guarded(lose)
    assert world.generation == 0
