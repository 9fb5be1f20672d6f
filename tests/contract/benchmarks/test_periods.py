"""Periods of the benchmarks on local pods, with engines and trainers without a model: what they tell is there."""

from pathlib import Path
from typing import Any

import yaml

from tests.contract.benchmarks.in_coordinator import found_in_coordinator

FAKE = {"backend": "Fake", "extraArgs": {"median_tokens": 1000, "step_s": 0.04}}
PODS = {"replicas": 2, "gpusPerPod": 1, "gpuResourceName": "longshore.dev/pretend-gpu"}
LENGTHS = {"median": 16, "promptSigma": 0.8, "responseSigma": 0.4, "max": 100, "seed": 7}

Runs = dict[str, dict[str, Any]]


def periods(tmp_path: Path, num_rounds: int, jobs: dict[str, Any], **spec: Any) -> Runs:
    base = {
        "model": {"builtin": "Tiny", "maxContextTokens": 256},
        "data": {"builtin": "Counting", "heldOutPrompts": 0},
        "algorithm": {"steps": 1, "promptsPerStep": 8, "responsesPerPrompt": 4, "maxResponseTokens": 100, "seed": 11},
        "rollout": {"engine": FAKE},
        "trainer": {"backend": "Fake"},
        "reward": {
            "functions": [{"name": "parity", "kind": "Python", "importPath": "benchmarks.workload:parity"}],
            "pods": 0,
            "workersPerPod": 1,
        },
        "workers": PODS,
        "storage": {"claimName": "none"},
    }
    workload = tmp_path / "workload.yaml"
    workload.write_text(yaml.safe_dump({"responseTokens": LENGTHS, "jobs": jobs, "spec": {**base, **spec}}))
    runs: Runs = found_in_coordinator(workload, "period", num_rounds)
    return runs


def test_a_round_that_streams_hands_a_pod_over_and_trains_before_it_ends(tmp_path: Path) -> None:
    """Its responses are scored by a reward pod, where the workload has one."""
    parity = {"name": "parity", "kind": "Python", "importPath": "benchmarks.workload:parity"}
    reward = {"functions": [parity], "pods": 1, "workersPerPod": 1}
    streamed = {"strategy": "Synchronous", "handover": "Streamed", "repurposing": {"trigger": "Fixed", "fraction": 0.2}}
    jobs = {"AfterRound": {"rollout": {"strategy": "Synchronous"}}, "Streamed": {"rollout": streamed}}
    runs = periods(tmp_path, 1, jobs, reward=reward)
    (after,), (during,) = runs["AfterRound"]["steps"], runs["Streamed"]["steps"]
    assert after["samples"] == during["samples"] == 8 * 4
    assert after["draws"] == during["draws"]
    assert after["overlap_share"] == 0.0
    assert "control_path_s" not in after
    assert during["num_moved"] > 0
    assert during["overlap_share"] > 0.0
    events = [event for _, event in during["events"]]
    order = ["rollout begins", "telemetry", "assigned", "replicas of pods", "first gradients", "rollout ends"]
    places = [next(at for at, event in enumerate(events) if event.startswith(name)) for name in order]
    assert places == sorted(places)


def test_trainers_in_pods_of_their_own_take_groups_while_the_round_runs(tmp_path: Path) -> None:
    jobs = {"Serial": {"rollout": {"strategy": "Synchronous"}}, "Pipelined": {"rollout": {"strategy": "GroupPipeline"}}}
    algorithm = {
        "steps": 1, "promptsPerStep": 8, "promptsPerUpdate": 2, "responsesPerPrompt": 4, "maxResponseTokens": 100,
        "seed": 11,
    }  # fmt: skip
    one = {**PODS, "replicas": 1}
    runs = periods(tmp_path, 1, jobs, algorithm=algorithm, placement="Disaggregated", workers=one, trainerWorkers=one)
    (serial,), (pipelined,) = runs["Serial"]["steps"], runs["Pipelined"]["steps"]
    assert (serial["updates"], pipelined["updates"]) == (4, 4)
    assert serial["first_dispatch_s"] > serial["rollout_s"]
    assert pipelined["first_dispatch_s"] < pipelined["rollout_s"]
    assert pipelined["overlap_share"] > 0.0
