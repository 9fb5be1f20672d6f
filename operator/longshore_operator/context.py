"""Facts that a decision about a job may depend on: what was observed, and how far the job is."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from longshore.api.names import Component
from longshore.api.reasons import AdmittedReason
from longshore.api.rljob import RLJob
from longshore.api.runtime_status import RuntimeStatus
from longshore.api.status import FINISHED_PHASES, Phase, RLJobStatus
from longshore_operator.config import OperatorConfig
from longshore_operator.kueue.view import KueueView
from longshore_operator.plan import Event
from longshore_operator.pod_group_api import PodGroupView
from longshore_operator.pod_view import PodView


@dataclass(frozen=True, slots=True)
class ClaimView:
    """The volume claim of a job."""

    name: str
    exists: bool
    phase: str = ""


@dataclass(frozen=True, slots=True)
class PodPlacement:
    """Requirements that an admission adds to pods."""

    node_selector: Mapping[str, str] = field(default_factory=dict)
    tolerations: tuple[Mapping[str, Any], ...] = ()
    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    scheduling_gates: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Admission:
    """Whether a job that has to be admitted may have pods."""

    admitted: bool
    reason: AdmittedReason
    message: str
    """Empty: nothing has been decided yet, and the earlier message may still be true."""
    gpus: Mapping[str, int] = field(default_factory=dict)
    """GPUs by resource that the job holds for as long as it has pods."""
    queue: str = ""
    """LocalQueue of Kueue that the job is in."""
    placements: Mapping[str, PodPlacement] = field(default_factory=dict)
    """Requirements for its pods, by pod set."""
    position: int = 0
    """Place in the operator's queue, from 1; 0: the job does not wait there."""
    num_extra_workers: int | None = None
    """Worker pods that the job may have beyond those that it needs; None: it is not elastic and has all of them."""
    num_reward_pods: int | None = None
    """Reward pods that the job may have; None: as many as its spec says."""
    is_shrinking: bool = False
    """Whether the job still holds worker pods that it may no longer have."""


@dataclass(frozen=True, slots=True)
class Reads:
    """Parts of the cluster that a pass has read for a job, besides the job itself and its pods."""

    claim: ClaimView | None = None
    pod_group: PodGroupView | None = None
    kueue: KueueView | None = None
    secrets: Mapping[tuple[str, str], bool] = field(default_factory=dict)
    """Whether Secrets exist that were looked for, by (kind, name)."""
    is_searched: bool = False
    """Whether pods without labels were searched for."""


@dataclass(frozen=True, slots=True)
class Observed:
    """Everything that `reconcile` reads besides the RLJob itself."""

    pods: tuple[PodView, ...] = ()
    children: Mapping[tuple[str, str], str] = field(default_factory=dict)
    """Fingerprint that was last applied, by (kind, name); absent: not known to exist."""
    lost_secrets: tuple[str, ...] = ()
    """Secrets that somebody has deleted although pods of the attempt use their tokens."""
    ray_token: str = ""
    judge_token: str = ""
    reward_token: str = ""
    environments_token: str = ""
    """Fresh random tokens, used if the Secrets have to be created. The tokens of environments follow from the last."""
    claim: ClaimView | None = None
    """The job's volume claim, if it was read."""
    apply_error: str | None = None
    """Why the previous plan could not be applied in full."""
    reported_rejection: int = 0
    """Newest epoch of an assignment whose rejection was reported."""
    reported_notice: tuple[int, int] = (0, 0)
    """Attempt and number of the coordinator's newest notice that was reported."""
    applied_for: tuple[int, int] = (0, 0)
    """Generation of the spec and attempt whose children all exist as they should; 0: not known."""
    spec_hash: str = ""
    """Fingerprint of the settings in the spec, if it is already known."""
    kueue: KueueView | None = None
    """State of Kueue for the job; None: the job is in no queue."""
    pod_group: PodGroupView | None = None
    """State of the PodGroup of the job; None: it wants none."""
    admission: Admission | None = None
    """Whether the job is admitted; None: it needs no admission."""
    unreadable_status: str = ""
    """Parts of the stored status that were dropped, and why."""

    def obstacle(self, status: RLJobStatus) -> tuple[AdmittedReason, str] | None:
        """Return why the job must not have pods, whatever it was granted; None: it may."""
        if self.pod_group is not None and self.pod_group.keeps_waiting(status):
            return AdmittedReason.POD_GROUP_UNAVAILABLE, self.pod_group.mistake
        return None


@dataclass(frozen=True, slots=True)
class LifecycleProgress:
    """Place of the job in its life cycle."""

    attempt: int
    failures: int
    phase: Phase | None
    """Phase, if the life cycle decides it: Queued, Suspended, Succeeded, Failed or Restarting; else None."""
    start_time: str | None
    restart_time: str | None
    completion_time: str | None
    interruptions: int = 0
    """Number of interruptions in a row."""
    counted_at_step: int = 0
    """Newest checkpoint when a failure or interruption was last counted."""
    checkpoint_step: int = 0
    """Step of the newest checkpoint; 0: there is none."""
    crash_nodes: tuple[str, ...] = ()
    """Nodes of the last pods that crashed, the newest last."""
    step: int = 0
    """Newest step that the coordinator has reported."""
    out_of_memory_step: int | None = None
    """Step at which a pod was last killed for using more memory than its limit."""
    reason: str = ""
    """Reason and message of the last transition, for the condition that goes with it."""
    message: str = ""
    events: tuple[Event, ...] = ()

    @property
    def finished(self) -> bool:
        """Whether the job has ended for good."""
        return self.phase in FINISHED_PHASES

    @property
    def suspended(self) -> bool:
        """Whether the user wants no pods for now."""
        return self.phase is Phase.SUSPENDED

    @property
    def queued(self) -> bool:
        """Whether the job waits for admission, perhaps again."""
        return self.phase is Phase.QUEUED

    @property
    def active(self) -> bool:
        """Whether the job should have pods."""
        return not (self.finished or self.suspended or self.queued)


@dataclass(frozen=True, slots=True)
class Context:
    """Facts that every part of `reconcile` sees."""

    job: RLJob
    observed: Observed
    now: datetime
    config: OperatorConfig
    progress: LifecycleProgress
    decided: RLJobStatus
    """The fields of the new status that the parts before this one have set."""
    settings_changed: bool = False
    """Whether the user has changed the settings since the attempt was started, see `settings`."""

    @property
    def pods(self) -> tuple[PodView, ...]:
        """Pods of the attempt that are not being deleted."""
        attempt = self.progress.attempt
        return tuple(pod for pod in self.observed.pods if pod.attempt == attempt and not pod.deleting)

    @property
    def runtime(self) -> RuntimeStatus | None:
        """Report of the coordinator of this attempt; None until it has reported."""
        runtime = self.job.status.runtime
        return runtime if runtime is not None and runtime.attempt == self.progress.attempt else None

    @property
    def has_coordinator(self) -> bool:
        """Whether the attempt has begun: its coordinator was created, and may be ending."""
        attempt = self.progress.attempt
        return any(pod.attempt == attempt and pod.component is Component.COORDINATOR for pod in self.observed.pods)

    def addresses(self, component: Component, num_most: int) -> list[str]:
        """Return the addresses of the first `num_most` pods of a component, by index; empty if it has no pod."""
        mine = (pod for pod in self.pods if pod.component is component and pod.index < num_most)
        known = {pod.index: pod.ip for pod in mine if pod.ip and not pod.terminal}
        return [known.get(index, "") for index in range(max(known, default=-1) + 1)]

    def num_ready(self, component: Component) -> int:
        """Return the number of pods of a component that are ready."""
        return sum(pod.ready for pod in self.pods if pod.component is component)
