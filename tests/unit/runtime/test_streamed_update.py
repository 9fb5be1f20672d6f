"""A streamed step: whatever arrives when, every sample is computed by one replica, and one update follows."""

import queue
import random
from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from longshore_runtime.rollout.events import Event, GradientsDone
from longshore_runtime.trainer.streaming import StreamedUpdate
from longshore_runtime.trainer_protocol import Sample
from tests.contract.trainers.replicas import make_samples
from tests.contract.trainers.streams import Replicas, StillClock, stream

BATCH = make_samples(24)
GROUPS: dict[Any, list[Sample]] = {}
for _sample in BATCH:
    GROUPS.setdefault(_sample.draw, []).append(_sample)
DRAWS = list(GROUPS)


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
    replicas = Replicas(num_replicas)
    stream(replicas, BATCH, random.Random(seed), loses_world=loses_world)
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
    first, second = (
        sum(len(one.prompt_tokens) + len(one.response_tokens) for one in GROUPS[draw]) for draw in DRAWS[:2]
    )
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


def test_its_progress_is_of_all_samples_that_are_there_and_begins_again_with_a_new_world() -> None:
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
