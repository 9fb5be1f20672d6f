"""Every objective makes rewarded responses likelier within a few steps of the torch trainer."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from longshore.api.objectives.advantages import RewardedGroup
from longshore.policy.draws import Draw
from longshore_runtime.backends.torch_trainer import TorchTrainer
from longshore_runtime.backends.trainer_protocol import Sample, TrainerOptions
from longshore_runtime.trainer.group import step_denominator
from longshore_runtime.trajectories.trajectory import Trajectory
from tests.contract.trainers.replicas import BUILT_IN, OPTIONS, options_of

ARMS = ((40, 41), (50, 51, 52), (60, 61), (70, 71, 72))
"""Responses to one prompt; the first one is rewarded."""
REWARDS = (1.0, 0.0, 0.0, 0.0)
QUICK = replace(OPTIONS, learning_rate=3e-3, kl_coefficient=0.0, temperature=1.0, weight_decay=0.0)


def samples_of(trainer: TorchTrainer, options: TrainerOptions) -> list[Sample]:
    """The arms as the present weights sample them, with the advantages of the objective."""
    group = RewardedGroup(REWARDS, [len(tokens) for tokens in ARMS])
    [advantages] = options.objective.advantages([group])
    plain = [
        Sample(Draw(0, 0), index, (5, 6), Trajectory.sampled(0, tokens, [0.0] * len(tokens)), advantage, REWARDS[index])
        for index, (tokens, advantage) in enumerate(zip(ARMS, advantages, strict=True))
    ]
    found = trainer.log_probs(plain)
    return [
        replace(sample, trajectory=replace(sample.trajectory, log_probs=found[place]))
        for place, sample in enumerate(plain)
    ]


@pytest.mark.parametrize("name", BUILT_IN)
def test_the_rewarded_response_becomes_likelier_than_before(model: Path, name: str) -> None:
    options = options_of(name, QUICK)
    trainer, chances = TorchTrainer(model, options), list[float]()
    for _ in range(6):
        samples = samples_of(trainer, options)
        means = [float(np.mean(sample.trajectory.log_probs)) for sample in samples]
        chances.append(means[0] - float(np.mean(means[1:])))
        trainer.accumulate(samples)
        assert np.isfinite(trainer.update(step_denominator(samples, options)).grad_norm)
    assert chances[-1] > chances[0] + 0.1


def test_an_entropy_bonus_raises_the_entropy_however_samples_are_packed(model: Path) -> None:
    """Without any advantage it alone has a gradient, also in micro-batches of one response."""
    entropies = []
    for coefficient, max_tokens in ((0.0, 64), (1.0, 64), (1.0, 1)):
        options = replace(QUICK, entropy_coefficient=coefficient, max_tokens_per_micro_batch=max_tokens)
        trainer = TorchTrainer(model, options)
        for _ in range(3):
            samples = [replace(sample, advantage=0.0) for sample in samples_of(trainer, options)]
            sums = trainer.accumulate(samples)
            report = trainer.update(step_denominator(samples, options))
        entropies.append(sums.entropy / sums.num_tokens)
        assert (report.grad_norm > 0) == (coefficient > 0)
    assert entropies[1] > entropies[0]
    assert entropies[2] == pytest.approx(entropies[1], rel=1e-5)
