"""What the controller remembers of a job between passes. Losing it does no harm: a pass can find all of it again."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Final

from longshore.api.spec import RLJobSpec
from longshore_operator.fairness import Bucket
from longshore_operator.observed import ClaimView, PodView
from longshore_operator.settings import pod_settings_fingerprint

RESYNC: Final = timedelta(minutes=15)
"""Interval at which a job is reconciled and its children are applied again, even without a change."""
RESYNC_WHILE_STARTING: Final = timedelta(seconds=20)
"""The same while a pod has a node and does not start: someone may have deleted what it mounts. Doubled each time."""
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
    applied_since: datetime | None = None
    num_starting_looks: int = 0
    """How many times children were applied again because a pod did not start."""
    apply_error: str | None = None
    bound_claim: ClaimView | None = None
    """The volume claim, once it was seen to be bound while pods start; forgotten when children are read again."""
    hashed: tuple[int, str] = (0, "")
    """Generation and the fingerprint of its settings."""
    reported_rejection: int = 0
    reported_notice: tuple[int, int] = (0, 0)
    seen_version: str = ""
    """resourceVersion of the job as this operator last read or wrote it."""
    finished_generation: int = 0
    """Generation at which the job ended and nothing remained to be done; 0: it has not ended."""
    events: Bucket = field(default_factory=lambda: Bucket(EVENT_BURST, EVENTS_PER_S, time.monotonic()))

    def refreshed(self, uid: str, version: str, pods: Sequence[PodView], now: datetime) -> "JobMemory":
        """Return the memory for a pass that has just read the job: without what is too old or of another job."""
        memory = self if uid == self.uid else JobMemory(uid, applied_since=now, events=self.events)
        assert memory.applied_since is not None, "a job with a uid was seen before"
        if now - memory.applied_since >= memory.resync(pods):
            memory.num_starting_looks += 1
            memory.applied, memory.applied_for, memory.applied_since, memory.bound_claim = {}, (0, 0), now, None
        if not _is_starting(pods):
            memory.num_starting_looks = 0
        memory.seen_version = version
        return memory

    def resync(self, pods: Sequence[PodView]) -> timedelta:
        """Return for how long children that were applied are taken to be unchanged."""
        if not _is_starting(pods):
            return RESYNC
        return min(RESYNC, RESYNC_WHILE_STARTING * (1 << min(self.num_starting_looks, 8)))

    def spec_hash(self, generation: int, spec: RLJobSpec) -> str:
        """Return the fingerprint of the settings in the spec, computed once per generation."""
        if self.hashed[0] != generation or not generation:
            self.hashed = (generation, pod_settings_fingerprint(spec))
        return self.hashed[1]


def _is_starting(pods: Sequence[PodView]) -> bool:
    """Whether a pod has a node and has not started yet."""
    return any(pod.phase == "Pending" and pod.scheduled and not pod.deleting for pod in pods)
