"""What is drawn: on a terminal, in a pipe, and at the end."""

import io
import re
from collections.abc import Iterable
from dataclasses import replace
from typing import Any, Final

import pytest
from rich.console import Console, RenderableType

from longshore.api.runtime_status import ResponseTokens, RuntimeActivity
from longshore_cli import summary
from longshore_cli.comparison import Comparison, Timing
from longshore_cli.watch import text, words
from longshore_cli.watch.dashboard import dashboard, line
from longshore_cli.watch.history import JobChange, StepProgress, WatchedStep, WatchHistory, advance, begin
from longshore_cli.watch.screen import LiveScreen, PlainScreen, screen_for
from longshore_client.view import EventView, job_view
from tests.unit.cli.samples import at_step, condition, rljob

CONTROL = re.compile(r"[\x00-\x09\x0b-\x1f\x7f]")


def drawn(what: RenderableType, width: int = 100) -> str:
    """The characters on a terminal, colours left out."""
    console = Console(width=width, file=io.StringIO(), color_system=None)
    console.print(what)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def run_of(*reports: dict[str, object], **status: object) -> WatchHistory:
    """A history of reports two seconds apart."""
    history = begin(job_view(rljob(reports[0])), 0.0)
    for index, report in enumerate(reports[1:], start=1):
        history, _ = advance(history, job_view(rljob(report)), 2.0 * index)
    return history


REPORT = at_step(
    4, "Long", fraction=0.25,
    heldOut={"before": 0.561, "latest": 0.743, "longBefore": 0.31, "longLatest": 0.58},
    responseTokens={"mean": 33.4, "p75": 51.0, "max": 1261}, tokensPerSecond=1234.5, bubbleShare=0.123,
    draws={"trained": 128, "zeroVariance": 9, "deferred": 7, "rejected": 2},
    short={"rounds": 3, "rolloutSeconds": 6.0, "samples": 768},
    long={"rounds": 1, "rolloutSeconds": 5.0, "samples": 256},
    warmStart={"step": 300, "firstLoss": 4.85, "loss": 0.3712, "seconds": 61.0, "cached": True},
    finalModel="rljobs/demo/final",
    activitySeconds={"Rollout": 20.0, "Train": 4.0, "Publish": 2.0, "ProfileSizes": 1.0},
)  # fmt: skip


@pytest.mark.parametrize(
    "figure",
    ["team/demo", "Running", "TailBatching", "4/10", "40 %", "5 Long", "25 %", "0.540", "0.561 → 0.743 (+0.182)",
     "0.310 → 0.580 (+0.270)", "mean 33", "p75 51", "max 1,261", "1,234 tokens/s", "12.3 %", "3 short", "1 long",
     "queue 7", "replaced 2", "2.0s a step"],
)  # fmt: skip
def test_the_dashboard_shows(figure: str) -> None:
    history = run_of(at_step(2), at_step(3), REPORT)
    assert figure in drawn(dashboard(history, (), now_s=5.0))


GB: Final = 1_000_000_000


@pytest.mark.parametrize(
    ("activity", "progress", "shown"),
    [
        (
            "Download",
            {"unit": "Bytes", "done": 0.8 * GB, "total": 3.2 * GB, "detail": "Qwen/Qwen2.5-1.5B"},
            "25 % 800.0 MB of 3.2 GB · download from the Hub · Qwen/Qwen2.5-1.5B",
        ),
        (
            "PrepareModel",
            {"unit": "Steps", "done": 150, "total": 300, "detail": "warm start"},
            "50 % 150 of 300 steps · model and warm start · warm start",
        ),
        (
            "StartEngines",
            {"unit": "Engines", "done": 1, "total": 4, "detail": "engine 2 has read 40% of its weights"},
            "25 % 1 of 4 engines · start of the engines · engine 2 has read 40% of its weights",
        ),
        (
            "ProfileEngines",
            {"unit": "Measurements", "done": 3, "total": 9, "detail": "engines of size 1"},
            "33 % 3 of 9 measurements · measuring the engines · engines of size 1",
        ),
        ("WaitForRewardPods", {"unit": "Pods", "done": 1, "total": 4}, "25 % 1 of 4 pods · waiting for reward pods"),
        (
            "WaitForEnvironmentPods",
            {"unit": "Pods", "done": 1, "total": 2},
            "50 % 1 of 2 pods · waiting for environment pods",
        ),
        ("Train", {"unit": "Responses", "done": 64, "total": 256}, "25 % 64 of 256 responses · training"),
        (
            "Publish",
            {"unit": "Engines", "done": 0, "total": 4, "detail": "2.5 GB are loaded"},
            "0 % 0 of 4 engines · weights to the engines · 2.5 GB are loaded",
        ),
        ("Evaluate", {"unit": "Responses", "done": 64, "total": 256}, "25 % 64 of 256 responses · evaluation"),
        ("Checkpoint", {"unit": "Bytes", "done": GB, "total": 4 * GB}, "25 % 1.0 GB of 4.0 GB · checkpoint"),
        ("Checkpoint", {"unit": "Bytes", "done": GB, "total": 0}, "1.0 GB · checkpoint"),
    ],
)
def test_what_takes_long_shows_how_far_it_is(activity: str, progress: dict[str, Any], shown: str) -> None:
    history = begin(job_view(rljob(at_step(1, activity=activity, progress=progress))), 10.0)
    assert shown in " ".join(drawn(dashboard(history, (), now_s=22.0)).replace("│", " ").split())


@pytest.mark.parametrize("activity", RuntimeActivity)
def test_everything_that_a_coordinator_does_has_words(activity: RuntimeActivity) -> None:
    assert words.in_words(activity) != activity


def test_progress_of_a_coordinator_that_has_ended_is_not_shown() -> None:
    progress = {"unit": "Steps", "done": 150, "total": 300}
    for phase in ("Restarting", "Failed"):
        history = begin(job_view(rljob(at_step(1, activity="PrepareModel", progress=progress), phase=phase)), 10.0)
        assert "150 of 300" not in drawn(dashboard(history, (), now_s=22.0))


def test_held_out_reward_is_compared_only_once_there_is_a_later_one() -> None:
    history = begin(job_view(rljob(at_step(1, heldOut={"before": 0.5, "latest": 0.5}))), 0.0)
    shown = drawn(dashboard(history, (), now_s=0.0))
    assert "0.500" in shown and "→" not in shown


def test_the_dashboard_of_a_new_job_is_drawn_too() -> None:
    history = begin(job_view({"metadata": {"name": "new"}}), 0.0)
    assert "Pending" in drawn(dashboard(history, (), now_s=0.0))


def test_the_dashboard_shows_what_is_not_well_and_what_happened() -> None:
    job = rljob(at_step(1), conditions=(condition("Scheduled", "False", "Unschedulable", "0/2 nodes are available"),))
    event = EventView("1", "2026-01-01T10:20:30Z", "Warning", "PodLost", "worker 1 was lost")
    shown = drawn(dashboard(begin(job_view(job), 0.0), (event,), now_s=0.0))
    assert "Scheduled is false: Unschedulable: 0/2 nodes are available" in shown
    assert "10:20:30 PodLost: worker 1 was lost" in shown


def test_the_dashboard_shows_which_pod_a_job_waits_for_below_its_progress() -> None:
    unschedulable = condition("Scheduled", "False", "Unschedulable", "demo-reward-0: 1 Insufficient cpu")
    progress = {"unit": "Responses", "done": 50, "total": 64}
    job = rljob(at_step(0, activity="Evaluate", progress=progress), phase="Starting", conditions=(unschedulable,))
    shown = drawn(dashboard(begin(job_view(job), 0.0), (), now_s=0.0)).splitlines()
    (row,) = (at for at, line in enumerate(shown) if "50 of 64 responses" in line)
    assert "Waits for  demo-reward-0: 1 Insufficient cpu" in shown[row + 1]


def test_the_watch_shows_an_alarm_in_the_panel_in_a_pipe_and_after_the_end() -> None:
    sentence = "since step 3: every reward of the last 3 steps is 0, so nothing is learned"
    alarm = condition("TrainingAlarm", "True", "RewardsAllZero", sentence)
    event = EventView("1", "2026-01-01T10:20:30Z", "Warning", "RewardsAllZero", "every reward of the last 3 steps is 0")
    for phase in ("Running", "Succeeded"):
        history = begin(job_view(rljob(REPORT, phase=phase, conditions=(alarm,))), 0.0)
        shown = " ".join(drawn(dashboard(history, (event,), now_s=0.0), width=120).replace("│", "").split())
        assert f"! TrainingAlarm: RewardsAllZero: {sentence}" in shown
        assert "10:20:30 RewardsAllZero: every reward" in shown
    assert text.event_text(event) == "event Warning RewardsAllZero: every reward of the last 3 steps is 0"


def test_an_alarm_that_is_over_is_no_problem() -> None:
    over = condition("TrainingAlarm", "False", "Cleared", "nothing speaks against the training any longer")
    history = begin(job_view(rljob(REPORT, conditions=(over,))), 0.0)
    assert "TrainingAlarm" not in drawn(dashboard(history, (), now_s=0.0))


REPURPOSED = "4 of 8 GPUs to training at 30 %: projected KV peak 50 %"


def repurposed(**report: object) -> WatchHistory:
    """A job half of whose GPUs train while the others sample."""
    assignment = {"epoch": 2, "reason": REPURPOSED}
    job = rljob({**REPORT, "tpSize": 2, **report}, assignment=assignment, gpus={"rollout": 4, "trainer": 4},
                trainers={"desired": 2, "ready": 1})  # fmt: skip
    return begin(job_view(job), 0.0)


@pytest.mark.parametrize("figure", ["4 rollout / 4 trainer", "tensor-parallel size 2", REPURPOSED, "trainers 1/2"])
def test_the_dashboard_shows_what_gpus_do_and_why(figure: str) -> None:
    assert figure in drawn(dashboard(repurposed(), (), now_s=0.0))


def test_an_assignment_that_was_refused_says_so() -> None:
    history = repurposed(rejectedEpoch=2, rejectedReason="round 1 is over")
    assert dict(summary.rows(history))["last assignment"] == f"{REPURPOSED} (refused: round 1 is over)"


@pytest.mark.parametrize("width", [80, 120])
def test_the_dashboard_fits_the_terminal(width: int) -> None:
    lines = drawn(dashboard(run_of(at_step(2), at_step(3), REPORT), (), now_s=5.0), width).splitlines()
    assert max(map(len, lines)) <= width
    assert len(lines) <= 15, "one line per row"


def test_brackets_in_messages_are_not_markup() -> None:
    job = rljob(at_step(1), conditions=(condition("Failed", "True", "UserError", "[red]no[/red]"),))
    assert "[red]no[/red]" in drawn(dashboard(begin(job_view(job), 0.0), (), now_s=0.0))


def test_brackets_in_what_a_coordinator_reports_are_not_markup() -> None:
    progress = {"unit": "Bytes", "done": 1, "total": 4, "detail": "[/x] [link=https://example.com]org/name[/link]"}
    job = rljob({"step": 1, "activity": "Download", "progress": progress})
    shown = drawn(dashboard(begin(job_view(job), 0.0), (), now_s=0.0), 160)
    assert "[/x] [link=https://example.com]" in shown


def done_step() -> WatchedStep:
    _, lines = advance(begin(job_view(rljob(at_step(3))), 0.0), job_view(rljob(REPORT)), 2.0)
    (done,) = [line for line in lines if isinstance(line, WatchedStep)]
    assert isinstance(done, WatchedStep)
    return done


def test_a_finished_step_is_one_line_on_a_narrow_terminal() -> None:
    shown = drawn(line(done_step()), width=80).splitlines()
    assert len(shown) == 1
    assert "step  4/10" in shown[0] and "reward 0.540" in shown[0]


def test_a_finished_step_is_one_plain_line_in_a_pipe() -> None:
    shown = text.line_text(done_step())
    assert shown == "step 4/10  Short  reward 0.540  rollout 11.0s  tokens 33/1261"


def test_the_plain_line_of_a_step_has_at_most_80_columns() -> None:
    lengths = ResponseTokens(mean=3512.4, p75=5120.0, max=16384)
    large = replace(done_step(), step=120, steps=500, reward=-0.125, response_tokens=lengths, step_s=125, rollout_s=95)
    assert len(text.line_text(large)) == 80


def written(screen: PlainScreen | LiveScreen, history: WatchHistory, events: Iterable[EventView]) -> None:
    with screen:
        screen.job(history, (JobChange("Running"), done_step()))
        for event in events:
            screen.event(event)


def test_a_pipe_gets_lines_without_control_characters_and_each_event_once() -> None:
    out = io.StringIO()
    console = Console(file=out)
    history = run_of(at_step(3), REPORT)
    screen = screen_for(console, history, lambda: 0.0)
    assert isinstance(screen, PlainScreen)
    event = EventView("1", "", "Normal", "Started", "[bold]attempt 1[/bold]")
    written(screen, history, [event, event])
    assert not CONTROL.search(out.getvalue())
    assert out.getvalue().splitlines() == [
        "Running", text.line_text(done_step()), "event Normal Started: [bold]attempt 1[/bold]"
    ]  # fmt: skip


def test_a_terminal_gets_the_panel_with_the_lines_above() -> None:
    out = io.StringIO()
    console = Console(file=out, force_terminal=True, width=100)
    history = run_of(at_step(3), REPORT)
    screen = screen_for(console, history, lambda: 0.0)
    assert isinstance(screen, LiveScreen)
    written(screen, history, [EventView("1", "2026-01-01T10:20:30Z", "Normal", "Started", "attempt 1")])
    last = out.getvalue()
    assert last.index("step  4/10") < last.rindex("RLJob team/demo") < last.rindex("attempt 1")


@pytest.mark.parametrize("is_terminal", [False, True])
def test_the_progress_of_a_step_is_a_line_in_a_pipe_only(is_terminal: bool) -> None:
    out, history = io.StringIO(), run_of(at_step(3), REPORT)
    with screen_for(Console(file=out, force_terminal=is_terminal, width=100), history, lambda: 0.0) as screen:
        screen.job(history, (StepProgress("step 4/10  rollout: a long time"),))
    assert ("a long time" in out.getvalue()) is not is_terminal


def test_the_ending_says_what_was_learned_or_why_not() -> None:
    succeeded = job_view(rljob(REPORT, phase="Succeeded"))
    assert text.ending_text(succeeded) == "Succeeded after 4 steps; held-out reward 0.561 → 0.743 (+0.182)"
    drained = job_view(rljob(at_step(5), phase="Succeeded", steps=4))
    assert text.ending_text(drained).startswith("Succeeded after 4 steps and 1 for deferred prompts; ")
    failed = job_view(rljob(phase="Failed", conditions=(condition("Failed", "True", "UserError", "no data"),)))
    assert text.ending_text(failed) == "Failed: UserError: no data"


def test_the_summary_shows_the_figures_of_the_run() -> None:
    job = rljob(REPORT, phase="Succeeded", startTime="2026-01-01T00:04:00Z", completionTime="2026-01-01T00:05:12Z")
    job["metadata"]["creationTimestamp"] = "2026-01-01T00:00:00Z"  # It was suspended, and started again.
    history, _ = advance(run_of(at_step(2), at_step(3)), job_view(job), 4.0)
    assert dict(summary.rows(history)) == {
        "held-out reward": "0.561 → 0.743 (+0.182)",
        "  longest quarter of the prompts": "0.310 → 0.580 (+0.270)",
        "training reward, last step": "0.540",
        "short rounds": "3 rounds, 2.0s of rollout each, 7.8 ms a trained response",
        "long rounds": "1 round, 5.0s of rollout each, 19.5 ms a trained response",
        "bubble, last rollout": "12.3 %",
        "draws": "128 trained, 9 of them without spread, 2 replaced, 7 left in the queue",
        "warm start": "300 steps, loss 4.85 → 0.371, there already (it had taken 1m01s)",
        "time": "5m12s in all: rollout 20.0s, training 4.0s, weights to the engines 2.0s, "
        "measuring other tensor-parallel sizes 1.0s",
        "final model": "rljobs/demo/final",
    }


def test_the_summary_says_that_seconds_per_step_are_compared_and_not_whole_jobs() -> None:
    found = Comparison(2, 46, Timing(0.5, 100), Timing(1.0, 250))
    rows = dict(summary.rows(run_of(at_step(3), REPORT), found))
    assert rows["seconds per step"] == str(found)
    assert rows["  decode steps of an engine"] == found.decode_steps
    assert "the same job in the same cluster" in rows["  what is compared"]
    assert "not the time of a whole job" in rows["  what is compared"]


def test_the_dashboard_shows_how_many_worker_pods_an_elastic_job_has_and_is_to_have() -> None:
    size = {"epoch": 1, "workers": 2, "held": 2}
    for granted, shown in ((2, "worker pods 2"), (4, "worker pods 2 → 4")):
        job = rljob(REPORT | {"size": size}, admission={"admitted": True, "workers": granted})
        assert shown in drawn(dashboard(begin(job_view(job), 0.0), (), now_s=0.0))


def test_a_change_of_its_size_is_no_problem() -> None:
    growing = condition("Resizing", "True", "Growing", "the job goes on with 4 worker pods")
    assert "Resizing" not in drawn(dashboard(begin(job_view(rljob(REPORT, conditions=(growing,))), 0.0), (), now_s=0.0))
