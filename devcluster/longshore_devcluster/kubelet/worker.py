"""One pod on this node, from its arrival to its removal from the API server."""

import asyncio
import logging

from longshore_devcluster.client.objects import is_deleting
from longshore_devcluster.client.tasks import TaskGroup
from longshore_devcluster.kubelet.context import PodContext
from longshore_devcluster.kubelet.environment import ConfigError
from longshore_devcluster.kubelet.leftovers import kill_marked
from longshore_devcluster.kubelet.runner import ContainerRunner
from longshore_devcluster.kubelet.status import FINAL_PHASES, Role, pod_phase, pod_status
from longshore_devcluster.kubelet.tokens import Tokens
from longshore_devcluster.kubelet.volumes import Inputs, prepare_volumes, token_requests
from longshore_devcluster.kubelet.waiting import Deadline, first
from longshore_kube.client import Patch
from longshore_kube.errors import ApiError, KubeError
from longshore_kube.resources import PODS, Json

_log = logging.getLogger(__name__)
_RETRY_S = 0.5


class PodWorker:
    """Runs the containers of one pod and reports on them."""

    def __init__(self, context: PodContext) -> None:
        self.context = context
        self.gone = asyncio.Event()
        self.finished = asyncio.Event()
        spec = context.pod["spec"]
        containers = (spec.get("initContainers") or []) + spec["containers"]
        self.runners = {
            record.name: ContainerRunner(context, container, record)
            for container, record in zip(containers, context.record.containers, strict=True)
        }
        self._stopping = asyncio.Event()
        self._deadline = Deadline(context.services.now)
        self._abandoned = asyncio.Event()
        self._stops: TaskGroup = TaskGroup()
        self._tokens = Tokens(context.services.client, context.services.now)

    def update(self, pod: Json) -> None:
        """Take in a newer version of the pod object."""
        self.context.pod = pod
        self.context.inputs_changed.notify()
        if is_deleting(pod):
            self._stop(pod["metadata"].get("deletionGracePeriodSeconds", 30))

    def forget(self) -> None:
        """Note that the pod object has gone: nothing may be left of the pod."""
        self.gone.set()
        self._stop(0)

    def abandon(self, grace_s: float) -> None:
        """End the processes but tell nobody: the kubelet itself is going down."""
        self._abandoned.set()
        self._stop(grace_s)

    async def run(self) -> None:
        """Run the pod for its whole life here."""
        try:
            if (self.context.pod.get("status") or {}).get("phase") not in FINAL_PHASES:
                await self._live()
            if not self._abandoned.is_set():
                await self._remove()
        finally:
            await asyncio.shield(self._clean_up())

    async def _live(self) -> None:
        limit_s = self.context.pod["spec"].get("activeDeadlineSeconds")
        async with self._stops, TaskGroup(self._report(), self._refresh_volumes()) as background:
            if limit_s is not None:
                background.start(self._fail_at(self.context.record.start_s + limit_s))
            if await self._mount():
                await self._run_containers()
        await asyncio.to_thread(kill_marked, self.context.uid)
        self._settle()
        if not self._abandoned.is_set():
            await self._publish_surely()
            phase = pod_phase(self.context.pod, self.context.record)
            _log.info("pod %s ended: %s", self.context.pod["metadata"]["name"], phase)

    async def _run_containers(self) -> None:
        sidecars: list[asyncio.Task[None]] = []
        async with TaskGroup() as group:
            for record in self.context.record.of_role(Role.INIT, Role.SIDECAR):
                if self._stopping.is_set():
                    break
                runner = self.runners[record.name]
                if record.role is Role.SIDECAR:
                    sidecars.append(group.start(runner.run("Always")))
                    await self._until_started(runner)
                    continue
                await runner.run("Never" if self.context.restart_policy == "Never" else "OnFailure")
                if not record.done:
                    break
            else:
                mains = [self.runners[record.name] for record in self.context.record.of_role(Role.MAIN)]
                await asyncio.gather(*(runner.run(self.context.restart_policy) for runner in mains))
            await self._stop_sidecars()
            await asyncio.gather(*sidecars)

    async def _until_started(self, runner: ContainerRunner) -> None:
        while not runner.record.started and not self._stopping.is_set():
            await first(self.context.status_changed.next.wait(), self._stopping.wait())

    async def _stop_sidecars(self) -> None:
        # In the reverse of their order, once the main containers have ended.
        self._deadline.within(self.context.pod["spec"].get("terminationGracePeriodSeconds", 30))
        for record in reversed(self.context.record.of_role(Role.SIDECAR)):
            await self.runners[record.name].stop(self._deadline)

    def _stop(self, grace_s: float) -> None:
        self._deadline.within(grace_s)
        if self._stopping.is_set():
            return
        self._stopping.set()
        for runner in self.runners.values():
            if runner.record.role is not Role.SIDECAR:
                self._stops.start(runner.stop(self._deadline))

    async def _fail_at(self, time_s: float) -> None:
        await asyncio.sleep(max(0.0, time_s - self.context.services.now()))
        message = "Pod was active on the node longer than the specified deadline"
        self.context.record.failed = ("DeadlineExceeded", message)
        await self.context.services.events.normal(self.context.pod, "DeadlineExceeded", message)
        self._stop(self.context.pod["spec"].get("terminationGracePeriodSeconds", 30))

    async def _mount(self) -> bool:
        """Prepare the volumes, waiting for what they need; false when the pod was stopped before that."""
        while not self._stopping.is_set():
            changed = self.context.inputs_changed.next
            problem = await self._prepare()
            if problem is None:
                return True
            pod = self.context.pod
            await self.context.services.events.warning(pod, "FailedMount", f"MountVolume.SetUp failed: {problem}")
            await first(changed.wait(), self._stopping.wait(), timeout_s=None if _is_lasting(problem) else _RETRY_S)
        return False

    async def _prepare(self) -> Exception | None:
        try:
            context = self.context
            tokens = await self._tokens.fetch(context.pod, token_requests(context.pod))
            access, lookup = context.services.client.access, context.services.lookup
            inputs = Inputs(context.pod_with_address(), lookup, tokens, context.layout, access)
            context.volumes = prepare_volumes(inputs)
        except (ConfigError, ValueError, OSError, KubeError) as error:
            return error
        return None

    async def _refresh_volumes(self) -> None:
        changed = self.context.inputs_changed.next
        while True:
            due_s = self._tokens.renewal_s()
            left_s = None if due_s is None else max(_RETRY_S, due_s - self.context.services.now())
            await first(changed.wait(), timeout_s=left_s)
            changed = self.context.inputs_changed.next
            if self.context.volumes:
                problem = await self._prepare()
                if problem is not None:
                    _log.warning("volumes of %s: %s", self.context.pod["metadata"]["name"], problem)

    def _settle(self) -> None:
        record = self.context.record
        # Without an order to stop, the restart policy alone has decided that the pod is over.
        record.over = self._stopping.is_set()
        for entry in record.containers:
            entry.ready = entry.ready and entry.role is Role.INIT

    async def _report(self) -> None:
        # A kubelet that goes down tells nobody. When it is back, it finds that it has lost the containers.
        while not self._abandoned.is_set():
            changed = self.context.status_changed.next
            if self.context.status_dirty and not await self._publish():
                await asyncio.sleep(_RETRY_S)
                continue
            await changed.wait()

    async def _publish_surely(self) -> None:
        while not (self.gone.is_set() or self._abandoned.is_set() or await self._publish()):
            await first(self.gone.wait(), self._abandoned.wait(), timeout_s=_RETRY_S)

    async def _publish(self) -> bool:
        """Write the status; whether it has arrived, or the pod has gone."""
        context = self.context
        context.status_dirty = False
        status = pod_status(context.pod, context.record, context.services.now())
        meta = context.pod["metadata"]
        body = {"metadata": {"uid": context.uid}, "status": status}
        try:
            await context.services.client.patch(
                PODS, meta["name"], meta["namespace"], body, kind=Patch.STRATEGIC, subresource="status"
            )
        except ApiError as error:
            if error.not_found or error.conflict:
                return True
            _log.warning("status of %s: %s", meta["name"], error)
            context.status_dirty = True
            return False
        except KubeError as error:
            _log.debug("status of %s: %r", meta["name"], error)
            context.status_dirty = True
            return False
        return True

    async def _remove(self) -> None:
        """Free the volumes now, and the pod object once its deletion has been asked for."""
        self.context.layout.remove_volumes()
        while not (self.gone.is_set() or self._abandoned.is_set()):
            changed = self.context.inputs_changed.next
            if not is_deleting(self.context.pod):
                await first(changed.wait(), self.gone.wait(), self._abandoned.wait())
                continue
            retry_s = None if await self._delete() else _RETRY_S
            await first(self.gone.wait(), self._abandoned.wait(), timeout_s=retry_s)

    async def _delete(self) -> bool:
        meta = self.context.pod["metadata"]
        try:
            await self.context.services.client.delete(
                PODS, meta["name"], meta["namespace"], uid=self.context.uid, grace_s=0
            )
        except ApiError as error:
            if not (error.not_found or error.conflict):
                _log.warning("removing %s: %s", meta["name"], error)
                return False
        except KubeError:
            return False
        return True

    async def _clean_up(self) -> None:
        await asyncio.to_thread(kill_marked, self.context.uid)
        if not self._abandoned.is_set():
            self.context.layout.remove_volumes()
            self.context.layout.remove_logs()


def _is_lasting(problem: Exception) -> bool:
    # A missing object announces itself; a refusal of the API server or the disk does not.
    return isinstance(problem, ConfigError)
