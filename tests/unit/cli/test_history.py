"""What a watch learns from one status after another."""

from typing import Any

import pytest

from longshore.api.round_status import RoundKind
from longshore_cli import format as fmt
from longshore_cli.watch.history import JobChange, Line, WatchedStep, WatchHistory, advance, begin
from longshore_cli.watch.text import line_text
from longshore_client.view import job_view
from tests.unit.cli.samples import at_step, rljob


def watched(*jobs: tuple[float, dict[str, Any]]) -> tuple[WatchHistory, list[Line]]:
    """Fold (time, job) pairs."""
    (first_s, first), *rest = jobs
    history = begin(job_view(first), first_s)
    lines: list[Line] = []
    for now_s, job in rest:
        history, new_lines = advance(history, job_view(job), now_s)
        lines += new_lines
    return history, lines


def test_a_finished_step_is_reported_once_with_the_kind_of_its_own_round() -> None:
    _, lines = watched(
        (0, rljob(at_step(3, "Long"))),
        (1, rljob(at_step(3, "Long", fraction=1.0, activity="Train"))),
        (2, rljob(at_step(4, "Short"))),
        (3, rljob(at_step(4, "Short", fraction=0.5))),
    )
    (done,) = lines
    assert isinstance(done, WatchedStep)
    assert (done.step, done.steps, done.kind) == (4, 10, RoundKind.LONG)


def test_the_figures_of_a_step_are_its_own() -> None:
    before = at_step(2, short={"rounds": 2, "rolloutSeconds": 4.0}, long={})
    after = at_step(3, short={"rounds": 2, "rolloutSeconds": 4.0}, long={"rounds": 1, "rolloutSeconds": 6.0})
    _, lines = watched((0, rljob(before)), (12, rljob(after | {"stepSeconds": 7.5})))
    (done,) = lines
    assert isinstance(done, WatchedStep)
    assert (done.rollout_s, done.step_s) == (6.0, 7.5)
    assert "took 7.5s  rollout 6.0s" in line_text(done)


def test_each_step_has_a_line_and_the_last_of_several_has_the_figures() -> None:
    before = at_step(2, short={"rounds": 2, "rolloutSeconds": 4.0}, long={})
    after = at_step(5, short={"rounds": 4, "rolloutSeconds": 7.0}, long={"rounds": 1, "rolloutSeconds": 6.0})
    rounds = [
        {"number": number, "kind": kind, "preemptions": 0} for number, kind in ((3, "Short"), (4, "Long"), (5, "Long"))
    ]
    _, lines = watched((0, rljob(before)), (12, rljob(after | {"stepSeconds": 7.5, "recentRounds": rounds})))
    *missed, done = lines
    assert [line_text(line) for line in missed] == [
        "step 3/10  Short  reported with step 5; own figures in metrics.jsonl",
        "step 4/10  Long  reported with step 5; own figures in metrics.jsonl",
    ]
    assert isinstance(done, WatchedStep)
    assert (done.kind, done.rollout_s, done.step_s) == (RoundKind.LONG, None, 7.5)
    assert "Long" in line_text(done) and "took 7.5s" in line_text(done) and "rollout" not in line_text(done)


def test_a_step_without_figures_has_a_line_where_its_kind_is_unknown_too() -> None:
    _, lines = watched((0, rljob({"step": 2})), (1, rljob({"step": 4})))
    assert line_text(lines[0]) == "step 3/10  reported with step 4; own figures in metrics.jsonl"


def test_time_left_follows_the_pace_of_the_last_steps() -> None:
    history, _ = watched(*((10.0 + 2 * step, rljob(at_step(step))) for step in range(1, 5)))
    assert history.step_s == pytest.approx(2.0)
    assert history.remaining_s(now_s=18.0) == pytest.approx(12.0)
    assert history.remaining_s(now_s=19.0) == pytest.approx(11.0)
    assert history.remaining_s(now_s=1_000.0) == pytest.approx(10.0), "a late step does not count below the next one"


def test_a_step_for_deferred_draws_is_distinguished_from_those_that_were_asked_for() -> None:
    history, lines = watched((0, rljob(at_step(10), steps=10)), (1, rljob(at_step(11), steps=10)))
    assert (history.view.steps, history.remaining_s(now_s=1.0)) == (10, 0.0)
    assert line_text(lines[-1]).startswith("step 10/10 + 1  ")


def test_time_left_is_unknown_before_two_steps_were_seen() -> None:
    history, _ = watched((0, rljob(at_step(1))))
    assert history.remaining_s(now_s=5.0) is None


def test_a_restart_goes_back_to_the_checkpoint() -> None:
    history, lines = watched(
        (0, rljob(at_step(1))), (2, rljob(at_step(2))), (4, rljob(at_step(3))),
        (5, rljob(at_step(3), phase="Restarting", attempt=2)),
        (7, rljob({"step": 0, "activity": "StartEngines"}, attempt=2)),
        (9, rljob(at_step(1), attempt=2)),
    )  # fmt: skip
    assert [line.text for line in lines if isinstance(line, JobChange)] == [
        "Restarting",
        "Running",
        "continues from step 1",
    ]
    assert [line.step for line in lines if isinstance(line, WatchedStep)] == [2, 3]
    assert [step for step, _ in history.rewards] == [1]
    assert history.step_s is None, "the time of the restart is no step's"


def test_changes_of_phase_and_activity_are_reported_but_not_those_of_every_round() -> None:
    _, lines = watched(
        (0, rljob(phase=None)),
        (1, rljob(phase="Starting")),
        (2, rljob({"activity": "PrepareModel"})),
        (3, rljob({"activity": "StartEngines"})),
        (4, rljob(at_step(0))),
        (5, rljob(at_step(0, activity="Train"))),
    )
    assert [line.text for line in lines if isinstance(line, JobChange)] == [
        "Starting",
        "Running",
        "start of the engines",
    ]


def test_time_is_booked_to_what_the_job_did_meanwhile() -> None:
    history, _ = watched(
        (0, rljob(phase="Starting")),
        (3, rljob(at_step(0, activity="Rollout"))),
        (5, rljob(at_step(0, activity="Train"))),
        (6, rljob(at_step(1, activity="Rollout"))),
        (10, rljob(at_step(1, activity="Done"), phase="Succeeded")),
    )
    assert history.activity_s == {"Starting": 3, "Rollout": 6, "Train": 1}


def test_what_a_coordinator_says_of_its_time_counts_rather_than_what_was_seen_of_it() -> None:
    """A watch sees one report per second, and rounds of tiny models do several things in one."""
    first, second = {"StartEngines": 2.5, "Rollout": 0.6, "Train": 0.3}, {"StartEngines": 1.5}
    history, _ = watched(
        (0, rljob(phase="Starting")),
        (3, rljob(at_step(0, activitySeconds={"StartEngines": 2.5}))),
        (4, rljob(at_step(4, activitySeconds=first))),
        (9, rljob(at_step(4, activitySeconds=first), phase="Restarting")),
        (12, rljob({"step": 0, "activity": "StartEngines"}, attempt=2)),
        (14, rljob({"step": 4, "activity": "Train", "activitySeconds": second}, attempt=2)),
        (20, rljob(at_step(5, activitySeconds=second | {"Train": 4.0}), attempt=2)),
    )
    assert history.activity_s == pytest.approx(
        {"Starting": 3.0, "StartEngines": 4.0, "Rollout": 0.6, "Train": 4.3, "Restarting": 3.0}
    )


def test_rewards_are_kept_by_step() -> None:
    history, _ = watched(*((step, rljob(at_step(step))) for step in (0, 1, 2, 2, 3)))
    assert history.rewards == ((1, 0.51), (2, 0.52), (3, 0.53))


def test_a_result_on_held_out_prompts_has_a_line() -> None:
    before, latest = {"before": 0.5, "latest": 0.5}, {"before": 0.5, "latest": 0.75}
    evaluating = at_step(0, activity="Evaluate")
    _, lines = watched(
        (0, rljob(evaluating)),
        (1, rljob(at_step(0, heldOut=before))),
        (2, rljob(at_step(0, fraction=0.5, heldOut=before))),
        (3, rljob(at_step(1, heldOut=latest))),
    )
    texts = [line_text(line) for line in lines]
    assert texts[0] == "held-out reward 0.500 before the first step"
    assert texts[2:] == [f"held-out reward {fmt.change(0.5, 0.75)}"]
