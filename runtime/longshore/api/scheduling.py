"""How the scheduler of the cluster treats the pods of a job: as one group, and where their nodes are."""

from enum import StrEnum

from pydantic import Field

from longshore.api.base import ApiModel
from longshore.api.rules import Rule


class PodGroupKind(StrEnum):
    """Whose PodGroup tells the scheduler that the pods start together or not at all."""

    VOLCANO = "Volcano"
    SCHEDULER_PLUGINS = "SchedulerPlugins"
    KUBERNETES = "Kubernetes"


class TopologyMode(StrEnum):
    """Whether pods seek or avoid one another."""

    TOGETHER = "Together"
    SPREAD = "Spread"


class Topology(ApiModel):
    """Where the worker and trainer pods of a job are in relation to one another."""

    mode: TopologyMode = TopologyMode.TOGETHER
    """Together: on nodes with the same value of the label. Spread: evenly over the values of the label."""
    key: str = Field(
        max_length=316, pattern=r"^([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$"
    )
    """Node label, such as topology.kubernetes.io/zone, kubernetes.io/hostname, or one for racks."""
    required: bool = False
    """True: pods that cannot have such a node wait. False: the scheduler prefers such nodes."""


_RULES: "tuple[Rule[Scheduling], ...]" = (
    Rule(
        "queue",
        "!has(self.queue) || (has(self.podGroup) && self.podGroup == 'Volcano')",
        lambda scheduling: scheduling.queue is None or scheduling.pod_group is PodGroupKind.VOLCANO,
        "queue is a queue of Volcano: set podGroup to Volcano or remove it",
    ),
    Rule(
        "schedulerName",
        "!has(self.schedulerName) || has(self.podGroup)",
        lambda scheduling: scheduling.scheduler_name is None or scheduling.pod_group is not None,
        "schedulerName is the scheduler of the podGroup: set podGroup or remove it",
    ),
)


class Scheduling(ApiModel, rules=_RULES):
    """How the scheduler of the cluster treats the pods of a job."""

    pod_group: PodGroupKind | None = None
    """Start all pods but the coordinator together or not at all (gang scheduling), by a PodGroup of Volcano, of
    scheduler-plugins (coscheduling), or of Kubernetes itself (1.36, feature GangScheduling). Unset: no PodGroup."""
    queue: str | None = Field(default=None, min_length=1, max_length=253)
    """Queue of Volcano; unset: Volcano's default."""
    scheduler_name: str | None = Field(default=None, min_length=1, max_length=253)
    """Scheduler of the pods in the PodGroup; unset: `volcano` with Volcano, else that of the pod template."""
    topology: Topology | None = None
    """Where worker and trainer pods are in relation to one another; unset: anywhere. An engine, and a trainer replica,
    always lies inside one pod."""
    pack_nodes: bool = False
    """True: worker and trainer pods prefer nodes with pods of other RLJobs, so that whole nodes stay free."""

    @property
    def group_scheduler(self) -> str | None:
        """Scheduler that the pods of the group must name; None: the one that they have."""
        return self.scheduler_name or ("volcano" if self.pod_group is PodGroupKind.VOLCANO else None)
