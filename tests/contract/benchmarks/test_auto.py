"""Turns of the benchmark of strategy Auto, with engines and trainers without a model."""

from itertools import chain
from pathlib import Path
from typing import Any

import yaml
from benchmarks import auto

from tests.contract.benchmarks.in_coordinator import found_in_coordinator, without_models


def test_a_side_goes_on_where_its_last_turn_ended_and_auto_searches_between_steps(tmp_path: Path) -> None:
    document: dict[str, Any] = yaml.safe_load(auto.WORKLOAD.path.read_text())
    without_models(document, num_prompts=4)
    document["jobs"] = {name: document["jobs"][name] for name in ("TailBatching", "Auto")}
    workload = tmp_path / "workload.yaml"
    workload.write_text(yaml.safe_dump(document))
    found = found_in_coordinator(workload, "turns", 2, 6)
    tail_batching, own = found["runs"]["TailBatching"], found["runs"]["Auto"]
    assert [run["num_deferred"] for run in tail_batching] == [1, 2], (
        "12 steps: periods of four short rounds and a long one"
    )
    for turns in (tail_batching, own):
        drawn = list(chain.from_iterable(run["draws"] for run in turns))
        assert len(drawn) == len(set(drawn)) == 2 * 6 * 4
    assert found["searches"] > 0
    assert found["ratios"].keys() == {"TailBatching/step_s", "Auto/best"}
