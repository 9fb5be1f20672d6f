"""Bounded postponement: no draw is put off in more than X rounds (verl's reorder recipe, synchronous refinement).

A round that accepts N groups may have to insist on some of them. Which ones is a question of deadlines: a draw that was
put off p times has X - p rounds of slack, and the draws with at most k rounds of slack must fit into the next k + 1
rounds. So a round insists on the longest postponed `num_due` of those that wait, and nothing is ever due that does not
fit, as long as no more than N (X + 1) draws are in play.
"""

from collections.abc import Sequence


def num_due(postponements: Sequence[int], num_groups: int, max_postponements: int) -> int:
    """Return how many draws this round must accept, the most postponed first; `postponements`: a count per draw."""
    assert can_keep(postponements, num_groups, max_postponements), "more draws are due than the rounds accept"
    return _num_due(postponements, num_groups, max_postponements)


def can_keep(postponements: Sequence[int], num_groups: int, max_postponements: int) -> bool:
    """Return whether all of these draws can be accepted in time."""
    return (
        max(postponements, default=0) <= max_postponements
        and _num_due(postponements, num_groups, max_postponements) <= num_groups
    )


def _num_due(postponements: Sequence[int], num_groups: int, max_postponements: int) -> int:
    by_deadline = enumerate(sorted(postponements, reverse=True), start=1)
    return max([0, *(place - num_groups * (max_postponements - count) for place, count in by_deadline)])
