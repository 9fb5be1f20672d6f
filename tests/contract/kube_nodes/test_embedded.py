"""What the embedded cluster promises beyond a real one: plain processes, their addresses, and a clean end."""

import contextlib
import json
import os
import select
import signal
import socket
import ssl
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from longshore_devcluster.cluster import ClusterConfig, remove_run_dirs
from longshore_devcluster.kubelet.leftovers import marked_processes
from longshore_devcluster.kubelet.shim import processes
from longshore_devcluster.launcher import LaunchError, cluster_process, find, start_detached, stop
from tests.contract.kube_nodes.kube import SCRATCH, Json, Kubectl

pytestmark = pytest.mark.usefixtures("embedded_only")

CONFIG = ClusterConfig(gpus_per_node=2, restart_backoff_s=0.2)


@pytest.fixture
def data_dir(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path / "cluster"
    stop(tmp_path / "cluster")
    remove_run_dirs(tmp_path / "cluster")


def kubectl_of(kubeconfig: Path) -> Kubectl:
    return Kubectl(kubeconfig, "default", "none")


def uid(pod: Json) -> str:
    return str(pod["metadata"]["uid"])


def test_every_pod_has_a_loopback_address_of_its_own(kubectl: Kubectl) -> None:
    serve = [sys.executable, "-m", "http.server", "8000", "--bind", "$(IP)"]
    env = [{"name": "IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}]
    probe = {"httpGet": {"path": "/", "port": "web"}, "periodSeconds": 1}
    ports = [{"name": "web", "containerPort": 8000}]
    for name in ("a", "b"):
        kubectl.apply(kubectl.pod(name, "", c_command=serve, c_env=env, c_readinessProbe=probe, c_ports=ports))

    addresses = [kubectl.wait_ready(f"pod/{name}")["status"]["podIP"] for name in ("a", "b")]

    assert len(set(addresses)) == 2
    for address in addresses:
        assert address.startswith("127.")
        socket.create_connection((address, 8000), timeout=60).close()


def test_python_in_a_pod_is_the_interpreter_that_runs_the_cluster(kubectl: Kubectl) -> None:
    command = ["python", "-c", "import sys; print(sys.prefix)"]
    assert kubectl.output("", c_command=command).strip() == sys.prefix


def test_environment_of_a_pod_holds_nothing_of_the_cluster_processes_environment(kubectl: Kubectl) -> None:
    names = {line.partition("=")[0] for line in kubectl.output("env").splitlines()}

    assert names - {"PWD", "SHLVL", "_", "OLDPWD"} == {
        "DEVCLUSTER_CONTAINER",
        "DEVCLUSTER_POD_UID",
        "HOME",
        "HOSTNAME",
        "KUBECONFIG",
        "KUBERNETES_SERVICE_HOST",
        "KUBERNETES_SERVICE_PORT",
        "LANG",
        "PATH",
        "TMPDIR",
    }


def test_ordinary_clients_in_a_pod_find_the_cluster_as_its_service_account(kubectl: Kubectl) -> None:
    user = json.loads(kubectl.output("kubectl auth whoami -o json"))["status"]["userInfo"]

    assert user["username"] == f"system:serviceaccount:{kubectl.namespace}:default"


def test_container_without_a_command_says_what_is_missing(kubectl: Kubectl) -> None:
    pod = kubectl.pod("p", "")
    del pod["spec"]["containers"][0]["command"]
    kubectl.apply(pod)

    waiting = kubectl.wait("pod/p", ".status.containerStatuses[0].state.waiting.reason", "ErrImagePull")

    message = waiting["status"]["containerStatuses"][0]["state"]["waiting"]["message"]
    assert "give the container a command" in message


def test_missing_program_is_a_start_error(kubectl: Kubectl) -> None:
    kubectl.apply(kubectl.pod("p", "", restartPolicy="Never", c_command=["no-such-program"]))

    ended = kubectl.wait_phase("p", "Failed")["status"]["containerStatuses"][0]["state"]["terminated"]

    assert ended["reason"] == "StartError"
    assert "no-such-program" in ended["message"]


def test_nothing_of_a_deleted_pod_survives_even_in_sessions_of_its_own(kubectl: Kubectl) -> None:
    script = "setsid sh -c \"trap '' TERM; sleep 1000\" & setsid -f sleep 1000; echo up; wait"
    pod = kubectl.ready_pod(script, terminationGracePeriodSeconds=1)
    assert marked_processes(uid(pod))

    kubectl("delete", "pod", "p")

    assert marked_processes(uid(pod)) == []


def test_forced_deletion_ends_the_processes_too(kubectl: Kubectl) -> None:
    kubectl.apply(
        kubectl.pod("p", "trap '' TERM; echo up; while :; do sleep 0.1; done", terminationGracePeriodSeconds=600)
    )
    pod = kubectl.wait_ready("pod/p")
    process = marked_processes(uid(pod))[0]
    handle = os.pidfd_open(process)

    kubectl("delete", "pod", "p", "--force", "--grace-period=0")

    assert select.select([handle], [], [], 60)[0], "the process outlived its pod"
    os.close(handle)


def test_container_whose_keeper_was_killed_is_ended_whole_and_restarted(kubectl: Kubectl) -> None:
    pod = kubectl.ready_pod("setsid -f sleep 1000; echo up; sleep 1000")
    first = marked_processes(uid(pod))
    keepers = {parent for pid, parent, _ in processes() if pid in first} - set(first)
    assert len(keepers) == 1

    os.kill(keepers.pop(), signal.SIGKILL)
    kubectl.wait("pod/p", ".status.containerStatuses[0].restartCount", "1")
    kubectl.wait("pod/p", ".status.containerStatuses[0].ready", "true")

    assert not set(first) & set(marked_processes(uid(pod)))


def test_memory_of_all_processes_counts_and_all_of_them_end(kubectl: Kubectl) -> None:
    """As in a control group of version 2, where the kernel kills a container as a whole."""
    grows = "x=$(head -c 50000000 /dev/zero | tr '\\0' x); sleep 1000"
    script = 'setsid sh -c "$GROWS" & setsid sh -c "$GROWS" & sleep 1000'
    fields = {"c_env": [{"name": "GROWS", "value": grows}], "c_resources": {"limits": {"memory": "80Mi"}}}
    kubectl.apply(kubectl.pod("p", script, restartPolicy="Never", **fields))

    pod = kubectl.wait_phase("p", "Failed")

    assert pod["status"]["containerStatuses"][0]["state"]["terminated"]["reason"] == "OOMKilled"
    assert marked_processes(uid(pod)) == []


def test_files_of_a_pod_go_with_it(kubectl: Kubectl) -> None:
    kubectl.ready_pod("sleep 1000")
    home, scratch = kubectl("exec", "p", "--", "sh", "-c", "pwd; echo $TMPDIR").split()
    assert Path(home).is_dir()

    kubectl("delete", "pod", "p", "--now")
    # The pod object goes once its processes and volumes have gone.
    assert not Path(home).exists()
    assert not Path(scratch).exists()


def test_restarted_cluster_restarts_the_containers_that_it_lost(data_dir: Path) -> None:
    with cluster_process(data_dir, CONFIG, keep_volumes=True) as running:
        kubectl = kubectl_of(running.kubeconfig)
        script = "echo run >> /scratch/runs; cat /scratch/runs; sleep 1000"
        kubectl.apply(
            kubectl.pod("always", script, **SCRATCH),
            kubectl.pod("never", "sleep 1000", restartPolicy="Never"),
            kubectl.pod("done", "echo kept", restartPolicy="Never"),
        )
        kubectl("wait", "pod/always", "pod/never", "--for=condition=Ready", "--timeout=60s")
        kubectl.wait_phase("done", "Succeeded")
        uids = [uid(kubectl.get(f"pod/{name}")) for name in ("always", "never")]
    assert [marked_processes(one) for one in uids] == [[], []]

    with cluster_process(data_dir, CONFIG) as running:
        kubectl = kubectl_of(running.kubeconfig)
        kubectl.wait("pod/always", ".status.containerStatuses[0].restartCount", "1")
        pod = kubectl.wait_ready("pod/always")
        assert pod["status"]["containerStatuses"][0]["lastState"]["terminated"]["exitCode"] == 137
        assert kubectl.wait_phase("never", "Failed")["status"]["containerStatuses"][0]["restartCount"] == 0
        assert kubectl("logs", "done") == "kept\n"
        # Its scratch volume has outlived the restart, as on a real node.
        assert kubectl("exec", "always", "--", "cat", "/scratch/runs") == "run\nrun\n"


def test_smaller_cluster_forgets_its_former_nodes_and_their_pods(data_dir: Path) -> None:
    with cluster_process(data_dir, ClusterConfig(num_nodes=2)) as running:
        kubectl = kubectl_of(running.kubeconfig)
        kubectl.apply(kubectl.pod("p", "sleep 1000", nodeSelector={"kubernetes.io/hostname": "dev-1"}))
        kubectl.wait_ready("pod/p")

    with cluster_process(data_dir, ClusterConfig(num_nodes=1)) as running:
        kubectl = kubectl_of(running.kubeconfig)
        kubectl("wait", "pod/p", "--for=delete", "--timeout=60s")
        assert kubectl("get", "nodes", "-o", "name").split() == ["node/dev-0"]


def test_nothing_survives_the_sudden_death_of_the_cluster(data_dir: Path) -> None:
    running = start_detached(data_dir, CONFIG)
    kubectl = kubectl_of(running.kubeconfig)
    pod = kubectl.ready_pod("setsid sleep 1000 & trap '' TERM; echo up; while :; do sleep 0.1; done")
    handles = []
    for pid in marked_processes(uid(pod)):
        with contextlib.suppress(ProcessLookupError):  # One of the short sleeps has ended.
            handles.append(os.pidfd_open(pid))
    assert len(handles) >= 2, "the shell and its long sleep"
    # The cluster itself takes a moment to end, and holds its lock until then.
    handles.append(os.pidfd_open(running.pid))

    os.kill(running.pid, signal.SIGKILL)

    for handle in handles:
        assert select.select([handle], [], [], 60)[0], "a process of a pod outlived the cluster"
        os.close(handle)
    assert find(data_dir) is None


def test_second_cluster_on_the_same_data_is_refused(data_dir: Path) -> None:
    start_detached(data_dir, CONFIG)

    second = cli("up", "--data-dir", str(data_dir))

    assert second.returncode == 1
    assert "already runs" in second.stderr


def test_two_clusters_live_side_by_side(data_dir: Path, tmp_path: Path) -> None:
    with cluster_process(data_dir, CONFIG) as one, cluster_process(tmp_path / "other", CONFIG) as two:
        addresses = []
        for running in (one, two):
            kubectl = kubectl_of(running.kubeconfig)
            kubectl.apply(kubectl.pod("p", "sleep 1000"))
            addresses.append(kubectl.wait_ready("pod/p")["status"]["podIP"])

    assert addresses[0] != addresses[1]


def test_taken_port_is_named(data_dir: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(LaunchError, match=f"{port}.*choose another --port"):
            start_detached(data_dir, ClusterConfig(port=port))


def test_command_line_starts_reports_and_stops(data_dir: Path) -> None:
    assert cli("status", "--data-dir", str(data_dir)).returncode == 1

    up = cli("up", "--data-dir", str(data_dir), "--nodes", "3", "--gpus-per-node", "8", "--detach")
    assert up.returncode == 0, up.stderr
    assert "development and tests only" in up.stdout
    assert f"KUBECONFIG={data_dir}/kubeconfig" in up.stdout
    assert cli("status", "--data-dir", str(data_dir)).returncode == 0
    kubectl = kubectl_of(data_dir / "kubeconfig")
    path = r"jsonpath={.items[*].status.allocatable.longshore\.dev/pretend-gpu}"
    assert kubectl("get", "nodes", "-o", path).split() == ["8", "8", "8"]

    assert cli("down", "--data-dir", str(data_dir), "--delete-volumes").returncode == 0
    assert find(data_dir) is None


def test_impossible_configuration_is_explained(data_dir: Path) -> None:
    refused = cli("up", "--data-dir", str(data_dir), "--nodes", "0")

    assert refused.returncode == 1
    assert "num_nodes is 0: give at least 1" in refused.stderr


def test_server_listens_on_loopback_only(kubectl: Kubectl, kubeconfig: Path) -> None:
    server = yaml.safe_load(kubeconfig.read_text())["clusters"][0]["cluster"]["server"]

    assert server.startswith("https://127.0.0.1:")
    assert ssl.get_server_certificate(("127.0.0.1", int(server.rsplit(":", 1)[1])))


def cli(*arguments: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-m", "longshore_devcluster", *arguments],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
