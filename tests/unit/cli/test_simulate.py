"""`longshore simulate`: figures of the real simulator, as a table and as JSON."""

import json
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from longshore.api.rollout import Strategy
from longshore.sim.choices import Choice
from longshore.sim.job import SimJob
from longshore.sim.profile import Profile
from longshore_cli.simulate.inputs import SimulateOptions, read
from longshore_cli.simulate.job import sim_job
from tests.unit.cli.simulated import TOOLS, Json, manifest, run, simulated

STEPS = ("--steps", "5")
_OUTCOME_KEYS = {
    "numGpus", "strategy", "onPolicy", "isGiven", "stepSeconds", "rolloutSeconds", "rewardWaitSeconds", "trainSeconds",
    "publishSeconds", "tokensPerSecond", "samplesPerSecond", "bubbleShare", "gpuHours", "offPolicyShare", "speedup",
    "tokenSpeedup", "lengthBias", "selectionBias", "environmentShare", "numPreemptions", "numGroupsInCache",
}  # fmt: skip


def report(*arguments: str | Path) -> Json:
    found: Json = json.loads(simulated(*arguments, "--json").stdout)
    return found


def job_of(directory: Path, **changes: Any) -> SimJob:
    inputs = read(SimulateOptions(manifest(directory, **changes), model="Qwen2.5-7B"))
    return sim_job(inputs, inputs.spec)


def by_strategy(found: Json) -> dict[str, Json]:
    return {one["strategy"]: one for one in found["outcomes"]}


def test_all_strategies_are_compared_with_synchronous(tmp_path: Path) -> None:
    found = report(manifest(tmp_path), *STEPS)
    assert found.keys() == {
        "name", "model", "gpuType", "numSteps", "outcomes", "skipped", "numClippedLengths", "notes", "advice",
    }  # fmt: skip
    assert (found["name"], found["model"], found["gpuType"], found["numSteps"]) == ("small", "Qwen2.5-7B", "H100", 5)
    outcomes = by_strategy(found)
    assert list(outcomes) == [one for one in Strategy if one is not Strategy.AUTO]
    baseline = outcomes["Synchronous"]
    assert baseline["isGiven"] and baseline["speedup"] == 1
    for one in outcomes.values():
        assert one.keys() == _OUTCOME_KEYS
        assert one["numGpus"] == 4
        assert one["speedup"] == pytest.approx(baseline["stepSeconds"] / one["stepSeconds"])
        assert one["tokenSpeedup"] == pytest.approx(one["tokensPerSecond"] / baseline["tokensPerSecond"])
        assert one["samplesPerSecond"] == pytest.approx(32 / one["stepSeconds"])
        assert one["gpuHours"] == pytest.approx(100 * 4 * one["stepSeconds"] / 3600)
        parts = ("rolloutSeconds", "rewardWaitSeconds", "trainSeconds", "publishSeconds")
        assert one["stepSeconds"] == pytest.approx(sum(one[part] for part in parts))
        assert (one["onPolicy"] == "Relaxed") == (one["offPolicyShare"] > 0)


RACE: Json = {"rollout__tailBatching": {"responseFactor": 1.25}}


def by_chance(directory: Path) -> Path:
    """Lengths of 64 prompts: the first of their responses is long, for no reason that lies in the prompt."""
    path = directory / "lengths.csv"
    tokens = [30 if row % 8 else 900 for row in range(512)]
    path.write_text("prompt,num_tokens\n" + "".join(f"{row // 8},{count}\n" for row, count in enumerate(tokens)))
    return path


def test_no_strategy_is_advised_that_is_quicker_only_by_training_on_fewer_tokens(tmp_path: Path) -> None:
    profile = tmp_path / "profile.yaml"
    profile.write_text("trainTokensPerSecond: 20\n")
    options = ("--strategies", "TailBatching", "--lengths", by_chance(tmp_path), "--profile", profile)
    found = report(manifest(tmp_path, **RACE), *options)
    raced = by_strategy(found)["TailBatching"]
    assert raced["speedup"] > 1.1
    assert raced["tokenSpeedup"] < 1
    assert found["advice"].startswith("Keep spec.rollout.strategy: Synchronous")


def test_the_table_shows_what_json_says(tmp_path: Path) -> None:
    path = manifest(tmp_path)
    found, shown = report(path, *STEPS), simulated(path, *STEPS).stdout
    for name, one in by_strategy(found).items():
        row = next(line for line in shown.splitlines() if f" {name}" in line and "x" in line.split()[-1])
        assert f"{one['speedup']:.2f}x" in row
        assert f"{one['tokensPerSecond']:,.0f}" in row
        assert ("relaxed" in row) == (one["onPolicy"] == "Relaxed")
        assert (" * " in row) == one["isGiven"]
    assert all(note in shown for note in found["notes"])
    assert shown.rstrip().endswith(found["advice"])
    assert max(len(line) for line in shown.splitlines() if "|" in line or "─" in line) <= 100


def test_the_advice_is_the_change_to_the_quickest_strict_strategy(tmp_path: Path) -> None:
    one_update = {"algorithm__longRoundUpdates": "One"}  # Another update takes longer than the step of this little job.
    slow = report(manifest(tmp_path, **one_update), "--strategies", "TailBatching")
    assert "set spec.rollout.strategy: TailBatching" in slow["advice"]
    best = by_strategy(slow)["TailBatching"]
    assert best["speedup"] > 1.01
    chosen = manifest(tmp_path, rollout__strategy="TailBatching", **one_update)
    kept = report(chosen, "--strategies", "TailBatching")
    assert kept["advice"].startswith("Keep spec.rollout.strategy: TailBatching")
    assert by_strategy(kept)["TailBatching"]["stepSeconds"] == best["stepSeconds"]


def test_advice_names_every_field_that_stands_in_the_way(tmp_path: Path) -> None:
    rollout = {"strategy": "ReorderRollout", "onPolicy": "Relaxed", "leftovers": "KeepTokens"}
    found = report(manifest(tmp_path, rollout=rollout), "--strategies", "ReorderRollout", *STEPS)
    assert "set spec.rollout.strategy: Synchronous and remove spec.rollout.leftovers" in found["advice"]
    assert by_strategy(found)["ReorderRollout"]["onPolicy"] == "Relaxed"


def test_strict_only_leaves_out_what_trains_on_older_tokens_and_says_so(tmp_path: Path) -> None:
    found = report(manifest(tmp_path), "--strict-only", "--steps", "1")
    assert all(one["onPolicy"] == "Strict" for one in found["outcomes"])
    assert [one["strategy"] for one in found["skipped"]] == ["PartialRollout"]


def test_strategies_that_the_manifest_forbids_are_left_out_with_the_reason(tmp_path: Path) -> None:
    found = report(manifest(tmp_path, algorithm__objective={"name": "ReinforcePlusPlus"}), "--steps", "1")
    assert [one["strategy"] for one in found["skipped"]] == ["GroupPipeline"]
    assert "rollout.handover: handover must be AfterRound with advantage" in found["skipped"][0]["reason"]
    shown = simulated(manifest(tmp_path, algorithm__objective={"name": "ReinforcePlusPlus"}), "--steps", "1").stdout
    assert "GroupPipeline is left out" in shown


def test_more_gpus_make_rounds_shorter_and_cost_more_hours(tmp_path: Path) -> None:
    path = manifest(tmp_path, trainer__dataParallelSize=2)
    found = report(path, "--gpus", "4,8,16", "--strategies", "Synchronous", *STEPS)
    assert [one["numGpus"] for one in found["outcomes"]] == [4, 8, 16]
    for fewer, more in pairwise(found["outcomes"]):
        assert more["stepSeconds"] < fewer["stepSeconds"]
        assert more["gpuHours"] > fewer["gpuHours"]
        assert more["speedup"] == 1


@pytest.mark.parametrize(
    ("changes", "higher"),
    [
        ({"algorithm__promptsPerUpdate": 2}, "trainSeconds"),
        ({"algorithm__klCoefficient": 0.1}, "trainSeconds"),
        ({"algorithm__dynamicSampling": True}, "rolloutSeconds"),
        ({"rollout__admission": {"maxActivePerEngine": 1}}, "rolloutSeconds"),
        ({"rollout__engine": {"maxNumSeqs": 1}}, "rolloutSeconds"),
        ({"reward__workersPerPod": 1}, "rewardWaitSeconds"),
        ({"reward": {"functions": [{"name": "code", "kind": "Code"}]}}, "rewardWaitSeconds"),
        ({"reward": {"functions": [{"name": "judge", "kind": "Judge", "judge": {"modelPath": "m"}}]}},
         "rewardWaitSeconds"),
        ({"reward": {"functions": [{"name": "ask", "kind": "HTTP", "http": {"url": "http://a"}}], "requestsPerPod": 1}},
         "rewardWaitSeconds"),
    ],
)  # fmt: skip
def test_fields_of_the_manifest_count(tmp_path: Path, changes: Json, higher: str) -> None:
    options = ("--strategies", "Synchronous", *STEPS)
    plain, changed = (report(manifest(tmp_path, **fields), *options)["outcomes"][0] for fields in ({}, changes))
    assert changed[higher] > plain[higher]


def test_a_small_kv_cache_preempts_and_the_report_says_so(tmp_path: Path) -> None:
    # 57,344 bytes of KV cache per token.
    small = manifest(tmp_path, rollout__engine={"kvCache": "100Mi"}, model__maxContextTokens=1280)
    found = report(small, "--strategies", "Synchronous", *STEPS)
    assert found["outcomes"][0]["numPreemptions"] > 0
    assert any("preempted" in note and "raise kvCache or lower maxNumSeqs" in note for note in found["notes"])


@pytest.mark.parametrize(("parallelism", "capacities"), [("Fixed", (3750, 3750)), ("Adaptive", (3750, 7500))])
def test_the_kv_cache_of_the_manifest_is_per_engine_and_grows_where_engines_regroup(
    tmp_path: Path, parallelism: str, capacities: tuple[int, int]
) -> None:
    """The search tries other sizes with the same manifest; engines that regroup keep what each GPU has."""
    given = job_of(tmp_path, rollout__engine={"kvCache": str(3750 * 57_344), "parallelism": parallelism})
    present = Choice.of(given)
    larger = given if parallelism == "Adaptive" else replace(present, tp_size=2).applied_to(given)
    assert (given.kv_capacity_tokens(1), larger.kv_capacity_tokens(2)) == capacities
    measured = replace(given, profile=Profile(kv_capacity_tokens={1: 5_000}))
    assert measured.kv_capacity_tokens(1) == 5_000


def test_engines_begin_with_the_given_size_and_regroup_if_the_longest_context_fits(tmp_path: Path) -> None:
    """Two responses of the longest kind do not have to fit."""
    engine = {"kvCache": "75Mi", "parallelism": "Adaptive"}
    tight = manifest(tmp_path, rollout__engine=engine, model__maxContextTokens=1280)
    found = report(tight, "--strategies", "Synchronous", *STEPS)
    assert found["outcomes"][0]["numPreemptions"] > 0


def test_prompts_of_recorded_lengths_leave_room_for_the_responses(tmp_path: Path) -> None:
    lengths = tmp_path / "lengths.csv"
    lengths.write_text("num_tokens\n" + "1024\n" * 32)
    full = manifest(tmp_path, model__maxContextTokens=1124, rollout__engine={"kvCache": str(1124 * 57_344)})
    found = report(full, "--lengths", lengths, "--strategies", "Synchronous", *STEPS)
    assert found["outcomes"][0]["stepSeconds"] > 0


def test_recorded_lengths_decide_the_rollout(tmp_path: Path) -> None:
    short, long = tmp_path / "short.csv", tmp_path / "long.jsonl"
    short.write_text("prompt,num_tokens,score\n" + "".join(f"{row % 8},{20 + row},1\n" for row in range(32)))
    long.write_text("".join(f'{{"num_tokens": {900 + 5 * row}}}\n' for row in range(32)))
    options = ("--strategies", "Synchronous", *STEPS)
    quick, slow = (report(manifest(tmp_path), "--lengths", path, *options) for path in (short, long))
    assert quick["outcomes"][0]["rolloutSeconds"] < slow["outcomes"][0]["rolloutSeconds"] / 5
    assert quick["numClippedLengths"] == 0
    assert slow["numClippedLengths"] == 7
    assert any("7 responses of 32 cut at maxResponseTokens, 1,024" in note for note in slow["notes"])
    assert any("every 4 rows count as the responses of one prompt" in note for note in slow["notes"])
    assert any("not score" in note for note in quick["notes"])


def test_a_profile_replaces_modelled_costs(tmp_path: Path) -> None:
    profile = tmp_path / "profile.yaml"
    profile.write_text("publishSeconds: 50\nkvCapacityTokens: {1: 90000}\n")
    found = report(manifest(tmp_path), "--profile", profile, "--strategies", "Synchronous", *STEPS)
    assert found["outcomes"][0]["publishSeconds"] > 50


def test_a_disaggregated_job_holds_the_gpus_of_its_trainers_too(tmp_path: Path) -> None:
    apart = manifest(tmp_path, placement="Disaggregated", trainerWorkers={"replicas": 1, "gpusPerPod": 2})
    shown = simulated(apart, "--steps", "1").stdout
    assert "on 4 + 2 x H100" in shown
    assert "4 GPUs sample and 2 train" in shown
    assert "share the GPUs" not in shown
    assert "share the GPUs" in simulated(manifest(tmp_path), "--steps", "1").stdout


@pytest.mark.parametrize(
    ("changes", "note"),
    [
        ({"reward__maxPods": 3}, "reward.maxPods is not simulated: the job has 1 reward pod throughout."),
        ({"reward__functions": [{"name": "maths", "kind": "Maths", "maxConcurrency": 3}]},
         "reward.functions.maxConcurrency is not simulated (maths): all reward workers score at once."),
        ({"placement": "Disaggregated", "trainerWorkers": {"gpusPerPod": 2}, "rollout__handover": "Streamed"},
         "Streamed: what trainers with GPUs of their own compute while the round runs is not simulated; they train "
         "after it."),
    ],
)  # fmt: skip
def test_what_of_a_manifest_is_not_simulated_is_named(tmp_path: Path, changes: Json, note: str) -> None:
    options = ("--strategies", "Synchronous", "--steps", "1")
    assert note in report(manifest(tmp_path, **changes), *options)["notes"]
    assert note not in report(manifest(tmp_path), *options)["notes"]


def test_the_built_in_model_needs_no_name_and_assumptions_are_reported(tmp_path: Path) -> None:
    fields = {"model": {"builtin": "Tiny"}, "workers__gpuResourceName": "longshore.dev/pretend-gpu"}
    shown = run(manifest(tmp_path, **fields), "--steps", "1")
    assert shown.exit_code == 0
    assert "Tiny on 4 x H100" in shown.stdout
    assert "are pretended" in shown.stdout
    assert "for want of --gpu-type" in shown.stdout
    assert "long-tailed default scaled to maxResponseTokens, 1,024" in shown.stdout


def test_auto_is_simulated_as_it_begins_and_says_so(tmp_path: Path) -> None:
    found = report(manifest(tmp_path, rollout__strategy="Auto"), *STEPS)
    outcomes = by_strategy(found)
    assert outcomes["Auto"]["isGiven"]
    assert outcomes["Auto"]["stepSeconds"] == outcomes["TailBatching"]["stepSeconds"]
    assert any(note.startswith("Auto is simulated with the factors that it begins with") for note in found["notes"])


def test_environments_take_their_time_and_the_text_says_how_much_and_what_is_gained(tmp_path: Path) -> None:
    acting = manifest(tmp_path, environments=TOOLS, data__chat={})
    found = report(acting, "--strategies", "TailBatching")
    baseline, tail = found["outcomes"]
    assert baseline["environmentShare"] > 0.5
    assert tail["speedup"] > 1.2
    assert any(note.startswith("Episodes: made up. 1 to 6 turns (maxTurns), and 1 s") for note in found["notes"])
    (share,) = [note for note in found["notes"] if "of their time in environments" in note]
    assert share == (
        f"Its episodes spend {100 * baseline['environmentShare']:.1f} % of their time in environments; TailBatching "
        f"trains on {tail['speedup']:.2f} times as many of them per second as Synchronous."
    )
    assert [one["strategy"] for one in report(acting, "--steps", "1")["skipped"]] == ["PartialRollout"]


def test_a_search_finds_what_slow_environments_make_worthwhile(tmp_path: Path) -> None:
    lengths = tmp_path / "lengths.csv"
    rows = [(f"{row // 4},200,3,{1 if row // 4 % 8 else 90}") for row in range(256)]
    lengths.write_text("\n".join(["prompt,num_tokens,num_turns,environment_s", *rows]))
    acting = manifest(tmp_path, environments=TOOLS, data__chat={})
    found = report(acting, "--lengths", lengths, "--search")
    assert found["choices"][0]["strategy"] in ("TailBatching", "ReorderRollout")
    assert found["choices"][0]["gain"] > 0.2
    assert found["advice"].startswith("Set in spec.rollout: strategy")
