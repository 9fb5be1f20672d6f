"""Rounds of a job, on its engines and rewards: those that are trained on, and those of evaluations."""

from collections.abc import Mapping, Sequence

from longshore.policy.rollout_pace import RolloutPace
from longshore.policy.round import ResponseId
from longshore.policy.round_policy import RoundPolicy
from longshore_runtime.data.prompt_record import PromptRecord
from longshore_runtime.elastic.repurposing import Repurposing
from longshore_runtime.engine_protocol import Completion
from longshore_runtime.loop_parts import Parts
from longshore_runtime.rollout.batch import RoundResult
from longshore_runtime.rollout.round_runner import NOTHING_KEPT, RoundObserver, RoundRunner
from longshore_runtime.round_requests import RequestOf


def run_round(
    parts: Parts,
    policy: RoundPolicy,
    prompts: Sequence[PromptRecord],
    request_of: RequestOf,
    observer: RoundObserver,
    *,
    draining: bool = False,
    kept: Mapping[ResponseId, Completion] = NOTHING_KEPT,
    repurposing: Repurposing | None = None,
    pace: RolloutPace | None = None,
) -> RoundResult:
    """Run a round of draws of these prompts; `kept`, `draining` and `pace` as of `RoundRunner`.

    Raises:
        UserError, Interrupted, TrainerLost: as `RoundRunner.run`.
    """
    parts.rewards.use(prompts)
    runner = RoundRunner(
        policy,
        parts.engines,
        parts.rewards,
        parts.events,
        request_of,
        parts.clock,
        observer,
        kept,
        None if repurposing is None else repurposing.milestones,
        pace,
    )
    if repurposing is not None:
        repurposing.begin(runner)
    result = runner.run(draining=draining)
    parts.rewards.rest()
    return result
