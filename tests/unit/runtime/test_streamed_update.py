"""A streamed step: whatever arrives when, every sample is computed by one replica, and one update follows."""

import queue
import random
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from longshore_runtime.backends.sums import GradientSums
from longshore_runtime.backends.trainer_protocol import Sample, TrainResult, UpdateReport
from longshore_runtime.rollout.events import Event, GradientsDone
from longshore_runtime.trainer.group import PendingUpdate
from longshore_runtime.trainer.streaming import StreamedUpdate
from tests.contract.trainers.replicas import make_samples
from tests.unit.runtime.scripted import StillClock

BATCH = make_samples(24)
GROUPS: dict[Any, list[Sample]] = {}
for _sample in BATCH:
    GROUPS.setdefault(_sample.draw, []).append(_sample)
DRAWS = list(GROUPS)


@dataclass
class Answer:
    """Answer of a replica to one part, at the moment that the test chooses."""

    replica: int
    reply: "Future[object]" = field(default_factory=Future)

    def future(self) -> "Future[object]":
        return self.reply


@dataclass
class Replicas:
    """Stands for a trainer group: remembers which replica was given what, in which order."""

    num_replicas: int
    parts: list[list[tuple[Sample, ...]]] = field(default_factory=list)
    answers: list[Answer] = field(default_factory=list)
    num_updates: int = 0
    num_given: int = 0

    def num_computed(self) -> float:
        return self.num_given

    def begin(self) -> PendingUpdate:
        self.parts = [[] for _ in range(self.num_replicas)]
        self.answers = []
        return PendingUpdate()

    def give(self, update: PendingUpdate, replica: int, samples: Sequence[Sample]) -> Any:
        assert not any(update.steps), "samples after the end of the update"
        update.samples += samples
        self.num_given += len(samples)
        self.parts[replica].append(tuple(samples))
        self.answers.append(Answer(replica))
        return self.answers[-1]

    def end(
        self,
        update: PendingUpdate,
        *,
        verify: bool = False,
        batch: Sequence[Sample] = (),
        max_mismatch: float | None = None,
    ) -> None:
        assert sorted(map(id, batch)) == sorted(map(id, update.samples)), "the batch is what the replicas were given"
        update.steps = [None]

    def finish(self, update: PendingUpdate) -> TrainResult:
        self.num_updates += 1
        return TrainResult(GradientSums(), UpdateReport(0.0, 0.0, self.num_updates), update.denominator)

    def answer_one(self, rng: random.Random) -> None:
        """One replica has computed the oldest part that it has in hand."""
        waiting = {one.replica: one for one in reversed(self.answers) if not one.reply.done()}
        if waiting:
            rng.choice(list(waiting.values())).reply.set_result(None)


def begun(replicas: Replicas, awake: tuple[int, ...] = ()) -> tuple[StreamedUpdate, "queue.SimpleQueue[Event]"]:
    events: queue.SimpleQueue[Event] = queue.SimpleQueue()
    update = StreamedUpdate(
        replicas,  # type: ignore[arg-type]
        lambda groups: GROUPS[groups[0]],  # type: ignore[index]
        events,
        StillClock(),
        awake=awake,
    )
    return update, events


def handed(replicas: Replicas) -> list[int]:
    """Parts by replica."""
    return [len(parts) for parts in replicas.parts]


@settings(deadline=None)
@given(st.integers(1, 4), st.integers(0, 10_000), st.booleans())
def test_every_sample_is_in_the_sums_of_one_replica(num_replicas: int, seed: int, loses_world: bool) -> None:
    """Groups arrive in any order, and replicas wake at any moment or never before the end."""
    replicas, rng = Replicas(num_replicas), random.Random(seed)
    update, events = begun(replicas)
    happenings: list[Any] = [*DRAWS, *rng.sample(range(num_replicas), rng.randint(0, num_replicas))]
    rng.shuffle(happenings)
    for one in happenings:
        if isinstance(one, int):
            update.replicas_awake([one])
        else:
            update.train_on(one)
        for _ in range(rng.randrange(3)):
            replicas.answer_one(rng)
        while not events.empty():
            event = events.get()
            assert isinstance(event, GradientsDone)
            update.gradients_done(event)
    if loses_world:
        update.restart()
    update.finish()
    given_out = Counter((one.draw, one.index) for parts in replicas.parts for part in parts for one in part)
    assert given_out == Counter((one.draw, one.index) for one in BATCH)
    assert replicas.num_updates == 1


def test_nothing_is_computed_before_a_replica_wakes() -> None:
    replicas = Replicas(2)
    update, _ = begun(replicas)
    update.train_on(DRAWS[0])  # type: ignore[arg-type]
    assert handed(replicas) == [0, 0]
    update.replicas_awake([1])
    assert handed(replicas) == [0, 1]


def test_streamed_gradients_change_no_weights_before_the_end_of_the_round() -> None:
    update, _ = begun(Replicas(1), awake=(0,))
    update.train_on(DRAWS[0])  # type: ignore[arg-type]
    assert not update.may_have_updated
    update.finish()
    assert update.may_have_updated


def test_a_group_goes_to_an_awake_replica_the_moment_it_is_trainable() -> None:
    replicas = Replicas(2)
    update, _ = begun(replicas, awake=(0, 1))
    update.train_on(DRAWS[0])  # type: ignore[arg-type]
    update.train_on(DRAWS[1])  # type: ignore[arg-type]
    assert handed(replicas) == [1, 1]


def test_a_replica_gets_the_next_group_when_it_has_computed_one() -> None:
    replicas = Replicas(1)
    update, events = begun(replicas, awake=(0,))
    for draw in DRAWS:
        update.train_on(draw)  # type: ignore[arg-type]
    assert handed(replicas) == [2]
    replicas.answers[0].reply.set_result(None)
    event = events.get_nowait()
    assert isinstance(event, GradientsDone)
    update.gradients_done(event)
    assert handed(replicas) == [3]


def test_a_step_reports_what_was_computed_when_its_round_ended() -> None:
    replicas = Replicas(1)
    update, events = begun(replicas, awake=(0,))
    for draw in DRAWS:
        update.train_on(draw)  # type: ignore[arg-type]
    replicas.answers[0].reply.set_result(None)
    update.gradients_done(events.get_nowait())  # type: ignore[arg-type]
    trained = update.finish()
    first, second = (sum(one.num_tokens for one in GROUPS[draw]) for draw in DRAWS[:2])
    assert trained.streamed_tokens == first + second // 2
    assert first < trained.streamed_tokens < trained.batch_tokens


def test_what_is_left_at_the_end_is_spread_over_all_replicas() -> None:
    replicas = Replicas(4)
    update, _ = begun(replicas)
    for draw in DRAWS:
        update.train_on(draw)  # type: ignore[arg-type]
    trained = update.finish()
    assert handed(replicas) == [1, 1, 1, 1]
    assert sorted(trained.samples, key=lambda one: (one.draw, one.index)) == BATCH
    assert Counter(trained.replica_of.values()) == {replica: len(replicas.parts[replica][0]) for replica in range(4)}


def test_a_part_of_a_lost_world_says_nothing_about_the_next() -> None:
    replicas = Replicas(1)
    update, events = begun(replicas, awake=(0,))
    update.train_on(DRAWS[0])  # type: ignore[arg-type]
    old = replicas.answers[0]
    update.restart()
    old.reply.set_result(None)
    event = events.get_nowait()
    assert isinstance(event, GradientsDone)
    update.gradients_done(event)
    assert update.finish().first_gradient_s is None


def test_a_part_that_failed_is_not_reported_as_done() -> None:
    replicas = Replicas(1)
    update, events = begun(replicas, awake=(0,))
    update.train_on(DRAWS[0])  # type: ignore[arg-type]
    replicas.answers[0].reply.set_exception(RuntimeError("the replica is gone"))
    with pytest.raises(queue.Empty):
        events.get_nowait()


def test_its_progress_counts_all_samples_that_are_there_and_restarts_with_trainers() -> None:
    replicas = Replicas(2)
    replicas.num_given = 5
    update, _ = begun(replicas, awake=(0, 1))
    assert update.progress() == (0, 0)
    update.train_on(DRAWS[0])  # type: ignore[arg-type]
    size = len(GROUPS[DRAWS[0]])
    assert update.progress() == (size, size)
    replicas.num_given = 3
    update.restart()
    assert update.progress() == (0, size)
    update.replicas_awake([0])
    assert update.progress() == (size, size)
