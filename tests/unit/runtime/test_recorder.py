"""What the recorder tells of rewards and of rounds that run."""

import contextlib
import json
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

from longshore.api.round_status import RolloutLoad, RoundKind
from longshore.api.runtime_status import (
    Notice,
    ProgressUnit,
    PromptCounts,
    RewardLoad,
    RewardSurroundings,
    RuntimeActivity,
    RuntimeStatus,
)
from longshore.policy.progress import RoundProgress
from longshore.policy.reward_pods import RewardPressure
from longshore_runtime.checkpoints.run_state import HeldOutScore, RunState
from longshore_runtime.rewards.surroundings import Surroundings
from longshore_runtime.telemetry.journal import Journal
from longshore_runtime.telemetry.metrics import MetricsWriter
from longshore_runtime.telemetry.recorder import Recorder
from longshore_runtime.telemetry.status_fields import next_session, state_fields
from tests.unit.runtime.reward_driver import ManualClock


class Reports(list[RuntimeStatus]):
    """Takes reports as a status sink does."""

    def report(self, status: RuntimeStatus) -> None:
        self.append(status)

    def close(self) -> None:
        """Nothing waits here."""


@pytest.fixture
def reports() -> Reports:
    return Reports()


@pytest.fixture
def recorder(tmp_path: Path, reports: Reports) -> Iterator[Recorder]:
    metrics = MetricsWriter(tmp_path, CollectorRegistry())
    yield Recorder(metrics, Journal(tmp_path / "ledger.jsonl"), reports, RuntimeStatus(attempt=1))
    metrics.close()


@contextlib.contextmanager
def switching_often() -> Iterator[None]:
    """Threads take turns after every few instructions: whatever is not locked is torn apart."""
    interval_s = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        yield
    finally:
        sys.setswitchinterval(interval_s)


def test_a_total_that_is_exceeded_is_not_shown(recorder: Recorder, reports: Reports) -> None:
    for done in (541, 970):
        recorder.progress(ProgressUnit.BYTES, done, 541)
    assert [one.progress and (one.progress.done, one.progress.total) for one in reports] == [(541, 541), (970, 0)]


def test_progress_belongs_to_an_activity_and_ends_with_it(recorder: Recorder, reports: Reports) -> None:
    recorder.activity(RuntimeActivity.DOWNLOAD)
    recorder.download("acme/tiny", 1, 4)
    recorder.download("acme/tiny", 3, 4)
    recorder.activity(RuntimeActivity.PREPARE_MODEL)
    recorder.progress(ProgressUnit.STEPS, 10, 300, "warm start")
    recorder.round_progress(RunState(), RoundProgress(RoundKind.SHORT, num_launched=8, num_finished=0))
    recorder.progress(ProgressUnit.BYTES, 5, 0)
    recorder.finished("model")
    found = [
        report.progress and (report.progress.unit, report.progress.done, report.progress.detail) for report in reports
    ]
    assert found == [
        None, ("Bytes", 1, "acme/tiny"), ("Bytes", 3, "acme/tiny"), None, ("Steps", 10, "warm start"), None,
        ("Bytes", 5, ""), None,
    ]  # fmt: skip


def test_time_is_counted_for_the_activity_that_took_it_also_in_the_next_session(
    tmp_path: Path, reports: Reports
) -> None:
    clock = ManualClock(time_s=50.0)
    metrics = MetricsWriter(tmp_path, CollectorRegistry())

    def begin(first: RuntimeStatus) -> Recorder:
        return Recorder(metrics, Journal(tmp_path / "ledger.jsonl"), reports, first, clock=clock)

    first = RuntimeStatus(attempt=1, activity=RuntimeActivity.WAIT_FOR_WORKERS)
    recorder = begin(first)
    for passed_s, activity in [(4.0, "Rollout"), (2.5, "Rollout"), (1.0, "Train"), (0.0625, "Rollout"), (8.0, "Train")]:
        clock.time_s += passed_s
        recorder.activity(RuntimeActivity(activity))
    assert reports[-1].activity_s == {"WaitForWorkers": 4.0, "Rollout": 11.5, "Train": 0.062}
    clock.time_s += 100.0
    recorder = begin(next_session(first, recorder.status))
    clock.time_s += 3.0
    recorder.finished("model")
    assert reports[-1].activity_s == {"WaitForWorkers": 7.0, "Rollout": 11.5, "Train": 0.062}
    metrics.close()


def test_what_the_data_comes_to_is_reported(recorder: Recorder, reports: Reports) -> None:
    counts = PromptCounts(train=10, held_out=2, too_long=3, repeating_held_out=4)
    recorder.prompts(counts)
    assert reports[-1].prompts == counts


def test_how_rewards_keep_up_is_reported_where_it_moves(recorder: Recorder, reports: Reports) -> None:
    recorder.reward_pressure(RewardPressure(0, 0.0, 4, 0))
    recorder.reward_pressure(RewardPressure(0, 0.0, 4, 0))
    recorder.reward_pressure(RewardPressure(20, 3.04, 4, 4))
    recorder.reward_pressure(RewardPressure(21, 3.5, 4, 4))
    recorder.reward_pressure(RewardPressure(21, 6.0, 4, 4))
    assert [report.rewards for report in reports] == [
        RewardLoad(workers=4),
        RewardLoad(queue_length=20, oldest_wait_s=3.0, workers=4, busy=4),
        RewardLoad(queue_length=21, oldest_wait_s=6.0, workers=4, busy=4),
    ]
    assert {report.attempt for report in reports} == {1}


def test_what_a_reward_worker_found_is_reported_once(recorder: Recorder, reports: Reports) -> None:
    for _ in range(3):
        recorder.reward_worker(Surroundings(gpu_sharing="TimeSlicing: no GPU"))
    assert [report.reward_workers for report in reports] == [RewardSurroundings(gpu_sharing=["TimeSlicing: no GPU"])]


def test_it_stays_in_the_reports_that_follow(recorder: Recorder, reports: Reports) -> None:
    recorder.reward_pressure(RewardPressure(0, 0.0, 4, 0))
    recorder.activity(RuntimeActivity.TRAIN)
    assert reports[-1].rewards == RewardLoad(workers=4)


def test_notices_are_counted_and_the_newest_are_reported(recorder: Recorder, reports: Reports) -> None:
    for engine in range(20):
        recorder.notice("EngineLost", f"engine {engine} was lost")
    assert reports[0].notices == [Notice(number=1, reason="EngineLost", message="engine 0 was lost")]
    recorder.activity(RuntimeActivity.TRAIN)
    assert [notice.number for notice in reports[-1].notices] == list(range(5, 21))


def test_the_notices_of_an_attempt_are_counted_on_in_its_next_session(tmp_path: Path, reports: Reports) -> None:
    known = RuntimeStatus(attempt=1, notices=[Notice(number=7, reason="EngineLost", message="engine 0 was lost")])
    metrics = MetricsWriter(tmp_path, CollectorRegistry())
    Recorder(metrics, Journal(tmp_path / "ledger.jsonl"), reports, known).notice("EngineLost", "engine 1 was lost")
    metrics.close()
    assert [notice.number for notice in reports[-1].notices] == [7, 8]


def test_a_notice_is_as_long_as_the_status_takes(recorder: Recorder, reports: Reports) -> None:
    recorder.notice("EngineLost", "no end " * 1000)
    (notice,) = reports[-1].notices
    assert len(notice.message) == 1024


def test_notices_come_from_any_thread_while_the_driver_reports(recorder: Recorder, reports: Reports) -> None:
    together = threading.Barrier(5)

    def notify() -> None:
        together.wait()
        for _ in range(100):
            recorder.notice("EngineLost", "an engine was lost")

    threads = [threading.Thread(target=notify) for _ in range(4)]
    with switching_often():
        for thread in threads:
            thread.start()
        together.wait()
        for number in range(100):
            recorder.activity((RuntimeActivity.ROLLOUT, RuntimeActivity.TRAIN)[number % 2])
        for thread in threads:
            thread.join()
    assert (reports[-1].notices[-1].number, reports[-1].activity) == (400, RuntimeActivity.TRAIN)
    assert len(reports) == 500


def test_the_progress_of_a_round_is_reported_to_its_last_responses(recorder: Recorder, reports: Reports) -> None:
    for finished in range(101):
        recorder.round_progress(RunState(), RoundProgress(RoundKind.LONG, 100, finished))
    seen = [report.round.fraction_finished for report in reports if report.round is not None]
    assert seen == [0.0, *(round(0.05 * number, 2) for number in range(4, 20))]


def test_a_load_is_reported_until_the_next_one_or_the_next_round(recorder: Recorder, reports: Reports) -> None:
    """The newest report wins: one that left the load out would hide it from an operator that has not looked yet."""
    state, load = RunState(), RolloutLoad(projected_kv_peak_tokens=100, pods=[])
    for finished in (0, 20):
        recorder.round_progress(state, RoundProgress(RoundKind.LONG, 100, finished))
    recorder.milestone(RoundProgress(RoundKind.LONG, 100, 20), load)
    recorder.round_progress(state, RoundProgress(RoundKind.LONG, 100, 26))
    seen = [report.round for report in reports if report.round is not None]
    assert [(one.fraction_finished, one.load) for one in seen] == [(0.0, None), (0.2, None), (0.2, load), (0.26, load)]
    recorder.round_progress(replace(state, step=1), RoundProgress(RoundKind.SHORT, 100, 0))
    newest = reports[-1].round
    assert newest is not None and (newest.number, newest.load) == (2, None)


def test_an_evaluation_in_which_every_reward_failed_has_no_reward(recorder: Recorder, tmp_path: Path) -> None:
    recorder.evaluation(RunState().after_evaluation(HeldOutScore(None, None, (None,))), 2.0)
    assert json.loads((tmp_path / "metrics.jsonl").read_text()) == {"step": 0, "timing_s/testing": 2.0}


@pytest.mark.parametrize(
    ("left", "found"), [(b'{"step":1}\n{"st', b'{"step":1}\n'), (b"", b"")], ids=["cut off", "gone"]
)
def test_a_job_goes_on_with_what_is_left_of_a_journal_that_somebody_has_shortened(
    tmp_path: Path, left: bytes, found: bytes
) -> None:
    path = tmp_path / "metrics.jsonl"
    journal = Journal(path)
    for step in (1, 2, 3):
        journal.append({"step": step})
    position = journal.position
    path.write_bytes(left)
    journal.rewind(position)
    journal.append({"step": 4})
    assert path.read_bytes() == found + b'{"step":4}\n'


def test_steps_that_deferred_prompts_take_at_the_end_are_steps_of_the_job() -> None:
    assert [state_fields(RunState(step=step), {}, 2)["steps"] for step in (1, 2, 3)] == [2, 2, 3]
