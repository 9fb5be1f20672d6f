"""Decide how a pod ended, and whose fault that was. Pure."""

import re
from enum import Enum, auto

from longshore.api.contract import ExitCode
from longshore.api.names import Component
from longshore_operator.observed import PodView

_INTERRUPTED_REASONS = frozenset({"Evicted", "NodeLost", "NodeShutdown", "Preempting", "Shutdown", "Terminated"})
"""`status.reason` of pods that the cluster ended, which is never the fault of the job."""
_REJECTED_REASONS = frozenset({"NodeAffinity", "TaintToleration", "TopologyAffinityError", "UnexpectedAdmissionError"})
"""Reasons of pods that a kubelet refuses, as after a reboot of its node, before GPUs are registered again."""
_OWN_LIMIT = re.compile(r"exceed(?:s|ed) (?:its|the) (?:\w+ )*limit")
"""Text in the message of an eviction by which the pod has used more of the disk than it may.

It would do so on every node.
"""
_MEMORY_OF = {
    Component.COORDINATOR: "coordinator.resources",
    Component.WORKER: "workers.resources",
    Component.TRAINER: "trainerWorkers.resources",
    Component.REWARD: "reward.resources",
    Component.JUDGE: "reward.functions[].pool.resources",
}
_OUT_OF = "OutOf"
"""Begins the reason of a kubelet that lacks a resource."""


class Ending(Enum):
    """Why a pod no longer works for the job."""

    SUCCEEDED = auto()
    USER_ERROR = auto()
    CANNOT_CONTINUE = auto()
    INTERRUPTED = auto()
    CRASHED = auto()


def ending(pod: PodView) -> Ending | None:
    """Return how a pod ended, or None while it runs."""
    if pod.terminal and pod.exit_code == ExitCode.SUCCEEDED:
        return Ending.SUCCEEDED
    if pod.terminal and pod.exit_code == ExitCode.USER_ERROR:
        return Ending.USER_ERROR
    if pod.terminal and pod.exit_code == ExitCode.CANNOT_CONTINUE:
        return Ending.CANNOT_CONTINUE
    if pod.terminal and _is_over_its_limit(pod):
        return Ending.CRASHED
    if pod.deleting or pod.disruption or pod.reason in _INTERRUPTED_REASONS or is_rejected(pod):
        return Ending.INTERRUPTED
    if pod.terminal:
        return Ending.INTERRUPTED if pod.exit_code == ExitCode.INTERRUPTED else Ending.CRASHED
    return None


def is_rejected(pod: PodView) -> bool:
    """Whether a kubelet refused it. The scheduler may choose the same node again, so its successor waits."""
    is_refusal = pod.reason in _REJECTED_REASONS or pod.reason.startswith(_OUT_OF) or _is_turned_away(pod)
    return pod.terminal and pod.exit_code is None and is_refusal


def _is_turned_away(pod: PodView) -> bool:
    """Whether a node under pressure, or one that shuts down, did not even start it."""
    is_late = pod.reason == "NodeShutdown" and "was rejected" in pod.termination_message
    return is_late or (pod.reason == "Evicted" and "The node had condition" in pod.termination_message)


def is_squeezed_out(pod: PodView) -> bool:
    """Whether a node under pressure ended it, perhaps because of what it does itself, which it would do elsewhere."""
    return pod.terminal and pod.reason == "Evicted" and not is_rejected(pod)


def _is_over_its_limit(pod: PodView) -> bool:
    return pod.reason == "Evicted" and _OWN_LIMIT.search(pod.termination_message) is not None


def describe_end(pod: PodView) -> str:
    """Describe in one sentence how a pod ended."""
    if _is_over_its_limit(pod):
        what = "was evicted"
    elif pod.disruption:
        what = f"was disrupted ({pod.disruption})"
    elif is_rejected(pod):
        what = f"was rejected by its node ({pod.reason})"
    elif pod.reason in _INTERRUPTED_REASONS:
        what = f"was ended by the cluster ({pod.reason})"
    elif pod.is_out_of_memory:
        limit = f"its limit of {pod.memory_limit}" if pod.memory_limit else "its limit"
        what = f"was killed: it used more memory than {limit} (OOMKilled); raise {memory_field(pod.component)}"
    elif pod.exit_code is not None:
        what = f"exited with code {pod.exit_code}"
    elif pod.deleting:
        what = "was deleted"
    else:
        what = f"failed ({pod.reason or 'no reason given'})"
    # A process that is killed leaves no message, so the kubelet takes the last lines of its log.
    message = "" if pod.is_out_of_memory else pod.termination_message
    return f"{pod.name} {what}" + (f": {message}" if message else "")


def memory_field(component: Component) -> str:
    """Return the field of the spec with the memory of a component's pods."""
    return f"{_MEMORY_OF[component]}.memory"


def ended_by_cluster(pod: PodView) -> bool:
    """Return whether the cluster ended it for reasons of its own; it then finds it another place."""
    if is_rejected(pod) or is_squeezed_out(pod):
        return False
    return bool(pod.disruption) or pod.reason in _INTERRUPTED_REASONS
