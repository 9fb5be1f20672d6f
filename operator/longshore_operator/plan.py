"""Decisions of a pass as plain data: actions, the outcome of each part, and the plan that they are merged into."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final

from longshore.api.status import Condition, ConditionStatus, ConditionType, RLJobStatus
from longshore_kube.times import rfc3339

POD_BATCH: Final = 32
"""Pods that one pass creates or deletes, and pods that it labels."""
_MAX_MESSAGE_LENGTH: Final = 1024
_NOTHING: Final = RLJobStatus()


@dataclass(frozen=True, slots=True)
class _Child:
    manifest: dict[str, Any]

    @property
    def key(self) -> tuple[str, str]:
        """(kind, name) of the child."""
        return self.manifest["kind"], self.manifest["metadata"]["name"]


@dataclass(frozen=True, slots=True)
class Apply(_Child):
    """Server-side apply of a child; `fingerprint` is remembered as applied."""

    fingerprint: str
    is_kept: bool = False
    """Whether an existing child of the job is left unchanged."""
    is_new: bool = False
    """Whether the child is expected not to exist yet, so that it is created without a look."""


@dataclass(frozen=True, slots=True)
class CreateOnce(_Child):
    """Create a child unless one of that name exists; it is never read nor changed (Secrets)."""

    is_again: bool = False
    """Whether an earlier attempt had it, so that it exists unless somebody has deleted it."""


@dataclass(frozen=True, slots=True)
class CreatePod:
    """Create a pod; one that already exists under the name is left alone."""

    manifest: dict[str, Any]

    @property
    def name(self) -> str:
        """Pod name."""
        return str(self.manifest["metadata"]["name"])


@dataclass(frozen=True, slots=True)
class DeletePod:
    """Delete the pod with this uid, with its own grace period."""

    name: str
    uid: str


@dataclass(frozen=True, slots=True)
class LabelPod:
    """Set labels of the pod with this uid, if it still exists."""

    name: str
    uid: str
    labels: dict[str, str]
    is_repair: bool = False
    """Whether somebody has changed some of these labels, and may do so again."""


@dataclass(frozen=True, slots=True)
class DeleteJob:
    """Delete the RLJob itself, children in the background."""

    uid: str


@dataclass(frozen=True, slots=True)
class Event:
    """A Kubernetes event on the RLJob; `key` makes it one event however often it is decided."""

    type: str
    reason: str
    message: str
    key: str


@dataclass(frozen=True, slots=True)
class CreateObject:
    """Create an object for another controller: the Workload or the PodGroup of a job."""

    manifest: dict[str, Any]
    kind: str
    """Name by which the Kubernetes client knows the kind of the object."""


@dataclass(frozen=True, slots=True)
class DeleteObject:
    """Delete the object with this uid; the next one describes the present job."""

    name: str
    uid: str
    kind: str


@dataclass(frozen=True, slots=True)
class PatchObject:
    """Merge into an object; if it has changed meanwhile, reconcile again instead."""

    name: str
    kind: str
    change: dict[str, Any]
    subresource: str = ""


ObjectAction = CreateObject | DeleteObject | PatchObject
Action = ObjectAction | Apply | CreateOnce | CreatePod | DeletePod | LabelPod | DeleteJob | Event


@dataclass(frozen=True, slots=True)
class Plan:
    """Decisions of one reconciliation."""

    actions: tuple[Action, ...] = ()
    status: RLJobStatus | None = None
    """Status to write (without `runtime`); None: leave it alone."""
    requeue_at: datetime | None = None
    """Time of the next pass if nothing changes."""
    has_all_children: bool = False
    """Whether, after the plan, every child matches this generation of the spec and this attempt."""


@dataclass(frozen=True, slots=True)
class Fact:
    """A condition before it has a history."""

    holds: bool
    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class Outcome:
    """Decisions of one part of `reconcile`, or of all parts together."""

    actions: tuple[Action, ...] = ()
    events: tuple[Event, ...] = ()
    conditions: Mapping[ConditionType, Fact | None] = field(default_factory=dict)
    """Facts by type of condition; None: the condition is absent."""
    status: RLJobStatus = _NOTHING
    """Fields of the status to write; only fields that were set count."""
    requeue_at: datetime | None = None
    """Time of the next pass if nothing changes; now, if there is more to do."""

    def merge(self, other: "Outcome") -> "Outcome":
        """Merge two outcomes; each condition and field of the status belongs to one part only."""
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


def next_of(now: datetime, *moments: datetime | None) -> datetime | None:
    """Return the first of those that are still to come."""
    return min((moment for moment in moments if moment is not None and moment > now), default=None)
