"""Signs that a job does not learn although everything runs: each is reported once per episode and cleared when it ends.

A step with a sign lengthens its episode, a step without one ends it. An alarm is raised when the episode has lasted as
long as `_PATIENCE_STEPS` says. Where one sign follows from another, only the cause is reported.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from longshore.api.reasons import AlarmReason
from longshore.policy.log_prob_mismatch import exceeds

_PATIENCE_STEPS: Final = {
    AlarmReason.LOG_PROB_MISMATCH: 1,
    AlarmReason.REWARDS_TIME_OUT: 1,
    AlarmReason.REWARDS_FAULT: 1,
    AlarmReason.ENVIRONMENTS_FAULT: 1,
    AlarmReason.REWARDS_ALL_ZERO: 3,
    AlarmReason.REWARDS_ALL_EQUAL: 3,
    AlarmReason.GRADIENT_ZERO: 3,
    AlarmReason.RESPONSES_ALL_CUT: 3,
}
"""Steps in a row after which an alarm is raised. A small batch may have no reward by chance, but not three times."""
_SHORT_ROUNDS_PATIENCE_STEPS: Final = {AlarmReason.REWARDS_ALL_ZERO: 12, AlarmReason.REWARDS_ALL_EQUAL: 12}
"""The same for alarms about rewards, if all steps in a row had short rounds. These train on the prompts whose responses
end first, which soon are the easy ones, so equal rewards there do not mean that the job learns nothing."""
_MIN_PROMPTS: Final = 8
"""Fewer held-out prompts say nothing about a difference."""
_LOW_ERRORS: Final = 1.64
"""Held-out reward is lower when it fell by more than so many standard errors, which chance does once in 20 times; two
such evaluations in a row count."""
_CLEARLY_LOW_ERRORS: Final = 3.0
"""Standard errors above which one evaluation is enough."""
_MIN_FALL: Final = 0.01
"""Share of the largest reward below which a fall does not matter, however sure it is."""


@dataclass(frozen=True)
class StepSignals:
    """Signs of a step by which alarms are raised."""

    num_responses: int
    """Responses that were trained on."""
    num_cut: int
    """Responses that were cut at the largest length."""
    num_timed_out: int
    """Responses with a reward of a function that was cut off."""
    num_faults: int
    """Attempts at scoring that failed for the infrastructure."""
    num_groups: int
    num_rejected: int
    """Groups that were replaced because their rewards could not be computed, or an episode failed for good."""
    has_episodes: bool
    """Whether responses acted in an environment."""
    num_restarts: int
    """Attempts that failed at episodes that were trained on."""
    num_given_up: int
    """Groups that were replaced because an episode failed for good."""
    max_reward: float
    """Largest absolute reward."""
    max_advantage: float
    """Largest absolute advantage."""
    max_grad_norm: float
    """Largest gradient norm of the updates of the step."""
    has_short_round: bool
    """Whether the round of the step was short, so that its prompts were chosen by length."""
    mismatch: float | None
    """Mean |log-probability of trainer - engine| over the tokens that can be compared; None: there were none."""

    @property
    def num_unscored(self) -> int:
        """Groups that were replaced because their rewards could not be computed."""
        return self.num_rejected - self.num_given_up


@dataclass(frozen=True)
class AlarmLimits:
    """The slice of a job that alarms need."""

    max_mismatch: float
    max_response_tokens: int
    learns_from_rewards: bool = True
    """Whether advantages are those of rewards; a teacher gives others."""


@dataclass(frozen=True)
class RaisedAlarm:
    """An alarm whose episode lasts."""

    reason: AlarmReason
    message: str
    """One sentence: what is seen, the likely cause, what to do."""
    step: int
    """Step at which the alarm was raised."""


@dataclass(frozen=True)
class AlarmState:
    """Immutable; part of a checkpoint, so that an episode neither restarts nor is reported twice."""

    lasting: Mapping[AlarmReason, int] = field(default_factory=dict)
    """Steps, or evaluations, for which a sign has lasted."""
    raised: tuple[RaisedAlarm, ...] = ()

    def export(self) -> dict[str, Any]:
        """Return the state as JSON values."""
        raised = [[alarm.reason.value, alarm.message, alarm.step] for alarm in self.raised]
        return {"lasting": {reason.value: number for reason, number in self.lasting.items()}, "raised": raised}

    @classmethod
    def load(cls, exported: Mapping[str, Any]) -> "AlarmState":
        """Undo `export`."""
        return cls(
            {AlarmReason(reason): number for reason, number in exported["lasting"].items()},
            tuple(RaisedAlarm(AlarmReason(reason), message, step) for reason, message, step in exported["raised"]),
        )


def after_step(
    state: AlarmState, signals: StepSignals, limits: AlarmLimits, step: int
) -> tuple[AlarmState, tuple[RaisedAlarm, ...]]:
    """Return the state after a step, and the alarms that it raises."""
    signs = _signs(signals, limits)
    reasons = [reason for reason in AlarmReason if reason in _PATIENCE_STEPS]
    new = []
    for reason in reasons:
        state, lasts = _lengthened(state, reason, has_sign=reason in signs)
        if lasts >= _patience_steps(reason, signals) and not _is_raised(state, reason):
            new.append(RaisedAlarm(reason, _step_message(reason, lasts, signals, limits), step))
    return replace(state, raised=(*state.raised, *new)), tuple(new)


def after_evaluation(
    state: AlarmState, before: Sequence[float | None], latest: Sequence[float | None], step: int
) -> tuple[AlarmState, tuple[RaisedAlarm, ...]]:
    """Return the state after held-out prompts were scored, and the alarms that this raises.

    `before`: mean reward of each prompt before the first step; `latest`: of the same prompts now; None: it failed.
    """
    reason = AlarmReason.HELD_OUT_REWARD_FELL
    old, new = _in_both(before, latest)
    errors = fall_in_standard_errors(old, new)
    state, lasts = _lengthened(state, reason, has_sign=errors > _LOW_ERRORS)
    if _is_raised(state, reason) or not (lasts >= 2 or errors > _CLEARLY_LOW_ERRORS):
        return state, ()
    alarm = RaisedAlarm(reason, _held_out_message(old, new), step)
    return replace(state, raised=(*state.raised, alarm)), (alarm,)


def _in_both(before: Sequence[float | None], latest: Sequence[float | None]) -> tuple[Sequence[float], Sequence[float]]:
    """Return the rewards of the prompts that have one in both; none if the numbers of prompts differ."""
    if len(before) != len(latest):
        return (), ()
    both = [(old, new) for old, new in zip(before, latest, strict=True) if old is not None and new is not None]
    return [old for old, _ in both], [new for _, new in both]


def fall_in_standard_errors(before: Sequence[float], latest: Sequence[float]) -> float:
    """Return how far the mean fell, in standard errors of the prompts' differences; 0 where it did not, or too little.

    Prompt by prompt, since prompts differ from each other by more than training changes them.
    """
    if len(before) != len(latest) or len(before) < _MIN_PROMPTS:
        return 0.0
    differences = [new - old for old, new in zip(before, latest, strict=True)]
    fall = -_mean(differences)
    if fall <= _MIN_FALL * max(map(abs, [*before, *latest])):
        return 0.0
    variance = sum((one + fall) ** 2 for one in differences) / (len(differences) - 1)
    error = math.sqrt(variance / len(differences))
    return fall / error if error > 0 else math.inf


def _signs(signals: StepSignals, limits: AlarmLimits) -> set[AlarmReason]:
    signs = set()
    if signals.mismatch is not None and exceeds(signals.mismatch, limits.max_mismatch):
        signs.add(AlarmReason.LOG_PROB_MISMATCH)
    if signals.num_restarts >= signals.num_responses or signals.num_given_up >= signals.num_groups:
        signs.add(AlarmReason.ENVIRONMENTS_FAULT)
    elif signals.num_faults >= signals.num_responses or signals.num_unscored >= signals.num_groups:
        signs.add(AlarmReason.REWARDS_FAULT)
    if signals.num_cut == signals.num_responses:
        signs.add(AlarmReason.RESPONSES_ALL_CUT)
    if signals.num_timed_out == signals.num_responses:
        signs.add(AlarmReason.REWARDS_TIME_OUT)
    elif signals.max_reward == 0 and limits.learns_from_rewards:
        signs.add(AlarmReason.REWARDS_ALL_ZERO)
    elif signals.max_advantage == 0 and limits.learns_from_rewards:
        signs.add(AlarmReason.REWARDS_ALL_EQUAL)
    elif signals.max_grad_norm == 0:
        signs.add(AlarmReason.GRADIENT_ZERO)
    return signs


def _patience_steps(reason: AlarmReason, signals: StepSignals) -> int:
    patience = _PATIENCE_STEPS[reason]
    return _SHORT_ROUNDS_PATIENCE_STEPS.get(reason, patience) if signals.has_short_round else patience


def _lengthened(state: AlarmState, reason: AlarmReason, *, has_sign: bool) -> tuple[AlarmState, int]:
    """Return the state with this episode longer by one, or over; and how long it has lasted."""
    others = {other: number for other, number in state.lasting.items() if other is not reason}
    if not has_sign:
        return AlarmState(others, tuple(alarm for alarm in state.raised if alarm.reason is not reason)), 0
    lasts = state.lasting.get(reason, 0) + 1
    return replace(state, lasting={**others, reason: lasts}), lasts


def _is_raised(state: AlarmState, reason: AlarmReason) -> bool:
    return any(alarm.reason is reason for alarm in state.raised)


def _step_message(reason: AlarmReason, lasts: int, signals: StepSignals, limits: AlarmLimits) -> str:
    match reason:
        case AlarmReason.LOG_PROB_MISMATCH:
            return (
                f"log-probabilities of engines and trainers differ by {signals.mismatch:.3g} per token, and "
                f"rollout.maxLogProbMismatch is {limits.max_mismatch:g}: the engines may sample with other weights or "
                "another distribution; check rollout.engine.dtype and extraArgs"
            )
        case AlarmReason.REWARDS_TIME_OUT:
            return (
                f"the scoring of all {signals.num_responses} responses of the step was cut off, so their rewards are "
                "those of a time-out: a reward function hangs, or its timeoutSeconds is too short"
            )
        case AlarmReason.REWARDS_FAULT:
            return (
                f"scoring failed {signals.num_faults} times for {signals.num_responses} responses, and "
                f"{signals.num_unscored} groups were replaced for it: a reward function, its endpoint or its pods are "
                "broken; read the log of the reward pods"
            )
        case AlarmReason.ENVIRONMENTS_FAULT:
            return (
                f"episodes failed {signals.num_restarts} times before the {signals.num_responses} responses of the "
                f"step, and {signals.num_given_up} groups were replaced for them: an environment is broken, or too "
                "slow for its limits; the events EnvironmentFailed name the cause"
            )
        case AlarmReason.REWARDS_ALL_ZERO:
            return (
                f"every reward of the last {lasts} steps is 0, so nothing is learned: reward.functions do not suit the "
                "answers (data.answerField, format of the response), or the task is too hard for the model"
            )
        case AlarmReason.REWARDS_ALL_EQUAL:
            return (
                f"all rewards within each group were equal in the last {lasts} steps, so nothing is learned: the "
                "prompts are too easy or too hard, or reward.functions give a constant; use other prompts, or raise "
                "algorithm.responsesPerPrompt or temperature"
            )
        case AlarmReason.GRADIENT_ZERO:
            return (
                f"the gradient norm was 0 in the last {lasts} steps although advantages were not: all tokens are "
                "clipped or masked; check algorithm.objective and maskStaleTokens"
            )
        case AlarmReason.RESPONSES_ALL_CUT:
            of_turns = ", or maxTurnTokens of a turn" if signals.has_episodes else ""
            return (
                f"every response of the last {lasts} steps was cut at its largest length (algorithm.maxResponseTokens "
                f"is {limits.max_response_tokens}{of_turns}): the model does not end its answers; raise it, or check "
                "the end token and the chat template of the model"
            )
        case AlarmReason.HELD_OUT_REWARD_FELL:
            raise AssertionError("it is not about a step")


def _held_out_message(before: Sequence[float], latest: Sequence[float]) -> str:
    return (
        f"held-out reward fell from {_mean(before):.3f} before the first step to {_mean(latest):.3f}, by more than "
        "chance: training makes the model worse; lower algorithm.learningRate, or check the reward and "
        "rollout_corr/log_prob_mismatch_mean"
    )


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
