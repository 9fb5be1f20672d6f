"""Three teams with nine jobs on eight GPUs: the admission of the real operator, judged by what their pods hold.

Seven jobs hold GPUs until the test lets them end. Two train: one of them is preempted, and both learn the same.
"""

import json
import os
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml
from kubernetes import client, config

from tests.contract.operator.harness import GPU, HOLD, job_spec
from tests.e2e.bookings import Bookings, Gang
from tests.e2e.jobs import NUM_GPUS, Cluster, Job, Json, assert_every_draw_once
from tests.e2e.test_elastic_size import NUM_PROMPTS, NUM_RESPONSES, distance, learned, trained
from tests.e2e.test_elastic_size import job as training_job

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]

TEAMS = ("team-a", "team-b", "team-c")
QUOTAS = {"team-a": 4, "team-c": 2}
"""Two teams have quotas of their own."""
CLASSES = {"urgent": {"value": 100, "namespaces": ["team-b"]}, "background": {"value": -100}}
GANGS = {
    (team, name): Gang(("cluster", team), num_gpus)
    for team, gangs in {
        "team-a": {"stretchy": 1, "second": 2},
        "team-b": {"wide": 4, "pressing": 1, "small": 1, "urgent": 1},
        "team-c": {"first": 1, "exact": 1, "twin": 1},
    }.items()
    for name, num_gpus in gangs.items()
}
"""GPUs of the gang of each job, with the fewest workers that it may have."""
NUM_STEPS = 12


@dataclass(frozen=True)
class Held:
    """A job that holds its GPUs until it is let go."""

    job: Job
    gate: Path

    def wait_running(self) -> None:
        self.job.wait("it runs", is_running)

    def end(self) -> None:
        """Let its coordinator end, and wait for the end of the job."""
        with self.gate.open("w"):
            pass
        assert self.job.wait_finished()["phase"] == "Succeeded", self.job.story()


def is_running(status: Json) -> bool:
    return bool(status.get("phase") == "Running")


def held(team: Cluster, gate: Path, replicas: int, gpus_per_pod: int = 1, priority: str = "", least: int = 0) -> Held:
    """Apply a job whose pods compute nothing; `least`: it is elastic."""
    os.mkfifo(gate)
    command = f"trap 'exit 143' TERM; cat {gate} & wait $!"
    spec = job_spec(command, HOLD, replicas, gpus_per_pod)
    for component in ("coordinator", "workers"):
        [container] = spec[component]["template"]["spec"]["containers"]
        container["readinessProbe"] = container["readinessProbe"] | {"periodSeconds": 600}  # Once is enough.
    if least:
        spec["workers"]["minReplicas"] = least
    return Held(team.apply(manifest(gate.name, priority, spec)), gate)


def training(team: Cluster, name: str, modules: Path, priority: str = "") -> Job:
    """Apply a job that really trains, with a checkpoint only where it is stopped."""
    spec = training_job(name, modules, NUM_STEPS)["spec"]
    # Slow engines: the job must not end before another one preempts it.
    spec["rollout"]["engine"]["extraArgs"]["step_s"] = 0.05
    return team.apply(manifest(name, priority, spec))


def manifest(name: str, priority: str, spec: Json) -> Json:
    labels = {"longshore.dev/priority-class": priority} if priority else {}
    metadata = {"name": name, "labels": labels}
    return {"apiVersion": "longshore.dev/v1alpha1", "kind": "RLJob", "metadata": metadata, "spec": spec}


def give_back(job: Job, num_workers: int) -> None:
    """Play the coordinator of an elastic job: it goes on with the size that it is asked for, and says so."""
    status = job.wait(
        f"it is asked to do with {num_workers} workers",
        lambda status: status.get("assignment", {}).get("size", {}).get("workers") == num_workers,
    )
    report(job, {"attempt": 1, "size": status["assignment"]["size"]})


def report(job: Job, runtime: Json) -> None:
    change = json.dumps({"status": {"runtime": runtime}})
    job.cluster.kubectl("patch", "rljob", job.name, "--subresource=status", "--type=merge", "-p", change)


def wait_queued(job: Job, message: str) -> None:
    """Wait until the job is in the queue and says why."""

    def says(status: Json) -> bool:
        found = next((one for one in status.get("conditions", []) if one["type"] == "Admitted"), {})
        return status.get("phase") == "Queued" and message in found.get("message", "")

    job.wait(f"it waits: {message}", says)


def reasons(*teams: Cluster) -> dict[str, list[str]]:
    """Events of all jobs: names of the jobs by reason."""
    found: dict[str, list[str]] = {}
    for team in teams:
        for event in json.loads(team.kubectl("get", "events", "-o", "json"))["items"]:
            found.setdefault(event["reason"], []).append(event["involvedObject"]["name"])
    return found


def checkpoints(job: Job) -> set[int]:
    """Steps after which there is one; 0: before the first."""
    return {int(path.name.removeprefix("step-")) for path in (job.output() / "checkpoints").glob("step-*")}


@pytest.fixture
def teams(cluster: Cluster, tmp_path: Path) -> Iterator[tuple[Cluster, ...]]:
    """Namespaces of three teams, and an operator that lets them share eight GPUs."""
    limits = {"capacity": {GPU: NUM_GPUS}, "quotas": {team: {GPU: count} for team, count in QUOTAS.items()}}
    nothing: Json = {"capacity": {}, "quotas": {}, "priorityClasses": {}}
    values = tmp_path / "values.yaml"
    with ExitStack() as stack:
        stack.callback(cluster.longshore, "up", "--values", str(values))
        stack.callback(values.write_text, yaml.safe_dump({"admission": nothing}))
        values.write_text(yaml.safe_dump({"admission": limits | {"priorityClasses": CLASSES}}))
        cluster.longshore("up", "--values", str(values))
        yield tuple(stack.enter_context(cluster.in_namespace(team)) for team in TEAMS)


@pytest.mark.soak
def test_nine_jobs_of_three_teams_share_eight_gpus_and_none_is_held_twice(
    cluster: Cluster, teams: tuple[Cluster, ...], tmp_path: Path
) -> None:
    a, b, c = teams
    core = client.CoreV1Api(config.new_client_from_config(str(cluster.kubeconfig)))
    with Bookings(core, GANGS, {"cluster": NUM_GPUS, "team-b": NUM_GPUS, **QUOTAS}) as bookings:
        wide = held(b, tmp_path / "wide", 2, gpus_per_pod=2)
        first = held(c, tmp_path / "first", 1)
        stretchy = held(a, tmp_path / "stretchy", 3, least=1)
        for one in (wide, first, stretchy):
            one.wait_running()
        report(stretchy.job, {"attempt": 1})

        pressing = held(b, tmp_path / "pressing", 1, priority="urgent")
        give_back(stretchy.job, 2)
        pressing.wait_running()
        exact = training(c, "exact", tmp_path, "background")
        give_back(stretchy.job, 1)
        exact.wait("it has its GPU", lambda status: status.get("phase") in ("Pending", "Starting", "Running"))
        assert "Preempted" not in reasons(*teams), "an elastic job shrinks before another one stops"

        second = held(a, tmp_path / "second", 2)
        wait_queued(second.job, f"the job needs 2 {GPU}, and 0 are free")
        small = held(b, tmp_path / "small", 1)
        wait_queued(small.job, f"the job needs 1 {GPU}, and 0 are free; 1 job is ahead")
        twin = training(c, "twin", tmp_path)
        wait_queued(twin, "left of the quota of namespace team-c; 2 jobs are ahead")

        num_trained = exact.wait_step(1)["runtime"]["step"]
        assert checkpoints(exact) == {0}
        urgent = held(b, tmp_path / "urgent", 1, priority="urgent")
        urgent.wait_running()
        assert reasons(*teams)["Preempted"] == ["exact"]
        wait_queued(exact, f"the job needs 1 {GPU}, and 0 are free; 3 jobs are ahead")
        [checkpoint], steps_before = checkpoints(exact) - {0}, exact.metrics()
        assert num_trained <= steps_before[-1]["step"] == checkpoint < NUM_STEPS, "it was stopped with a checkpoint"

        pressing.end()
        wait_queued(second.job, f"the job needs 2 {GPU}, and 1 is free")
        wait_queued(small.job, "a job of another namespace may need: it is ahead and waits for more")
        urgent.end()
        second.wait_running()
        first.end()
        small.wait_running()
        wide.end()
        statuses = [job.wait_finished() for job in (exact, twin)]
        for one in (small, second, stretchy):
            one.end()

    assert bookings.double == [], "GPUs were held twice, or a gang was not whole"
    assert bookings.peak["cluster"] == NUM_GPUS
    order = bookings.began
    assert set(order[:3]) == {("wide", 1), ("first", 1), ("stretchy", 1)}
    assert order[3:8] == [("pressing", 1), ("exact", 1), ("urgent", 1), ("second", 1), ("small", 1)], "in turn"
    assert set(order[8:]) == {("twin", 1), ("exact", 2)}

    assert [(status["phase"], status["attempt"]) for status in statuses] == [("Succeeded", 2), ("Succeeded", 1)]
    assert exact.metrics()[: len(steps_before)] == steps_before, "no step was repeated"
    for job in (exact, twin):
        assert_every_draw_once(job.ledger(), NUM_PROMPTS, NUM_RESPONSES)
    assert trained(exact) == trained(twin)
    assert distance(learned(exact), learned(twin)) == 0, "a job that was preempted learns what others learn"
