"""The mixed workload of `everything`, with engines and trainers without a model: real judge, sandbox and rewards."""

from pathlib import Path
from typing import Any

import yaml
from benchmarks import everything
from benchmarks.workload import Workload

from tests.contract.benchmarks.in_coordinator import found_in_coordinator, without_models


def test_sides_train_the_same_draws_and_differ_in_rounds_and_in_when_they_score(tmp_path: Path) -> None:
    document: dict[str, Any] = yaml.safe_load(everything.WORKLOAD.path.read_text())
    without_models(document, num_prompts=8)
    tests = next(one for one in document["spec"]["reward"]["functions"] if one["kind"] == "Code")
    tests["code"] = {"minTimeoutSeconds": 0.2, "maxTimeoutSeconds": 1}
    workload = tmp_path / "workload.yaml"
    workload.write_text(yaml.safe_dump(document))
    with everything.judged(Workload(workload)) as judged:
        runs = found_in_coordinator(judged.path, "alternation", "AllOff", "AllOn")
    off, on = runs["AllOff"]["steps"], runs["AllOn"]["steps"]
    assert [step["kind"] for step in off] == ["Full"] * 5
    assert [step["kind"] for step in on] == ["Short"] * 4 + ["Long"]
    assert all(step["samples"] == 8 * 4 for step in (*off, *on))
    assert all(step["reward_s"] >= everything.JUDGE_S for step in off), "the judge is asked when the rollout has ended"
    assert runs["AllOff"]["cpu_s_per_step"] > 0


def test_with_fixed_steps_all_but_the_engines_is_the_same() -> None:
    text = everything.WORKLOAD.path.read_text()
    usual, fixed = yaml.safe_load(text), yaml.safe_load(everything.with_fixed_steps(text, 0.02))
    engine = fixed["spec"]["rollout"].pop("engine")
    assert (engine["backend"], engine["extraArgs"]["step_s"]) == ("Fake", 0.02)
    assert engine["maxNumSeqs"] == usual["spec"]["rollout"].pop("engine")["maxNumSeqs"]
    assert fixed == usual


def test_every_side_of_the_comparison_is_a_job_and_a_way_to_score() -> None:
    assert everything.REWARDS.keys() == everything.WORKLOAD.jobs.keys()
    all_on = everything.REWARDS["AllOn"]
    assert all_on.during_rollout and all_on.adaptive_limits
    for side, rewards in everything.REWARDS.items():
        functions = rewards.functions(everything.WORKLOAD.jobs[side].reward.functions)
        (code,) = (one.code for one in functions if one.name == "tests")
        assert code.adaptive_timeout is rewards.adaptive_limits
