"""The controllers of the embedded cluster: Deployments, ReplicaSets, volume claims and Endpoints."""

from longshore_devcluster.controllers.manager import ControllerManager

__all__ = ["ControllerManager"]
