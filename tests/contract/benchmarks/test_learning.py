"""What `make bench NAME=learning` makes of its runs."""

import json
from pathlib import Path
from typing import Any

import pytest
from benchmarks import learning, paired

from longshore.api.rollout import Handover, OnFinish, OnPolicy, Strategy
from longshore.api.runtime_status import HeldOutReward, RuntimeActivity, RuntimeStatus


def run(variant: str, seed: int, *, step_s: float, rewards: list[float], call: str = "now") -> dict[str, Any]:
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
        "call": call,
    }


def test_a_figure_between_two_evaluations_lies_between_theirs_and_stays_after_the_last() -> None:
    points = run("Synchronous", 0, step_s=10.0, rewards=[0.0, 0.4, 0.6])["points"]
    assert [paired.at_seconds(points, at, "reward") for at in (0.0, 5.0, 10.0, 15.0, 20.0, 99.0)] == pytest.approx(
        [0.0, 0.2, 0.4, 0.5, 0.6, 0.6]
    )


def test_a_quicker_strategy_that_learns_alike_by_step_is_ahead_at_equal_seconds() -> None:
    runs = [run("Synchronous", seed, step_s=10.0, rewards=[0.0, 0.4, 0.8]) for seed in range(3)]
    runs += [run("TailBatching", seed, step_s=5.0, rewards=[0.0, 0.4, 0.8]) for seed in range(3)]
    found = paired.compared(runs)["TailBatching"]
    assert found["reward_less_baseline"] == {"low": 0.0, "mean": 0.0, "high": 0.0}
    assert found["reward_less_baseline_at_equal_s"]["mean"] == pytest.approx(0.4)
    assert found["long_less_baseline_at_equal_s"]["mean"] == pytest.approx(0.2)


def test_every_strategy_and_every_handover_is_compared() -> None:
    specs = {name: learning._spec(name, 0, 60).rollout for name in learning.VARIANTS}
    assert {one.strategy for one in specs.values()} == set(Strategy)
    assert {one.effective_handover for one in specs.values()} == set(Handover)
    relaxed = {name for name, one in specs.items() if one.on_policy is not OnPolicy.STRICT}
    assert relaxed == {"PartialRollout"}


def test_every_variant_makes_the_same_number_of_steps() -> None:
    for name in learning.VARIANTS:
        spec = learning._spec(name, 0, 60)
        assert (spec.algorithm.steps, spec.rollout.on_finish) == (60, OnFinish.LEAVE)


NAMES = ("Synchronous", "TailBatching")


def two_variants(num_seeds: int) -> list[dict[str, Any]]:
    return [
        run(variant, seed, step_s=step_s, rewards=[0.0, 0.4, 0.8 + seed / 10])
        for seed in range(num_seeds)
        for variant, step_s in (("Synchronous", 10.0), ("TailBatching", 5.0))
    ]


def test_one_seed_gives_figures_without_intervals_and_more_than_a_table_has_still_give_some() -> None:
    alone = paired.compared(two_variants(1))["TailBatching"]
    assert alone["reward_less_baseline"] == {"mean": 0.0}
    assert alone["step_over_baseline"] == {"mean": 0.5}
    assert learning._is_as_expected(paired.compared(two_variants(1)))
    many = paired.interval([float(value) for value in range(40)])
    assert many["low"] < many["mean"] == 19.5 < many["high"]


@pytest.mark.parametrize(("num_seeds", "quantile"), [(2, 12.706), (8, 2.365)])
def test_the_interval_is_that_of_students_distribution(num_seeds: int, quantile: float) -> None:
    found = paired.interval([0.0, 1.0] * (num_seeds // 2))
    deviation = (0.25 * num_seeds / (num_seeds - 1)) ** 0.5
    assert found["high"] - found["mean"] == pytest.approx(quantile * deviation / num_seeds**0.5, abs=0.001)


def test_the_curves_begin_equal_and_end_with_the_differences_of_the_table() -> None:
    runs = two_variants(3)
    table = paired.compared(runs)["TailBatching"]
    steps, seconds = (curve(runs, "TailBatching", "reward") for curve in (paired.by_step, paired.by_second))
    assert list(steps) == [0.0, 1.0, 2.0]
    assert steps[0.0]["mean"] == seconds[0.0]["mean"] == 0.0
    assert steps[2.0] == table["reward_less_baseline"]
    assert list(seconds)[-1] == 10.0, "when the quicker one has ended"
    assert seconds[10.0] == table["reward_less_baseline_at_equal_s"]


def test_a_default_that_learns_less_beyond_its_interval_fails_the_run() -> None:
    less: Any = {"mean": -0.1, "low": -0.2, "high": -0.01}
    table = {"TailBatching": {"gain": {"mean": 0.3}, "reward_less_baseline": less, "long_less_baseline": {"mean": 0.0}}}
    assert not learning._is_as_expected(table)
    table["TailBatching"]["reward_less_baseline"] = less | {"high": 0.01}
    assert learning._is_as_expected(table)


def test_stored_runs_stay_unless_they_are_made_again(tmp_path: Path) -> None:
    result, old = tmp_path / "learning.json", two_variants(2)
    assert learning.stored_runs(result, 60) == []
    result.write_text(json.dumps({"settings": {"steps": 60}, "runs": old}))
    stored = learning.stored_runs(result, 60)
    assert stored == old
    with pytest.raises(SystemExit, match="another number of steps"):
        learning.stored_runs(result, 30)
    new = [run(name, 1, step_s=7.0, rewards=[0.1, 0.9], call="then") for name in ("Synchronous", "GroupPipeline")]
    synchronous, tail_batching = old[::2], old[1::2]
    merged = learning.merged(stored, new)
    assert merged == [*synchronous, new[0], *tail_batching, new[1]]
    again = [run(name, seed, step_s=8.0, rewards=[0.0, 1.0], call="today") for seed in (0, 1) for name in NAMES]
    assert learning.merged(merged, again) == [again[0], new[0], again[2], again[1], again[3], new[1]]


def test_variants_are_compared_over_the_seeds_that_they_have_and_seconds_within_a_call() -> None:
    runs = [*two_variants(3), run("GroupPipeline", 1, step_s=5.0, rewards=[0.0, 0.4, 0.7], call="before")]
    table = paired.compared(runs)
    assert (table["TailBatching"]["num_seeds"], table["GroupPipeline"]["num_seeds"]) == (3, 1)
    assert table["GroupPipeline"]["reward_less_baseline"] == {"mean": pytest.approx(-0.2)}
    assert not {"step_over_baseline", "reward_less_baseline_at_equal_s"} & table["GroupPipeline"].keys()
    assert paired.by_second(runs, "GroupPipeline", "reward") == {}
    assert paired.step_ratios(runs) == {"TailBatching/step_s": [0.5] * 3}
    runs.append(run("Synchronous", 1, step_s=4.0, rewards=[0.0, 0.4, 0.9], call="before"))
    assert paired.step_ratios(runs) == {"TailBatching/step_s": [0.5] * 3, "GroupPipeline/step_s": [1.25]}
    assert paired.compared(runs)["Synchronous"]["num_seeds"] == 3


def test_evaluations_that_find_the_same_all_count_and_take_no_seconds() -> None:
    clock = iter([100.0, 103.0, 113.0, 114.0, 134.0, 139.0])
    """Begin and end of each evaluation."""
    sink = learning.Evaluations(_now_s=lambda: next(clock))
    for step, latest in ((0, None), (10, 0.5), (20, 0.5)):
        found = HeldOutReward(before=0.2, long_before=0.1, latest=latest, long_latest=latest)
        sink.report(RuntimeStatus(step=step, activity=RuntimeActivity.EVALUATE))
        sink.report(RuntimeStatus(step=step, activity=RuntimeActivity.EVALUATE, held_out=found))
        sink.report(RuntimeStatus(step=step, activity=RuntimeActivity.ROLLOUT, held_out=found))
        sink.report(RuntimeStatus(step=step, activity=RuntimeActivity.TRAIN, held_out=found))
    assert [(point["step"], point["seconds"], point["reward"]) for point in sink.points] == [
        (0, 0.0, 0.2), (10, 10.0, 0.5), (20, 30.0, 0.5)
    ]  # fmt: skip
