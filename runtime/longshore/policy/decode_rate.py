"""How long an engine takes for a decode step, learned from the steps that it has made.

    step = base + per request * requests that run + per KV cache * share of the cache that they fill

Weighted least squares without negative terms. Older steps fade, since responses, weights and machines change.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any, Final

FADE: Final = 0.8
"""Factor by which the weight of a round shrinks with every later round: about five rounds count."""
_MARGIN: Final = 1 + 1e-9
"""Factor by which more terms, or others, have to explain more to be taken: more than rounding does."""
_SINGULAR: Final = 1e-9
"""A pivot that is smaller, relative to what the column began with, says nothing of its term."""
_NUM_TERMS: Final = 3


@dataclass(frozen=True)
class DecodeSteps:
    """Consecutive steps of one engine with the same requests."""

    num_steps: int
    num_running: float
    kv_usage: float
    """Share of the KV cache in use, 0 to 1; the mean over the steps."""


class DecodeRate:
    """Decode rate of engines of one size."""

    def __init__(self) -> None:
        self._gram = [[0.0] * _NUM_TERMS for _ in range(_NUM_TERMS)]
        self._moments = [0.0] * _NUM_TERMS
        self._coefficients: tuple[float, ...] | None = None
        """Coefficients of the three terms, if they were asked for since the last steps."""

    @property
    def is_known(self) -> bool:
        """Whether any steps were seen."""
        return self._gram[0][0] > 0

    def add(self, steps: DecodeSteps, seconds: float) -> None:
        """Add steps that an engine made, with their time."""
        terms = (1.0, steps.num_running, steps.kv_usage)
        for row, term in enumerate(terms):
            self._moments[row] += term * seconds
            for column, other in enumerate(terms):
                self._gram[row][column] += steps.num_steps * term * other
        self._coefficients = None

    def fade(self) -> None:
        """Lower the weight of all steps, because newer ones are about to be added."""
        self._gram = [[FADE * value for value in row] for row in self._gram]
        self._moments = [FADE * value for value in self._moments]

    def scale(self, factor: float) -> None:
        """Make every step take so many times as long."""
        self._moments = [factor * value for value in self._moments]
        self._coefficients = None

    def seconds(self, steps: DecodeSteps) -> float:
        """Return the seconds that an engine takes for these steps."""
        assert self.is_known, "no steps were seen"
        if self._coefficients is None:
            self._coefficients = _least_squares(self._gram, self._moments)
        base_s, per_request_s, per_cache_s = self._coefficients
        return steps.num_steps * (base_s + per_request_s * steps.num_running + per_cache_s * steps.kv_usage)

    def export_state(self) -> dict[str, Any]:
        """Return the state as JSON values."""
        return {"gram": self._gram, "moments": self._moments}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Undo `export_state`."""
        self._gram = [list(row) for row in state["gram"]]
        self._moments = list(state["moments"])
        self._coefficients = None


def _least_squares(gram: Sequence[Sequence[float]], moments: Sequence[float]) -> tuple[float, ...]:
    """Return the best coefficients of which none is negative: with three terms, every choice of terms can be tried."""
    best: tuple[float, ...] = (moments[0] / gram[0][0], 0.0, 0.0)
    best_explained = moments[0] ** 2 / gram[0][0]
    for count in range(1, _NUM_TERMS + 1):
        for terms in combinations(range(_NUM_TERMS), count):
            solution = _solve(
                [[gram[row][column] for column in terms] for row in terms], [moments[row] for row in terms]
            )
            if solution is None or min(solution) < 0:
                continue
            explained = sum(value * moments[term] for value, term in zip(solution, terms, strict=True))
            if explained > best_explained * _MARGIN:
                found = dict(zip(terms, solution, strict=True))
                best, best_explained = tuple(found.get(term, 0.0) for term in range(_NUM_TERMS)), explained
    return best


def _solve(matrix: Sequence[Sequence[float]], right: Sequence[float]) -> list[float] | None:
    """Solve a positive definite system by Gaussian elimination; None where it is (nearly) singular."""
    rows = [[*row, value] for row, value in zip(matrix, right, strict=True)]
    size = len(rows)
    for pivot in range(size):
        if rows[pivot][pivot] <= _SINGULAR * matrix[pivot][pivot]:
            return None
        for row in range(pivot + 1, size):
            factor = rows[row][pivot] / rows[pivot][pivot]
            rows[row] = [one - factor * other for one, other in zip(rows[row], rows[pivot], strict=True)]
    solution = [0.0] * size
    for row in reversed(range(size)):
        known = sum(rows[row][column] * solution[column] for column in range(row + 1, size))
        solution[row] = (rows[row][size] - known) / rows[row][row]
    return solution
