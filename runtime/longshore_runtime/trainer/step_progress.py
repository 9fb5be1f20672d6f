"""Count the responses of a step that the trainers have computed."""

from longshore_runtime.trainer.group import TrainerGroup


class StepProgress:
    """Calls end in the order in which they were given, so those of a step come after all earlier ones.

    A new world repeats no more of the earlier steps than the one before was given. So until `restart` it shows nothing.
    """

    def __init__(self, trainers: TrainerGroup) -> None:
        """Begin to count the responses of a step."""
        self._trainers = trainers
        self.restart()

    def restart(self) -> None:
        """Count from here, because the trainers are given everything of the step once more."""
        self._num_before = self._trainers.num_given

    def num_computed(self, total: int) -> int:
        """Return how many of `total` responses are computed, each once for every pass; raises TrainerLost.

        Called from any thread.
        """
        return min(max(int(self._trainers.num_computed()) - self._num_before, 0), total)
