"""When lost trainers start again, and when not; `test_training_loop` shows that they come back as they were."""

import signal
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from longshore.api.names import Component
from longshore.api.reasons import NoticeReason
from longshore_runtime.backends.trainer_protocol import Sample
from longshore_runtime.cluster.deaths import Death
from longshore_runtime.errors import TrainerLost, UserError
from longshore_runtime.trainer.recovery import PAUSES_S, Recovery
from longshore_runtime.trainer.updates import StepTraining
from longshore_runtime.trainer.world import RankDeath
from tests.contract.trainers.replicas import make_samples


@dataclass
class World:
    """A trainer world that counts its starts, and notes what it trains on."""

    generation: int = 0
    trained: list[Sequence[Sample]] = field(default_factory=list)
    death: RankDeath | None = None

    def find_death(self) -> RankDeath | None:
        return self.death

    def restart(self) -> None:
        self.generation += 1

    def wake(self) -> None: ...

    def train(self, samples: Sequence[Sample]) -> None:
        self.trained.append(samples)


def recovery_of(world: Any, pause: Callable[[float], None] = lambda pause_s: None) -> Recovery:
    return Recovery(world, load=lambda: None, pause=pause)


@dataclass
class EndingPod(World):
    """A world whose ranks die as they start, until so much time has passed."""

    until_s: float = 0.0
    now_s: float = 0.0

    def restart(self) -> None:
        super().restart()
        if self.now_s < self.until_s:
            raise TrainerLost("a trainer replica is gone (ActorDiedError)")

    def pause(self, pause_s: float) -> None:
        self.now_s += pause_s


def test_a_restart_on_a_pod_that_ends_is_repeated_until_ray_has_noticed() -> None:
    world = EndingPod(until_s=15.0)
    restored = recovery_of(world, world.pause)
    restored.lost("a trainer replica is gone", generation=0)
    assert restored.guarded(lambda: "done") == "done"
    assert world.generation == 1 + len(PAUSES_S)


def test_the_first_restart_waits_for_nothing() -> None:
    world = EndingPod()
    restored = recovery_of(world, world.pause)
    restored.lost("a trainer replica is gone", generation=0)
    restored.guarded(lambda: None)
    assert (world.generation, world.now_s) == (1, 0.0)


def test_kept_tokens_are_counted_until_the_next_checkpoint() -> None:
    restored, samples = recovery_of(World()), tuple(make_samples(4))
    num_tokens = sum(one.num_response_tokens for one in samples)
    for number in (1, 2):
        restored.trained(StepTraining((), (samples, samples), 0.0, num_epochs=2))
        assert restored.num_kept_tokens == number * num_tokens, "epochs share their arrays"
    restored.saving()
    restored.saved()
    assert restored.num_kept_tokens == 0


def test_what_does_not_go_away_is_no_reason_to_start_for_ever() -> None:
    world = EndingPod(until_s=1000.0)
    restored = recovery_of(world, world.pause)
    with pytest.raises(TrainerLost, match="a trainer replica is gone"):
        restored.guarded(lambda: world.restart())
    assert world.generation == 1 + len(PAUSES_S)


def test_an_update_is_a_reason_to_start_again_as_often() -> None:
    world = EndingPod(until_s=15.0)
    restored = recovery_of(world, world.pause)
    for until_s in (15.0, 30.0):
        world.until_s = until_s
        restored.lost("a trainer replica is gone", world.generation)
        restored.guarded(lambda: None)
        restored.trained(StepTraining((), (tuple(make_samples(4)),), 0.0))
    assert world.generation == 2 * (1 + len(PAUSES_S))


def test_losses_repaired_at_once_use_up_nothing_however_many_a_long_round_has() -> None:
    world = EndingPod()
    restored = recovery_of(world, world.pause)
    for generation in range(20):
        restored.lost("a trainer replica is gone", generation)
        restored.guarded(lambda: None)
    assert (world.generation, world.now_s) == (20, 0.0)


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


def dead(exit_code: int, peak_bytes: int = 0, *, has_peers: bool = False) -> RankDeath:
    return RankDeath(0, 2, Death(7, exit_code, peak_bytes), 9 << 30, Component.WORKER, 16_384, has_peers)


def lose(restored: Recovery, world: World) -> None:
    restored.lost("a trainer replica is gone", world.generation)
    restored.guarded(lambda: None)


def test_cause_of_a_loss_is_reported_with_the_field_to_change() -> None:
    notices: list[tuple[NoticeReason, str]] = []
    world = World(death=dead(-signal.SIGKILL, 18 << 30))
    restored = Recovery(world, load=lambda: None, notify=lambda *notice: notices.append(notice))  # type: ignore[arg-type]
    lose(restored, world)
    sentence = (
        "trainer replica 0 (worker 2) was killed by signal 9 (SIGKILL) after using 18.0 GiB: probably out of memory. "
        "Lower trainer.maxTokensPerMicroBatch (16384) or raise workers.resources.memory (9.0 GiB)"
    )
    assert notices == [(NoticeReason.TRAINER_LOST, sentence)]


@pytest.mark.parametrize(
    ("exit_code", "peak_bytes"), [(-signal.SIGKILL, 9 << 30), (-signal.SIGSEGV, 0), (-signal.SIGABRT, 0), (1, 0)]
)
def test_same_death_twice_in_one_step_ends_the_job(exit_code: int, peak_bytes: int) -> None:
    world = World(death=dead(exit_code, peak_bytes))
    restored = recovery_of(world)
    lose(restored, world)
    with pytest.raises(UserError, match=r"trainer replica 0 .*; it has happened twice in the same step"):
        lose(restored, world)


def test_deaths_in_different_steps_or_from_outside_do_not_end_the_job() -> None:
    world = World(death=dead(-signal.SIGSEGV))
    restored = recovery_of(world)
    lose(restored, world)
    restored.trained(StepTraining((), (tuple(make_samples(4)),), 0.0))
    lose(restored, world)
    for exit_code in (-signal.SIGKILL, -signal.SIGABRT):
        world.death = dead(exit_code, 1 << 20, has_peers=True)
        for _ in range(5):
            lose(restored, world)
    assert world.generation == 12
