"""Which mismatch of log-probabilities a job allows, and whether a step past it is trained on."""

import math
from dataclasses import replace
from typing import Any

import pytest
from pydantic import ValidationError

from longshore.api.spec import RLJobSpec
from longshore.checks.pod_memory import KEPT_TOKENS, max_step_tokens
from longshore_runtime.step.parts import LoopOptions

GPUS = {"replicas": 1, "gpusPerPod": 1, "gpuResourceName": "nvidia.com/gpu"}
PRETENDED = GPUS | {"gpuResourceName": "longshore.dev/pretend-gpu"}


def options(rollout: dict[str, Any], **spec: Any) -> LoopOptions:
    base = {
        "model": {"builtin": "Tiny"},
        "data": {"builtin": "Counting"},
        "algorithm": {"steps": 3, "promptsPerStep": 4, "responsesPerPrompt": 2, "maxResponseTokens": 64},
        "storage": {"create": {"size": "1Gi"}},
        "rollout": rollout,
        "workers": PRETENDED,
    }
    return LoopOptions.of(RLJobSpec.model_validate(base | spec))


def test_a_strict_job_refuses_what_rounding_cannot_explain() -> None:
    assert options({}).max_mismatch == 1e-3
    assert options({"engine": {"dtype": "bfloat16"}}).max_mismatch == 0.1
    assert options({}, workers=GPUS).max_mismatch == 0.1


def test_the_field_sets_the_limit() -> None:
    strict = options({"maxLogProbMismatch": 0.3})
    assert (strict.max_mismatch, strict.alarm_limits.max_mismatch) == (0.3, 0.3)


@pytest.mark.parametrize("rollout", [{"strategy": "PartialRollout"}, {"strategy": "Synchronous"}])
def test_a_job_that_need_not_be_strict_is_reported_and_trains_on(rollout: dict[str, Any]) -> None:
    relaxed = options(rollout | {"onPolicy": "Relaxed"})
    assert (relaxed.max_mismatch, relaxed.alarm_limits.max_mismatch) == (None, 1e-3)


def test_engines_without_a_model_have_log_probabilities_of_their_own() -> None:
    fake = options({"engine": {"backend": "Fake"}})
    assert (fake.max_mismatch, fake.alarm_limits.max_mismatch) == (None, math.inf)
    assert options({"engine": {"backend": "Fake"}, "maxLogProbMismatch": 0.3}).max_mismatch == 0.3


@pytest.mark.parametrize("value", [0, -1, 2000, float("nan")])
def test_a_limit_that_is_no_limit_is_refused(value: float) -> None:
    with pytest.raises(ValidationError, match="maxLogProbMismatch"):
        options({"maxLogProbMismatch": value})


@pytest.mark.parametrize(
    ("step", "unsaved_s", "unsaved_tokens", "is_due"),
    [
        (5, 10.0, 0, True),
        (6, 10.0, 0, False),
        (6, 599.9, 0, False),
        (6, 600.0, 0, True),
        (6, 10.0, KEPT_TOKENS - 1, False),
        (6, 10.0, KEPT_TOKENS, True),
    ],
)
def test_a_checkpoint_is_due_by_steps_time_or_kept_tokens(
    step: int, unsaved_s: float, unsaved_tokens: int, is_due: bool
) -> None:
    assert options({}, checkpoint={"everySteps": 5}).is_checkpoint_due(step, unsaved_s, unsaved_tokens) is is_due


def test_steps_of_many_tokens_are_kept_one_by_one() -> None:
    large = options({})
    large = replace(large, algorithm=large.algorithm.model_copy(update={"max_response_tokens": KEPT_TOKENS}))
    num_tokens = max_step_tokens(large.algorithm)
    assert num_tokens > KEPT_TOKENS
    assert not large.is_checkpoint_due(6, 10.0, num_tokens - 1)
    assert large.is_checkpoint_due(6, 10.0, num_tokens)
