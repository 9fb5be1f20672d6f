"""What the benchmark of the control path makes of a job's metrics."""

import json

import pytest
from benchmarks.repurpose import figures_of, manifests, percentile, rounds_of


def test_rounds_without_a_repurposing_are_counted_and_give_no_times() -> None:
    lines = [
        json.dumps({"step": 0, "val/reward/mean": 0.1}),
        json.dumps({"step": 1, "timing_s/gen": 2.0}),
        json.dumps(
            {
                "step": 2,
                "timing_s/gen": 3.0,
                "repurpose/control_path_s": 0.5,
                "repurpose/apply_s": 0.2,
                "repurpose/num_moved": 4,
            }
        ),
    ]
    figures = figures_of(rounds_of(lines))
    assert (figures["rounds"], figures["repurposed_rounds"]) == (2, 1)
    assert figures["decision_s"]["p99"] == pytest.approx(0.3)
    assert figures["rollout_s"]["n"] == 2
    assert "first_gradient_s" not in figures


def test_a_percentile_is_a_value_that_so_many_do_not_exceed() -> None:
    values = [float(value) for value in range(1, 101)]
    assert percentile(values, 0.5) == 50.0
    assert percentile(values, 0.99) == 99.0
    assert percentile([7.0], 0.99) == 7.0


def test_every_job_streams_and_repurposes() -> None:
    assert all(one["spec"]["rollout"]["handover"] == "Streamed" for one in manifests().values())
