"""How many responses of a step the trainers have computed."""

from longshore_runtime.trainer.group import TrainerGroup


class StepProgress:
    """Calls end in the order in which they were given, so those of a step come after all earlier ones.

    A new world repeats no more of the earlier steps than the one before was given. So until `restart` it shows nothing.
    """

    def __init__(self, trainers: TrainerGroup) -> None:
        """A step begins."""
        self._trainers = trainers
        self.restart()

    def restart(self) -> None:
        """Whatever the trainers were given of the step is to be done once more."""
        self._num_before = self._trainers.num_given

    def num_computed(self, total: int) -> int:
        """Of `total` responses, once for every pass; called from any thread. Raises TrainerLost."""
        return min(max(int(self._trainers.num_computed()) - self._num_before, 0), total)
