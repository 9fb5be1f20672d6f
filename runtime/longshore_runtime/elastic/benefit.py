"""Describe a step for the benefit gate, which learns from it."""

from longshore.api.round_status import RoundKind
from longshore.policy.benefit_gate import StepOutcome
from longshore_runtime.elastic.repurposing import RepurposingTimes
from longshore_runtime.trainer.updates import StepTraining


def step_outcome(
    kind: RoundKind, trained: StepTraining, step_s: float, num_replicas: int, repurposed: RepurposingTimes | None
) -> StepOutcome:
    """Return the outcome of a step; `repurposed`: how the repurposing went, if there was one."""
    return StepOutcome(
        kind=kind,
        step_s=step_s,
        batch_tokens=trained.batch_tokens,
        streamed_tokens=trained.streamed_tokens,
        num_replicas=num_replicas,
        tokens_per_s=trained.tokens_per_s,
        num_awake=repurposed.num_awake if repurposed is not None else 0,
        wake_s=repurposed.control_path_s if repurposed is not None else 0.0,
    )
