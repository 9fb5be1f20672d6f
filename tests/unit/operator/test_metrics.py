"""What the operator counts."""

import pytest

from longshore.api.status import Assignment, Baseline, GpuCounts, Overlay
from longshore_operator.metrics import Metrics

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
    metrics = Metrics()
    metrics.count_assignment(before, after)
    for kind, expected in (("overlay", overlays), ("baseline", baselines)):
        counted = metrics.registry.get_sample_value("longshore_operator_assignments_total", {"kind": kind})
        assert (counted or 0) == expected


def test_gpus_are_shown_by_job_and_role_until_the_job_is_gone() -> None:
    metrics = Metrics()
    here, there = ("team", "demo"), ("other", "demo")

    def num_gpus(key: tuple[str, str], role: str) -> float | None:
        labels = {"job_namespace": key[0], "job_name": key[1], "role": role}
        return metrics.registry.get_sample_value("longshore_operator_gpus", labels)

    metrics.set_gpus(here, GpuCounts(rollout=8))
    metrics.set_gpus(there, GpuCounts(rollout=2))
    metrics.set_gpus(here, GpuCounts(rollout=4, trainer=4, judge=1))
    assert [num_gpus(here, role) for role in ("rollout", "trainer", "judge")] == [4, 4, 1]
    metrics.forget(here)
    metrics.forget(("team", "never seen"))
    assert [num_gpus(here, role) for role in ("rollout", "trainer", "judge")] == [None] * 3
    assert num_gpus(there, "rollout") == 2
