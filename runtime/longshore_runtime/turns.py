"""Engines and trainers take turns on the GPUs that they share, and engines get the weights that they sample from."""

from longshore.api.round_status import RoundKind
from longshore.api.runtime_status import ProgressUnit, RuntimeActivity
from longshore_runtime.elastic.baseline import AppliedBaseline
from longshore_runtime.errors import TrainerLost
from longshore_runtime.loop_parts import Parts
from longshore_runtime.repeated import PROGRESS_EVERY_S, repeated
from longshore_runtime.trainer.recovery import Recovery


class Turns:
    """Who has the GPUs. Whoever is lost in between, a turn of the engines begins with the current weights in all."""

    def __init__(self, parts: Parts, recovery: Recovery, baseline: AppliedBaseline, *, is_colocated: bool) -> None:
        self._parts = parts
        self._recovery = recovery
        self._baseline = baseline
        self._is_colocated = is_colocated

    def to_training(self) -> None:
        """Engines leave the GPUs that they share with trainers."""
        if self._is_colocated:
            self._parts.engines.sleep()

    def to_rollout(self, policy_version: int) -> None:
        """New weights for all engines, which all sample again; raises TrainerLost when they are gone for good."""
        self._parts.recorder.activity(RuntimeActivity.PUBLISH)
        with repeated(self._report_delivery, PROGRESS_EVERY_S):
            self._recovery.guarded(lambda: self._publish(policy_version))

    def regroup(self, kind: RoundKind, step: int, policy_version: int) -> None:
        """Before a round of this kind the engines take the size that they should have."""
        try:
            self._baseline.apply(kind, step)
        except TrainerLost as loss:  # The engines have that size, and no weights.
            self._recovery.lost(str(loss), self._parts.trainers.generation)
            self.to_rollout(policy_version)
            self._baseline.apply(kind, step)

    def _report_delivery(self) -> None:
        """Called from another thread while engines and trainers change places and weights are sent."""
        if (delivered := self._parts.engines.delivered) is not None:
            detail = f"{delivered.num_bytes / 1e9:.1f} GB are loaded" if delivered.num_bytes else ""
            progress = self._parts.recorder.progress
            progress(ProgressUnit.ENGINES, delivered.num_confirmed, delivered.num_engines, detail)

    def _publish(self, policy_version: int) -> None:
        """Trainers leave the GPUs that they share with engines, and write their weights to them."""
        weights = self._parts.trainers.weights(policy_version)
        if self._is_colocated:
            self._parts.trainers.sleep()
            self._parts.engines.wake()
        self._parts.engines.publish(weights)
