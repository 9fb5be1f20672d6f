"""Pods get their configuration: environment and volumes."""

from tests.contract.kube_nodes.kube import Json, Kubectl


def config_map(name: str, **data: str) -> Json:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": data}


def secret(name: str, **data: str) -> Json:
    return {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name}, "stringData": data}


def mount(name: str, path: str, **fields: object) -> Json:
    return {"name": name, "mountPath": path, **fields}


def test_environment_from_config_maps_secrets_and_the_pod_itself(kubectl: Kubectl) -> None:
    env = [
        {"name": "TOKEN", "valueFrom": {"secretKeyRef": {"name": "keys", "key": "token"}}},
        {"name": "POD", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
        {"name": "NODE", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}},
        {"name": "IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
        {"name": "JOINED", "value": "$(POD)/$(TOKEN)"},
    ]
    env_from = [{"prefix": "SET_", "configMapRef": {"name": "settings"}}]
    script = 'echo "$JOINED $SET_mode $NODE $IP"'
    kubectl.apply(
        config_map("settings", mode="fast"),
        secret("keys", token="s3cret"),
        kubectl.pod("p", script, restartPolicy="Never", c_env=env, c_envFrom=env_from),
    )

    pod = kubectl.wait_phase("p", "Succeeded")

    assert kubectl("logs", "p") == f"p/s3cret fast {pod['spec']['nodeName']} {pod['status']['podIP']}\n"


def test_container_waits_for_a_missing_config_map(kubectl: Kubectl) -> None:
    env = [{"name": "X", "valueFrom": {"configMapKeyRef": {"name": "later", "key": "x"}}}]
    kubectl.apply(kubectl.pod("p", "echo $X", restartPolicy="Never", c_env=env))
    waiting = ".status.containerStatuses[0].state.waiting"
    kubectl.wait("pod/p", f"{waiting}.reason", "CreateContainerConfigError")

    kubectl.apply(config_map("later", x="came"))
    kubectl.wait_phase("p", "Succeeded")

    assert kubectl("logs", "p") == "came\n"


def test_pod_waits_for_a_volume_that_is_missing(kubectl: Kubectl) -> None:
    volume = {"name": "v", "configMap": {"name": "later"}}
    pod = kubectl.pod(
        "p", "cat /config/x", restartPolicy="Never", volumes=[volume], c_volumeMounts=[mount("v", "/config")]
    )
    kubectl.apply(pod)
    kubectl.wait("pod/p", ".status.containerStatuses[0].state.waiting.reason", "ContainerCreating")

    kubectl.apply(config_map("later", x="came"))
    kubectl.wait_phase("p", "Succeeded")

    assert kubectl("logs", "p") == "came"


def test_config_map_items_secret_modes_and_sub_paths(kubectl: Kubectl) -> None:
    volumes = [
        {"name": "some", "configMap": {"name": "settings", "items": [{"key": "a", "path": "deep/renamed"}]}},
        {"name": "hidden", "secret": {"secretName": "keys", "defaultMode": 0o400}},
        {"name": "all", "configMap": {"name": "settings"}},
    ]
    mounts = [
        mount("some", "/some"),
        mount("hidden", "/hidden"),
        mount("all", "/etc/one.conf", subPath="b"),
    ]
    script = "cat /some/deep/renamed /etc/one.conf; ls /some; stat -L -c %a /hidden/token"
    kubectl.apply(
        config_map("settings", a="A\n", b="B\n"),
        secret("keys", token="x"),
        kubectl.pod("p", script, restartPolicy="Never", volumes=volumes, c_volumeMounts=mounts),
    )
    kubectl.wait_phase("p", "Succeeded")

    assert kubectl("logs", "p") == "A\nB\ndeep\n400\n"


def test_mounted_config_map_follows_its_object(kubectl: Kubectl) -> None:
    volume = {"name": "v", "configMap": {"name": "settings"}}
    script = "cat /config/x; until grep -q new /config/x; do sleep 0.1; done; cat /config/x"
    kubectl.apply(
        config_map("settings", x="old\n"),
        kubectl.pod("p", script, restartPolicy="Never", volumes=[volume], c_volumeMounts=[mount("v", "/config")]),
    )
    kubectl.wait_ready("pod/p")

    kubectl.apply(config_map("settings", x="new\n"))
    kubectl.wait("pod/p", ".status.phase", "Succeeded", timeout_s=180)

    assert kubectl("logs", "p") == "old\nnew\n"


def test_downward_api_volume_follows_the_labels(kubectl: Kubectl) -> None:
    items = [
        {"path": "labels", "fieldRef": {"fieldPath": "metadata.labels"}},
        {"path": "cpu", "resourceFieldRef": {"containerName": "main", "resource": "limits.cpu", "divisor": "1m"}},
    ]
    volume = {"name": "info", "downwardAPI": {"items": items}}
    script = "cat /info/cpu; until grep -q trainer /info/labels; do sleep 0.1; done; echo; cat /info/labels"
    limits = {"limits": {"cpu": "250m"}}
    kubectl.apply(
        kubectl.pod(
            "p",
            script,
            labels={"role": "rollout"},
            restartPolicy="Never",
            volumes=[volume],
            c_volumeMounts=[mount("info", "/info")],
            c_resources=limits,
        )
    )
    kubectl.wait_ready("pod/p")

    kubectl("label", "pod", "p", "role=trainer", "--overwrite")
    kubectl.wait("pod/p", ".status.phase", "Succeeded", timeout_s=180)

    assert kubectl("logs", "p").strip() == '250\nrole="trainer"'


def test_service_account_token_is_mounted(kubectl: Kubectl) -> None:
    base = "/var/run/secrets/kubernetes.io/serviceaccount"
    script = f"cat {base}/namespace; echo; cut -d. -f1 {base}/token | head -c 2; head -1 {base}/ca.crt"
    # A JSON web token begins with an encoded brace; that encodes to "ey".
    assert kubectl.output(script) == f"{kubectl.namespace}\ney-----BEGIN CERTIFICATE-----\n"


def test_memory_backed_scratch_space_is_shared_by_the_containers_of_a_pod(kubectl: Kubectl) -> None:
    volume = {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": "16Mi"}}
    pod = kubectl.pod(
        "p",
        "until [ -e /scratch/x ]; do sleep 0.1; done; cat /scratch/x",
        restartPolicy="Never",
        volumes=[volume],
        c_volumeMounts=[mount("shm", "/scratch")],
    )
    pod["spec"]["containers"].append(
        kubectl.container("writer", "echo shared > /scratch/x", volumeMounts=[mount("shm", "/scratch")])
    )
    kubectl.apply(pod)
    kubectl.wait_phase("p", "Succeeded")

    assert kubectl("logs", "p", "-c", "main") == "shared\n"
