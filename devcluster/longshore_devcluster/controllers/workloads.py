"""Carries out what the plans for ReplicaSets and Deployments say."""

import asyncio
from collections import defaultdict
from collections.abc import Callable, Iterable

from longshore_devcluster.client.events import EventRecorder
from longshore_devcluster.client.informer import Informer
from longshore_devcluster.client.objects import controller_of, is_deleting, uid_of
from longshore_devcluster.client.tasks import each
from longshore_devcluster.controllers.deployment_status import deployment_report
from longshore_devcluster.controllers.replicas import plan_replicas, pod_of
from longshore_devcluster.controllers.rollout import REVISION, RolloutPlan, plan_rollout, revision_of
from longshore_kube.client import Client
from longshore_kube.errors import ApiError
from longshore_kube.resources import DEPLOYMENTS, PODS, REPLICA_SETS, Json, Resource

LookAgain = Callable[[float], None]
"""Asks for another pass at a Unix time in seconds."""


class ReplicaSetController:
    """Keeps as many pods of each ReplicaSet as it wants."""

    def __init__(
        self, client: Client, replica_sets: Informer, pods: Informer, now: Callable[[], float], again: LookAgain
    ) -> None:
        self._client = client
        self._replica_sets = replica_sets
        self._pods = pods
        self._now = now
        self._again = again
        self._events = EventRecorder(client, "replicaset-controller", now)
        self._deleted: set[str] = set()

    async def reconcile(self) -> None:
        """Do one pass over all ReplicaSets. Errors: ApiError."""
        # Our own deletions count at once, even while the watch has yet to report them.
        self._deleted &= {uid_of(pod) for pod in self._pods}
        alive = [pod for pod in self._pods if uid_of(pod) not in self._deleted]
        owned = group_by_controller(alive)
        await each(self._replica_sets, lambda entry: self._reconcile_one(entry, owned[uid_of(entry)]))

    async def _reconcile_one(self, replica_set: Json, pods: list[Json]) -> None:
        plan = plan_replicas(replica_set, pods, self._now())
        for _ in range(plan.num_create):
            try:
                pod = await self._client.create(PODS, pod_of(replica_set), replica_set["metadata"]["namespace"])
            except ApiError as error:
                await self._events.warning(replica_set, "FailedCreate", f"Error creating: {error}")
                raise
            self._pods.observe(pod)
            await self._events.normal(replica_set, "SuccessfulCreate", f"Created pod: {pod['metadata']['name']}")
        for pod in plan.delete:
            await delete_quietly(self._client, PODS, pod)
            self._deleted.add(uid_of(pod))
            await self._events.normal(replica_set, "SuccessfulDelete", f"Deleted pod: {pod['metadata']['name']}")
        await write_status(self._client, REPLICA_SETS, replica_set, plan.status, self._replica_sets)
        if plan.look_again_s is not None:
            self._again(plan.look_again_s)


class DeploymentController:
    """Rolls each Deployment's ReplicaSets towards its template."""

    def __init__(
        self,
        client: Client,
        deployments: Informer,
        replica_sets: Informer,
        now: Callable[[], float],
        again: LookAgain,
    ) -> None:
        self._client = client
        self._deployments = deployments
        self._replica_sets = replica_sets
        self._now = now
        self._again = again
        self._events = EventRecorder(client, "deployment-controller", now)

    async def reconcile(self) -> None:
        """Do one pass over all Deployments. Errors: ApiError."""
        owned = group_by_controller(self._replica_sets)
        alive = [deployment for deployment in self._deployments if not is_deleting(deployment)]
        await each(alive, lambda entry: self._reconcile_one(entry, owned[uid_of(entry)]))

    async def _reconcile_one(self, deployment: Json, owned: list[Json]) -> None:
        plan = plan_rollout(deployment, owned)
        await self._apply(deployment, plan)
        report = deployment_report(deployment, plan.new, owned, self._now())
        await write_status(self._client, DEPLOYMENTS, deployment, report.status, self._deployments)
        if report.look_again_s is not None:
            self._again(report.look_again_s)

    async def _apply(self, deployment: Json, plan: RolloutPlan) -> None:
        namespace = deployment["metadata"]["namespace"]
        if plan.create is not None:
            created = await self._client.create(REPLICA_SETS, plan.create, namespace)
            self._replica_sets.observe(created)
            await self._tell_scaled(deployment, created, "up", created["spec"]["replicas"])
        for replica_set, replicas in plan.scale:
            before = replica_set["spec"].get("replicas", 1)
            await self._patch(replica_set, {"spec": {"replicas": replicas}})
            await self._tell_scaled(deployment, replica_set, "up" if replicas > before else "down", replicas)
        if plan.revise is not None:
            replica_set, revision = plan.revise
            await self._patch(replica_set, {"metadata": {"annotations": {REVISION: str(revision)}}})
        for replica_set in plan.delete:
            await delete_quietly(self._client, REPLICA_SETS, replica_set)
        if plan.revision and revision_of(deployment) != plan.revision:
            mark = {"metadata": {"annotations": {REVISION: str(plan.revision)}}}
            answer = await self._client.patch(DEPLOYMENTS, deployment["metadata"]["name"], namespace, mark)
            self._deployments.observe(answer)

    async def _patch(self, replica_set: Json, change: Json) -> None:
        meta = replica_set["metadata"]
        answer = await self._client.patch(REPLICA_SETS, meta["name"], meta["namespace"], change)
        self._replica_sets.observe(answer)

    async def _tell_scaled(self, deployment: Json, replica_set: Json, way: str, replicas: int) -> None:
        name = replica_set["metadata"]["name"]
        await self._events.normal(deployment, "ScalingReplicaSet", f"Scaled {way} replica set {name} to {replicas}")


def group_by_controller(objects: Iterable[Json]) -> "defaultdict[str, list[Json]]":
    """Return objects by the uid of their controller."""
    groups: defaultdict[str, list[Json]] = defaultdict(list)
    for obj in objects:
        owner = controller_of(obj)
        if owner is not None:
            groups[owner["uid"]].append(obj)
    return groups


async def write_status(client: Client, resource: Resource, obj: Json, status: Json, known: Informer) -> None:
    """Report a status if it differs from the one that the object has. Errors: ApiError."""
    present = obj.get("status") or {}
    if all(present.get(name, 0) == value for name, value in status.items()):
        return
    meta = obj["metadata"]
    body = {"metadata": {"uid": uid_of(obj)}, "status": status}
    try:
        known.observe(await client.patch(resource, meta["name"], meta["namespace"], body, subresource="status"))
    except ApiError as error:
        if not error.not_found:
            raise


async def delete_quietly(client: Client, resource: Resource, obj: Json) -> None:
    """Delete an object that may have gone already. Errors: ApiError for anything else."""
    meta = obj["metadata"]
    try:
        await client.delete(resource, meta["name"], meta.get("namespace", ""), uid=uid_of(obj))
    except ApiError as error:
        if not (error.not_found or error.conflict):
            raise


def alarm(changed: asyncio.Event, now: Callable[[], float]) -> LookAgain:
    """Return a LookAgain that sets an event at the time asked for."""

    def again(time_s: float) -> None:
        asyncio.get_running_loop().call_later(max(0.0, time_s - now()), changed.set)

    return again
