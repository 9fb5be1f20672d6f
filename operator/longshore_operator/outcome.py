"""Decisions of one concern of a job. `reconcile` merges the outcomes of all concerns into one plan."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final

from longshore.api.status import Condition, ConditionStatus, ConditionType, RLJobStatus
from longshore_kube.times import rfc3339
from longshore_operator.plan import Action, Event

_MAX_MESSAGE_LENGTH: Final = 1024
_NOTHING: Final = RLJobStatus()


@dataclass(frozen=True, slots=True)
class Fact:
    """A condition before it has a history."""

    holds: bool
    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class Outcome:
    """Decisions of one concern, or of all of them together."""

    actions: tuple[Action, ...] = ()
    events: tuple[Event, ...] = ()
    conditions: Mapping[ConditionType, Fact | None] = field(default_factory=dict)
    """Facts by type of condition; None: the condition is absent."""
    status: RLJobStatus = _NOTHING
    """Fields of the status to write; only fields that were set count."""
    requeue_at: datetime | None = None
    """Time of the next pass if nothing changes; now, if there is more to do."""

    def joined(self, other: "Outcome") -> "Outcome":
        """Merge two outcomes; each condition and field of the status belongs to one concern only."""
        fields = {name: getattr(other.status, name) for name in other.status.model_fields_set}
        assert not self.status.model_fields_set & fields.keys(), fields.keys()
        assert not self.conditions.keys() & other.conditions.keys(), other.conditions.keys()
        return Outcome(
            self.actions + other.actions,
            self.events + other.events,
            {**self.conditions, **other.conditions},
            self.status.model_copy(update=fields),
            min(filter(None, (self.requeue_at, other.requeue_at)), default=None),
        )


def with_history(
    facts: Mapping[ConditionType, Fact | None], previous: Iterable[Condition], generation: int, now: datetime
) -> list[Condition]:
    """Return conditions in a fixed order; the transition time changes only with the status."""
    before = {condition.type: condition for condition in previous}
    conditions = []
    for kind in ConditionType:
        fact, old = facts.get(kind), before.get(kind.value)
        if fact is None:
            continue
        status = ConditionStatus.TRUE if fact.holds else ConditionStatus.FALSE
        conditions.append(
            Condition(
                type=kind.value,
                status=status,
                reason=fact.reason,
                message=fact.message[:_MAX_MESSAGE_LENGTH],
                last_transition_time=old.last_transition_time if old and old.status is status else rfc3339(now),
                observed_generation=generation,
            )
        )
    return conditions
