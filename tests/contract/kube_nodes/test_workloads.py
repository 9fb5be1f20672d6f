"""Deployments roll out, Services find pods, claims get volumes."""

from tests.contract.kube_nodes.kube import Json, Kubectl


def deployment(kubectl: Kubectl, script: str, replicas: int = 2, **spec: object) -> Json:
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "web"},
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": {"app": "web"}},
            "template": {
                "metadata": {"labels": {"app": "web"}},
                "spec": {
                    "terminationGracePeriodSeconds": 0,
                    "containers": [kubectl.container("main", script)],
                },
            },
            **spec,
        },
    }


def scripts(kubectl: Kubectl) -> set[str]:
    pods = kubectl("get", "pods", "-l", "app=web", "-o", "jsonpath={.items[*].spec.containers[0].command[2]}")
    return {word for word in pods.split() if word.startswith("v")}


def test_deployment_rolls_out_scales_and_rolls_back(kubectl: Kubectl) -> None:
    kubectl.apply(deployment(kubectl, "sleep 1000 # v1"))
    assert "successfully rolled out" in kubectl("rollout", "status", "deployment/web", "--timeout=100s")

    kubectl.apply(deployment(kubectl, "sleep 1000 # v2"))
    kubectl("rollout", "status", "deployment/web", "--timeout=100s")
    kubectl("wait", "pods", "-l", "app=web", "--for=condition=Ready", "--timeout=60s")
    assert kubectl.get("deployment/web")["metadata"]["annotations"]["deployment.kubernetes.io/revision"] == "2"

    kubectl("rollout", "undo", "deployment/web")
    kubectl("rollout", "status", "deployment/web", "--timeout=100s")
    kubectl("scale", "deployment/web", "--replicas=3")
    kubectl("rollout", "status", "deployment/web", "--timeout=100s")

    found = kubectl.wait("deployment/web", ".status.replicas", "3")
    assert found["status"]["availableReplicas"] == 3
    assert found["status"]["updatedReplicas"] == 3
    assert scripts(kubectl) == {"v1"}


def test_deleted_pod_of_a_deployment_is_replaced(kubectl: Kubectl) -> None:
    kubectl.apply(deployment(kubectl, "sleep 1000", replicas=1))
    kubectl("rollout", "status", "deployment/web", "--timeout=100s")
    first = kubectl("get", "pods", "-l", "app=web", "-o", "name").strip()

    kubectl("delete", first)
    kubectl("rollout", "status", "deployment/web", "--timeout=100s")

    assert kubectl("get", "pods", "-l", "app=web", "-o", "name").strip() != first


def test_deployment_whose_pods_never_become_ready_misses_its_deadline(kubectl: Kubectl) -> None:
    broken = deployment(kubectl, "sleep 1000", progressDeadlineSeconds=3)
    broken["spec"]["template"]["spec"]["containers"][0]["readinessProbe"] = {"exec": {"command": ["false"]}}
    kubectl.apply(broken)

    outcome = kubectl.attempt("rollout", "status", "deployment/web", "--timeout=100s")

    assert outcome.returncode != 0
    assert "exceeded its progress deadline" in outcome.stderr


def test_deleting_a_deployment_deletes_its_pods(kubectl: Kubectl) -> None:
    kubectl.apply(deployment(kubectl, "sleep 1000"))
    kubectl("rollout", "status", "deployment/web", "--timeout=100s")

    kubectl("delete", "deployment", "web")
    kubectl("wait", "pods", "-l", "app=web", "--for=delete", "--timeout=60s")

    assert kubectl("get", "replicasets,pods", "-l", "app=web", "-o", "name") == ""


def claim(name: str) -> Json:
    spec = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
    return {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": name}, "spec": spec}


def claim_pod(kubectl: Kubectl, name: str, script: str) -> Json:
    volume = {"name": "data", "persistentVolumeClaim": {"claimName": "data"}}
    mounts = [{"name": "data", "mountPath": "/data"}]
    return kubectl.pod(name, script, restartPolicy="Never", volumes=[volume], c_volumeMounts=mounts)


def test_claimed_volume_outlives_its_pods(kubectl: Kubectl) -> None:
    kubectl.apply(claim("data"), claim_pod(kubectl, "writer", "echo kept > /data/file"))
    kubectl.wait_phase("writer", "Succeeded")
    kubectl("delete", "pod", "writer")

    kubectl.apply(claim_pod(kubectl, "reader", "cat /data/file"))
    kubectl.wait_phase("reader", "Succeeded")

    assert kubectl("logs", "reader") == "kept\n"
    bound = kubectl.get("pvc/data")
    assert bound["status"]["phase"] == "Bound"
    volume = bound["spec"]["volumeName"]
    kubectl("delete", "pod", "reader")
    kubectl("delete", "pvc", "data")
    kubectl("wait", f"pv/{volume}", "--for=delete", "--timeout=60s")


def test_claim_takes_the_volume_that_was_made_for_its_class(kubectl: Kubectl) -> None:
    name = f"manual-{kubectl.namespace}"
    volume = {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {"name": name},
        "spec": {
            "capacity": {"storage": "2Gi"},
            "accessModes": ["ReadWriteOnce"],
            "storageClassName": name,
            "persistentVolumeReclaimPolicy": "Retain",
            "hostPath": {"path": f"/tmp/{name}", "type": "DirectoryOrCreate"},
        },
    }
    wanting = claim("data")
    wanting["spec"]["storageClassName"] = name
    kubectl.apply(wanting, volume)

    bound = kubectl.wait("pvc/data", ".status.phase", "Bound")
    assert bound["spec"]["volumeName"] == name
    assert bound["status"]["capacity"]["storage"] == "2Gi"

    kubectl("delete", "pvc", "data")
    kubectl.wait(f"pv/{name}", ".status.phase", "Released")
    kubectl("delete", "pv", name)


def test_pod_waits_for_its_claim(kubectl: Kubectl) -> None:
    kubectl.apply(claim_pod(kubectl, "p", "echo mounted"))
    kubectl("wait", "pod/p", "--for=condition=PodScheduled=False", "--timeout=60s")

    kubectl.apply(claim("data"))
    kubectl.wait_phase("p", "Succeeded")


def test_claim_in_use_is_kept_until_its_pod_has_gone(kubectl: Kubectl) -> None:
    kubectl.apply(claim("data"), claim_pod(kubectl, "p", "sleep 1000"))
    kubectl.wait_ready("pod/p")

    kubectl("delete", "pvc", "data", "--wait=false")
    assert kubectl.get("pvc/data")["metadata"]["deletionTimestamp"]
    kubectl("delete", "pod", "p", "--now")

    kubectl("wait", "pvc/data", "--for=delete", "--timeout=60s")
