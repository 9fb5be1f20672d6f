"""Facts that a decision about a job may depend on."""

from dataclasses import dataclass
from datetime import datetime

from longshore.api.names import Component
from longshore.api.rljob import RLJob
from longshore.api.runtime_status import RuntimeStatus
from longshore.api.status import FINISHED_PHASES, Phase, RLJobStatus
from longshore_operator.observed import Observed, PodView
from longshore_operator.plan import Event, OperatorConfig


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
    """Facts that every concern of a job sees."""

    job: RLJob
    observed: Observed
    now: datetime
    config: OperatorConfig
    progress: LifecycleProgress
    decided: RLJobStatus
    """The fields of the new status that the concerns before this one have set."""
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

    def num_ready(self, component: Component) -> int:
        """Pods of a component that are ready."""
        return sum(pod.ready for pod in self.pods if pod.component is component)
