"""Probes decide about readiness and restarts."""

from tests.contract.kube_nodes.kube import SCRATCH, Json, Kubectl


def exec_probe(script: str, **timing: int) -> Json:
    return {"exec": {"command": ["sh", "-c", script]}, "periodSeconds": 1, **timing}


def test_readiness_follows_its_probe_both_ways(kubectl: Kubectl) -> None:
    probe = exec_probe("test -e /scratch/ready", failureThreshold=1)
    kubectl.apply(kubectl.pod("p", "sleep 1000", c_readinessProbe=probe, **SCRATCH))
    kubectl.wait("pod/p", ".status.phase", "Running")
    kubectl("wait", "pod/p", "--for=condition=Ready=False", "--timeout=60s")

    kubectl("exec", "p", "--", "touch", "/scratch/ready")
    kubectl.wait_ready("pod/p")
    kubectl("exec", "p", "--", "rm", "/scratch/ready")
    kubectl("wait", "pod/p", "--for=condition=Ready=False", "--timeout=60s")

    assert kubectl.get("pod/p")["status"]["containerStatuses"][0]["restartCount"] == 0


def test_failing_liveness_probe_restarts_the_container(kubectl: Kubectl) -> None:
    probe = exec_probe("false", failureThreshold=1)
    kubectl.apply(kubectl.pod("p", "echo up; sleep 1000", terminationGracePeriodSeconds=1, c_livenessProbe=probe))

    # It is restarted again and again, so the number may have grown when it is looked at.
    ended = "{.status.containerStatuses[0].lastState.terminated.exitCode}"
    kubectl("wait", "pod/p", f"--for=jsonpath={ended}", "--timeout=100s")

    assert kubectl.get("pod/p")["status"]["containerStatuses"][0]["restartCount"] >= 1
    assert {"Unhealthy", "Killing"} <= set(kubectl.events("p"))


def test_startup_probe_holds_the_others_back(kubectl: Kubectl) -> None:
    startup = exec_probe("test -e /scratch/started", failureThreshold=100)
    liveness = exec_probe("test -e /scratch/started", failureThreshold=1)
    kubectl.apply(kubectl.pod("p", "sleep 1000", c_startupProbe=startup, c_livenessProbe=liveness, **SCRATCH))
    kubectl.wait("pod/p", ".status.phase", "Running")
    assert kubectl.get("pod/p")["status"]["containerStatuses"][0]["started"] is False

    kubectl("exec", "p", "--", "touch", "/scratch/started")
    pod = kubectl.wait_ready("pod/p")

    status = pod["status"]["containerStatuses"][0]
    assert (status["started"], status["restartCount"]) == (True, 0)
