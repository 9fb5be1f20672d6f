"""The decision of the scheduler, free of I/O: a node for a pod, or why there is none.

Kubernetes filters nodes and then scores those that remain; so does this, with one score: the node that is least
occupied by what the pod asks for, ties going to the name.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from fractions import Fraction

from longshore_devcluster.scheduler.constraints import anti_affinity_refusal, refusal
from longshore_devcluster.scheduler.requests import Resources, pod_requests
from longshore_kube.quantities import parse_quantity
from longshore_kube.resources import Json

FINAL_PHASES = ("Succeeded", "Failed")


@dataclass(frozen=True)
class Placement:
    """The pod goes to this node."""

    node: str


@dataclass(frozen=True)
class Unschedulable:
    """No node takes the pod; `message` says why in kube-scheduler's style."""

    message: str


@dataclass
class NodeState:
    """A node with what its pods have taken of it."""

    node: Json
    pods: list[Json] = field(default_factory=list)
    used: Resources = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The name of the node."""
        return str(self.node["metadata"]["name"])

    def allocatable(self, resource: str) -> Fraction:
        """Return how much of a resource the node offers to pods."""
        amounts = (self.node.get("status") or {}).get("allocatable") or {}
        return parse_quantity(amounts.get(resource, 0))

    def lacks(self, requests: Resources) -> list[str]:
        """Return the resources that do not fit, in kube-scheduler's words."""
        short = [
            name
            for name, amount in requests.items()
            if amount > 0 and self.used.get(name, Fraction(0)) + amount > self.allocatable(name)
        ]
        return ["Too many pods" if name == "pods" else f"Insufficient {name}" for name in short]

    def take(self, pod: Json) -> None:
        """Count a pod as running here."""
        self.pods.append(pod)
        for name, amount in pod_requests(pod).items():
            self.used[name] = self.used.get(name, Fraction(0)) + amount

    def occupancy(self, requests: Resources) -> Fraction:
        """Return the largest share in use, after the pod came, of a resource that the pod asks for."""
        shares = [
            (self.used.get(name, Fraction(0)) + amount) / self.allocatable(name)
            for name, amount in requests.items()
            if amount > 0 and self.allocatable(name) > 0
        ]
        return max(shares, default=Fraction(0))


def node_states(nodes: Sequence[Json], pods: Sequence[Json]) -> list[NodeState]:
    """Return every node with the bound pods that have not ended."""
    states = {node["metadata"]["name"]: NodeState(node) for node in nodes}
    for pod in pods:
        node = pod["spec"].get("nodeName")
        if node in states and (pod.get("status") or {}).get("phase") not in FINAL_PHASES:
            states[node].take(pod)
    return sorted(states.values(), key=lambda state: state.name)


def place(pod: Json, states: Sequence[NodeState]) -> Placement | Unschedulable:
    """Choose a node for a pod."""
    requests = pod_requests(pod)
    placed = [(other, state.node) for state in states for other in state.pods]
    reasons: Counter[str] = Counter()
    feasible: list[NodeState] = []
    for state in states:
        blocked = refusal(pod, state.node) or _not_ready(state.node)
        refusals = [blocked] if blocked else state.lacks(requests)
        if not refusals:
            affinity = anti_affinity_refusal(pod, state.node, placed)
            refusals = [affinity] if affinity else []
        reasons.update(refusals)
        if not refusals:
            feasible.append(state)
    if not feasible:
        return Unschedulable(unschedulable_message(len(states), reasons))
    best = min(feasible, key=lambda state: (state.occupancy(requests), len(state.pods), state.name))
    return Placement(best.name)


def unschedulable_message(num_nodes: int, reasons: Counter[str]) -> str:
    """Return the message of a pod that fits nowhere, as kube-scheduler words it."""
    if not num_nodes:
        return "no nodes available to schedule pods"
    listed = ", ".join(sorted(f"{count} {reason}" for reason, count in reasons.items()))
    return f"0/{num_nodes} nodes are available: {listed}."


def by_priority(pods: Sequence[Json]) -> list[Json]:
    """Return the pods in the order of being scheduled: higher priority first, then the older."""
    return sorted(
        pods,
        key=lambda pod: (
            -(pod["spec"].get("priority") or 0),
            pod["metadata"].get("creationTimestamp") or "",
            pod["metadata"].get("namespace") or "",
            pod["metadata"]["name"],
        ),
    )


def claim_refusal(pod: Json, claims: dict[str, Json | None]) -> str | None:
    """Return why a pod must wait for its volume claims, in kube-scheduler's words. `claims` holds those it names."""
    for name in claim_names(pod):
        claim = claims.get(name)
        if claim is None:
            return f'persistentvolumeclaim "{name}" not found'
        if claim["metadata"].get("deletionTimestamp"):
            return f'persistentvolumeclaim "{name}" is being deleted'
        if (claim.get("status") or {}).get("phase") == "Lost":
            return f'persistentvolumeclaim "{name}" bound to non-existent persistentvolume'
        if (claim.get("status") or {}).get("phase") != "Bound":
            return "pod has unbound immediate PersistentVolumeClaims"
    return None


def claim_names(pod: Json) -> list[str]:
    """Return the persistent volume claims that a pod mounts."""
    volumes = pod["spec"].get("volumes") or []
    return [volume["persistentVolumeClaim"]["claimName"] for volume in volumes if "persistentVolumeClaim" in volume]


def _not_ready(node: Json) -> str | None:
    for condition in (node.get("status") or {}).get("conditions") or []:
        if condition["type"] == "Ready" and condition["status"] != "True":
            return "node(s) were not ready"
    return None
