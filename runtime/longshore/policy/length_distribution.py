"""How long responses are: the empirical distribution of the newest finished ones."""

from bisect import bisect_left, bisect_right, insort
from collections import deque
from collections.abc import Iterable, Mapping
from typing import Any


class LengthDistribution:
    """A sliding window over finished responses: lengths drift while a model learns, and old ones mislead.

    Exact, and deterministic, since nothing is sampled or binned. Keep one per round kind: the draws of long rounds are
    those whose responses were too long for short rounds.
    """

    def __init__(self, capacity: int = 8_192) -> None:
        """Keep the newest `capacity` lengths."""
        assert capacity >= 1
        self._capacity = capacity
        self._window: deque[int] = deque()
        self._sorted: list[int] = []
        self._sum = 0

    def __len__(self) -> int:
        """Return the lengths that are known."""
        return len(self._window)

    def add(self, num_tokens: int) -> None:
        """Add the length of a response that ended by itself or at the limit; lengths of aborted ones are unknown."""
        assert num_tokens >= 0
        if len(self._window) == self._capacity:
            oldest = self._window.popleft()
            del self._sorted[bisect_left(self._sorted, oldest)]
            self._sum -= oldest
        self._window.append(num_tokens)
        insort(self._sorted, num_tokens)
        self._sum += num_tokens

    def extend(self, lengths: Iterable[int]) -> None:
        """Add several lengths, in the order in which the responses ended."""
        for num_tokens in lengths:
            self.add(num_tokens)

    @property
    def mean(self) -> float:
        """Mean length; 0.0 while none is known."""
        return self._sum / len(self._window) if self._window else 0.0

    def conditional_survival(self, generated: int, more: int) -> float:
        """Return how likely a response that runs after `generated` tokens still runs after `more` further ones.

        1.0 where the history holds nothing as long as `generated`: nothing says when such a response will end.
        """
        alive = self._num_longer(generated)
        return self._num_longer(generated + more) / alive if alive else 1.0

    def export_state(self) -> dict[str, Any]:
        """Return the lengths as JSON values, the oldest first."""
        return {"lengths": list(self._window)}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Undo `export_state`; a window that has become smaller keeps the newest."""
        self._window = deque(state["lengths"][-self._capacity :])
        self._sorted = sorted(self._window)
        self._sum = sum(self._window)

    def _num_longer(self, num_tokens: int) -> int:
        return len(self._sorted) - bisect_right(self._sorted, num_tokens)
