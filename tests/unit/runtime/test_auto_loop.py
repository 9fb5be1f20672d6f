"""A job with strategy Auto changes its factors between rounds, says so, and goes on with them after a restart."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from longshore.api.pods import Workers
from longshore.api.rollout import Handover, Strategy
from longshore.api.spec import Placement, RLJobSpec
from longshore.policy.auto import Auto
from longshore.policy.round_policy import RoundPolicy
from longshore.sim.auto import AutoTuner, Question
from longshore.sim.search import SearchResult
from longshore_runtime.checkpoints.store import CheckpointStore
from longshore_runtime.elastic.auto_factors import AutoFactors, Search
from longshore_runtime.elastic.spare_time import SearchFailed
from tests.unit.runtime.scripted_loop import ALGORITHM, Outcome, run
from tests.unit.runtime.test_gated_loop import Replicas, Timed

STEPS = 12
SPEC = RLJobSpec.model_validate(
    {
        "model": {"path": "model"},
        "data": {"path": "data.jsonl"},
        "algorithm": {**ALGORITHM.model_dump(by_alias=True), "steps": STEPS},
        "rollout": {"strategy": "Auto", "auto": {"margin": 0.01}},
        "reward": {"functions": [{"name": "maths", "kind": "Maths"}]},
        "workers": {"replicas": 2, "gpusPerPod": 1},
        "storage": {"claimName": "data"},
    }
)


@dataclass(frozen=True)
class AtOnce:
    """A search that has ended as soon as it begins."""

    question: Question

    def done(self) -> bool:
        return True

    def result(self) -> SearchResult:
        return self.question.answer()

    def stop(self) -> None: ...


class Killed(AtOnce):
    def result(self) -> SearchResult:
        raise SearchFailed("its process ended with exit code -9")


class Endless(AtOnce):
    def done(self) -> bool:
        return False


SEPARATE = SPEC.model_copy(
    update={
        "algorithm": SPEC.algorithm.model_copy(update={"prompts_per_update": 2}),
        "placement": Placement.DISAGGREGATED,
        "trainer_workers": Workers(replicas=2, gpus_per_pod=1),
    }
)


def train(
    root: Path,
    search: Callable[[Question], Search] = AtOnce,
    steps: int = STEPS,
    spec: RLJobSpec = SPEC,
    **options: Any,
) -> Outcome:
    def auto(policy: RoundPolicy) -> AutoFactors:
        assert isinstance(policy, Auto)
        return AutoFactors(policy, AutoTuner(spec), search)

    return run(
        root=root,
        strategy=Strategy.AUTO,
        kinds=(Replicas, Timed),
        auto=auto,
        algorithm=spec.algorithm.model_copy(update={"steps": steps}),
        **options,
    )


def changes(outcome: Outcome) -> list[str]:
    return [message for reason, message in outcome.notices if reason == "FactorsChanged"]


def test_a_change_is_made_between_rounds_and_is_reported_with_its_reason(tmp_path: Path) -> None:
    outcome = train(tmp_path)
    assert outcome.error == ""
    last = outcome.reports[-1].auto
    begin = next(report.auto for report in outcome.reports if report.auto is not None)
    assert begin is not None and (begin.prompt_factor, begin.since_step) == (1.25, 0)
    assert last is not None
    assert changes(outcome), "the lengths of these prompts are worth other factors"
    assert last.why == changes(outcome)[-1]
    assert last.since_step > 1
    drawn = [draw for row in outcome.ledger for draw in row["trained"]]
    assert len(drawn) == len(set(drawn)), "a draw was trained on twice"
    launched = {
        row["step"]: len(row["trained"]) + len(row["deferred"]) for row in outcome.ledger if row["kind"] == "Short"
    }
    assert len(set(launched.values())) > 1, "rounds start as many prompts as before"


def test_a_job_that_goes_on_has_what_was_learned_and_chosen(tmp_path: Path) -> None:
    before = train(tmp_path).reports[-1].auto
    resumed = train(tmp_path, steps=STEPS + 3)  # Draining took steps of its own.
    first = next(report.auto for report in resumed.reports if report.auto is not None)
    assert first == before
    store = CheckpointStore(tmp_path / "output" / "checkpoints", keep=2)
    newest = store.newest()
    assert newest is not None and newest.state()["auto"]["tuner"]["periods"]


def test_a_search_that_is_killed_costs_nothing_but_its_result(tmp_path: Path) -> None:
    outcome = train(tmp_path, Killed)
    assert outcome.error == ""
    assert changes(outcome) == []


def test_a_job_that_cannot_be_simulated_trains_with_the_factors_that_it_has(tmp_path: Path) -> None:
    """The simulator spreads trainers over all GPUs; two replicas on five GPUs are a valid job."""
    trainer = SPEC.trainer.model_copy(update={"data_parallel_size": 2})
    outcome = train(tmp_path, spec=SPEC.resized(5).model_copy(update={"trainer": trainer}))
    assert outcome.error == "" and len(outcome.ledger) >= STEPS
    assert changes(outcome) == []
    last = outcome.reports[-1].auto
    assert last is not None
    assert last.why.startswith(
        "nothing better is searched for, because the job cannot be simulated: trainer.dataParallelSize:"
    )


def test_no_round_waits_for_a_search(tmp_path: Path) -> None:
    outcome = train(tmp_path, Endless)
    assert outcome.error == "" and len(outcome.ledger) >= STEPS
    assert changes(outcome) == []


def test_a_round_that_is_refused_and_sampled_again_has_the_factors_of_its_step(tmp_path: Path) -> None:
    (tmp_path / "plain").mkdir()
    (tmp_path / "refused").mkdir()
    plain = train(tmp_path / "plain")
    changed = next(report.auto for report in plain.reports if report.auto is not None and report.auto.since_step)
    assert changed is not None
    refused = train(tmp_path / "refused", stale=lambda publication: publication == changed.since_step)
    assert "LogProbMismatch" in [reason for reason, _ in refused.notices]
    rows = [one.ledger[changed.since_step - 1] for one in (plain, refused)]
    assert [len(row["deferred"]) for row in rows] == [len(rows[0]["deferred"])] * 2
    assert len(rows[0]["deferred"]) != len(plain.ledger[0]["deferred"]), "the change is not seen in this round"


def test_another_handover_holds_from_the_next_round_on_and_after_a_restart(tmp_path: Path) -> None:
    layout: dict[str, Any] = {"spec": SEPARATE, "is_colocated": False}
    outcome = train(tmp_path, **layout)
    assert outcome.error == ""
    chosen = {report.step + 1: report.auto for report in outcome.reports if report.auto is not None}
    assert chosen[1].handover is Handover.AFTER_ROUND
    changed = min(step for step, auto in chosen.items() if auto.handover is Handover.PIPELINED)
    assert any("handover AfterRound -> Pipelined" in message for message in changes(outcome))
    metrics = [json.loads(line) for line in (tmp_path / "output" / "metrics.jsonl").read_text().splitlines()]
    begins_early = {
        line["step"]: line["trainer/first_dispatch_s"] < line["timing_s/gen"]
        for line in metrics
        if "trainer/first_dispatch_s" in line and line["step"] <= STEPS  # Later ones may be smaller than an update.
    }
    early = {step for step, is_early in begins_early.items() if is_early}
    assert changed in early and min(early) == changed, "of some later rounds, all groups are complete at once"
    resumed = train(tmp_path, steps=STEPS + 3, **layout)
    first = next(report.auto for report in resumed.reports if report.auto is not None)
    assert first.handover is Handover.PIPELINED
