"""The fake trainer tells batches apart by everything that must not get lost."""

import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from benchmarks.measured_process import free_port

from longshore.policy.draws import Draw
from longshore_runtime.backends.fake_trainer import FakeTrainer
from longshore_runtime.backends.fake_world import FakeWorld
from longshore_runtime.backends.world import World
from longshore_runtime.trainer_protocol import Sample
from tests.contract.trainers.replicas import OPTIONS, make_samples, step

SAMPLES = make_samples()


@pytest.mark.parametrize(
    "change",
    [
        lambda sample: replace(sample, draw=Draw(1, sample.draw.index)),
        lambda sample: replace(sample, index=9),
        lambda sample: replace(sample, response_tokens=sample.response_tokens[::-1]),
        lambda sample: replace(sample, advantage=sample.advantage + 1e-12),
        lambda sample: replace(sample, loss_mask=(False, *(True for _ in sample.response_tokens[1:]))),
    ],
    ids=["draw", "index", "tokens", "advantage", "loss mask"],
)
def test_any_difference_in_one_sample_shows_in_the_weights(change: Callable[[Sample], Sample], model: Path) -> None:
    one, other = FakeTrainer(model, OPTIONS), FakeTrainer(model, OPTIONS)
    expected = step(one, [SAMPLES]).weights
    actual = step(other, [[change(SAMPLES[0]), *SAMPLES[1:]]]).weights
    assert any(not np.array_equal(expected[name], actual[name]) for name in expected)


def test_a_lost_replica_is_an_error_in_the_others() -> None:
    worlds: dict[int, FakeWorld] = {}
    port = free_port()

    def meet(rank: int) -> None:
        worlds[rank] = FakeWorld(World(rank, 2, port=port))

    threads = [threading.Thread(target=meet, args=(rank,)) for rank in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    worlds[1].close()
    with pytest.raises(ConnectionError, match="Connection closed"):
        worlds[0].add_up([1])
    worlds[0].close()
