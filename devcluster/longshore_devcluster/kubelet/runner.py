"""One container of a pod through all its restarts."""

import asyncio
import hashlib

from longshore_devcluster.kubelet.containers import ContainerProcess, Spec, StartError
from longshore_devcluster.kubelet.context import PodContext
from longshore_devcluster.kubelet.environment import ConfigError
from longshore_devcluster.kubelet.instance import Instance, termination_message
from longshore_devcluster.kubelet.logs import LogWatch
from longshore_devcluster.kubelet.memory import memory_limit_bytes
from longshore_devcluster.kubelet.restart import Backoff, should_restart
from longshore_devcluster.kubelet.status import ContainerRecord, Role, Running, Terminated, Waiting
from longshore_devcluster.kubelet.waiting import Deadline, first
from longshore_kube.resources import Json

_START_FAILED = 128
_NO_COMMAND = (
    "the embedded cluster runs commands on this machine and pulls no images: "
    "give the container a command (spec.containers[].command)"
)


class ContainerRunner:
    """Starts a container again and again, as its restart policy says, until it is stopped."""

    def __init__(self, context: PodContext, container: Json, record: ContainerRecord) -> None:
        self.container = container
        self.record = record
        self.instance: Instance | None = None
        self.latest = record.num_restarts
        """The number of the instance that runs or ran last; it names the log."""
        self._context = context
        self._stopping = asyncio.Event()
        self._deadline: Deadline | None = None
        self._backoff = Backoff(context.services.restart_backoff_s)

    async def run(self, policy: str) -> None:
        """Run until the container has ended for good; the record says how."""
        state = self.record.state
        if isinstance(state, Terminated):
            if not should_restart(policy, state.exit_code):
                return
            self._count_restart(state)
        elif self.record.last is not None:
            self.record.num_restarts += 1
        while not self._stopping.is_set():
            ended = await self._run_once()
            if ended is None or self._stopping.is_set() or not should_restart(policy, ended.exit_code):
                return
            await self._back_off(ended)
            if not self._stopping.is_set():
                self._count_restart(ended)

    async def stop(self, deadline: Deadline) -> None:
        """Let `run` return, ending a running instance until the deadline."""
        self._deadline = deadline
        self._stopping.set()
        if self.instance is not None:
            name = self.container["name"]
            await self._context.services.events.normal(self._context.pod, "Killing", f"Stopping container {name}")
            if self.instance is not None:
                await self.instance.stop(deadline)

    async def _run_once(self) -> Terminated | None:
        spec = await self._specification()
        if spec is None:
            return None
        self.record.container_id = self._new_id()
        started_s = self._context.services.now()
        watch = LogWatch()
        try:
            process = await ContainerProcess.start(spec, watch.changed.notify, self._context.services.warm)
        except StartError as error:
            await self._context.services.events.warning(self._context.pod, "Failed", f"Error: {error}")
            return self._end(started_s, _START_FAILED, "StartError", str(error))
        self.latest = self.record.num_restarts
        self.instance = Instance(self._context, self.container, self.record, process, watch)
        self.record.state = Running(started_s)
        self._context.publish()
        try:
            await self._context.services.events.normal(
                self._context.pod, "Started", f"Started container {self.container['name']}"
            )
            if self._stopping.is_set():
                # The order to stop came while the process was being started.
                assert self._deadline is not None
                await self.instance.stop(self._deadline)
            limit_bytes = memory_limit_bytes(self.container, self._context.pod)
            with self._context.services.memory.enforced(self.instance, limit_bytes):
                code = await self.instance.watch()
        except asyncio.CancelledError:
            process.kill()
            raise
        reason = self.instance.reason(code)
        self.instance = None
        return self._end(started_s, code, reason, "")

    async def _specification(self) -> Spec | None:
        """Return what to run, waited for until it is known; None when stopped before that."""
        log = self._context.layout.log(self.container["name"], self.record.num_restarts)
        log.parent.mkdir(parents=True, exist_ok=True)
        self._context.layout.termination_message(self.container["name"]).unlink(missing_ok=True)
        while not self._stopping.is_set():
            try:
                if self.container.get("command") or self.container.get("args"):
                    return self._context.command(self.container, log)
                await self._wait_because("ErrImagePull", _NO_COMMAND)
            except (ConfigError, ValueError) as error:
                await self._wait_because("CreateContainerConfigError", str(error))
        return None

    async def _wait_because(self, reason: str, message: str) -> None:
        self.record.state = Waiting(reason, message)
        self._context.publish()
        changed = self._context.inputs_changed.next
        await self._context.services.events.warning(self._context.pod, "Failed", f"Error: {message}")
        await first(changed.wait(), self._stopping.wait())

    async def _back_off(self, ended: Terminated) -> None:
        delay_s = self._backoff.next_delay_s(ended.finished_s - ended.started_s)
        if delay_s <= 0:
            return
        container, pod = self.container["name"], self._context.pod
        message = (
            f"back-off {delay_s:g}s restarting failed container={container} "
            f"pod={pod['metadata']['name']}_{pod['metadata']['namespace']}({self._context.uid})"
        )
        self.record.last = ended
        self.record.state = Waiting("CrashLoopBackOff", message)
        self._context.publish()
        await self._context.services.events.warning(
            pod, "BackOff", f"Back-off restarting failed container {container} in pod {pod['metadata']['name']}"
        )
        await first(self._stopping.wait(), timeout_s=delay_s)
        if self._stopping.is_set():
            self.record.state = ended

    def _count_restart(self, ended: Terminated) -> None:
        self.record.last = ended
        self.record.num_restarts += 1

    def _end(self, started_s: float, code: int, reason: str, message: str) -> Terminated:
        name, layout = self.container["name"], self._context.layout
        log = layout.log(name, self.record.num_restarts)
        if not message:
            message = termination_message(self.container, layout.termination_message(name), log, code)
        finished_s = self._context.services.now()
        ended = Terminated(code, reason, started_s, finished_s, message, self.record.container_id)
        self.record.state = ended
        self.record.ready = code == 0 and self.record.role is Role.INIT
        self._context.publish()
        return ended

    def _new_id(self) -> str:
        seed = f"{self._context.uid}/{self.container['name']}/{self.record.num_restarts}"
        return "devcluster://" + hashlib.blake2s(seed.encode()).hexdigest()
