"""The reward of the built-in task."""

from collections.abc import Callable

from longshore_runtime.rewards.kinds.kind import ChildKind


class TaskKind(ChildKind):
    """Counts how much of a response is right."""

    is_proven = True

    def load(self, import_path: str | None) -> Callable[..., float]:
        """Return the score of the task."""
        from longshore_runtime.tasks import counting

        return lambda prompt, response, answer: counting.score(response, answer)
