"""A finished step, with everything that can be recorded about it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from longshore.policy.round import ResponseId
from longshore.record.facts import LanePlace, RoundFacts, StepMarks, UpdatePasses
from longshore.rounds import messages
from longshore_runtime.data.prompt_record import PromptRecord
from longshore_runtime.elastic.repurposing import RepurposingTimes
from longshore_runtime.rollout.batch import RoundResult
from longshore_runtime.telemetry.step_metrics import StepTimes
from longshore_runtime.trainer.updates import StepTraining


@dataclass(frozen=True)
class StepDone:
    """A finished step. It holds only values, because it is read while the next step runs."""

    step: int
    marks: StepMarks
    result: RoundResult
    trained: StepTraining
    queue_length: int
    repurposed: RepurposingTimes | None = None
    shorter_again: float | None = None
    """Share of responses that are shorter than they were when an earlier round cut them off; None: there is none."""

    @property
    def times(self) -> StepTimes:
        """Durations of the parts of the step."""
        return StepTimes.of(self.marks, self.result.rollout_s)


@dataclass(frozen=True)
class EvaluationDone:
    """An evaluation of the weights after `step`; 0 means before the first step. It holds only values, too."""

    step: int
    result: RoundResult


@dataclass(frozen=True)
class JobFacts:
    """Facts that are the same for all steps of an attempt."""

    attempt: int
    prompts: Sequence[PromptRecord]
    """Prompts to train on, by index of the draw."""
    held_out: Sequence[PromptRecord]
    """Prompts of evaluations, by index of the draw."""
    max_response_tokens: int
    is_colocated: bool
    clock_offset_s: float
    """Unix time less the driver's clock."""

    @cached_property
    def prompt_of(self) -> Mapping[int, int]:
        """Row of the data for each index of a draw, where the two differ."""
        return {index: record.row for index, record in enumerate(self.prompts) if index != record.row}


@dataclass(frozen=True)
class Places:
    """Current places of engines and trainer replicas."""

    engines: tuple[LanePlace, ...] = ()
    trainers: tuple[LanePlace, ...] = ()


def round_facts(done: StepDone, places: Places, job: JobFacts) -> RoundFacts:
    """Return what the record of the round is built from."""
    result = done.result
    return RoundFacts(
        step=done.step,
        attempt=job.attempt,
        started=done.marks.begun_s + job.clock_offset_s,
        marks=done.marks,
        totals=result,
        messages=result.messages,
        rewards=_rewards(result),
        prompt_of=job.prompt_of,
        max_response_tokens=job.max_response_tokens,
        bubble_share=1.0 - min(1.0, result.busy_share),
        num_preemptions=result.num_preemptions,
        queue_length=done.queue_length,
        engines=places.engines,
        trainers=places.trainers,
        updates=_updates(done.trained),
        repurposed_s=_repurposed_s(result, done.repurposed),
        is_colocated=job.is_colocated,
    )


def _rewards(result: RoundResult) -> dict[ResponseId, float]:
    groups = (*result.groups, *result.dropped)
    return {one.response: one.reward for group in groups for one in group.responses}


def _updates(trained: StepTraining) -> tuple[UpdatePasses, ...]:
    works = [trained.old_log_probs_work, trained.values_work, *(update.work for update in trained.updates)]
    return tuple(work for work in works if work is not None)


def _repurposed_s(result: RoundResult, times: RepurposingTimes | None) -> float | None:
    """Return when the trainers of repurposed pods were awake, or None without repurposing."""
    if times is None:
        return None
    left = [now_s for now_s, message in result.messages if isinstance(message, messages.EnginesRetired)]
    return left[0] + times.apply_s if left else None
