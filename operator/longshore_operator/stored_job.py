"""A job as the API server stores it, without what is not needed or cannot be read.

A coordinator runs code of its users and may patch the status of its job. Whatever it leaves there, the job can be
suspended, restarted and ended: what cannot be read is dropped and reported.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any, Final

from pydantic import ValidationError

from longshore.api.limits import MAX_PODS
from longshore.api.mistakes import sentence
from longshore.api.reasons import EventReason, StatusUnreadableReason
from longshore.api.rljob import RLJob
from longshore.api.spec import RLJobSpec
from longshore.api.status import Assignment, Condition, ConditionType, Phase, RewardPodCounts, RLJobStatus
from longshore_kube.times import rfc3339
from longshore_operator.attempts import BACKOFF_LIMIT
from longshore_operator.context import Context
from longshore_operator.plan import Event, Fact, Outcome

_NEEDED_METADATA: Final = (
    "name", "namespace", "uid", "resourceVersion", "generation", "creationTimestamp", "deletionTimestamp", "finalizers",
    "labels",
)  # fmt: skip
_STARTING: Final = frozenset({Phase.PENDING, Phase.STARTING})
_MAX_KEPT_BYTES: Final = 32 * 1024
_MAX_MESSAGE_LENGTH: Final = 512
_CLOCK_SKEW: Final = timedelta(minutes=1)
_OLDEST_YEAR: Final = 2000
_MAX_COUNTED: Final = 2**31
"""Largest plausible counter: the operator never reaches it, and could not continue from there."""


@dataclass(frozen=True, slots=True)
class StoredJob:
    """A job that was read, or was last written."""

    metadata: dict[str, Any]
    spec: RLJobSpec | ValidationError
    status: RLJobStatus
    """Status that decisions can rely on."""
    unreadable: str
    """Sentence that says what was dropped of the stored status and why; empty: nothing."""
    is_small: bool

    @property
    def version(self) -> str:
        """Resource version."""
        return str(self.metadata["resourceVersion"])

    @property
    def runs_elsewhere(self) -> bool:
        """Whether the status is written by this operator only while the job waits."""
        return isinstance(self.spec, RLJobSpec) and self.spec.runs_elsewhere

    def may_be_kept(self, next_status: RLJobStatus) -> bool:
        """Return whether to remember the job until it changes.

        A job that starts is looked at often, but a large one would take too much memory.
        """
        return self.is_small and next_status.phase in _STARTING and not isinstance(self.spec, ValidationError)

    def written(self, status: RLJobStatus, version: str) -> "StoredJob":
        """Return the job after its status was written on top of this version."""
        metadata = self.metadata | {"resourceVersion": version}
        return replace(self, metadata=metadata, status=status, unreadable="")


def read_job(found: dict[str, Any], now: datetime) -> StoredJob:
    """Parse a job that was read; a spec that cannot be parsed is replaced by the reason."""
    metadata = {name: found["metadata"][name] for name in _NEEDED_METADATA if name in found["metadata"]}
    spec, is_small = found.get("spec"), False
    if not isinstance(spec, ValidationError):
        is_small = len(json.dumps([spec, metadata])) <= _MAX_KEPT_BYTES
        try:
            spec = RLJob.model_validate({"metadata": metadata, "spec": spec}).spec
        except ValidationError as error:
            spec = error
    return StoredJob(metadata, spec, *read_status(found.get("status"), now), is_small)


def read_status(stored: Any, now: datetime) -> tuple[RLJobStatus, str]:
    """Return the readable parts of a stored status, with times that decisions can use, and what was dropped and why."""
    if not isinstance(stored, Mapping):
        return RLJobStatus(), ""
    dropped: list[str] = []
    try:
        status = RLJobStatus.model_validate(stored)
    except ValidationError:
        status, dropped = _by_field(stored)
    status, odd_times = _with_times(status, now)
    status, odd_counts = _with_counts(status)
    return status, "; ".join([*dropped, *odd_times, *odd_counts])[:_MAX_MESSAGE_LENGTH]


def reconcile_stored_status(context: Context) -> Outcome:
    """Report what was dropped: an event when it begins, and a condition for as long as it lasts."""
    why, before = context.observed.unreadable_status, context.job.status
    if not why:
        return Outcome()
    event = Event("Warning", EventReason.STATUS_UNREADABLE, why, key=f"unreadable-{before.attempt}")
    return Outcome(
        events=() if before.condition(ConditionType.STATUS_UNREADABLE) else (event,),
        conditions={ConditionType.STATUS_UNREADABLE: Fact(True, StatusUnreadableReason.DROPPED, why)},
    )


def _by_field(stored: Mapping[str, Any]) -> tuple[RLJobStatus, list[str]]:
    """Return the fields that can be read separately, and a sentence for each of the others."""
    readable, dropped = {}, []
    for name, value in stored.items():
        try:
            RLJobStatus.model_validate({name: value})
        except ValidationError as error:
            dropped.append(f"{sentence(error, 'status')}: it is dropped")
        else:
            readable[name] = value
    return RLJobStatus.model_validate(readable), dropped


def _with_times(status: RLJobStatus, now: datetime) -> tuple[RLJobStatus, list[str]]:
    """Replace implausible times by now, which ends every wait, and drop those without consequence."""
    latest = {
        "start_time": now + _CLOCK_SKEW,
        "restart_time": now + BACKOFF_LIMIT + _CLOCK_SKEW,
        "completion_time": now + _CLOCK_SKEW,
    }
    odd = [name for name, limit in latest.items() if _is_odd(getattr(status, name), limit)]
    changes: dict[str, Any] = dict.fromkeys(odd, rfc3339(now))
    lost = [
        name
        for name in ("changed_time", "calm_since", "peak_since")
        if _is_odd(getattr(status.rewards, name), now + _CLOCK_SKEW)
    ]
    if lost:
        changes["rewards"] = status.rewards.model_copy(update=dict.fromkeys(lost))
    paths = [_path(RLJobStatus, name) for name in odd] + [f"rewards.{_path(RewardPodCounts, name)}" for name in lost]
    if status.admission is not None and _is_odd(status.admission.shrinking_since, now + _CLOCK_SKEW):
        changes["admission"] = status.admission.model_copy(update={"shrinking_since": None})
        paths.append("admission.shrinkingSince")
    if any(_is_odd(one.last_transition_time, now + _CLOCK_SKEW) for one in status.conditions):
        changes["conditions"] = [_timely(one, now) for one in status.conditions]
        paths.append("conditions")
    if not changes:
        return status, []
    return status.model_copy(update=changes), [f"status.{path}: is no time that the operator wrote" for path in paths]


def _timely(condition: Condition, now: datetime) -> Condition:
    is_odd = _is_odd(condition.last_transition_time, now + _CLOCK_SKEW)
    return condition.model_copy(update={"last_transition_time": rfc3339(now)}) if is_odd else condition


def _with_counts(status: RLJobStatus) -> tuple[RLJobStatus, list[str]]:
    """Restart counters that were set beyond the largest plausible value."""
    counts = ("attempt", "failures", "interruptions", "counted_at_step")
    odd = [name for name in counts if getattr(status, name) > _MAX_COUNTED]
    changes: dict[str, Any] = dict.fromkeys(odd, 0)
    if (status.out_of_memory_step or 0) > _MAX_COUNTED:
        odd.append("out_of_memory_step")
        changes["out_of_memory_step"] = None
    size = status.assignment.size
    if status.assignment.epoch > _MAX_COUNTED or (size is not None and max(size.workers, size.held) > MAX_PODS):
        odd.append("assignment")
        changes["assignment"] = Assignment()
    if not changes:
        return status, []
    return status.model_copy(update=changes), [
        f"status.{_path(RLJobStatus, name)}: is more than was ever counted" for name in odd
    ]


def _path(model: type[RLJobStatus] | type[RewardPodCounts], name: str) -> str:
    return str(model.model_fields[name].alias)


def _is_odd(text: str | None, latest: datetime) -> bool:
    if text is None:
        return False
    try:
        moment = datetime.fromisoformat(text)
        return moment.tzinfo is None or moment.year < _OLDEST_YEAR or moment > latest
    except (ValueError, OverflowError):
        return True
