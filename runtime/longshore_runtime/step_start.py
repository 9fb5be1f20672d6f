"""The start of a step: the observer of its round, and the pods that may be repurposed while it runs."""

from collections.abc import Mapping

from longshore.api.round_status import RoundKind
from longshore.policy.benefit_gate import BenefitGate
from longshore.policy.length_distribution import LengthDistribution
from longshore_runtime.elastic.repurposing import Repurposing
from longshore_runtime.loop_options import LoopOptions
from longshore_runtime.loop_parts import Parts
from longshore_runtime.run_state import RunState
from longshore_runtime.running_step import RunningStep
from longshore_runtime.step_work import StepWorks
from longshore_runtime.trainer.recovery import Recovery
from longshore_runtime.trainer.updates import StepWork


class StepStart:
    """Begins one step after the other."""

    def __init__(
        self,
        options: LoopOptions,
        parts: Parts,
        recovery: Recovery,
        lengths: Mapping[RoundKind, LengthDistribution],
        gate: BenefitGate | None,
    ) -> None:
        """`lengths` and `gate`: what the run has learned about its rounds."""
        self._options = options
        self._parts = parts
        self._works = StepWorks(options, parts.trainers, parts.prompts.train, parts.events, parts.clock)
        self._recovery = recovery
        self._lengths = lengths
        self._gate = gate

    def begin(self, state: RunState, answered_epoch: int) -> RunningStep:
        """Return the step after `state`; assignments up to `answered_epoch` are not for it."""
        auto = self._parts.auto
        handover = self._options.handover if auto is None else auto.handover
        work = self._works.begin(state.step + 1, state.policy_version, handover)
        return RunningStep(
            work,
            self._repurposing(state.step + 1, work, answered_epoch),
            self._recovery,
            lambda progress: self._parts.recorder.round_progress(state, progress),
        )

    def _repurposing(self, step: int, work: StepWork, answered_epoch: int) -> Repurposing | None:
        options, parts = self._options.repurposing, self._parts
        if options is None:
            return None
        return Repurposing(
            options,
            step,
            parts.engines,
            parts.trainers,
            self._lengths,
            parts.recorder,
            parts.events,
            parts.elastic,
            parts.clock,
            work.replicas_awake,
            answered_epoch=answered_epoch,
            gate=self._gate,
        )
