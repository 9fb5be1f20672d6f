"""What the controller remembers of a job between passes. Losing it does no harm: a pass can find all of it again."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Final

from longshore.api.names import Component
from longshore.api.spec import RLJobSpec
from longshore_operator.context import ClaimView, Reads
from longshore_operator.fairness import Bucket
from longshore_operator.pod_view import PodView
from longshore_operator.settings import pod_settings_fingerprint
from longshore_operator.stored_job import StoredJob

RESYNC: Final = timedelta(minutes=15)
"""Interval at which a job is reconciled and its children are applied again, even without a change."""
RESYNC_WHILE_STARTING: Final = timedelta(seconds=20)
"""Time between two looks at the children of a job whose pod has a node and does not start.

Somebody may have deleted what it mounts. Doubled each time.
"""
REPAIR_PAUSE: Final = timedelta(seconds=1)
"""Shortest time between two repairs of the labels of a pod, doubled each time."""
CLAIM_PATIENCE: Final = timedelta(minutes=1)
"""How long pods may be pending before the volume claim is looked at, unless the scheduler refuses them."""
NODE_PATIENCE: Final = timedelta(seconds=10)
"""The same while the coordinator has no node: the scheduler may be waiting for the volume without refusing the pod."""
EVENT_BURST: Final = 25
EVENTS_PER_S: Final = 0.1
"""Long-run rate of events per job; events above it are counted but not posted."""


@dataclass(slots=True)
class JobMemory:
    """Memory of one job; another job of the same name (`uid`) starts with an empty one."""

    uid: str = ""
    applied: dict[tuple[str, str], str] = field(default_factory=dict)
    """Fingerprint with which each child was last applied, by (kind, name)."""
    applied_for: tuple[int, int] = (0, 0)
    """Generation of the spec and attempt for which all children were applied."""
    num_lost: int = 0
    """Number of children that were seen to be gone."""
    applied_since: datetime | None = None
    num_starting_looks: int = 0
    """Number of times that children were applied again because a pod did not start."""
    apply_error: str | None = None
    starting_since: dict[str, datetime] = field(default_factory=dict)
    """Times at which pods that start were first seen to have a node, by uid."""
    pending_since: datetime | None = None
    """Time at which a pod was first seen to be pending; None: none is."""
    bound_claim: ClaimView | None = None
    """The volume claim, once it was seen to be bound while pods start; forgotten when children are read again."""
    hashed: tuple[int, str] = (0, "")
    """Generation and the fingerprint of its settings."""
    reported_rejection: int = 0
    reported_notice: tuple[int, int] = (0, 0)
    seen_version: str = ""
    """resourceVersion of the job as this operator last read or wrote it."""
    news_version: int = 0
    """Resource version of the newest news."""
    kept: StoredJob | None = None
    """The job as it was last read or written, for as long as it starts and there are no news."""
    is_contended: bool = False
    """Whether others changed the job while its status was to be written, which is then written whatever they change."""
    searched_for: int = 0
    """Attempt in which pods without labels were searched for; 0: they were not."""
    repairs: dict[str, tuple[int, datetime]] = field(default_factory=dict)
    """How often labels of a pod were restored, and when last, by uid."""
    finished_generation: int = 0
    """Generation at which the job ended and nothing remained to be done; 0: it has not ended."""
    events: Bucket = field(default_factory=lambda: Bucket(EVENT_BURST, EVENTS_PER_S, time.monotonic()))

    def refreshed(self, uid: str, version: str, pods: Sequence[PodView], now: datetime) -> "JobMemory":
        """Return the memory for a pass that has just read the job: without what is too old or of another job."""
        memory = self
        if uid != self.uid:
            memory = JobMemory(uid, applied_since=now, news_version=self.news_version, events=self.events)
        memory.note_pods(pods, now)
        if memory._has_expired(now):
            memory.num_starting_looks += 1
            memory.applied, memory.applied_for, memory.applied_since, memory.bound_claim = {}, (0, 0), now, None
        if not memory.starting_since:
            memory.num_starting_looks = 0
        memory.seen_version = version
        if memory.repairs:
            present = {pod.uid for pod in pods}
            memory.repairs = {uid: repair for uid, repair in memory.repairs.items() if uid in present}
        return memory

    def note_pods(self, pods: Sequence[PodView], now: datetime) -> None:
        """Note since when pods are pending, and since when those that start have a node."""
        pending = pending_pods(pods)
        self.starting_since = {pod.uid: self.starting_since.get(pod.uid, now) for pod in pending if pod.scheduled}
        self.pending_since = (self.pending_since or now) if pending else None
        if not pending:
            self.bound_claim = None

    def note_reads(self, reads: Reads, attempt: int) -> None:
        """Note what a pass of this attempt has read, so that the next one need not read it again."""
        if reads.claim is not None:
            self.bound_claim = reads.claim if reads.claim.phase == "Bound" else None
        self.applied |= {secret: "" for secret, exists in reads.secrets.items() if exists}
        if reads.is_searched:
            self.searched_for = attempt

    def take_kept(self, now: datetime) -> StoredJob | None:
        """Return the job without reading it, if it is known: there are no news, and it was read not too long ago."""
        kept, self.kept = self.kept, None
        if kept is None or self.news_version > int(kept.version) or self._has_expired(now):
            return None
        return kept

    def needs_claim(self, pods: Sequence[PodView], now: datetime) -> bool:
        """Return whether the volume claim may be what pods wait for."""
        pending = pending_pods(pods)
        if not pending:
            return False
        is_refused = any(pod.unschedulable is not None for pod in pending)
        return is_refused or now - (self.pending_since or now) >= _claim_patience(pending)

    def next_look(self, pods: Sequence[PodView], now: datetime) -> timedelta:
        """Return for how long the job may stay without a pass when nothing changes."""
        pending = pending_pods(pods)
        patience = _claim_patience(pending)
        is_new = self.pending_since is None or now - self.pending_since < patience
        until_resync = max(timedelta(0), self._resync_at(now) - now)
        return min(until_resync, patience) if pending and is_new else until_resync

    def _has_expired(self, now: datetime) -> bool:
        return self.applied_since is not None and now >= self._resync_at(now)

    def _resync_at(self, now: datetime) -> datetime:
        """Return until when children that were applied are taken to be unchanged."""
        applied_since = self.applied_since or now
        if not self.starting_since:
            return applied_since + RESYNC
        patience = RESYNC_WHILE_STARTING * (1 << min(self.num_starting_looks, 8))
        return max(applied_since, min(self.starting_since.values())) + min(RESYNC, patience)

    def lose(self, kind: str, name: str) -> bool:
        """Note that a child is gone, so that it is applied again; return False if it was not known to exist."""
        if self.applied.pop((kind, name), None) is None:
            return False
        self.applied_for = (0, self.applied_for[1])
        self.num_lost += 1
        return True

    def may_repair(self, uid: str, now: datetime) -> bool:
        """Return whether to restore labels of a pod now, and note it: ever later, as others may keep changing them."""
        count, since = self.repairs.get(uid, (0, now))
        if count and now - since < min(REPAIR_PAUSE * (1 << min(count, 16)), RESYNC):
            return False
        self.repairs[uid] = count + 1, now
        return True

    def spec_hash(self, generation: int, spec: RLJobSpec) -> str:
        """Return the fingerprint of the settings in the spec, computed once per generation."""
        if self.hashed[0] != generation or not generation:
            self.hashed = (generation, pod_settings_fingerprint(spec))
        return self.hashed[1]


def pending_pods(pods: Sequence[PodView]) -> list[PodView]:
    """Return the pods that do not run yet."""
    return [pod for pod in pods if pod.phase == "Pending" and not pod.deleting]


def _claim_patience(pending: Sequence[PodView]) -> timedelta:
    """Return for how long these pods may be pending before the volume claim is looked at."""
    waits_for_node = any(pod.component is Component.COORDINATOR and not pod.scheduled for pod in pending)
    return NODE_PATIENCE if waits_for_node else CLAIM_PATIENCE
