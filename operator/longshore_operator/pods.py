"""Build the coordinator, worker, trainer, reward, judge and environment pods as plain data, from the spec alone."""

from typing import Any

from longshore.api import contract, names
from longshore.api.environment import ServerContainer, environment_pods
from longshore.api.names import Component, Role
from longshore.api.pods import DEFAULT_GPU_POD_MEMORY, PodOptions, Workers
from longshore.api.reward import Reward
from longshore.api.rljob import RLJob
from longshore.api.spec import Placement
from longshore.checks.pod_memory import coordinator_memory
from longshore_operator import mounts, rdma, topology
from longshore_operator.config import OperatorConfig
from longshore_operator.identity import Identity
from longshore_operator.pod_security import pod_security, with_template
from longshore_operator.template_rules import MESH_ANNOTATIONS, MESH_LABELS

NODE_GRACE_S = 30
KUBERNETES_GRACE_S = 30
"""Grace period of a pod that does not set one."""
NODE_LOSS_TOLERATION_S = 60
"""Seconds after which a pod on an unreachable node is given up (Kubernetes' default is 300 s)."""
_STAYS_ON_ITS_NODE = {
    "cluster-autoscaler.kubernetes.io/safe-to-evict": "false",
    "karpenter.sh/do-not-disrupt": "true",
}
"""Annotations that keep autoscalers from removing nodes with pods of jobs."""
_NO_EXECUTE = "NoExecute"
COORDINATOR_CPU_REQUEST = "500m"
"""Default requests of a pod. Without a CPU request, a pod starves on a busy node."""
GPU_POD_REQUESTS = {"cpu": "1", "memory": DEFAULT_GPU_POD_MEMORY}
REWARD_MEMORY_REQUEST = "1Gi"
"""Default requests of a reward pod, which suffice while it waits for responses."""
REWARD_WORKER_MILLICPUS = 250
"""CPU request for each worker of a reward pod that computes; it mostly waits for responses. No pod requests less."""
REWARD_REQUEST_MILLICPUS = 8
"""CPU request for each open request to an endpoint: it takes 1 to 2 ms of CPU time per answer."""
ENVIRONMENT_CPU_REQUEST = "500m"
"""CPU request of a pod of an environment, whose episodes mostly wait for the policy."""
SERVER_REQUESTS = {"cpu": "500m", "memory": "1Gi"}
"""Default requests of the server in a pod of an environment."""
_DISK = "ephemeral-storage"
SCRATCH_MOUNT = "/mnt/longshore/scratch"


def coordinator_pod(job: RLJob, config: OperatorConfig, attempt: int) -> dict[str, Any]:
    """Build the pod with the Ray head and the training loop, the only one that connects to the API server."""
    name = names.coordinator_pod(Identity.of(job).name)
    pod = _pod(job, config, attempt, Component.COORDINATOR, name, 0, job.spec.coordinator)
    pod["spec"]["serviceAccountName"] = names.service_account(Identity.of(job).name)
    pod["spec"]["automountServiceAccountToken"] = True
    pod["spec"]["terminationGracePeriodSeconds"] = contract.COORDINATOR_GRACE_S
    pod["spec"]["containers"][0]["ports"].append({"name": "ray", "containerPort": contract.RAY_PORT})
    mounts.ray_token(pod, job)
    if job.spec.reward.most_pods:
        mounts.reward_pod_token(pod, job)
    if config.opens_pages:
        pod["spec"]["containers"][0]["env"].append({"name": contract.ENV_PAGE_OPEN, "value": "1"})
    if job.spec.uses_hub:
        mounts.hub_token(pod, job.spec.hub)
    mounts.teacher_token(pod, job.spec.algorithm.teacher_endpoint)
    mounts.tracking_tokens(pod, job.spec.tracking)
    mounts.environment_tokens(pod, job)
    if job.spec.reward.pods == 0:
        mounts.reward_function_tokens(pod, job)
        mounts.modules(pod, job.spec.modules)
    memory = coordinator_memory(job.spec)
    requests = {"cpu": COORDINATOR_CPU_REQUEST, "memory": memory}
    return _with_grace(_finished(pod, config, job.spec.coordinator, requests, memory))


def worker_pod(
    job: RLJob, config: OperatorConfig, attempt: int, index: int, coordinator_ip: str, tp_size: int
) -> dict[str, Any]:
    """Build a GPU pod, which joins the Ray cluster of this attempt's coordinator and waits for actors."""
    workers = job.spec.workers
    name = names.worker_pod(Identity.of(job).name, index)
    pod = _pod(job, config, attempt, Component.WORKER, name, index, workers)
    pod["metadata"]["labels"] |= {names.LABEL_ROLE: Role.ROLLOUT.value, names.LABEL_TP_SIZE: str(tp_size)}
    _join(pod, index, coordinator_ip)
    mounts.ray_token(pod, job)
    if job.spec.trains_with_modules and job.spec.placement is Placement.COLOCATED:
        mounts.modules(pod, job.spec.modules)
    _hold_gpus(pod, workers)
    topology.constrain(pod, job)
    topology.follow_coordinator(pod, job)
    return _finished_nccl_pod(pod, config, job, Component.WORKER)


def trainer_pod(job: RLJob, config: OperatorConfig, attempt: int, index: int, coordinator_ip: str) -> dict[str, Any]:
    """Build a GPU pod that only trains (placement Disaggregated)."""
    workers = job.spec.training_pods
    name = names.trainer_pod(Identity.of(job).name, index)
    pod = _pod(job, config, attempt, Component.TRAINER, name, index, workers)
    pod["metadata"]["labels"][names.LABEL_ROLE] = Role.TRAINER.value
    _join(pod, index, coordinator_ip)
    mounts.ray_token(pod, job)
    if job.spec.trains_with_modules:
        mounts.modules(pod, job.spec.modules)
    _hold_gpus(pod, workers)
    topology.constrain(pod, job)
    topology.follow_coordinator(pod, job)
    return _finished_nccl_pod(pod, config, job, Component.TRAINER)


def reward_pod(job: RLJob, config: OperatorConfig, attempt: int, index: int, coordinator_ip: str) -> dict[str, Any]:
    """Build a pod that scores responses. It runs code that models wrote, so it is not part of the Ray cluster."""
    reward = job.spec.reward
    name = names.reward_pod(Identity.of(job).name, index)
    pod = _pod(job, config, attempt, Component.REWARD, name, index, reward)
    _join(pod, index, coordinator_ip)
    mounts.reward_pod_token(pod, job)
    mounts.reward_function_tokens(pod, job)
    mounts.modules(pod, job.spec.modules)
    _serve(pod, "reward", contract.REWARD_PORT, reward.runtime_class_name)
    topology.follow_coordinator(pod, job)
    requests = {"cpu": _reward_cpu(reward), "memory": REWARD_MEMORY_REQUEST}
    return _finished(pod, config, reward, requests, f"{reward.pod_memory_bytes >> 20}Mi")


def environment_pod(
    job: RLJob, config: OperatorConfig, attempt: int, index: int, coordinator_ip: str
) -> dict[str, Any]:
    """Build a pod that hosts an environment.

    It runs code that the model steers, so it gets that environment and its own token, and nothing else of the job.
    """
    environment = environment_pods(job.spec.environments)[index]
    options = environment.pods
    name = names.environment_pod(Identity.of(job).name, index)
    pod = _pod(job, config, attempt, Component.ENVIRONMENT, name, index, options)
    pod["metadata"]["labels"][names.LABEL_ENVIRONMENT] = environment.name
    _join(pod, index, coordinator_ip)
    container = pod["spec"]["containers"][0]
    container["image"] = options.image or container["image"]
    mounts.environment(pod, job, environment.name)
    mounts.environment_token(pod, job, environment.name)
    mounts.modules(pod, job.spec.modules)
    _serve(pod, "environment", contract.ENVIRONMENT_PORT, options.runtime_class_name)
    if environment.server is not None:
        _add_server(pod, environment.server)
    if (disk := options.requests().get(_DISK)) is not None:
        container["resources"].setdefault("limits", {})[_DISK] = disk
    memory = f"{environment.pod_memory_bytes >> 20}Mi"
    return _finished(pod, config, options, {"cpu": ENVIRONMENT_CPU_REQUEST, "memory": memory}, memory)


def _add_server(pod: dict[str, Any], server: ServerContainer) -> None:
    """Let a sidecar serve the episodes of a pod: the kubelet restarts it, and ends it with the main container.

    It has no probe, so that a server that is slow or dies does not keep the main container from saying so.
    """
    requests = SERVER_REQUESTS | {name: str(amount) for name, amount in server.resources.items()}
    limited = {name: amount for name, amount in requests.items() if name in ("memory", _DISK) or "/" in name}
    values = {"HOME": SCRATCH_MOUNT, "TMPDIR": SCRATCH_MOUNT} | server.env
    address = {"name": contract.ENV_POD_IP, "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}
    pod["spec"]["volumes"].append({"name": "server-scratch", "emptyDir": {}})
    pod["spec"]["initContainers"] = [
        {
            "name": contract.SERVER_CONTAINER,
            "image": server.image,
            **({} if server.command is None else {"command": list(server.command)}),
            "restartPolicy": "Always",
            "env": [address, *({"name": name, "value": value} for name, value in values.items())],
            "ports": [{"name": "server", "containerPort": server.port}],
            "resources": {"requests": requests, "limits": limited},
            "terminationMessagePolicy": "FallbackToLogsOnError",
            "volumeMounts": [{"name": "server-scratch", "mountPath": SCRATCH_MOUNT}],
        }
    ]


def judge_pod(job: RLJob, config: OperatorConfig, attempt: int, index: int, coordinator_ip: str) -> dict[str, Any]:
    """Build a pod that serves a judge. It is not part of the Ray cluster."""
    function, _ = job.spec.reward.judge_pod(index)
    assert function.pool is not None, "a pool has pods"
    name = names.judge_pod(Identity.of(job).name, index)
    pod = _pod(job, config, attempt, Component.JUDGE, name, index, function.pool)
    pod["metadata"]["labels"][names.LABEL_REWARD] = function.name
    _join(pod, index, coordinator_ip)
    mounts.judge_token(pod, job)
    _serve(pod, "judge", contract.JUDGE_PORT)
    _hold_gpus(pod, function.pool)
    topology.follow_coordinator(pod, job)
    return _finished_gpu_pod(pod, config, function.pool)


def _serve(pod: dict[str, Any], name: str, port: int, runtime_class_name: str | None = None) -> None:
    """Let a pod be ready once it answers at the one port at which it listens."""
    container = pod["spec"]["containers"][0]
    container["ports"] = [{"name": name, "containerPort": port}]
    container["readinessProbe"]["httpGet"] = {"path": "/health", "port": port}
    if runtime_class_name is not None:
        pod["spec"]["runtimeClassName"] = runtime_class_name


def _with_grace(pod: dict[str, Any]) -> dict[str, Any]:
    """Tell the main container how long it may take to stop, which the job's template may have changed."""
    (container,) = (one for one in pod["spec"]["containers"] if one["name"] == contract.CONTAINER)
    grace_s = max(0, pod["spec"].get("terminationGracePeriodSeconds", KUBERNETES_GRACE_S))
    others = [one for one in container.get("env") or () if one["name"] != contract.ENV_GRACE]
    container["env"] = [*others, {"name": contract.ENV_GRACE, "value": str(grace_s)}]
    return pod


def _reward_cpu(reward: Reward) -> str:
    millicpus = REWARD_WORKER_MILLICPUS * reward.num_computing + REWARD_REQUEST_MILLICPUS * reward.num_waiting
    return f"{max(REWARD_WORKER_MILLICPUS, millicpus)}m"


def _hold_gpus(pod: dict[str, Any], workers: Workers) -> None:
    if workers.gpus_per_pod:
        resources = pod["spec"]["containers"][0]["resources"]
        for kind in ("requests", "limits"):
            resources.setdefault(kind, {})[workers.gpu_resource_name] = str(workers.gpus_per_pod)


def _finished_gpu_pod(pod: dict[str, Any], config: OperatorConfig, workers: Workers) -> dict[str, Any]:
    """Finish a pod with engines, trainers or a judge. Processes on real GPUs need far more memory than the default."""
    limit = None if workers.has_accelerator else GPU_POD_REQUESTS["memory"]
    return _finished(pod, config, workers, GPU_POD_REQUESTS, limit)


def _finished_nccl_pod(pod: dict[str, Any], config: OperatorConfig, job: RLJob, component: Component) -> dict[str, Any]:
    """Finish a pod with engines or trainers, with RDMA devices if NCCL connects it to other pods."""
    devices = config.rdma if rdma.uses_nccl_across_pods(job.spec, component) else None
    rdma.request_devices(pod, devices)
    return _finished_gpu_pod(pod, config, job.spec.workers if component is Component.WORKER else job.spec.training_pods)


def _finished(
    pod: dict[str, Any], config: OperatorConfig, options: PodOptions, requests: dict[str, str], limit: str | None
) -> dict[str, Any]:
    """Limit the memory of a pod to what the job requests, so that it cannot take that of others; merge the template.

    Args:
        requests: defaults for what the job does not request.
        limit: memory limit of a pod for which the job requests no memory; None: it has no limit.
    """
    resources = pod["spec"]["containers"][0]["resources"]
    limit = resources.get("requests", {}).get("memory", limit)
    if limit is not None:
        resources.setdefault("limits", {})["memory"] = limit
    return with_template(pod, config, options, requests)


def _join(pod: dict[str, Any], index: int, coordinator_ip: str) -> None:
    pod["spec"]["containers"][0]["env"] += [
        {"name": contract.ENV_INDEX, "value": str(index)},
        {"name": contract.ENV_COORDINATOR_ADDRESS, "value": coordinator_ip},
    ]


def _pod(
    job: RLJob,
    config: OperatorConfig,
    attempt: int,
    component: Component,
    name: str,
    index: int,
    options: PodOptions,
) -> dict[str, Any]:
    identity = Identity.of(job)
    options = topology.place_with_volume(options, component, job.spec.workers, job.spec.storage)
    secrets = [{"name": secret} for secret in config.image_pull_secrets]
    metadata = identity.metadata(name, component)
    metadata["labels"] = identity.pod_labels(component, index, attempt) | MESH_LABELS
    metadata["annotations"] = {
        **_STAYS_ON_ITS_NODE,
        **MESH_ANNOTATIONS,
        "kubectl.kubernetes.io/default-container": contract.CONTAINER,
    }
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": metadata,
        "spec": {
            "restartPolicy": "Never",
            "hostname": name,
            "subdomain": names.headless_service(identity.name),
            "enableServiceLinks": False,
            "automountServiceAccountToken": False,
            "terminationGracePeriodSeconds": NODE_GRACE_S,
            "securityContext": pod_security(config.pod_user),
            **({"imagePullSecrets": secrets} if secrets else {}),
            "nodeSelector": dict(options.node_selector),
            "tolerations": _tolerations(options),
            "volumes": [{"name": "scratch", "emptyDir": {}}, {"name": "shm", "emptyDir": {"medium": "Memory"}}],
            "containers": [_container(job, config, attempt, component, options)],
        },
    }
    if component is not Component.ENVIRONMENT:
        # A program that escapes from a sandbox must not write checkpoints.
        mounts.job_files(pod, job, read_only=component is Component.REWARD)
    return pod


def _container(
    job: RLJob, config: OperatorConfig, attempt: int, component: Component, options: PodOptions
) -> dict[str, Any]:
    return {
        "name": contract.CONTAINER,
        "image": job.spec.image or config.runtime_image,
        "command": ["python", "-m", "longshore_runtime", component.value],
        "env": _environment(Identity.of(job), attempt, component),
        "ports": [{"name": "health", "containerPort": contract.HEALTH_PORT}],
        "resources": _resources(options),
        "readinessProbe": {
            "httpGet": {"path": "/readyz", "port": contract.HEALTH_PORT},
            "periodSeconds": 2,
            "timeoutSeconds": 2,
        },
        "terminationMessagePath": contract.TERMINATION_LOG,
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": [
            {"name": "scratch", "mountPath": SCRATCH_MOUNT},
            {"name": "shm", "mountPath": "/dev/shm"},
        ],
    }


def _environment(identity: Identity, attempt: int, component: Component) -> list[dict[str, Any]]:
    values = {
        contract.ENV_JOB_NAME: identity.name,
        contract.ENV_JOB_NAMESPACE: identity.namespace,
        contract.ENV_JOB_UID: identity.uid,
        contract.ENV_ATTEMPT: str(attempt),
        contract.ENV_COMPONENT: component.value,
        contract.ENV_TERMINATION_LOG: contract.TERMINATION_LOG,
        "HOME": SCRATCH_MOUNT,
        "TMPDIR": SCRATCH_MOUNT,
    }
    fields = {contract.ENV_POD_NAME: "metadata.name", contract.ENV_POD_IP: "status.podIP"}
    return [
        *({"name": name, "value": value} for name, value in values.items()),
        *({"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}} for name, path in fields.items()),
    ]


def _resources(options: PodOptions) -> dict[str, Any]:
    """Return the requests; extended resources are also limits, because the API server requires both to be equal."""
    requests = options.requests()
    if not requests:
        return {}
    extended = {name: quantity for name, quantity in requests.items() if "/" in name}
    return {"requests": requests, "limits": extended} if extended else {"requests": requests}


def _tolerations(options: PodOptions) -> list[dict[str, Any]]:
    """Return what the user asks for, after the limits for lost nodes: of a taint, the first toleration counts.

    So a toleration of every taint does not keep pods on lost nodes for ever. Only one that names such a taint does.
    """
    chosen = [one.get("key") for one in options.tolerations if (one.get("effect") or _NO_EXECUTE) == _NO_EXECUTE]
    node_loss = [
        {
            "key": f"node.kubernetes.io/{condition}",
            "operator": "Exists",
            "effect": _NO_EXECUTE,
            "tolerationSeconds": NODE_LOSS_TOLERATION_S,
        }
        for condition in ("not-ready", "unreachable")
    ]
    return [toleration for toleration in node_loss if toleration["key"] not in chosen] + options.tolerations
