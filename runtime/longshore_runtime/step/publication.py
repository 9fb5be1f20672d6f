"""Switch shared GPUs between engines and trainers, and publish weights to the engines."""

from longshore.api.round_status import RoundKind
from longshore.api.runtime_status import ProgressUnit, RuntimeActivity
from longshore_runtime.elastic.regrouping import Regrouping
from longshore_runtime.errors import TrainerLost
from longshore_runtime.process.repeated import PROGRESS_EVERY_S, repeated
from longshore_runtime.step.parts import Parts
from longshore_runtime.trainer.recovery import Recovery


class SharedGpus:
    """GPUs that engines and trainers use in alternation.

    All engines have the current weights when a rollout begins, whatever was lost.
    """

    def __init__(self, parts: Parts, recovery: Recovery, regrouping: Regrouping, *, is_colocated: bool) -> None:
        self._parts = parts
        self._recovery = recovery
        self._regrouping = regrouping
        self._is_colocated = is_colocated

    def to_training(self) -> None:
        """Put engines to sleep, if they share GPUs with trainers."""
        if self._is_colocated:
            self._parts.engines.sleep()

    def to_rollout(self, policy_version: int) -> None:
        """Publish weights to all engines and have them sample; raises TrainerLost if the weights cannot be restored."""
        self._parts.recorder.activity(RuntimeActivity.PUBLISH)
        with repeated(self._report_delivery, PROGRESS_EVERY_S):
            self._recovery.guarded(lambda: self._publish(policy_version))

    def regroup(self, kind: RoundKind, step: int, policy_version: int) -> None:
        """Regroup the engines to the size that is wanted for a round of this kind."""
        try:
            self._regrouping.apply(kind, step)
        except TrainerLost as loss:  # The engines have the new size, but no weights.
            self._recovery.lost(str(loss), self._parts.trainers.generation)
            self.to_rollout(policy_version)
            self._regrouping.apply(kind, step)

    def _report_delivery(self) -> None:
        """Report how far the delivery is; called from another thread."""
        if (delivered := self._parts.engines.delivered) is not None:
            detail = f"{delivered.num_bytes / 1e9:.1f} GB are loaded" if delivered.num_bytes else ""
            progress = self._parts.recorder.progress
            progress(ProgressUnit.ENGINES, delivered.num_confirmed, delivered.num_engines, detail)

    def _publish(self, policy_version: int) -> None:
        """Free the shared GPUs, and publish the trainers' weights to the engines."""
        weights = self._parts.trainers.weights(policy_version)
        if self._is_colocated:
            self._parts.trainers.sleep()
            self._parts.engines.wake()
        self._parts.engines.publish(weights)
