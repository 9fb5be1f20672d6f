"""Who gets GPUs next: whole gangs, by priority and then by age, with backfill that never delays the head of the queue.

A job that lacks GPUs of a pool is the *head* of that pool if no job before it is. A job behind a head may take GPUs
that the head needs only if the head can start just as early, in whatever order the running jobs end: nobody knows how
long they run. The head becomes startable at one of the amounts that are free now or after some of the running jobs
have ended, so jobs behind it may take what the smallest sufficient amount leaves over (`PoolUsage.slack`).

A head may take worker pods that elastic jobs do not need, and preempt jobs of strictly lower priority, if it can start
when they are gone. What is left over goes to elastic jobs, as far as it would go to jobs behind the heads.
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum, auto

from longshore_operator.admission.demand import CLUSTER, GpuRequest, Limits, Pool, Stage
from longshore_operator.admission.pools import Demand, FreedGpus, PoolUsage, free_gpus
from longshore_operator.identity import Key


class Why(Enum):
    """Why a job waits."""

    TOO_LARGE = auto()
    """The job needs more than the cluster has; it holds up no other."""
    NO_QUOTA = auto()
    """The quota of its namespace is in use."""
    NO_CAPACITY = auto()
    """The GPUs of the cluster are in use."""
    BEHIND = auto()
    """There are GPUs, and the head of the queue may need them."""
    SHRINKING = auto()
    """Elastic jobs make room for it."""
    PREEMPTING = auto()
    """Jobs of lower priority make room for it."""


@dataclass(frozen=True, slots=True)
class Wait:
    """A job that waits."""

    why: Why
    needed: int = 0
    available: int = 0
    """GPUs of the resource that it lacks most."""
    resource: str = ""
    num_ahead: int = 0
    """Jobs before it in the queue."""
    head: Key | None = None
    """The job that it must not delay."""


@dataclass(frozen=True, slots=True)
class QueueDecision:
    """Changes that the queue decides, and reasons why the other jobs wait."""

    admitted: tuple[Key, ...] = ()
    preempted: Mapping[Key, Key] = field(default_factory=dict)
    """Job to stop, and the job that gets its GPUs."""
    sizes: Mapping[Key, int] = field(default_factory=dict)
    """Elastic jobs that grow or shrink: worker pods that they may have beyond those that they need."""
    waiting: Mapping[Key, Wait] = field(default_factory=dict)

    @property
    def changes_something(self) -> bool:
        """Whether a job starts, stops, grows or shrinks."""
        return bool(self.admitted or self.preempted or self.sizes)


@dataclass(slots=True)
class _Head:
    """The first job that waits for a pool, and what jobs behind it may take of the pools that it needs."""

    key: Key
    slack: dict[Pool, int]

    def leaves(self, demand: Demand) -> bool:
        return all(amount <= self.slack.get(pool, amount) for pool, amount in demand.items())

    def give(self, demand: Demand) -> None:
        for pool in self.slack.keys() & demand.keys():
            self.slack[pool] -= demand[pool]


@dataclass(frozen=True, slots=True)
class _Look:
    """A decision, and what there was to decide by."""

    decision: QueueDecision
    usage: PoolUsage
    heads: list[_Head]


def decide(requests: Iterable[GpuRequest], limits: Limits) -> QueueDecision:
    """Decide whom to admit, to preempt and to resize; once that is carried out, nothing is left to decide."""
    decision, after, look = QueueDecision(), tuple(requests), None
    while look is None or look.decision.changes_something:
        look = _undisputed(after, limits)
        after = _carried_out(after, look.decision)
        decision = _both(decision, look.decision)
    sizes = dict(decision.sizes)
    for request in sorted(filter(_may_grow, after), key=lambda one: one.order):
        grown = _grown(request, look)
        if grown is None:
            continue
        more = tuple(grown if one.key == request.key else one for one in after)
        look_then = _undisputed(more, limits)
        # What a job takes can make others wait for something else, so that it would have to be given back.
        if not look_then.decision.changes_something and grown.extra is not None:
            after, look, sizes[request.key] = more, look_then, grown.extra.num_granted
    return replace(decision, sizes=sizes)


def _undisputed(requests: tuple[GpuRequest, ...], limits: Limits) -> _Look:
    """Make one round of decisions that admits no job that would have to stop in the next round."""
    kept_back: set[Key] = set()
    while True:
        look = _decide(requests, limits, kept_back)
        admitted = [key for key in look.decision.admitted if key not in kept_back]
        if not admitted:
            return look
        if not _decide(_carried_out(requests, look.decision), limits, kept_back).decision.changes_something:
            return look
        # A job that goes ahead of others can change which of them are heads, so that one of these would preempt it.
        kept_back.add(admitted[-1])


def _both(first: QueueDecision, then: QueueDecision) -> QueueDecision:
    """Combine two rounds of decisions.

    Jobs for which the first makes room wait for that.
    """
    making_room = {key: wait for key, wait in first.waiting.items() if wait.why in (Why.PREEMPTING, Why.SHRINKING)}
    preempted = {**first.preempted, **then.preempted}
    return QueueDecision(
        first.admitted + then.admitted,
        preempted,
        {key: size for key, size in {**first.sizes, **then.sizes}.items() if key not in preempted},
        {key: making_room.get(key, wait) for key, wait in then.waiting.items()},
    )


def _carried_out(requests: Iterable[GpuRequest], decision: QueueDecision) -> tuple[GpuRequest, ...]:
    return tuple(carried_out(request, decision) for request in requests)


def carried_out(request: GpuRequest, decision: QueueDecision) -> GpuRequest:
    """Return a job as the decision makes it."""
    if request.key in decision.preempted:
        return request.leaving()
    if request.key in decision.admitted:
        request = replace(request, stage=Stage.ADMITTED)
    if request.extra is not None and request.key in decision.sizes:
        request = replace(request, extra=request.extra.granting(decision.sizes[request.key]))
    return request


def _may_grow(request: GpuRequest) -> bool:
    """Return whether an admitted elastic job may grow: only once its earlier changes of size are complete."""
    extra = request.extra
    return request.stage is Stage.ADMITTED and extra is not None and extra.is_settled and not extra.is_overdue


def _grown(request: GpuRequest, look: _Look) -> GpuRequest | None:
    """Return the job with as many more worker pods as are free and as no head may need; None: there are none."""
    extra = request.extra
    assert extra is not None, "only elastic jobs grow"
    num_more = extra.num_most - extra.num_held
    for pool, amount in look.usage.per_pod(request).items():
        left = [look.usage.free(pool), *(head.slack.get(pool, num_more * amount) for head in look.heads)]
        num_more = min(num_more, min(left) // amount)
    return replace(request, extra=extra.granting(extra.num_held + num_more)) if num_more > 0 else None


def _decide(requests: Iterable[GpuRequest], limits: Limits, kept_back: Collection[Key]) -> _Look:
    """Make one round of decisions; jobs that are `kept_back` do not go ahead of a head."""
    requests = tuple(requests)
    usage = PoolUsage(limits, (request for request in requests if request.stage is not Stage.WAITING))
    heads: list[_Head] = []
    admitted: list[Key] = []
    preempted: dict[Key, Key] = {}
    shrunk: set[Key] = set()
    waiting: dict[Key, Wait] = {}
    num_ahead = 0
    for request in sorted((one for one in requests if one.stage is Stage.WAITING), key=lambda one: one.order):
        demand = usage.demand(request)
        too_large = [pool for pool, amount in demand.items() if amount > limits.size(pool)]
        if too_large:
            waiting[request.key] = _wait(Why.TOO_LARGE, demand, too_large, limits.size)
            continue
        lacking = [pool for pool, amount in demand.items() if amount > usage.free(pool)]
        behind = next((head for head in heads if request.key in kept_back or not head.leaves(demand)), None)
        if not lacking and behind is None:
            admitted.append(request.key)
            usage.take(request)
            for head in heads:
                head.give(demand)
            continue
        freed = _become_head(request, demand, lacking, usage, heads)
        preempted |= {victim.key: request.key for victim in freed.victims}
        shrunk |= {lender.key for lender, _ in freed.given_back}
        why = _why(lacking, freed)
        head_key = behind.key if behind is not None and why is Why.BEHIND else None
        waiting[request.key] = _wait(why, demand, lacking or list(demand), usage.free, num_ahead, head_key)
        num_ahead += 1
    sizes = {key: usage.num_granted[key] for key in shrunk - preempted.keys()}
    return _Look(QueueDecision(tuple(admitted), preempted, sizes, waiting), usage, heads)


def _why(lacking: list[Pool], freed: FreedGpus) -> Why:
    if not lacking:
        return Why.BEHIND
    if freed.victims:
        return Why.PREEMPTING
    if freed.given_back:
        return Why.SHRINKING
    return Why.NO_QUOTA if _of_namespace(lacking) else Why.NO_CAPACITY


def _become_head(
    request: GpuRequest, demand: Demand, lacking: list[Pool], usage: PoolUsage, heads: list[_Head]
) -> FreedGpus:
    """Protect the job from those behind it if it is the first that lacks GPUs of a pool; returns who makes room.

    A job that the quota of its namespace holds back keeps nothing of the cluster from others, unless it is about to
    start.
    """
    headed = {pool for head in heads for pool in head.slack}
    if all(pool in headed for pool in _of_namespace(lacking) or lacking):
        return FreedGpus()
    freed = free_gpus(request, demand, usage)
    for victim in freed.victims:
        usage.leave(victim)
    for lender, num_pods in freed.given_back:
        usage.give_back(lender, num_pods)
    protected = _of_namespace(lacking) if _of_namespace(lacking) and not freed.is_enough else list(demand)
    heads.append(_Head(request.key, {pool: usage.slack(pool, demand[pool]) for pool in protected}))
    for pool in protected:
        usage.reserved[pool] += demand[pool]
    return freed


def _of_namespace(pools: list[Pool]) -> list[Pool]:
    return [pool for pool in pools if pool[0] != CLUSTER]


def _wait(
    why: Why, demand: Demand, pools: list[Pool], available: Callable[[Pool], int], num_ahead: int = 0,
    head: Key | None = None,
) -> Wait:  # fmt: skip
    pool = max(pools, key=lambda one: demand[one] - available(one))
    return Wait(why, demand[pool], max(0, available(pool)), pool[1], num_ahead, head)
