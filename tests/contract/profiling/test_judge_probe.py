"""Colocated judges: a real one, on the CPU, in an actor of its own."""

from pathlib import Path

from longshore.api.reward import RewardFunction
from longshore_runtime.backends.tiny_model import MAX_CONTEXT_TOKENS, build_tiny_model
from longshore_runtime.cluster.placement import placement
from longshore_runtime.profiling.figures import Figures
from longshore_runtime.profiling.judge_probe import measure_judges


def judge(name: str, model: str) -> RewardFunction:
    return RewardFunction.model_validate(
        {"name": name, "kind": "Judge", "judge": {"modelPath": model, "maxTokens": 4, "gpuMemory": "1Gi"}}
    )


def test_seconds_are_measured_length_by_length_as_far_as_the_judge_reads(storage: Path) -> None:
    build_tiny_model(storage / "judge", seed=0)
    figures = Figures()
    measure_judges([judge("taste", "judge")], placement(0), "output", 10 * MAX_CONTEXT_TOKENS, figures)
    points = figures.profile().judge
    assert [point.question_tokens for point in points] == [64, 256, 1024], "4,096 exceed its context"
    assert all(point.seconds > 0 and point.measurements == 3 and point.peak_bytes is None for point in points)


def test_lengths_that_no_question_has_are_not_measured(storage: Path) -> None:
    build_tiny_model(storage / "judge", seed=0)
    figures = Figures()
    measure_judges([judge("taste", "judge")], placement(0), "output", 100, figures)
    assert [point.question_tokens for point in figures.profile().judge] == [64, 256]


def test_a_judge_that_does_not_start_is_left_out(storage: Path) -> None:
    figures = Figures()
    measured: list[tuple[int, int, str]] = []
    measure_judges([judge("taste", "nowhere")], placement(0), "output", 100, figures, lambda *one: measured.append(one))
    assert figures.profile().judge == []
    assert measured == [(0, 1, "taste")]
