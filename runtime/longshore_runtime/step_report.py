"""The report of a finished step, to everything that learns from it or keeps it."""

from dataclasses import replace

from longshore.policy.benefit_gate import BenefitGate
from longshore.record.facts import StepMarks
from longshore_runtime.elastic.auto_factors import step_facts
from longshore_runtime.elastic.benefit import step_outcome
from longshore_runtime.elastic.regrouping import Regrouping
from longshore_runtime.loop_parts import Parts
from longshore_runtime.round_training import TrainedRound
from longshore_runtime.run_state import RunState
from longshore_runtime.telemetry.alarms import Alarms
from longshore_runtime.telemetry.step_done import StepDone


def report_step(
    parts: Parts,
    regrouping: Regrouping,
    gate: BenefitGate | None,
    alarms: Alarms,
    state: RunState,
    done: TrainedRound,
    marks: StepMarks,
) -> None:
    """Report the step that led to `state` to regrouping, benefit gate, tuner, recorder, records and alarms."""
    result, trained = done.result, done.trained
    queue_length, num_replicas = parts.policy.num_deferred, parts.trainers.num_replicas
    repurposed = None
    if (repurposing := done.step.repurposing) is not None:
        repurposed = repurposing.times
        regrouping.answered(repurposing.answered_epoch, repurposing.answered_overlay)
    if gate is not None:
        step_s = marks.published_s - marks.begun_s
        outcome = step_outcome(result.end.kind, trained, step_s, num_replicas, repurposed)
        saved_s = gate.ended(outcome)
        repurposed = None if repurposed is None else replace(repurposed, saved_s=saved_s)
    if parts.auto is not None and done.pace is not None:
        parts.auto.step_ended(step_facts(result, trained, marks, done.pace, parts.engines, num_replicas, queue_length))
    step = StepDone(state.step, marks, result, trained, queue_length, repurposed, done.shorter_again)
    parts.recorder.step(state, step)
    parts.records.keep(step)
    alarms.step(state.step, result, trained)
