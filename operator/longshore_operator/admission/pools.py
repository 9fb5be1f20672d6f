"""The GPUs of every pool: those that are free, who holds the others, and who can free some for a job that waits."""

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

from longshore_operator.admission.demand import GpuRequest, Limits, Pool, Stage
from longshore_operator.identity import Key

Demand = Mapping[Pool, int]


class PoolUsage:
    """State of the pools and quotas that a decision keeps up to date while it goes through the queue."""

    def __init__(self, limits: Limits, holders: Iterable[GpuRequest]) -> None:
        self._limits = limits
        self._used: dict[Pool, int] = defaultdict(int)
        self._leaving: dict[Pool, int] = defaultdict(int)
        self._amounts: dict[Pool, list[int]] = defaultdict(list)
        self.reserved: dict[Pool, int] = defaultdict(int)
        """GPUs that the heads wait for."""
        self.holders: dict[Pool, list[GpuRequest]] = defaultdict(list)
        """Jobs that could be preempted, or give worker pods back."""
        self.num_granted: dict[Key, int] = {}
        """Worker pods that elastic jobs may have beyond those that they need."""
        for holder in holders:
            self.take(holder)

    def demand(self, request: GpuRequest) -> Demand:
        """Return the least with which the job runs."""
        return self._limits.demand(request.key[0], request.gpus)

    def per_pod(self, request: GpuRequest) -> Demand:
        """Return what one more worker pod of an elastic job takes."""
        return self._limits.demand(request.key[0], request.extra.gpus(1)) if request.extra is not None else {}

    def holding(self, request: GpuRequest) -> Demand:
        """Return what comes back if an admitted job stops, besides what it is giving back anyway."""
        extra, held = request.extra, dict(self.demand(request))
        if extra is not None:
            num_pods = extra.num_held if extra.is_overdue else self.num_granted[request.key]
            for pool, amount in self.per_pod(request).items():
                held[pool] += num_pods * amount
        return held

    def free(self, pool: Pool) -> int:
        """Return the GPUs that nobody holds."""
        return self._limits.size(pool) - self._used[pool]

    def take(self, request: GpuRequest) -> None:
        """Note that a job holds GPUs."""
        for pool, amount in self.demand(request).items():
            self._used[pool] += amount
            self._amounts[pool].append(amount)
            if request.stage is Stage.LEAVING:
                self._leaving[pool] += amount
            elif request.stage is Stage.ADMITTED:
                self.holders[pool].append(request)
        if (extra := request.extra) is None:
            return
        self.num_granted[request.key] = extra.num_granted
        for pool, amount in self.per_pod(request).items():
            self._used[pool] += extra.num_held * amount
            self._amounts[pool] += [amount] * extra.num_held
            if not extra.is_overdue:  # Nobody knows whether it comes back at all.
                self._leaving[pool] += (extra.num_held - extra.num_granted) * amount

    def leave(self, request: GpuRequest) -> None:
        """Note that an admitted job is asked to stop: its GPUs stay in use until it has."""
        for pool, amount in self.holding(request).items():
            self._leaving[pool] += amount
            self.holders[pool].remove(request)

    def give_back(self, request: GpuRequest, num_pods: int) -> None:
        """Note that an elastic job is asked for worker pods: their GPUs stay in use until they are gone."""
        self.num_granted[request.key] -= num_pods
        for pool, amount in self.per_pod(request).items():
            self._leaving[pool] += num_pods * amount

    def lenders(self, pools: Collection[Pool]) -> list[GpuRequest]:
        """Return elastic jobs with GPUs of these pools that they do not need, the least important first."""
        found = {
            holder.key: holder
            for pool in pools
            for holder in self.holders[pool]
            if holder.extra is not None
            and not holder.extra.is_overdue
            and self.num_granted[holder.key]
            and pool in self.per_pod(holder)
        }
        return sorted(found.values(), key=lambda one: one.order, reverse=True)

    def missing(self, pool: Pool, amount: int) -> int:
        """Return the GPUs that are still missing when all that leaves is gone and heads have taken theirs."""
        return amount - (self.free(pool) + self._leaving[pool] - self.reserved[pool])

    def slack(self, pool: Pool, amount: int) -> int:
        """Return what is left over of the smallest amount, free now or later, that suffices.

        It has to suffice for this job and for the heads before. A job that cannot run alongside those heads has to wait
        until they have ended: it is left what it needs alone.
        """
        left = self._left_over(pool, self.reserved[pool] + amount)
        return left if left is not None else self._left_over(pool, amount) or 0

    def _left_over(self, pool: Pool, amount: int) -> int | None:
        """Return what is left over of the smallest sum that suffices; None if no sum ever does.

        Sums of what holders give back are bits of a number.
        """
        sums = 1
        for held in self._amounts[pool]:
            sums |= sums << held
        short = amount - self.free(pool)
        if short <= 0:
            return -short
        sufficient = sums >> short
        return (sufficient & -sufficient).bit_length() - 1 if sufficient else None


@dataclass(slots=True)
class FreedGpus:
    """Jobs that make room for another one."""

    victims: list[GpuRequest] = field(default_factory=list)
    """Jobs that stop."""
    given_back: list[tuple[GpuRequest, int]] = field(default_factory=list)
    """Elastic jobs that go on with so many worker pods fewer."""
    is_enough: bool = False
    """The job starts as soon as all of them are gone."""


def free_gpus(request: GpuRequest, demand: Demand, usage: PoolUsage) -> FreedGpus:
    """Return the least important jobs that give GPUs back or must go for this one; none where that is not enough.

    What an elastic job does not need goes to jobs that wait. Only jobs of lower priority stop, and an elastic one that
    has been asked for pods and does not answer.
    """
    missing = {pool: short for pool, amount in demand.items() if (short := usage.missing(pool, amount)) > 0}
    asked: dict[Key, int] = {}
    lenders = usage.lenders(missing)
    for lender in lenders:
        per_pod = usage.per_pod(lender)
        needed = max(-(-missing[pool] // amount) for pool, amount in per_pod.items() if pool in missing)
        asked[lender.key] = max(0, min(needed, usage.num_granted[lender.key]))
        missing = _less(missing, per_pod, asked[lender.key])
    victims: list[GpuRequest] = []
    for holder in _stoppable(request, missing, usage):
        rest = _rest(holder, asked, usage)
        if any(missing[pool] > 0 for pool in rest if pool in missing):
            victims.append(holder)
            missing = _less(missing, rest)
    if any(short > 0 for short in missing.values()):
        return FreedGpus()
    for holder in sorted(victims, key=lambda one: one.order):
        rest = _rest(holder, asked, usage)
        if all(short + rest.get(pool, 0) <= 0 for pool, short in missing.items()):
            victims.remove(holder)
            missing = _less(missing, rest, -1)
    given_back: list[tuple[GpuRequest, int]] = []
    for lender in reversed([one for one in lenders if one not in victims]):
        per_pod = usage.per_pod(lender)
        unneeded = min(-missing[pool] // amount for pool, amount in per_pod.items() if pool in missing)
        kept = min(asked[lender.key], unneeded)
        missing = _less(missing, per_pod, -kept)
        if asked[lender.key] > kept:
            given_back.append((lender, asked[lender.key] - kept))
    return FreedGpus(victims, given_back, is_enough=True)


def _stoppable(request: GpuRequest, missing: Mapping[Pool, int], usage: PoolUsage) -> list[GpuRequest]:
    """Return the jobs that may be stopped for this one: first those that do not answer, then the least important."""
    found = {
        holder.key: holder
        for pool in missing
        for holder in usage.holders[pool]
        if holder.priority < request.priority or _is_overdue(holder)
    }
    ordered = sorted(found.values(), key=lambda one: one.order, reverse=True)
    return sorted(ordered, key=_is_overdue, reverse=True)


def _is_overdue(holder: GpuRequest) -> bool:
    return holder.extra is not None and holder.extra.is_overdue


def _rest(holder: GpuRequest, asked: Mapping[Key, int], usage: PoolUsage) -> Demand:
    """Return what stopping a job brings beyond the worker pods that it would give back."""
    per_pod, num_given_back = usage.per_pod(holder), asked.get(holder.key, 0)
    return {pool: amount - num_given_back * per_pod.get(pool, 0) for pool, amount in usage.holding(holder).items()}


def _less(missing: Mapping[Pool, int], freed: Demand, times: int = 1) -> dict[Pool, int]:
    return {pool: short - times * freed.get(pool, 0) for pool, short in missing.items()}
