"""Carries the scheduler's decisions out: binds pods, and says on the pod why one waits."""

import asyncio
import logging
from collections.abc import Callable

from longshore_devcluster.client.events import EventRecorder
from longshore_devcluster.client.informer import Informer
from longshore_devcluster.client.objects import condition, is_deleting, key_of, uid_of
from longshore_devcluster.client.tasks import TaskGroup, each, run_until_cancelled
from longshore_devcluster.scheduler.place import (
    FINAL_PHASES,
    Placement,
    by_priority,
    claim_names,
    claim_refusal,
    node_states,
    place,
)
from longshore_kube.client import Client, Patch
from longshore_kube.errors import ApiError, KubeError
from longshore_kube.resources import CLAIMS, NODES, PODS, Json
from longshore_kube.times import rfc3339

NAME = "default-scheduler"
_log = logging.getLogger(__name__)


class Scheduler:
    """Binds pods to nodes, one pass over all waiting pods whenever something has changed."""

    def __init__(self, client: Client, now: Callable[[], float]) -> None:
        self._client = client
        self._now = now
        self._events = EventRecorder(client, NAME, now)
        self._pods = Informer(client, PODS)
        self._nodes = Informer(client, NODES)
        self._claims = Informer(client, CLAIMS)
        self._changed = asyncio.Event()

    async def run(self) -> None:
        """Schedule until cancelled."""
        informers = (self._pods, self._nodes, self._claims)
        async with TaskGroup(*(informer.run() for informer in informers)):
            for informer in informers:
                await informer.synced.wait()
                informer.listen(lambda old, new: self._changed.set())
            await run_until_cancelled(self._changed, self._pass, "scheduler")

    async def _pass(self) -> None:
        waiting = by_priority([pod for pod in self._pods if _is_waiting(pod)])
        if not waiting:
            return
        states = node_states(list(self._nodes), list(self._pods))
        nodes = {state.name: state for state in states}

        async def schedule(pod: Json) -> None:
            refusal = self._waits_for_claim(pod)
            if refusal is not None:
                await self._refuse(pod, f"0/{len(states)} nodes are available: {refusal}.")
                return
            decision = place(pod, states)
            if isinstance(decision, Placement):
                nodes[decision.node].take(pod)
                await self._bind(pod, decision.node)
            else:
                await self._refuse(pod, decision.message)

        await each(waiting, schedule)

    def _waits_for_claim(self, pod: Json) -> str | None:
        namespace = pod["metadata"]["namespace"]
        return claim_refusal(pod, {name: self._claims.get(namespace, name) for name in claim_names(pod)})

    async def _bind(self, pod: Json, node: str) -> None:
        namespace, name = key_of(pod)
        binding = {
            "kind": "Binding",
            "metadata": {"name": name, "namespace": namespace, "uid": uid_of(pod)},
            "target": {"apiVersion": "v1", "kind": "Node", "name": node},
        }
        try:
            await self._client.create(PODS, binding, namespace, name, "binding")
        except ApiError as error:
            # The pod has gone or is bound already: the watch will say which.
            if not (error.not_found or error.conflict):
                raise
            return
        bound = {**pod, "spec": {**pod["spec"], "nodeName": node}}
        self._pods.assume(bound)
        await self._events.normal(pod, "Scheduled", f"Successfully assigned {namespace}/{name} to {node}")

    async def _refuse(self, pod: Json, message: str) -> None:
        known = condition(pod, "PodScheduled")
        if known and known["status"] == "False" and known.get("message") == message:
            return
        since = known["lastTransitionTime"] if known and known["status"] == "False" else rfc3339(self._now())
        entry = {
            "type": "PodScheduled",
            "status": "False",
            "reason": "Unschedulable",
            "message": message,
            "lastProbeTime": None,
            "lastTransitionTime": since,
        }
        namespace, name = key_of(pod)
        try:
            self._pods.observe(
                await self._client.patch(
                    PODS,
                    name,
                    namespace,
                    {"metadata": {"uid": uid_of(pod)}, "status": {"conditions": [entry]}},
                    kind=Patch.STRATEGIC,
                    subresource="status",
                )
            )
        except KubeError as error:
            _log.debug("condition of %s/%s: %s", namespace, name, error)
            return
        await self._events.warning(pod, "FailedScheduling", message)


def _is_waiting(pod: Json) -> bool:
    return (
        not pod["spec"].get("nodeName")
        and not is_deleting(pod)
        and not pod["spec"].get("schedulingGates")
        and pod["spec"].get("schedulerName", NAME) == NAME
        and (pod.get("status") or {}).get("phase") not in FINAL_PHASES
    )
