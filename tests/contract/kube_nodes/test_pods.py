"""Pods run to their end, restart, report and log."""

import time
from pathlib import Path

import kubernetes.client
import kubernetes.config
import kubernetes.stream

from tests.contract.kube_nodes.kube import SCRATCH, Json, Kubectl


def main_status(pod: Json) -> Json:
    found = pod["status"]["containerStatuses"][0]
    assert isinstance(found, dict)
    return found


def conditions(pod: Json) -> dict[str, str]:
    return {entry["type"]: entry["status"] for entry in pod["status"]["conditions"]}


def test_pod_that_ends_well_succeeds(kubectl: Kubectl) -> None:
    kubectl.apply(kubectl.pod("p", "echo hello", restartPolicy="Never"))

    pod = kubectl.wait_phase("p", "Succeeded")

    ended = main_status(pod)["state"]["terminated"]
    assert (ended["exitCode"], ended["reason"]) == (0, "Completed")
    assert kubectl("logs", "p") == "hello\n"
    assert conditions(pod)["Ready"] == "False"


def test_pod_that_fails_reports_its_exit_code_and_last_words(kubectl: Kubectl) -> None:
    script = "printf 'out of data' > /dev/termination-log; exit 7"
    kubectl.apply(kubectl.pod("p", script, restartPolicy="Never"))

    ended = main_status(kubectl.wait_phase("p", "Failed"))["state"]["terminated"]

    assert (ended["exitCode"], ended["reason"], ended["message"]) == (7, "Error", "out of data")


def test_container_over_its_memory_limit_is_reported_as_killed_for_it(kubectl: Kubectl) -> None:
    grows = "x=$(head -c 100000000 /dev/zero | tr '\\0' x); sleep 1000"
    kubectl.apply(kubectl.pod("p", grows, restartPolicy="Never", c_resources={"limits": {"memory": "48Mi"}}))

    ended = main_status(kubectl.wait_phase("p", "Failed"))["state"]["terminated"]

    assert (ended["exitCode"], ended["reason"]) == (137, "OOMKilled")


def test_last_words_may_come_from_the_log(kubectl: Kubectl) -> None:
    script = "echo first; echo last; exit 1"
    policy = "FallbackToLogsOnError"
    kubectl.apply(kubectl.pod("p", script, restartPolicy="Never", c_terminationMessagePolicy=policy))

    ended = main_status(kubectl.wait_phase("p", "Failed"))["state"]["terminated"]

    assert ended["message"] == "first\nlast\n"


def test_running_pod_is_ready_and_has_addresses(kubectl: Kubectl) -> None:
    pod = kubectl.ready_pod("sleep 1000")

    held = conditions(pod)
    assert {name for name, value in held.items() if value == "True"} >= {
        "PodScheduled",
        "Initialized",
        "ContainersReady",
        "Ready",
    }
    assert pod["status"]["podIP"]
    assert pod["status"]["hostIP"]
    assert pod["status"]["startTime"]
    assert main_status(pod)["state"]["running"]["startedAt"]
    assert set(kubectl.events("p")) >= {"Scheduled", "Started"}


def test_crashing_container_restarts_with_growing_delay_and_keeps_its_previous_log(kubectl: Kubectl) -> None:
    kubectl.apply(kubectl.pod("p", "echo run; exit 3"))

    waiting = "{.status.containerStatuses[0].state.waiting.reason}"
    kubectl("wait", "pod/p", f"--for=jsonpath={waiting}=CrashLoopBackOff", "--timeout=100s")
    pod = kubectl.get("pod/p")

    assert main_status(pod)["restartCount"] >= 1
    assert main_status(pod)["lastState"]["terminated"]["exitCode"] == 3
    assert pod["status"]["phase"] == "Running"
    deadline_s = time.monotonic() + 60
    # A restart meanwhile takes the older log away before the status names the newer one.
    while (log := kubectl("logs", "p", "--previous")) != "run\n":
        assert time.monotonic() < deadline_s, log
    assert "BackOff" in kubectl.events("p")


def test_on_failure_restarts_until_success(kubectl: Kubectl) -> None:
    script = "if [ -e /scratch/tried ]; then exit 0; fi; touch /scratch/tried; exit 1"
    kubectl.apply(kubectl.pod("p", script, restartPolicy="OnFailure", **SCRATCH))

    assert main_status(kubectl.wait_phase("p", "Succeeded"))["restartCount"] == 1


def test_init_containers_run_one_after_the_other_before_the_rest(kubectl: Kubectl) -> None:
    mounts = SCRATCH["c_volumeMounts"]
    init = [kubectl.container(one, f"echo {one} >> /scratch/order", volumeMounts=mounts) for one in ("one", "two")]

    assert kubectl.output("cat /scratch/order", initContainers=init, **SCRATCH) == "one\ntwo\n"

    ended = kubectl.get("pod/p")
    assert conditions(ended)["Initialized"] == "True"
    assert [entry["state"]["terminated"]["exitCode"] for entry in ended["status"]["initContainerStatuses"]] == [0, 0]


def test_failing_init_container_fails_a_pod_that_never_restarts(kubectl: Kubectl) -> None:
    init = [kubectl.container("prepare", "exit 9")]
    kubectl.apply(kubectl.pod("p", "echo never", restartPolicy="Never", initContainers=init))

    pod = kubectl.wait_phase("p", "Failed")

    assert "waiting" in main_status(pod)["state"]
    assert pod["status"]["initContainerStatuses"][0]["state"]["terminated"]["exitCode"] == 9


def test_sidecar_runs_beside_the_main_container_and_ends_after_it(kubectl: Kubectl) -> None:
    serving = "trap 'exit 0' TERM; touch /scratch/up; while :; do sleep 0.1; done"
    sidecar = kubectl.container("side", serving, restartPolicy="Always", volumeMounts=SCRATCH["c_volumeMounts"])
    script = "until [ -e /scratch/up ]; do sleep 0.1; done; echo served"
    kubectl.apply(kubectl.pod("p", script, restartPolicy="Never", initContainers=[sidecar], **SCRATCH))

    ended = kubectl.wait_phase("p", "Succeeded")

    assert kubectl("logs", "p", "-c", "main") == "served\n"
    assert ended["status"]["initContainerStatuses"][0]["state"]["terminated"]["exitCode"] == 0


def test_active_deadline_fails_the_pod(kubectl: Kubectl) -> None:
    kubectl.apply(kubectl.pod("p", "sleep 1000", restartPolicy="Never", activeDeadlineSeconds=2))

    assert kubectl.wait_phase("p", "Failed")["status"]["reason"] == "DeadlineExceeded"


def test_deleted_pod_gets_time_for_its_last_words(kubectl: Kubectl) -> None:
    script = "trap 'echo bye; exit 0' TERM; echo up; while :; do sleep 0.1; done"
    kubectl.ready_pod(script, terminationGracePeriodSeconds=60)
    follower = kubectl.start("logs", "-f", "p")
    assert follower.stdout is not None
    assert follower.stdout.readline() == "up\n"

    kubectl("delete", "pod", "p")

    assert follower.communicate(timeout=60)[0] == "bye\n"
    assert "NotFound" in kubectl.attempt("get", "pod", "p").stderr


def test_pod_that_ignores_sigterm_is_killed_after_its_grace_period(kubectl: Kubectl) -> None:
    script = "trap '' TERM; echo up; while :; do sleep 0.1; done"
    kubectl.ready_pod(script, terminationGracePeriodSeconds=1)

    kubectl("delete", "pod", "p", timeout_s=60)


def test_pre_stop_hook_runs_before_sigterm(kubectl: Kubectl) -> None:
    script = "trap 'cat /scratch/hook; exit 0' TERM; echo up; while :; do sleep 0.1; done"
    hook = {"preStop": {"exec": {"command": ["sh", "-c", "echo hooked > /scratch/hook"]}}}
    kubectl.ready_pod(script, c_lifecycle=hook, **SCRATCH)
    follower = kubectl.start("logs", "-f", "p")
    assert follower.stdout is not None
    assert follower.stdout.readline() == "up\n"

    kubectl("delete", "pod", "p")

    assert follower.communicate(timeout=60)[0] == "hooked\n"


def test_two_containers_share_the_pod_and_are_distinguished_by_name(kubectl: Kubectl) -> None:
    pod = kubectl.pod("p", "echo one", restartPolicy="Never")
    pod["spec"]["containers"].append(kubectl.container("other", "echo two"))
    kubectl.apply(pod)
    kubectl.wait_phase("p", "Succeeded")

    assert kubectl("logs", "p", "-c", "main") == "one\n"
    assert kubectl("logs", "p", "-c", "other") == "two\n"


def test_logs_can_be_cut(kubectl: Kubectl) -> None:
    assert kubectl.output("for i in 1 2 3 4; do echo $i; done") == "1\n2\n3\n4\n"
    for option, text in (("tail=2", "3\n4\n"), ("tail=0", ""), ("limit-bytes=3", "1\n2"), ("since=1h", "1\n2\n3\n4\n")):
        assert kubectl("logs", "p", f"--{option}") == text


def test_logs_can_carry_the_time(kubectl: Kubectl) -> None:
    kubectl.output("echo text")

    stamp, _, text = kubectl("logs", "p", "--timestamps").partition(" ")

    assert stamp.endswith("Z")
    assert stamp[:2] == "20"
    assert text == "text\n"


def test_exec_passes_input_output_and_exit_code(kubectl: Kubectl) -> None:
    kubectl.ready_pod("sleep 1000", c_env=[{"name": "COLOUR", "value": "blue"}])

    assert kubectl("exec", "p", "--", "sh", "-c", "echo $COLOUR") == "blue\n"
    assert kubectl("exec", "-i", "p", "--", "cat", stdin="over\nand out") == "over\nand out"
    failed = kubectl.attempt("exec", "p", "--", "sh", "-c", "echo complaint >&2; exit 5")
    assert failed.returncode == 5
    assert failed.stderr.startswith("complaint\n")


def test_python_client_execs_over_the_older_channel_protocol(kubectl: Kubectl, kubeconfig: Path) -> None:
    kubectl.ready_pod("sleep 1000")
    with kubernetes.config.new_client_from_config(str(kubeconfig)) as client:
        api = kubernetes.client.CoreV1Api(client)
        answer = kubernetes.stream.stream(
            api.connect_get_namespaced_pod_exec,
            "p",
            kubectl.namespace,
            command=["sh", "-c", "echo out; echo err >&2; exit 4"],
            stdout=True,
            stderr=True,
            stdin=False,
            tty=False,
            _preload_content=False,
        )
        answer.run_forever(timeout=60)

    assert (answer.read_stdout(), answer.read_stderr(), answer.returncode) == ("out\n", "err\n", 4)


def test_files_are_copied_in_and_out(kubectl: Kubectl, tmp_path: Path) -> None:
    local = tmp_path
    (local / "in").write_bytes(bytes(range(256)) * 1000)
    kubectl.ready_pod("sleep 1000", **SCRATCH)

    kubectl("cp", str(local / "in"), f"{kubectl.namespace}/p:/scratch/file")
    kubectl("cp", f"{kubectl.namespace}/p:/scratch/file", str(local / "out"))

    assert (local / "out").read_bytes() == (local / "in").read_bytes()
