"""Turns of the benchmark of strategy Auto, with engines and trainers without a model."""

import json
from itertools import chain
from pathlib import Path
from typing import Any

import yaml
from benchmarks import auto
from benchmarks.local_pods import run_in_coordinator
from benchmarks.workload import Workload

FAKE = {"backend": "Fake", "extraArgs": {"median_tokens": 100_000, "step_s": 0.01}}


def test_a_side_goes_on_where_its_last_turn_ended_and_auto_searches_between_steps(tmp_path: Path) -> None:
    document: dict[str, Any] = yaml.safe_load(auto.WORKLOAD.path.read_text())
    document["responseTokens"]["max"] = 64
    document["spec"]["model"] = {"builtin": "Tiny", "maxContextTokens": 1024}
    document["spec"]["rollout"]["engine"] = FAKE
    document["spec"]["trainer"] = {"backend": "Fake"}
    document["spec"]["algorithm"]["promptsPerStep"] = 4
    document["jobs"] = {name: document["jobs"][name] for name in ("TailBatching", "Auto")}
    workload, result = tmp_path / "workload.yaml", tmp_path / "result.json"
    workload.write_text(yaml.safe_dump(document))
    arguments = [str(workload), str(result), "2", "6"]
    assert run_in_coordinator("tests.contract.benchmarks.turns_of_auto", arguments, Workload(workload).spec) == 0
    found = json.loads(result.read_text())
    tail_batching, own = found["runs"]["TailBatching"], found["runs"]["Auto"]
    assert [run["num_deferred"] for run in tail_batching] == [1, 2], (
        "12 steps: periods of four short rounds and a long one"
    )
    for turns in (tail_batching, own):
        drawn = list(chain.from_iterable(run["draws"] for run in turns))
        assert len(drawn) == len(set(drawn)) == 2 * 6 * 4
    assert found["searches"] > 0
    assert found["ratios"].keys() == {"TailBatching/step_s", "Auto/best"}
