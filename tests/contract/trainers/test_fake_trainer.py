"""The fake trainer tells batches apart by everything that must not get lost."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from longshore.policy.draws import Draw
from longshore_runtime.backends.fake_trainer import FakeTrainer
from longshore_runtime.backends.trainer_protocol import Sample
from tests.contract.trainers.replicas import OPTIONS, make_samples, step

SAMPLES = make_samples()


@pytest.mark.parametrize(
    "change",
    [
        lambda sample: replace(sample, draw=Draw(1, sample.draw.index)),
        lambda sample: replace(sample, index=9),
        lambda sample: replace(sample, trajectory=replace(sample.trajectory, tokens=sample.trajectory.tokens[::-1])),
        lambda sample: replace(sample, advantage=sample.advantage + 1e-12),
        lambda sample: replace(sample, loss_mask=[False, *sample.in_loss[1:]]),
    ],
    ids=["draw", "index", "tokens", "advantage", "loss mask"],
)
def test_any_difference_in_one_sample_shows_in_the_weights(change: Callable[[Sample], Sample], model: Path) -> None:
    one, other = FakeTrainer(model, OPTIONS), FakeTrainer(model, OPTIONS)
    expected = step(one, [SAMPLES]).weights
    actual = step(other, [[change(SAMPLES[0]), *SAMPLES[1:]]]).weights
    assert any(not np.array_equal(expected[name], actual[name]) for name in expected)
