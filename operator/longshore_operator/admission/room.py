"""Make room for the head of the queue.

Elastic jobs give worker pods back that they do not need. If that is not enough, jobs of lower priority stop.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from longshore_operator.admission.book import Book, Demand
from longshore_operator.admission.demand import GpuRequest, Key, Pool


@dataclass(slots=True)
class Room:
    """Jobs that make room for another one."""

    victims: list[GpuRequest] = field(default_factory=list)
    """Jobs that stop."""
    given_back: list[tuple[GpuRequest, int]] = field(default_factory=list)
    """Elastic jobs that go on with so many worker pods fewer."""
    is_enough: bool = False
    """The job starts as soon as all of them are gone."""


def room_for(request: GpuRequest, demand: Demand, book: Book) -> Room:
    """The least important jobs that give GPUs back or must go for this one, none where that would not be enough.

    What an elastic job does not need goes to jobs that wait. Only jobs of lower priority stop, and an elastic one that
    has been asked for pods and does not answer.
    """
    missing = {pool: short for pool, amount in demand.items() if (short := book.missing(pool, amount)) > 0}
    asked: dict[Key, int] = {}
    lenders = book.lenders(missing)
    for lender in lenders:
        per_pod = book.per_pod(lender)
        needed = max(-(-missing[pool] // amount) for pool, amount in per_pod.items() if pool in missing)
        asked[lender.key] = max(0, min(needed, book.num_granted[lender.key]))
        missing = _less(missing, per_pod, asked[lender.key])
    victims: list[GpuRequest] = []
    for holder in _stoppable(request, missing, book):
        rest = _rest(holder, asked, book)
        if any(missing[pool] > 0 for pool in rest if pool in missing):
            victims.append(holder)
            missing = _less(missing, rest)
    if any(short > 0 for short in missing.values()):
        return Room()
    for holder in sorted(victims, key=lambda one: one.order):
        rest = _rest(holder, asked, book)
        if all(short + rest.get(pool, 0) <= 0 for pool, short in missing.items()):
            victims.remove(holder)
            missing = _less(missing, rest, -1)
    given_back: list[tuple[GpuRequest, int]] = []
    for lender in reversed([one for one in lenders if one not in victims]):
        per_pod = book.per_pod(lender)
        unneeded = min(-missing[pool] // amount for pool, amount in per_pod.items() if pool in missing)
        kept = min(asked[lender.key], unneeded)
        missing = _less(missing, per_pod, -kept)
        if asked[lender.key] > kept:
            given_back.append((lender, asked[lender.key] - kept))
    return Room(victims, given_back, is_enough=True)


def _stoppable(request: GpuRequest, missing: Mapping[Pool, int], book: Book) -> list[GpuRequest]:
    """Jobs that may be stopped for this one: first those that do not answer, then the least important."""
    found = {
        holder.key: holder
        for pool in missing
        for holder in book.holders[pool]
        if holder.priority < request.priority or _is_overdue(holder)
    }
    ordered = sorted(found.values(), key=lambda one: one.order, reverse=True)
    return sorted(ordered, key=_is_overdue, reverse=True)


def _is_overdue(holder: GpuRequest) -> bool:
    return holder.extra is not None and holder.extra.is_overdue


def _rest(holder: GpuRequest, asked: Mapping[Key, int], book: Book) -> Demand:
    """Return what stopping a job brings beyond the worker pods that it would give back."""
    per_pod, num_given_back = book.per_pod(holder), asked.get(holder.key, 0)
    return {pool: amount - num_given_back * per_pod.get(pool, 0) for pool, amount in book.holding(holder).items()}


def _less(missing: Mapping[Pool, int], freed: Demand, times: int = 1) -> dict[Pool, int]:
    return {pool: short - times * freed.get(pool, 0) for pool, short in missing.items()}
