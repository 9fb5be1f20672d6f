"""One running instance of a container: its probes, its hooks, its end."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path

from longshore_devcluster.client.tasks import TaskGroup
from longshore_devcluster.kubelet.containers import KILLED, ContainerProcess, StartError
from longshore_devcluster.kubelet.context import PodContext
from longshore_devcluster.kubelet.environment import ConfigError
from longshore_devcluster.kubelet.leftovers import kill_marked
from longshore_devcluster.kubelet.logs import LogWatch, last_lines
from longshore_devcluster.kubelet.probes import Timing, Verdict, attempt, http_get
from longshore_devcluster.kubelet.status import ContainerRecord
from longshore_devcluster.kubelet.waiting import Deadline, first
from longshore_kube.resources import Json

_MESSAGE_BYTES = 4096
_FALLBACK_LINES = 80
_FALLBACK_BYTES = 2048


class Instance:
    """Watches over a started container until it has ended."""

    def __init__(
        self, context: PodContext, container: Json, record: ContainerRecord, process: ContainerProcess, watch: LogWatch
    ) -> None:
        self._context = context
        self._container = container
        self._record = record
        self._process = process
        self._execs: set[ContainerProcess] = set()
        self.log_watch = watch
        self._was_killed_for_memory = False

    def keepers(self) -> list[int]:
        """Return the ids of the shims that keep the container and the execs into it."""
        return [process.keeper for process in (self._process, *self._execs) if not process.ended]

    def kill_for_memory(self) -> None:
        """End every process of the container, because it is over its memory limit."""
        if not self._process.ended:
            self._was_killed_for_memory = True
            self._process.kill()

    def reason(self, exit_code: int) -> str:
        """Return the reason of the end of the container, as its status gives it."""
        if self._was_killed_for_memory and exit_code == KILLED:
            return "OOMKilled"
        return "Completed" if exit_code == 0 else "Error"

    async def watch(self) -> int:
        """Run probes and hooks until the container has ended; its exit code."""
        async with TaskGroup(self._look_after()):
            code = await self._process.wait()
        self._record.ready = self._record.started = False
        if self._process.lost:
            await asyncio.to_thread(kill_marked, self._context.uid, self._container["name"])
        for process in list(self._execs):
            process.kill()
            await process.wait()
        self.log_watch.finish()
        return code

    async def stop(self, deadline: Deadline) -> None:
        """End the container: preStop hook and SIGTERM, then SIGKILL to everything once the deadline has passed."""
        ended = self._process.wait
        if not deadline.passed:
            await first(self._polite_stop(), ended(), deadline.wait())
        if not self._process.ended:
            self._process.kill()
        await ended()

    async def run_exec(self, argv: list[str], stdio: tuple[int, int, int]) -> ContainerProcess:
        """Start one more process in the container; it ends with the container at the latest.

        Raises:
            ConfigError, StartError: the container cannot start.
        """
        spec = self._context.exec_command(self._container, argv, stdio)
        process = await ContainerProcess.start(spec)
        self._execs = {other for other in self._execs if not other.ended} | {process}
        if self._process.ended:
            process.kill()
        return process

    async def _look_after(self) -> None:
        hook = (self._container.get("lifecycle") or {}).get("postStart")
        if hook:
            problem = await self._run_hook(hook)
            if problem:
                await self._warn("FailedPostStartHook", problem)
                await self._restart_for("FailedPostStartHook")
                return
        startup = self._container.get("startupProbe")
        if startup and not await self._startup(startup):
            return
        self._record.started = True
        self._record.ready = "readinessProbe" not in self._container
        self._context.publish()
        probes = [
            probe(self._container[name])
            for name, probe in (("readinessProbe", self._readiness), ("livenessProbe", self._liveness))
            if name in self._container
        ]
        async with TaskGroup(*probes):
            await self._process.wait()

    async def _startup(self, probe: Json) -> bool:
        async for success in self._verdicts(probe, "Startup"):
            if not success:
                await self._restart_for("startup probe")
            return success
        return False

    async def _readiness(self, probe: Json) -> None:
        async for ready in self._verdicts(probe, "Readiness"):
            if ready is not self._record.ready and not self._process.ended:
                self._record.ready = ready
                self._context.publish()

    async def _liveness(self, probe: Json) -> None:
        async for alive in self._verdicts(probe, "Liveness"):
            if not alive:
                await self._restart_for("liveness probe")
                return

    async def _verdicts(self, probe: Json, kind: str) -> AsyncIterator[bool]:
        timing = Timing.of(probe)
        verdict = Verdict(timing)
        await asyncio.sleep(timing.initial_delay_s)
        while True:
            outcome = await attempt(probe, self._container, self._context.record.pod_ip, self._probe_exec)
            if not outcome.success:
                await self._warn("Unhealthy", f"{kind} probe failed: {outcome.message}")
            result = verdict.observe(outcome.success)
            if result is not None:
                yield result
            await asyncio.sleep(timing.period_s)

    async def _restart_for(self, cause: str) -> None:
        name = self._container["name"]
        await self._context.services.events.normal(
            self._context.pod, "Killing", f"Container {name} failed {cause}, will be restarted"
        )
        deadline = Deadline(self._context.services.now)
        deadline.within(self._context.pod["spec"].get("terminationGracePeriodSeconds", 30))
        await self.stop(deadline)

    async def _polite_stop(self) -> None:
        hook = (self._container.get("lifecycle") or {}).get("preStop")
        if hook:
            problem = await self._run_hook(hook)
            if problem:
                await self._warn("FailedPreStopHook", problem)
        self._process.signal(signal.SIGTERM)
        await self._process.wait()

    async def _run_hook(self, hook: Json) -> str:
        if "sleep" in hook:
            await asyncio.sleep(hook["sleep"]["seconds"])
            return ""
        if "exec" in hook:
            code, output = await self._probe_exec(hook["exec"].get("command") or [], None)
            return f"command exited with {code}: {output.strip()}" if code else ""
        if "httpGet" in hook:
            outcome = await http_get(hook["httpGet"], self._container, self._context.record.pod_ip, timeout_s=30)
            return outcome.message
        return "the embedded cluster has exec, httpGet and sleep hooks only"

    async def _probe_exec(self, argv: list[str], timeout_s: float | None) -> tuple[int, str]:
        output_file = os.memfd_create("output")
        null = os.open(os.devnull, os.O_RDONLY)
        try:
            process = await self.run_exec(argv, (null, output_file, output_file))
            await first(process.wait(), timeout_s=timeout_s)
            if not process.ended:
                process.kill()
                await process.wait()
                return 124, f"command timed out after {timeout_s:g} s"
            return await process.wait(), os.pread(output_file, 10240, 0).decode(errors="replace")
        except (ConfigError, StartError) as error:
            return 126, str(error)
        finally:
            os.close(null)
            os.close(output_file)

    async def _warn(self, reason: str, message: str) -> None:
        await self._context.services.events.warning(self._context.pod, reason, message)


def termination_message(container: Json, message_file: Path, log: Path, exit_code: int) -> str:
    """Return what the container left as its last words, from its file or, if it wants that, from the end of its log."""
    text = ""
    if message_file.is_file():
        text = message_file.read_bytes()[:_MESSAGE_BYTES].decode(errors="replace")
    fallback = container.get("terminationMessagePolicy") == "FallbackToLogsOnError"
    if not text and fallback and exit_code != 0:
        return last_lines(log, _FALLBACK_LINES, _FALLBACK_BYTES)
    return text
