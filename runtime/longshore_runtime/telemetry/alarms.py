"""Report signs that the job does not learn; `policy.training_alarms` decides which."""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from longshore.api.round_status import RoundKind
from longshore.policy.training_alarms import (
    AlarmLimits,
    AlarmState,
    RaisedAlarm,
    StepSignals,
    after_evaluation,
    after_step,
)
from longshore_runtime.backends.engine_protocol import FinishReason
from longshore_runtime.checkpoints.run_state import RunState
from longshore_runtime.rollout.batch import RoundResult, ScoredResponse
from longshore_runtime.trainer.updates import StepTraining


class AlarmReport(Protocol):
    """Receiver of alarms."""

    def notice(self, reason: str, message: str) -> None:
        """Report an alarm once, when it is raised."""

    def alarms(self, raised: Sequence[RaisedAlarm]) -> None:
        """Report all alarms that hold at present."""


class Alarms:
    """The alarms of a run; its state is part of a checkpoint."""

    def __init__(self, limits: AlarmLimits, report: AlarmReport) -> None:
        self._limits = limits
        self._report = report
        self._state = AlarmState()

    def step(self, number: int, result: RoundResult, trained: StepTraining) -> None:
        """Update the alarms after a step."""
        self._notify_new(*after_step(self._state, step_signals(result, trained), self._limits, number))

    def evaluated(self, state: RunState) -> None:
        """Update the alarms after an evaluation."""
        before, latest = state.held_out_before, state.held_out_latest
        assert before is not None and latest is not None
        self._notify_new(*after_evaluation(self._state, before.rewards, latest.rewards, state.step))

    def export(self) -> dict[str, Any]:
        """Return the state for a checkpoint."""
        return self._state.export()

    def load(self, exported: Mapping[str, Any]) -> None:
        """Continue from a checkpoint: alarms that still hold are listed, without a second notice."""
        self._state = AlarmState.load(exported)
        self._report.alarms(self._state.raised)

    def _notify_new(self, state: AlarmState, new: tuple[RaisedAlarm, ...]) -> None:
        self._state = state
        for alarm in new:
            self._report.notice(alarm.reason.value, alarm.message)
        self._report.alarms(state.raised)


def step_signals(result: RoundResult, trained: StepTraining) -> StepSignals:
    """Return what the alarms are computed from."""
    responses = [one for group in result.groups for one in group.responses]
    return StepSignals(
        num_responses=len(responses),
        num_cut=sum(one.completion.finish_reason is FinishReason.LENGTH for one in responses),
        num_timed_out=sum(one.timed_out for one in responses),
        num_faults=result.rewards.num_faults,
        num_groups=len(result.groups),
        num_rejected=len(result.rejected),
        has_episodes=any(one.completion.episode is not None for one in responses),
        num_restarts=_num_restarts(responses),
        num_given_up=result.num_given_up,
        max_reward=max(abs(sample.reward) for sample in trained.samples),
        max_advantage=max(float(np.abs(sample.advantage).max(initial=0.0)) for sample in trained.samples),
        max_grad_norm=max(update.update.grad_norm for update in trained.updates),
        has_short_round=result.end.kind is RoundKind.SHORT,
        mismatch=trained.mean_mismatch,
    )


def _num_restarts(responses: Sequence[ScoredResponse]) -> int:
    """Return the attempts at these episodes that failed."""
    return sum(one.completion.episode.num_restarts for one in responses if one.completion.episode is not None)
