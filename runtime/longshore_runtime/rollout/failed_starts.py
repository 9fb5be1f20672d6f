"""Workers that do not start: how often in a row, and how long to wait before the next one."""

from dataclasses import dataclass
from typing import Final

_GROWTH: Final = 2.0


@dataclass(frozen=True)
class _FailureStreak:
    node: str | None
    count: int


class FailedStarts:
    """Counts by place, as long as the place stays on one node: with a new pod everything is to be tried again."""

    def __init__(self, first_wait_s: float) -> None:
        """Begin without failures; the wait is `first_wait_s` after the first one, and each further one doubles it."""
        self._first_wait_s = first_wait_s
        self._rows: dict[int, _FailureStreak] = {}

    def failed(self, place: int, node: str | None) -> int:
        """Return how many in a row have failed now; `node` is None where the worker could not say where it was."""
        before = self._rows.get(place, _FailureStreak(node, 0))
        if None not in (node, before.node) and node != before.node:
            before = _FailureStreak(node, 0)
        self._rows[place] = _FailureStreak(node or before.node, before.count + 1)
        return before.count + 1

    def succeeded(self, place: int) -> None:
        """Note that a worker of this place is ready."""
        self._rows.pop(place, None)

    def wait_s(self, place: int) -> float:
        """Return how long the next worker of this place waits before it tries."""
        row = self._rows.get(place)
        return 0.0 if row is None else self._first_wait_s * _GROWTH ** (row.count - 1)
