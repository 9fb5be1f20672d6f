"""`kubectl logs`, `exec`, `cp` and `port-forward`: what the API server passes on to the kubelet."""

from collections.abc import AsyncIterator, Callable

from aiohttp import web

from longshore_devcluster.kubelet.containers import StartError
from longshore_devcluster.kubelet.environment import ConfigError
from longshore_devcluster.kubelet.exec_channels import refuse_exec, serve_exec
from longshore_devcluster.kubelet.kubelet import Kubelet
from longshore_devcluster.kubelet.logs import LogOptions, read_log
from longshore_devcluster.kubelet.pipes import open_pipes
from longshore_devcluster.kubelet.port_forward import forward
from longshore_devcluster.kubelet.runner import ContainerRunner
from longshore_devcluster.kubelet.status import Waiting
from longshore_devcluster.kubelet.worker import PodWorker


class StreamError(LookupError):
    """The stream cannot be given; the message is the answer to the client."""


class ContainerStreams:
    """The logs of, and further processes in, the containers of a kubelet."""

    def __init__(self, kubelet: Kubelet, now: Callable[[], float]) -> None:
        self._kubelet, self._now = kubelet, now

    def logs(
        self,
        namespace: str,
        pod: str,
        container: str,
        *,
        follow: bool,
        tail_lines: int | None,
        since_seconds: int | None,
        limit_bytes: int | None,
        timestamps: bool,
        previous: bool,
    ) -> AsyncIterator[bytes]:
        """Return the log of the present or last instance of a container, or of the one before it.

        Raises StreamError.
        """
        since_s = None if since_seconds is None else self._now() - since_seconds
        options = LogOptions(follow, tail_lines, since_s, limit_bytes, timestamps)
        worker, runner = self._find(namespace, pod, container)
        record = runner.record
        number = runner.latest
        # Between two instances the last one is the previous one too, as its successor has not begun.
        if previous and not (isinstance(record.state, Waiting) and record.last is not None):
            number -= 1
        path = worker.context.layout.log(container, number)
        if number < 0:
            raise StreamError(f'previous terminated container "{container}" in pod "{pod}" not found')
        if isinstance(record.state, Waiting) and record.last is None:
            raise StreamError(f'container "{container}" in pod "{pod}" is waiting to start: {record.state.reason}')
        watch = None if previous or runner.instance is None else runner.instance.log_watch
        return read_log(path, options, watch)

    async def exec(
        self,
        namespace: str,
        pod: str,
        container: str,
        command: list[str],
        ws: web.WebSocketResponse,
        *,
        stdin: bool,
    ) -> None:
        """Run a command in a container, connected to a websocket that has been accepted.

        `stdin`: its client sends standard input.
        """
        try:
            _, runner = self._find(namespace, pod, container)
        except StreamError as error:
            await refuse_exec(ws, str(error))
            return
        instance = runner.instance
        if instance is None:
            await refuse_exec(ws, f'container "{container}" in pod "{pod}" is not running')
            return
        ends = open_pipes(with_stdin=stdin)
        try:
            process = await instance.run_exec(command, ends.child)
        except (ConfigError, StartError) as error:
            ends.close_child()
            ends.close()
            await refuse_exec(ws, str(error))
            return
        ends.close_child()
        await serve_exec(ws, process, ends)

    async def forward_ports(self, namespace: str, pod: str, ws: web.WebSocketResponse) -> None:
        """Carry a client's connections to ports of a pod, over a websocket that has been accepted."""
        worker = self._kubelet.worker(namespace, pod)
        if worker is None:
            await ws.close(code=1011, message=f'pod "{pod}" does not run on any node of this cluster'.encode())
            return
        await forward(ws, pod, worker.context.record.pod_ip)

    def _find(self, namespace: str, pod: str, container: str) -> tuple[PodWorker, ContainerRunner]:
        worker = self._kubelet.worker(namespace, pod)
        if worker is None:
            raise StreamError(f'pod "{pod}" does not run on any node of this cluster')
        runner = worker.runners.get(container)
        if runner is None:
            raise StreamError(f"container {container} is not valid for pod {pod}")
        return worker, runner
