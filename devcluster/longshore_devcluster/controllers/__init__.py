"""The controllers of the embedded cluster: Deployments, ReplicaSets and volume claims."""

from longshore_devcluster.controllers.manager import ControllerManager

__all__ = ["ControllerManager"]
