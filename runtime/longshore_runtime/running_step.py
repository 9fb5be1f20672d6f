"""A step while its round runs: whatever happens reaches the trainers, the repurposing and the outside."""

from collections.abc import Callable

from longshore.policy.progress import RoundProgress
from longshore_runtime.elastic.repurposing import Repurposing
from longshore_runtime.rollout.batch import ScoredGroup
from longshore_runtime.rollout.events import Event, GradientsDone, TrainerGone
from longshore_runtime.trainer.recovery import Recovery
from longshore_runtime.trainer.updates import StepWork


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
        assert self.repurposing is not None, "nobody else asks for milestones"
        self.repurposing.milestone(progress)

    def trainable(self, group: ScoredGroup) -> None:
        self.work.trainable(group)

    def happened(self, event: Event) -> None:
        match event:
            case TrainerGone(reason=reason, generation=generation):
                self._recovery.lost(reason, generation)
            case GradientsDone():
                self.work.gradients_done(event)
            case _ if self.repurposing is not None:
                self.repurposing.happened(event)


class Evaluating:
    """Implements `round_runner.RoundObserver` for a round that nobody trains on."""

    def __init__(self, recovery: Recovery) -> None:
        self._recovery = recovery

    def progressed(self, progress: RoundProgress) -> None:
        """Nobody asks."""

    def milestone(self, progress: RoundProgress) -> None:
        """Its engines do not retire."""

    def trainable(self, group: ScoredGroup) -> None:
        """Its score is all that is wanted."""

    def happened(self, event: Event) -> None:
        if isinstance(event, TrainerGone):
            self._recovery.lost(event.reason, event.generation)
