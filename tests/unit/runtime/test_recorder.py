"""What the recorder tells of rewards."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

from longshore.api.status import RewardLoad, RuntimeStatus
from longshore.policy.reward_pods import RewardPressure
from longshore_runtime.telemetry.journal import Journal
from longshore_runtime.telemetry.metrics import Metrics
from longshore_runtime.telemetry.recorder import Recorder


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
    metrics = Metrics(tmp_path, CollectorRegistry())
    yield Recorder(metrics, Journal(tmp_path / "ledger.jsonl"), reports, RuntimeStatus(attempt=1))
    metrics.close()


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


def test_it_stays_in_the_reports_that_follow(recorder: Recorder, reports: Reports) -> None:
    recorder.reward_pressure(RewardPressure(0, 0.0, 4, 0))
    recorder.activity("Train")
    assert reports[-1].rewards == RewardLoad(workers=4)
