"""`longshore simulate --search`: what it proposes, as a table, as JSON and as a picture."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from longshore.api.rollout import Handover, Strategy
from longshore.sim.choices import Choice
from longshore.sim.search import SearchResult, prediction
from longshore.sim.simulate import simulate
from longshore_cli.simulate.inputs import SimulateOptions, read
from longshore_cli.simulate.job import sim_job
from longshore_cli.simulate.search import bounds_of, search_report
from tests.unit.cli.simulated import Json, manifest, refusal, simulated

LONG = {"algorithm__promptsPerStep": 8, "model__maxContextTokens": 10_000, "algorithm__maxResponseTokens": 8_192}


def report(*arguments: str | Path) -> Json:
    done = simulated(*arguments, "--search", "--json")
    assert done.stderr.startswith("searching … "), "a pipe shows progress, too"
    found: Json = json.loads(done.stdout)
    return found


def bounds(path: Path) -> Any:
    inputs = read(SimulateOptions(path, model="Qwen2.5-7B"))
    return bounds_of(inputs.spec, sim_job(inputs, inputs.spec))


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Json:
    return report(manifest(tmp_path_factory.mktemp("search"), **LONG))


def test_figures_of_every_choice_and_what_to_change(found: Json) -> None:
    assert found.keys() == {
        "name", "model", "gpuType", "numChoices", "numRounds", "margin", "choices", "notes", "advice",
    }  # fmt: skip
    best, (given,) = found["choices"][0], [one for one in found["choices"] if one["isGiven"]]
    assert given["strategy"] == "Synchronous"
    assert given["gain"] == 0 and given["speedup"] == 1
    assert best["gain"] == max(one["gain"] for one in found["choices"]) > found["margin"]
    assert best["gain"] == pytest.approx(1 - 1 / min(best["speedup"], best["tokenSpeedup"]))
    assert best["gpuHours"] == pytest.approx(100 * 4 * best["stepSeconds"] / 3600)
    assert found["advice"].startswith("Set in spec.rollout: strategy: ")
    assert {one["onPolicy"] for one in found["choices"]} == {"Strict"}


def advised(advice: str) -> Json:
    """The changes of a sentence, followed to the letter, as `manifest` takes them; what has to go is None."""
    changes: Json = {}
    for change in advice.removeprefix("Set in spec.rollout: ").split(". By the simulation")[0].split(", "):
        path, _, value = (f"{change[3:]}: null" if change.startswith("no ") else change).partition(": ")
        changes["rollout__" + path.replace(".", "__")] = yaml.safe_load(value)
    return changes


APART: Json = {"placement": "Disaggregated", "trainerWorkers": {"replicas": 1, "gpusPerPod": 2}}
GROUP_PIPELINE: Json = {"strategy": "GroupPipeline", "admission": {"frontierWidth": 2}}
STREAMED: Json = {"strategy": "TailBatching", "handover": "Streamed"}


@pytest.mark.parametrize(
    ("job", "changes"),
    [
        (APART | {"rollout": GROUP_PIPELINE}, {"frontier_width": None}),
        (APART | {"rollout": GROUP_PIPELINE}, {"strategy": Strategy.SYNCHRONOUS, "frontier_width": 3}),
        (APART | {"rollout": GROUP_PIPELINE},
         {"strategy": Strategy.SYNCHRONOUS, "frontier_width": None, "handover": Handover.AFTER_ROUND}),
        (APART, {"strategy": Strategy.GROUP_PIPELINE, "handover": Handover.PIPELINED}),
        (APART, {"handover": Handover.PIPELINED, "frontier_width": 2}),
        ({"rollout": STREAMED}, {"handover": Handover.AFTER_ROUND}),
        ({"rollout": STREAMED}, {"tp_size": 2}),
        ({"rollout": {"strategy": "Auto"}}, {"prompt_factor": 1.5}),
    ],
)  # fmt: skip
def test_a_manifest_that_follows_the_advice_takes_the_predicted_time(tmp_path: Path, job: Json, changes: Json) -> None:
    inputs = read(SimulateOptions(manifest(tmp_path, **job), model="Qwen2.5-7B"))
    given = sim_job(inputs, inputs.spec)
    present = Choice.of(given)
    chosen = replace(present, **changes)
    before, after = (prediction(one, [simulate(one.applied_to(given), 5)]) for one in (present, chosen))
    quick = replace(after, step_s=after.step_s / 100, tokens_per_s=after.tokens_per_s * 100)
    advice = search_report(inputs, SearchResult((quick,), before, before, 0.03, 5, 2), []).advice
    followed = read(SimulateOptions(manifest(tmp_path, **job | advised(advice)), model="Qwen2.5-7B"))
    again = sim_job(followed, followed.spec)
    assert Choice.of(again) == chosen
    assert simulate(again, 5).mean_step_s == after.step_s


@pytest.mark.parametrize("other", [("--strategies", "Synchronous"), ("--gpus", "8"), ("--steps", "3")])
def test_what_it_chooses_itself_cannot_be_chosen(tmp_path: Path, other: tuple[str, str]) -> None:
    assert "--search chooses strategies and steps itself" in refusal(manifest(tmp_path), "--search", *other)


def test_nothing_is_tried_that_the_spec_forbids(tmp_path: Path) -> None:
    assert bounds(manifest(tmp_path)).handovers == (Handover.AFTER_ROUND, Handover.STREAMED)
    assert bounds(manifest(tmp_path, algorithm__promptsPerUpdate=4)).handovers == (Handover.AFTER_ROUND,)
    assert bounds(manifest(tmp_path, workers__replicas=1)).handovers == (Handover.AFTER_ROUND,), "no pod would be freed"
    never = {"repurposing": {"trigger": "Never"}}
    assert bounds(manifest(tmp_path, rollout=never)).handovers == (Handover.AFTER_ROUND,)
    assert bounds(manifest(tmp_path)).tp_sizes == (1, 2)
    assert bounds(manifest(tmp_path, workers={"replicas": 2, "gpusPerPod": 0})).tp_sizes == ()
    assert bounds(manifest(tmp_path, workers={"replicas": 2, "gpusPerPod": 8})).tp_sizes == (1, 2, 4), "of 28 heads"
    assert bounds(manifest(tmp_path, **APART)).handovers == (Handover.AFTER_ROUND, Handover.PIPELINED)


def test_relaxed_strategies_are_tried_where_the_manifest_is_relaxed(tmp_path: Path) -> None:
    strict, relaxed = bounds(manifest(tmp_path)), bounds(manifest(tmp_path, rollout__onPolicy="Relaxed"))
    assert relaxed.strategies - strict.strategies == {"PartialRollout"}


def test_responses_race_where_the_manifest_lets_them(tmp_path: Path) -> None:
    raced = manifest(tmp_path, rollout__strategy="TailBatching", rollout__tailBatching={"responseFactor": 1.5})
    assert (bounds(raced).max_response_factor, bounds(manifest(tmp_path)).max_response_factor) == (1.5, 1.0)
