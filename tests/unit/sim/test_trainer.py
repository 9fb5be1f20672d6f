"""The simulated trainer."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from longshore.sim.costs import Costs
from longshore.sim.events import EventQueue
from longshore.sim.hardware import GPUS, MODELS
from longshore.sim.profile import Profile
from longshore.sim.result import SpanRecorder
from longshore.sim.trainer import SimTrainer, StreamingTrainer, TrainerShape, makespan_s


def shape(num_replicas: int) -> TrainerShape:
    """One token takes a second, an update ten."""
    costs = Costs(GPUS["H800"], MODELS["Qwen2.5-7B"], Profile(train_tokens_per_s=1, optimizer_s=10))
    return TrainerShape(costs, tuple((gpu,) for gpu in range(num_replicas)))


def test_a_pass_for_old_log_probs_costs_a_forward_and_every_epoch_a_whole_pass() -> None:
    """By roofline and by measurement: a backward pass costs two forward ones."""
    for costs in (Costs(GPUS["H800"], MODELS["Qwen2.5-7B"]), shape(1).costs):
        for extra in (0, 1):
            plain = TrainerShape(costs, ((0,),), num_extra_forwards=extra)
            pass_s = plain.sample_s(1000)
            decoupled, twice = replace(plain, computes_old_log_probs=True), replace(plain, num_epochs=2)
            assert decoupled.sample_s(1000) == pytest.approx(pass_s * (1 + 1 / (3 + extra)))
            assert twice.sample_s(1000) == pytest.approx(2 * pass_s)
            assert replace(decoupled, num_epochs=2).sample_s(1000) == pytest.approx(pass_s * (2 + 1 / (3 + extra)))
            assert (decoupled.optimizer_s(), twice.optimizer_s()) == (plain.optimizer_s(), 2 * plain.optimizer_s())


@settings(deadline=None)
@given(st.lists(st.floats(0.1, 100), max_size=40), st.lists(st.floats(0, 50), min_size=1, max_size=8))
def test_pieces_are_spread_evenly(durations: list[float], free_s: list[float]) -> None:
    ends = makespan_s(durations, free_s)
    assert sum(ends) == pytest.approx(sum(durations) + sum(free_s))
    assert all(end_s >= start_s for start_s, end_s in zip(free_s, ends, strict=True))
    if durations:
        assert max(ends) <= max(max(free_s), min(ends) + max(durations)) + 1e-9


def test_batches_queue_and_only_the_last_of_an_update_steps_the_optimizer() -> None:
    trainer = SimTrainer(shape(2), SpanRecorder())
    assert trainer.train([5, 3, 2], 100.0, ends_update=False) == 105.0
    assert trainer.train([4], 101.0, ends_update=True) == 105 + 4 + 10
    assert trainer.compute_s == 19
    assert trainer.first_start_s == 100


def test_freed_replicas_work_through_groups_and_all_replicas_share_the_rest() -> None:
    queue, recorder = EventQueue(), SpanRecorder()
    trainer = StreamingTrainer(shape(2), queue, recorder)
    trainer.train_on([4, 4])
    trainer.join(0, 10.0)
    queue.at(12.0, lambda: trainer.train_on([6, 6]))
    queue.at(20.0, lambda: trainer.train_on([1, 1, 5]))
    queue.run_until(lambda: queue.now_s == 20.0)
    # Replica 0 computes the second group from 18 to 30; replica 1 wakes at 25, takes 5 and 1, replica 0 the last one.
    assert trainer.finish(20.0, others_from_s=25.0) == 31.0 + 10
    assert [(span.gpu, span.start_s, span.end_s) for span in recorder.spans if span.label != "update"] == [
        (0, 10, 18),
        (0, 18, 30),
        (0, 30, 31),
        (1, 25, 31),
    ]


def test_a_round_that_repurposed_nothing_trains_on_all_replicas_at_its_end() -> None:
    trainer = StreamingTrainer(shape(2), EventQueue(), SpanRecorder())
    trainer.train_on([3, 3])
    assert trainer.finish(5.0, others_from_s=7.0) == 7 + 3 + 10
    assert trainer.first_start_s == 7.0
