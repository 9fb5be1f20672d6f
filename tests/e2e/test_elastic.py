"""Elastic GPUs on the embedded cluster: the real operator decides, the runtime executes, kubectl shows it.

Most of it with engines and trainers that compute nothing, so that what is around them can be killed at every stage.
"""

import json
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import pytest
import yaml

from longshore.api.names import Role
from tests.e2e.jobs import Cluster, Job, Json, assert_every_draw_once, fake_job

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]

NUM_PROMPTS, NUM_RESPONSES = 8, 4


def elastic_job(name: str, *, step_s: float = 0.02, pods: int = 2, **engine: Any) -> Json:
    """Streams, on pods of one pretended GPU each; the longest response of a round takes seconds."""
    manifest = fake_job(name)
    manifest["spec"]["algorithm"] |= {
        "steps": 8, "promptsPerStep": NUM_PROMPTS, "responsesPerPrompt": NUM_RESPONSES, "maxResponseTokens": 200,
        "longRoundUpdates": "One",  # Then long rounds stream, too.
    }  # fmt: skip
    manifest["spec"]["rollout"] = {
        "strategy": "TailBatching",
        "handover": "Streamed",
        "repurposing": {"trigger": "Fixed", "fraction": 0.25},
        "engine": {"backend": "Fake", "extraArgs": {"step_s": step_s, "sigma": 1.5}, **engine},
    }
    manifest["spec"]["workers"]["replicas"] = pods
    return manifest


def roles(job: Job) -> dict[str, str]:
    """Role label by pod."""
    pods = json.loads(job.cluster.kubectl("get", "pods", "-l", f"longshore.dev/job={job.name}", "-o", "json"))["items"]
    labels = {pod["metadata"]["name"]: pod["metadata"]["labels"] for pod in pods}
    return {name: label["longshore.dev/role"] for name, label in labels.items() if "longshore.dev/role" in label}


def wait_overlay(job: Job) -> int:
    """Wait until pods train in a round that runs; returns its number."""
    status = job.wait("pods train while others sample", lambda s: s.get("runtime", {}).get("trainerPods"))
    return int(status["runtime"]["round"]["number"])


def _collect(stream: IO[str], lines: list[str]) -> None:
    for line in stream:
        lines.append(line)


@contextmanager
def watched_roles(job: Job) -> Iterator[list[str]]:
    """`kubectl get pods -w` as a person would look; lines come as they are printed, the last before the block ends."""
    command = ["kubectl", "get", "pods", "-L", "longshore.dev/role,longshore.dev/tp-size", "-w", "--no-headers"]
    command += ["-l", f"longshore.dev/job={job.name},longshore.dev/component=worker"]
    environment = {**job.cluster.environment, "KUBECONFIG": str(job.cluster.kubeconfig)}
    lines: list[str] = []
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as watching:
        assert watching.stdout is not None
        reader = threading.Thread(target=_collect, args=(watching.stdout, lines))
        reader.start()
        try:
            yield lines
        finally:
            watching.terminate()
            reader.join()


def test_pods_visibly_train_while_others_sample_and_the_job_learns_as_on_one_pod(cluster: Cluster) -> None:
    """Rounds without a race, so that both jobs train on the same responses; sums of the fake trainer are exact."""
    elastic, single = elastic_job("roles"), elastic_job("single-pod", pods=1)
    for manifest in (elastic, single):
        manifest["spec"]["rollout"]["strategy"] = "Synchronous"
        manifest["spec"]["algorithm"]["steps"] = 5
    jobs = [cluster.apply(manifest) for manifest in (elastic, single)]
    with watched_roles(jobs[0]) as lines:
        for job in jobs:
            assert job.wait_finished()["phase"] == "Succeeded", job.story()
    assert_roles_were_seen(jobs[0], lines)
    repurposed = [row for row in jobs[0].metrics() if "repurpose/control_path_s" in row]
    assert repurposed
    assert any(row["repurpose/num_moved"] > 0 for row in repurposed)
    assert not any("repurpose/num_moved" in row for row in jobs[1].metrics())
    assert_each_response_on_one_replica(jobs[0])
    assert_every_draw_once(jobs[0].ledger(), NUM_PROMPTS, NUM_RESPONSES)
    weights = [(job.output() / "model" / "trainer.json").read_text() for job in jobs]
    assert json.loads(weights[0]) == json.loads(weights[1])
    for job in jobs:
        job.delete()


def assert_roles_were_seen(job: Job, lines: list[str]) -> None:
    """On the labels of its pods, by `kubectl get pods -w`, and in its events."""
    seen = [line.split()[-2] for line in lines if line.split()[0] == "roles-worker-1"]
    seen += [line.split()[-2] for line in lines if line.split()[0] == "roles-worker-0"]
    assert {"rollout", "trainer"} <= set(seen)
    assert seen[-1] == "rollout", "an overlay dies with its round"
    assert set(roles(job).values()) <= {"rollout"}
    events = job.cluster.kubectl("describe", "rljob", "roles")
    assert "GPUs to training at" in events
    assert "projected KV peak" in events
    assert "Repurposing" in events
    assert "Repurposed" in events


@contextmanager
def stopped_operator(cluster: Cluster) -> Iterator[None]:
    """No operator runs within the block."""
    namespace = ("-n", "longshore-system")
    operator = ("deployment/longshore-operator", *namespace)
    cluster.kubectl("scale", *operator, "--replicas=0")
    pods = ("pods", "-l", "app.kubernetes.io/name=longshore-operator")
    cluster.kubectl("wait", "--for=delete", *pods, *namespace, "--timeout=60s")
    try:
        yield
    finally:
        cluster.kubectl("scale", *operator, "--replicas=1")
        cluster.kubectl("rollout", "status", *operator, "--timeout=120s")


def awaits_operator(status: Json) -> bool:
    """A milestone is reported, and no assignment has come of it."""
    this_round = status.get("runtime", {}).get("round") or {}
    overlay = status["assignment"].get("overlay") or {}
    return bool(this_round.get("load")) and overlay.get("round", 0) < this_round["number"]


def awaits_acknowledgement(status: Json) -> bool:
    """Pods of the running round are to train, and their engines are on their way out."""
    runtime, overlay = status.get("runtime", {}), status["assignment"].get("overlay") or {}
    is_open = status["assignment"]["epoch"] > max(runtime.get("appliedEpoch", 0), runtime.get("rejectedEpoch", 0))
    return is_open and overlay.get("round") == (runtime.get("round") or {}).get("number")


def streams(status: Json) -> bool:
    """Pods train while others sample."""
    return bool(status.get("runtime", {}).get("trainerPods"))


def updates(status: Json) -> bool:
    """The round is over, and the trainers have the GPUs."""
    return bool(status.get("runtime", {}).get("activity") == "Train")


STAGES: tuple[tuple[str, Callable[[Json], bool], Role], ...] = (
    ("before its acknowledgement", awaits_acknowledgement, Role.TRAINER),
    ("while it streams", streams, Role.TRAINER),
    ("while it streams", streams, Role.ROLLOUT),
    ("during the update", updates, Role.ROLLOUT),
)


def worker_of(status: Json, role: Role) -> str:
    """One that trains, or is to; or one that samples."""
    leaving = set((status["assignment"].get("overlay") or {}).get("trainerPods", [1]))
    return f"worker-{min(leaving if role is Role.TRAINER else set(range(2)) - leaving)}"


@pytest.mark.soak
def test_whatever_dies_at_whichever_stage_of_a_repurposing_costs_time_and_no_draw(cluster: Cluster) -> None:
    """The operator, worker pods at every stage, and the coordinator before it has acknowledged.

    Without an operator rounds go on with every engine. Falling asleep takes a while, so that there are stages to hit.
    """
    manifest = elastic_job("mortal", step_s=0.03)
    manifest["spec"]["rollout"]["engine"]["extraArgs"]["sleep_s"] = 1.0
    manifest["spec"]["algorithm"]["steps"] = 1_000  # It is not to end before everything has died.
    job = cluster.apply(manifest)
    wait_overlay(job)
    with stopped_operator(cluster):
        # It answers what is reported, so the newest round that it can have answered is the one in the status.
        number = job.wait("a round", lambda s: s["runtime"].get("round"))["runtime"]["round"]["number"]
        after = job.wait("two further rounds", lambda s: s["runtime"]["round"]["number"] >= number + 2)
        assert not after["runtime"].get("trainerPods"), "no overlay outlives its round"
        (row,) = [row for row in job.metrics() if row["step"] == number + 1]
        assert "repurpose/control_path_s" not in row
        job.wait("a milestone is reported without an answer", awaits_operator)
        lost = job.remove("worker-1")
    job.wait_replaced("worker-1", lost)
    for stage, is_there, role in STAGES:
        worker = worker_of(job.wait(stage, is_there), role)
        job.wait_replaced(worker, job.remove(worker))
    assert job.status()["attempt"] == 1
    log = (job.output() / "logs" / "coordinator-1.log").read_text()
    assert "the trainers start again" in log
    assert "starting again from the newest checkpoint" not in log, "no round was repeated"
    job.wait("before its acknowledgement", awaits_acknowledgement)
    job.kill("coordinator")
    job.wait_resumed(attempt=2)
    assert_each_response_on_one_replica(job)
    assert_every_draw_once(job.ledger(), NUM_PROMPTS, NUM_RESPONSES, has_ended=False)
    job.delete()


def regroups(status: Json) -> bool:
    """The engines are to have another size, and have it not yet."""
    sizes = set(status["assignment"]["baseline"].get("tpSizes", {}).values())
    return bool(sizes) and status["runtime"]["tpSize"] not in sizes


@pytest.mark.soak
def test_engines_regroup_between_rounds_although_a_pod_dies_meanwhile(cluster: Cluster) -> None:
    """Four short rounds without a preemption halve the engines of short rounds; long rounds keep theirs for longer."""
    manifest = elastic_job("regroups", step_s=0.005, tensorParallelSize=2, parallelism="Adaptive")
    manifest["spec"]["rollout"]["engine"]["extraArgs"]["sleep_s"] = 1.0
    manifest["spec"]["algorithm"]["steps"] = 12
    manifest["spec"]["workers"]["gpusPerPod"] = 2
    job = cluster.apply(manifest)
    with watched_roles(job) as lines:
        job.wait("other sizes are asked for", regroups)
        job.remove("worker-1")
        status = job.wait_finished()
    assert status["phase"] == "Succeeded", job.story()
    assert status["attempt"] == 1
    sizes = [line.split()[-1] for line in lines if line.split()[0] == "regroups-worker-0"]
    assert sizes[0] == "2"
    assert "1" in sizes
    assert "tensor-parallel size 2 to 1: no preemption in 4 Short rounds" in cluster.kubectl(
        "describe", "rljob", "regroups"
    )
    assert_every_draw_once(job.ledger(), NUM_PROMPTS, NUM_RESPONSES)
    job.delete()


def demonstration(root: Path, name: str, **trainer: Any) -> Json:
    """`manifests/elastic.yaml`, cut down; it runs for longer than any test looks at it."""
    manifest: Json = yaml.safe_load((root / "manifests/elastic.yaml").read_text())
    manifest["metadata"]["name"] = name
    spec = manifest["spec"]
    spec["algorithm"]["warmStart"]["steps"] = 20
    spec["algorithm"] |= {"steps": 100, "promptsPerStep": 8, "maxResponseTokens": 200}
    spec["trainer"] |= {"verifyEvery": 2, **trainer}
    return manifest


def assert_each_response_on_one_replica(job: Job) -> None:
    """By the ledger of the job: streamed gradients are neither lost nor counted twice."""
    streamed = [row for row in job.ledger() if "replicas" in row]  # Rounds of several updates are not.
    assert streamed
    for row in streamed:
        trained = [f"{draw}-{index}" for draw, indices in row["trained"].items() for index in indices]
        computed = [response for responses in row["replicas"].values() for response in responses]
        assert sorted(computed) == sorted(trained)


def wait_repurposed_and_verified(job: Job) -> None:
    """Until pods have trained in a round and streamed gradients were compared: how soon depends on the machine."""

    def holds(status: Json) -> bool:
        rows = job.metrics() if status.get("runtime", {}).get("step", 0) >= 3 else []
        num_verified = sum("trainer/gradient_difference" in row for row in rows)
        return num_verified >= 3 and any("repurpose/control_path_s" in row for row in rows)

    job.wait("pods have trained while others sampled", holds)


def assert_exact_and_on_policy(job: Job) -> None:
    """Assert it of a job that still runs."""
    assert_each_response_on_one_replica(job)
    rows = job.metrics()
    differences = [row["trainer/gradient_difference"] for row in rows if "trainer/gradient_difference" in row]
    assert max(differences) < 2e-5, "streamed gradients are those of the whole batch"
    assert all(row["rollout_corr/log_prob_mismatch_max"] < 1e-4 for row in rows)
    assert_every_draw_once(job.ledger(), 8, 8, has_ended=False)


@pytest.mark.soak
def test_the_demonstration_repurposes_and_regroups_vllm_and_megatron(cluster: Cluster, root: Path) -> None:
    manifest = demonstration(root, "show")
    manifest["spec"]["rollout"]["engine"]["weightTransfer"] = "Direct"
    job = cluster.apply(manifest)
    with watched_roles(job) as lines:
        wait_repurposed_and_verified(job)
        job.wait("pods had both roles", lambda _: {"rollout", "trainer"} <= {line.split()[-2] for line in lines})
        job.wait("engines had both sizes", lambda _: {"1", "2"} <= {line.split()[-1] for line in lines})
    assert_exact_and_on_policy(job)
    job.delete()


@pytest.mark.soak
def test_trainers_in_pods_of_their_own_update_while_the_round_runs(cluster: Cluster, root: Path) -> None:
    """Complete groups go to the trainers of a disaggregated job one update at a time; a lost trainer pod comes back."""
    manifest = demonstration(root, "apart", backend="Torch")
    spec = manifest["spec"]
    # With the default width all groups would be in service, and end together.
    spec["rollout"] = {
        "strategy": "GroupPipeline",
        "admission": {"frontierWidth": 2},
        "engine": {"enforceEager": True},
    }
    num_steps = 10  # More than the job makes before the test has looked and killed.
    spec["algorithm"] |= {"steps": num_steps, "promptsPerUpdate": 2}
    spec["trainer"]["verifyEvery"] = 4
    spec["placement"] = "Disaggregated"
    spec["workers"] |= {"replicas": 1, "gpusPerPod": 1}
    spec["trainerWorkers"] = {**spec["workers"], "gpusPerPod": 2}
    job = cluster.apply(manifest)
    assert job.wait_step(1)["gpus"] == {"rollout": 1, "trainer": 2, "judge": 0}
    assert roles(job) == {"apart-worker-0": "rollout", "apart-trainer-0": "trainer"}
    job.wait_step(2)
    job.kill("trainer-0")
    status = job.wait_finished()
    assert status["phase"] == "Succeeded", job.story()
    assert status["attempt"] == 1
    rows = job.metrics()
    assert [row["actor/num_updates"] for row in rows] == [4] * num_steps
    # A round takes a second: on a busy machine its scores may come when the last response has ended.
    assert all(row["trainer/first_dispatch_s"] < row["timing_s/gen"] + row["timing_s/reward"] for row in rows)
    differences = [row["trainer/gradient_difference"] for row in rows if "trainer/gradient_difference" in row]
    assert differences and max(differences) < 2e-5
    assert_every_draw_once(job.ledger(), 8, 8, num_updates=4)
    job.delete()
