"""The mixed workload of `everything`, with engines and trainers without a model: real judge, sandbox and rewards."""

import json
from pathlib import Path
from typing import Any

import yaml
from benchmarks import everything
from benchmarks.local_pods import run_in_coordinator
from benchmarks.workload import Workload

FAKE = {"backend": "Fake", "extraArgs": {"median_tokens": 100_000, "step_s": 0.01}}


def test_sides_train_the_same_draws_and_differ_in_rounds_and_in_when_they_score(tmp_path: Path) -> None:
    document: dict[str, Any] = yaml.safe_load(everything.WORKLOAD.path.read_text())
    document["responseTokens"]["max"] = 64
    document["spec"]["model"] = {"builtin": "Tiny", "maxContextTokens": 1024}
    document["spec"]["rollout"]["engine"] = FAKE
    document["spec"]["trainer"] = {"backend": "Fake"}
    document["spec"]["algorithm"]["promptsPerStep"] = 8
    tests = next(one for one in document["spec"]["reward"]["functions"] if one["kind"] == "Code")
    tests["code"] = {"minTimeoutSeconds": 0.2, "maxTimeoutSeconds": 1}
    workload, result = tmp_path / "workload.yaml", tmp_path / "result.json"
    workload.write_text(yaml.safe_dump(document))
    with everything.judged(Workload(workload)) as judged:
        arguments = [str(judged.path), str(result), "AllOff", "AllOn"]
        assert run_in_coordinator("tests.contract.benchmarks.one_alternation", arguments, judged.spec) == 0
    runs = json.loads(result.read_text())
    off, on = runs["AllOff"]["steps"], runs["AllOn"]["steps"]
    assert [step["kind"] for step in off] == ["Full"] * 5
    assert [step["kind"] for step in on] == ["Short"] * 4 + ["Long"]
    assert all(step["samples"] == 8 * 4 for step in (*off, *on))
    assert all(step["reward_s"] >= everything.JUDGE_S for step in off), "the judge is asked when the rollout has ended"
    assert runs["AllOff"]["cpu_s_per_step"] > 0


def test_every_side_of_the_comparison_is_a_job_and_a_way_to_score() -> None:
    assert everything.REWARDS.keys() == everything.WORKLOAD.jobs.keys()
    all_on = everything.REWARDS["AllOn"]
    assert all_on.during_rollout and all_on.adaptive_limits
    for side, rewards in everything.REWARDS.items():
        functions = rewards.functions(everything.WORKLOAD.jobs[side].reward.functions)
        (code,) = (one.code for one in functions if one.name == "tests")
        assert code.adaptive_timeout is rewards.adaptive_limits
