"""What the operator counts."""

import pytest
from prometheus_client import generate_latest

from longshore.api.runtime_status import Alarm, RuntimeStatus
from longshore.api.status import Assignment, Baseline, GpuCounts, Overlay, Phase, RLJobStatus
from longshore_operator.metrics import OperatorMetrics

NONE, STARTED = Assignment(), Assignment(epoch=1)
OVERLAY = Overlay(round=1, attempt=1, trainer_pods=[1])
REPURPOSED = Assignment(epoch=2, overlay=OVERLAY)


@pytest.mark.parametrize(
    ("before", "after", "overlays", "baselines"),
    [
        (NONE, STARTED, 0, 1),
        (STARTED, STARTED, 0, 0),
        (STARTED, REPURPOSED, 1, 0),
        (REPURPOSED, Assignment(epoch=3, baseline=Baseline(tp_size=2)), 0, 1),
        (REPURPOSED, Assignment(epoch=3, baseline=Baseline(tp_size=2), overlay=OVERLAY), 0, 1),
        (STARTED, REPURPOSED.model_copy(update={"baseline": Baseline(tp_size=2)}), 1, 1),
    ],
    ids=["start", "nothing", "overlay", "regroup", "regroup beside a live overlay", "both"],
)
def test_assignments_are_counted_by_what_they_change(
    before: Assignment, after: Assignment, overlays: int, baselines: int
) -> None:
    metrics = OperatorMetrics()
    metrics.count_assignment(before, after)
    for kind, expected in (("overlay", overlays), ("baseline", baselines)):
        counted = metrics.registry.get_sample_value("longshore_operator_assignments_total", {"kind": kind})
        assert counted == expected, "from 0 on, also what has not happened yet"


def test_gpus_are_shown_by_job_and_role_until_the_job_is_gone() -> None:
    metrics = OperatorMetrics()
    here, there = ("team", "demo"), ("other", "demo")

    def num_gpus(key: tuple[str, str], role: str) -> float | None:
        labels = {"job_namespace": key[0], "job_name": key[1], "role": role}
        return metrics.registry.get_sample_value("longshore_operator_gpus", labels)

    metrics.show(here, RLJobStatus(gpus=GpuCounts(rollout=8)))
    metrics.show(there, RLJobStatus(gpus=GpuCounts(rollout=2)))
    metrics.show(here, RLJobStatus(gpus=GpuCounts(rollout=4, trainer=4, judge=1)))
    assert [num_gpus(here, role) for role in ("rollout", "trainer", "judge")] == [4, 4, 1]
    metrics.forget(here)
    metrics.forget(("team", "never seen"))
    assert [num_gpus(here, role) for role in ("rollout", "trainer", "judge")] == [None] * 3
    assert num_gpus(there, "rollout") == 2


def shown(metrics: OperatorMetrics) -> set[str]:
    """Series of single jobs, as they are scraped."""
    lines = generate_latest(metrics.registry).decode().splitlines()
    return {line for line in lines if line.startswith("longshore_operator_job_")}


def test_a_job_shows_one_phase_its_step_and_its_alarms_until_it_is_gone() -> None:
    metrics, key = OperatorMetrics(), ("team", "demo")
    alarm = Alarm(reason="RewardsFault", message="the judge is away", step=3)
    metrics.show(key, RLJobStatus(phase=Phase.PENDING))
    metrics.show(
        key, RLJobStatus(phase=Phase.RUNNING, runtime=RuntimeStatus(step=3, bubble_share=0.25, alarms=[alarm]))
    )
    job = 'job_name="demo",job_namespace="team"'
    assert shown(metrics) == {
        f'longshore_operator_job_phase{{{job},phase="Running"}} 1.0',
        f"longshore_operator_job_step{{{job}}} 3.0",
        f"longshore_operator_job_bubble_share{{{job}}} 0.25",
        f'longshore_operator_job_alarm{{{job},reason="RewardsFault"}} 1.0',
    }
    metrics.show(key, RLJobStatus(phase=Phase.RUNNING, runtime=RuntimeStatus(step=4)))
    assert not [line for line in shown(metrics) if "alarm" in line]
    metrics.forget(key)
    assert shown(metrics) == set()


def test_the_alarms_of_a_job_end_with_it() -> None:
    metrics = OperatorMetrics()
    alarm = Alarm(reason="RewardsFault", message="the judge is away", step=3)
    metrics.show(("team", "demo"), RLJobStatus(phase=Phase.FAILED, runtime=RuntimeStatus(alarms=[alarm])))
    assert not [line for line in shown(metrics) if "alarm" in line]
