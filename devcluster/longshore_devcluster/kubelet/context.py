"""What the parts of one pod's life share."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from longshore_devcluster.client.events import EventRecorder
from longshore_devcluster.kubelet.containers import Spec
from longshore_devcluster.kubelet.environment import ConfigError, resolve_command, resolve_env
from longshore_devcluster.kubelet.layout import PodLayout
from longshore_devcluster.kubelet.leftovers import CONTAINER_MARK, POD_MARK
from longshore_devcluster.kubelet.memory import MemoryLimits
from longshore_devcluster.kubelet.mounts import Mounts
from longshore_devcluster.kubelet.status import PodRecord
from longshore_devcluster.kubelet.volumes import VolumeLookup, kubeconfig_of, mount_table
from longshore_devcluster.kubelet.waiting import Signal
from longshore_devcluster.kubelet.warm import WarmInterpreter
from longshore_kube.client import Client
from longshore_kube.resources import Json

_SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


@dataclass(frozen=True)
class NodeServices:
    """What every pod of a kubelet uses. `now` gives Unix seconds."""

    client: Client
    now: Callable[[], float]
    events: EventRecorder
    lookup: VolumeLookup
    path_prefix: str
    restart_backoff_s: float
    memory: MemoryLimits
    warm: WarmInterpreter | None = None


@dataclass
class PodContext:
    """One pod: its latest object, what is known of it, and where its files are."""

    services: NodeServices
    pod: Json
    record: PodRecord
    layout: PodLayout
    volumes: dict[str, Path] = field(default_factory=dict)
    inputs_changed: Signal = field(default_factory=Signal)
    status_changed: Signal = field(default_factory=Signal)
    status_dirty: bool = True

    @property
    def uid(self) -> str:
        """The uid of the pod."""
        return self.layout.uid

    @property
    def restart_policy(self) -> str:
        """Always, OnFailure or Never."""
        return str(self.pod["spec"].get("restartPolicy", "Always"))

    def publish(self) -> None:
        """Let the API server learn of a change of the record."""
        self.status_dirty = True
        self.status_changed.notify()

    def command(self, container: Json, log: Path) -> Spec:
        """Return what the container runs.

        Raises:
            ConfigError: its configuration is wrong, or something to mount is missing.
        """
        base = self._base_env(container)
        command = resolve_command(self.pod_with_address(), container, self.services.lookup, base)
        mounts = Mounts(mount_table(container, self.volumes, self.layout, command.env))
        env = _rewritten(command.env, base, mounts)
        cwd = self._directory(container, mounts)
        return Spec(mounts.rewrite_all(command.argv), env, cwd, log=str(log))

    def exec_command(self, container: Json, argv: list[str], stdio: tuple[int, int, int]) -> Spec:
        """Return what an exec into the container runs, as if it had been started there.

        Raises:
            ConfigError: its configuration cannot be resolved.
        """
        base = self._base_env(container)
        env = resolve_env(self.pod_with_address(), container, self.services.lookup, base)
        mounts = Mounts(mount_table(container, self.volumes, self.layout, env))
        cwd = self._directory(container, mounts)
        return Spec(mounts.rewrite_exec(argv), _rewritten(env, base, mounts), cwd, stdio=stdio)

    def pod_with_address(self) -> Json:
        """Return the pod object with the addresses that this kubelet gave it."""
        # The API server may not have our status yet when the first container starts.
        status = {
            **(self.pod.get("status") or {}),
            "podIP": self.record.pod_ip,
            "podIPs": [{"ip": self.record.pod_ip}],
            "hostIP": self.record.host_ip,
            "hostIPs": [{"ip": self.record.host_ip}],
        }
        return {**self.pod, "status": status}

    def _base_env(self, container: Json) -> dict[str, str]:
        server = urlsplit(self.services.client.access.server)
        env = {
            "PATH": ":".join(part for part in (self.services.path_prefix, _SYSTEM_PATH) if part),
            "HOME": str(self.layout.home),
            "TMPDIR": str(self.layout.tmp),
            "LANG": "C.UTF-8",
            "HOSTNAME": self.pod["spec"].get("hostname") or self.pod["metadata"]["name"],
            "KUBERNETES_SERVICE_HOST": server.hostname or "",
            "KUBERNETES_SERVICE_PORT": str(server.port or 443),
            POD_MARK: self.uid,
            CONTAINER_MARK: container["name"],
        }
        kubeconfig = kubeconfig_of(container, self.pod, self.layout)
        if kubeconfig is not None:
            env["KUBECONFIG"] = str(kubeconfig)
        return env

    def _directory(self, container: Json, mounts: Mounts) -> str:
        wanted = container.get("workingDir")
        if not wanted:
            return str(self.layout.home)
        path = Path(mounts.rewrite(wanted))
        if not path.is_dir():
            raise ConfigError(f"workingDir {wanted!r} is neither in a mounted volume nor a directory of this machine")
        return str(path)


def _rewritten(env: dict[str, str], base: dict[str, str], mounts: Mounts) -> dict[str, str]:
    """Return the environment with rewritten paths, except the real ones of the kubelet's own variables."""
    return {name: value if base.get(name) == value else mounts.rewrite(value) for name, value in env.items()}
