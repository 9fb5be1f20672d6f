"""One small job, one strategy after the other: each field reaches the engines and the trainers, and no draw is lost."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.held import held
from tests.e2e.jobs import Cluster, Json, assert_every_draw_once, fake_job, written_reward

pytestmark = [pytest.mark.e2e, pytest.mark.soak, pytest.mark.timeout(600)]

BATCH = {"steps": 8, "promptsPerStep": 4, "responsesPerPrompt": 4, "maxResponseTokens": 200, "seed": 3}
REWARD = '''
"""Rewards that differ within a group, but for every fourth prompt."""

from zlib import crc32


def score(prompt: str, response: str, answer: str) -> float:
    return float(crc32(prompt.encode()) % 4 != 0 and crc32(response.encode()) % 2)
'''


def job(name: str, algorithm: Json, *, step_s: float = 0.002, **rollout: Any) -> Json:
    """The small job with another algorithm and strategy; `step_s`: what a step of the engine takes."""
    engine = {"backend": "Fake", "maxNumSeqs": 32, "extraArgs": {"step_s": step_s}}
    return fake_job(name, algorithm=BATCH | algorithm, rollout={"engine": engine, **rollout})


def test_reorder_rollout_postpones_every_draw_at_most_as_often_as_it_may(cluster: Cluster) -> None:
    reorder = {"maxPostponements": 2, "lengthGrouping": True}
    reordered = cluster.apply(
        job("reorder", {"objective": {"name": "GSPO"}}, strategy="ReorderRollout", reorderRollout=reorder)
    )
    assert reordered.wait_finished()["phase"] == "Succeeded", reordered.story()
    ledger = reordered.ledger()
    assert_every_draw_once(ledger, num_prompts=4, num_responses=4)
    postponed = Counter(draw for row in ledger for draw in row["deferred"])
    assert 0 < max(postponed.values()) <= 2
    assert all(sorted(responses) == [0, 1, 2, 3] for row in ledger for responses in row["trained"].values())
    reordered.delete()


def test_a_group_pipeline_makes_several_updates_per_step_and_outlives_a_coordinator(cluster: Cluster) -> None:
    """One rollout, two updates: weights change only between rounds, and no checkpoint lies between two updates.

    The job also measures its hardware before it trains, in its first attempt only.
    """
    manifest = job("pipeline", {"promptsPerUpdate": 2}, step_s=0.01, strategy="GroupPipeline")
    manifest["spec"]["profiling"] = "First"
    with held(manifest, num_scored=90) as goes_on:
        pipeline = cluster.apply(manifest)
        pipeline.wait_step(3)
        assert (pipeline.output() / "profile.json").is_file()
        assert "rollout profile" in cluster.kubectl("logs", "pipeline-coordinator")
        pipeline.kill("coordinator")
        goes_on.set()
        status = pipeline.wait_finished()
    assert status["phase"] == "Succeeded", pipeline.story()
    assert status["attempt"] == 2
    assert "the profile of an earlier attempt is used" in cluster.kubectl("logs", "pipeline-coordinator")
    ledger = pipeline.ledger()
    assert len(ledger) == 8
    assert_every_draw_once(ledger, num_prompts=4, num_responses=4, num_updates=2)
    assert [values["actor/num_updates"] for values in pipeline.metrics()] == [2] * 8
    assert [values["response/aborted_ratio"] for values in pipeline.metrics()] == [0.0] * 8
    pipeline.delete()


def test_a_job_with_strategy_auto_speculates_because_its_lengths_have_a_tail(cluster: Cluster) -> None:
    """It begins without speculation, learns its lengths and how fast its engines are, and says what it changes."""
    engine = {"backend": "Fake", "maxNumSeqs": 32, "extraArgs": {"step_s": 0.01, "sigma": 2.0}}
    # Whatever else a busy machine adds to a step, a smaller gain than this one is worth a change.
    rollout = {"strategy": "Auto", "tailBatching": {"promptFactor": 1}, "auto": {"margin": 0.001}, "engine": engine}
    auto = cluster.apply(fake_job("auto", algorithm=BATCH | {"steps": 24}, rollout=rollout))
    assert auto.wait_step(1)["runtime"]["auto"] == {
        "promptFactor": 1, "responseFactor": 1, "sinceStep": 0, "why": "what the job begins with",
    }  # fmt: skip
    status = auto.wait_finished()
    assert status["phase"] == "Succeeded", auto.story()
    chosen = status["runtime"]["auto"]
    assert chosen["promptFactor"] > 1 and chosen["responseFactor"] == 1
    ledger = auto.ledger()
    assert_every_draw_once(ledger, num_prompts=4, num_responses=4)
    before = [row for row in ledger if row["kind"] == "Short" and not row["deferred"]]
    after = [row for row in ledger if row["kind"] == "Short" and row["deferred"]]
    assert before and after, "short rounds without and with speculation"
    assert before[-1]["step"] < after[0]["step"]
    events = json.loads(auto.cluster.kubectl("get", "events", "-o", "json"))["items"]
    reported = [event for event in events if event["reason"] == "FactorsChanged"]
    assert {event["type"] for event in reported} == {"Normal"}
    assert chosen["why"] in [event["message"] for event in reported]
    (first,) = [event["message"] for event in reported if "promptFactor 1 -> " in event["message"]]
    assert "predicted step 0." in first
    auto.delete()


def test_tail_batching_with_dynamic_sampling_and_gates_trains_on_groups_that_differ(
    cluster: Cluster, tmp_path: Path
) -> None:
    manifest = job(
        "dapo",
        {"objective": {"name": "DAPO"}, "dynamicSampling": True},
        strategy="TailBatching",
        admission={"frontierWidth": 3, "adaptive": True},
    )
    manifest["spec"]["reward"], manifest["spec"]["coordinator"] = written_reward(tmp_path, REWARD)
    dapo = cluster.apply(manifest)
    assert dapo.wait_finished()["phase"] == "Succeeded", dapo.story()
    ledger = dapo.ledger()
    assert_every_draw_once(ledger, num_prompts=4, num_responses=4)
    assert any(row["dropped"] for row in ledger), "every fourth prompt has rewards without spread"
    assert not any(row["zero_variance"] for row in ledger), "a group without spread was trained"
    assert any(row["kind"] == "Long" for row in ledger)
    assert dapo.status()["runtime"]["draws"]["deferred"] == 0
    dapo.delete()
