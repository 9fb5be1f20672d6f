"""What `make bench NAME=learning` makes of its runs."""

from typing import Any

import pytest
from benchmarks import learning

from longshore.api.rollout import Handover, OnPolicy, Strategy


def run(variant: str, seed: int, *, step_s: float, rewards: list[float]) -> dict[str, Any]:
    points = [
        {"step": float(at), "seconds": at * step_s, "reward": reward, "long": reward / 2}
        for at, reward in enumerate(rewards)
    ]
    return {
        "variant": variant,
        "seed": seed,
        "reward": rewards[-1],
        "long": rewards[-1] / 2,
        "gain": rewards[-1] - rewards[0],
        "step_s": step_s,
        "points": points,
    }


def test_a_figure_between_two_evaluations_lies_between_theirs_and_stays_after_the_last() -> None:
    points = run("Synchronous", 0, step_s=10.0, rewards=[0.0, 0.4, 0.6])["points"]
    assert [learning.at_seconds(points, at, "reward") for at in (0.0, 5.0, 10.0, 15.0, 20.0, 99.0)] == pytest.approx(
        [0.0, 0.2, 0.4, 0.5, 0.6, 0.6]
    )


def test_a_quicker_strategy_that_learns_alike_by_step_is_ahead_at_equal_seconds() -> None:
    runs = [run("Synchronous", seed, step_s=10.0, rewards=[0.0, 0.4, 0.8]) for seed in range(3)]
    runs += [run("TailBatching", seed, step_s=5.0, rewards=[0.0, 0.4, 0.8]) for seed in range(3)]
    found = learning.compared(runs, ["Synchronous", "TailBatching"])["TailBatching"]
    assert found["reward_less_baseline"] == {"low": 0.0, "mean": 0.0, "high": 0.0}
    assert found["reward_less_baseline_at_equal_s"]["mean"] == pytest.approx(0.4)
    assert found["long_less_baseline_at_equal_s"]["mean"] == pytest.approx(0.2)


def test_every_strategy_and_every_handover_is_compared() -> None:
    specs = {name: learning._spec(name, 0, 60).rollout for name in learning.VARIANTS}
    assert {one.strategy for one in specs.values()} == set(Strategy)
    assert {one.effective_handover for one in specs.values()} == set(Handover)
    relaxed = {name for name, one in specs.items() if one.on_policy is not OnPolicy.STRICT}
    assert relaxed == {"PartialRollout"}
