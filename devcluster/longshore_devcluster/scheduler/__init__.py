"""The scheduler of the embedded cluster: which node a pod goes to, and binding it there."""

from longshore_devcluster.scheduler.loop import Scheduler
from longshore_devcluster.scheduler.place import NodeState, Placement, Unschedulable, node_states, place

__all__ = ["NodeState", "Placement", "Scheduler", "Unschedulable", "node_states", "place"]
