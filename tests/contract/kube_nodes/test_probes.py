"""Probes decide about readiness and restarts."""

from tests.contract.kube_nodes.kube import Json, Kubectl


def exec_probe(script: str, **timing: int) -> Json:
    return {"exec": {"command": ["sh", "-c", script]}, "periodSeconds": 1, **timing}


def state_volume() -> Json:
    return {"name": "v", "emptyDir": {}}


def state_mount() -> list[Json]:
    return [{"name": "v", "mountPath": "/state"}]


def test_readiness_follows_its_probe_both_ways(kubectl: Kubectl) -> None:
    pod = kubectl.pod(
        "p",
        "sleep 1000",
        volumes=[state_volume()],
        c_volumeMounts=state_mount(),
        c_readinessProbe=exec_probe("test -e /state/ready", failureThreshold=1),
    )
    kubectl.apply(pod)
    kubectl.wait("pod/p", ".status.phase", "Running")
    kubectl("wait", "pod/p", "--for=condition=Ready=False", "--timeout=60s")

    kubectl("exec", "p", "--", "touch", "/state/ready")
    kubectl.wait_ready("pod/p")
    kubectl("exec", "p", "--", "rm", "/state/ready")
    kubectl("wait", "pod/p", "--for=condition=Ready=False", "--timeout=60s")

    assert kubectl.get("pod/p")["status"]["containerStatuses"][0]["restartCount"] == 0


def test_failing_liveness_probe_restarts_the_container(kubectl: Kubectl) -> None:
    pod = kubectl.pod(
        "p",
        "echo up; sleep 1000",
        terminationGracePeriodSeconds=1,
        c_livenessProbe=exec_probe("false", failureThreshold=1),
    )
    kubectl.apply(pod)

    restarts = "{.status.containerStatuses[0].restartCount}"
    kubectl("wait", "pod/p", f"--for=jsonpath={restarts}=1", "--timeout=100s")

    assert {"Unhealthy", "Killing"} <= set(kubectl.events("p"))


def test_startup_probe_holds_the_others_back(kubectl: Kubectl) -> None:
    pod = kubectl.pod(
        "p",
        "sleep 1000",
        volumes=[state_volume()],
        c_volumeMounts=state_mount(),
        c_startupProbe=exec_probe("test -e /state/started", failureThreshold=100),
        c_livenessProbe=exec_probe("test -e /state/started", failureThreshold=1),
    )
    kubectl.apply(pod)
    kubectl.wait("pod/p", ".status.phase", "Running")
    assert kubectl.get("pod/p")["status"]["containerStatuses"][0]["started"] is False

    kubectl("exec", "p", "--", "touch", "/state/started")
    pod = kubectl.wait_ready("pod/p")

    status = pod["status"]["containerStatuses"][0]
    assert (status["started"], status["restartCount"]) == (True, 0)
