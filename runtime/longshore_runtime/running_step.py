"""A step while its round runs: passes events on to the trainers, the repurposing and the recorder."""

from collections.abc import Callable
from typing import Final

from longshore.api.runtime_status import ProgressUnit
from longshore.policy.progress import RoundProgress
from longshore_runtime.elastic.repurposing import Repurposing
from longshore_runtime.rollout.batch import ScoredGroup
from longshore_runtime.rollout.events import Event, GradientsDone, ReplicaLost
from longshore_runtime.trainer.recovery import Recovery
from longshore_runtime.trainer.updates import StepWork

OnProgress = Callable[[ProgressUnit, int, int], None]
"""Function that is called with the unit, how many are done, and how many there are in total."""
_REPORTED_SHARE: Final = 0.1
"""Share of the responses of an evaluation between two progress reports."""


class RunningStep:
    """Implements `round_runner.RoundObserver`."""

    def __init__(
        self,
        work: StepWork,
        repurposing: Repurposing | None,
        recovery: Recovery,
        on_progress: Callable[[RoundProgress], None],
    ) -> None:
        self.work = work
        self.repurposing = repurposing
        self._recovery = recovery
        self._on_progress = on_progress

    def progressed(self, progress: RoundProgress) -> None:
        self._on_progress(progress)

    def milestone(self, progress: RoundProgress) -> None:
        assert self.repurposing is not None, "only repurposing asks for milestones"
        self.repurposing.milestone(progress)

    def train_on(self, group: ScoredGroup) -> None:
        self.work.train_on(group)

    def on_event(self, event: Event) -> None:
        match event:
            case ReplicaLost(reason=reason, generation=generation):
                self._recovery.lost(reason, generation)
            case GradientsDone():
                self.work.gradients_done(event)
            case _ if self.repurposing is not None:
                self.repurposing.on_event(event)


class Evaluating:
    """Implements `round_runner.RoundObserver` for a round without training."""

    def __init__(self, recovery: Recovery, on_progress: OnProgress) -> None:
        self._recovery = recovery
        self._on_progress = on_progress
        self._num_reported = 0

    def progressed(self, progress: RoundProgress) -> None:
        done, total = progress.num_finished, progress.num_requests
        if done - self._num_reported >= _REPORTED_SHARE * total:
            self._num_reported = done
            self._on_progress(ProgressUnit.RESPONSES, done, total)

    def milestone(self, progress: RoundProgress) -> None:
        """Do nothing: engines do not retire in such a round."""

    def train_on(self, group: ScoredGroup) -> None:
        """Do nothing: only the rewards are needed."""

    def on_event(self, event: Event) -> None:
        if isinstance(event, ReplicaLost):
            self._recovery.lost(event.reason, event.generation)
