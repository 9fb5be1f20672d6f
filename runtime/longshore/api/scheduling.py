"""How the scheduler of the cluster treats the pods of a job: as one group, and where their nodes are."""

from enum import StrEnum
from typing import Final

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
    """Placement by the label `key`. Together: on nodes with one value. Spread: evenly over the values."""
    key: str = Field(
        max_length=316, pattern=r"^([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$"
    )
    """Label of nodes, such as topology.kubernetes.io/zone, kubernetes.io/hostname, or one for racks."""
    required: bool = False
    """Whether pods wait for such nodes. False: the scheduler prefers them."""


_RULES: Final = (
    Rule(
        "queue",
        "!has(self.queue) || (has(self.podGroup) && self.podGroup == 'Volcano')",
        "queue is a queue of Volcano: set podGroup to Volcano or remove it",
    ),
    Rule(
        "schedulerName",
        "!has(self.schedulerName) || has(self.podGroup)",
        "schedulerName is the scheduler of the podGroup: set podGroup or remove it",
    ),
)


class Scheduling(ApiModel, rules=_RULES):
    """Whether the pods of the job start together, and where their nodes are."""

    pod_group: PodGroupKind | None = None
    """Kind of PodGroup by which all pods but the coordinator start together or not at all. Kubernetes: that of
    Kubernetes 1.36 with the feature GangScheduling. Unset: no PodGroup."""
    queue: str | None = Field(default=None, min_length=1, max_length=253)
    """Queue of Volcano for the PodGroup. Unset: the default queue of Volcano."""
    scheduler_name: str | None = Field(default=None, min_length=1, max_length=253)
    """Scheduler of the pods in the PodGroup. Unset: `volcano` with Volcano, otherwise that of the pod template."""
    topology: Topology | None = None
    """Where worker and trainer pods are in relation to one another. Unset: on any nodes."""
    pack_nodes: bool = False
    """Whether worker and trainer pods prefer nodes with pods of other RLJobs, so that whole nodes stay free."""

    @property
    def group_scheduler(self) -> str | None:
        """Scheduler that the pods of the group must name; None: the one that they have."""
        return self.scheduler_name or ("volcano" if self.pod_group is PodGroupKind.VOLCANO else None)
