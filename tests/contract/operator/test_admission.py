"""Jobs that need the same GPUs, with the operator's own admission: real API server, scheduler and pods."""

import json
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.contract.operator.harness import GPU, Jobs, Operator, eventually, job_spec

Start = Callable[[], Operator]


@pytest.fixture
def start(jobs: Jobs, operator_kubeconfig: Path, tmp_path: Path) -> Iterator[Start]:
    """Starts an operator for the namespace of the test, with two GPUs."""
    limits = tmp_path / "admission.json"
    limits.write_text(json.dumps({"capacity": {GPU: 2}, "priorityClasses": {"urgent": {"value": 100}}}))
    started: list[Operator] = []

    def make() -> Operator:
        log = tmp_path / f"operator-{len(started)}.log"
        options = (f"--namespace={jobs.namespace}", "--no-leader-election", f"--admission={limits}")
        started.append(Operator(operator_kubeconfig, log, *options))
        return started[-1]

    yield make
    for operator in started:
        operator.stop()
        print(operator.log())


def wait_reported(jobs: Jobs, name: str, reason: str, message: str) -> None:
    """Wait until the status says why the job waits."""

    def is_reported() -> bool:
        condition = jobs.condition("Admitted", name)
        return condition.get("reason") == reason and message in condition["message"]

    eventually(f"{name} waits because of {reason}: {message}", is_reported)


def pods_of(jobs: Jobs, name: str) -> dict[str, str]:
    """uid by name of the pods of a job that hold GPUs, if they have any."""
    return {
        pod: found.metadata.uid
        for pod, found in jobs.pods().items()
        if pod.startswith(f"{name}-") and found.status.phase in ("Pending", "Running")
    }


def test_gangs_take_turns_by_priority_and_a_restarted_operator_goes_on(jobs: Jobs, start: Start) -> None:
    operator = start()
    jobs.create("first", **job_spec())
    assert jobs.wait_phase("Running", "first")["admission"] == {
        "admitted": True,
        "gpus": {GPU: 2},
        "position": 0,
        "queue": "",
    }
    jobs.create("second", **job_spec())
    jobs.create("huge", **job_spec(replicas=3))
    wait_reported(jobs, "second", "QuotaPending", f"the job needs 2 {GPU}, and 0 are free")
    wait_reported(jobs, "huge", "TooLarge", f"needs 3 {GPU} and may have 2 at most")

    jobs.create("urgent", labels={"longshore.dev/priority-class": "urgent"}, **job_spec())
    jobs.wait_phase("Queued", "first")
    jobs.wait_phase("Running", "urgent")
    assert pods_of(jobs, "first") == {}, "the GPUs are free before another job gets them"
    assert "Preempted" in jobs.event_reasons()

    before = pods_of(jobs, "urgent")
    operator.stop(signal.SIGKILL)
    jobs.create("third", **job_spec())
    start()
    wait_reported(jobs, "third", "QuotaPending", f"the job needs 2 {GPU}, and 0 are free; 2 jobs are ahead")
    assert pods_of(jobs, "urgent") == before
    assert pods_of(jobs, "second") == pods_of(jobs, "huge") == {}

    jobs.delete("urgent")
    assert jobs.wait_phase("Running", "first")["attempt"] == 2
    assert "Resumed" in jobs.event_reasons()
    jobs.patch({"suspend": True}, "first")
    jobs.wait_phase("Running", "second")
    eventually("the suspended job has no pods", lambda: not pods_of(jobs, "first"))


def test_an_elastic_job_gives_a_gpu_back_once_its_coordinator_does_without_it(jobs: Jobs, start: Start) -> None:
    start()
    spec = job_spec(replicas=2)
    jobs.create("stretchy", **spec | {"workers": spec["workers"] | {"minReplicas": 1}})
    status = jobs.wait_phase("Running", "stretchy")
    assert (status["admission"]["workers"], status["admission"]["gpus"]) == (2, {GPU: 2})
    jobs.report({"attempt": 1}, "stretchy")
    before = pods_of(jobs, "stretchy")

    jobs.create("second", **job_spec(replicas=1))
    wait_reported(jobs, "second", "QuotaPending", f"the job needs 1 {GPU}")
    eventually("it is asked for a pod", lambda: jobs.condition("Resizing", "stretchy").get("reason") == "Shrinking")
    size = jobs.status("stretchy")["assignment"]["size"]
    assert size == {"epoch": 2, "workers": 1, "held": 2}
    assert pods_of(jobs, "stretchy") == before, "its coordinator may use both"
    assert pods_of(jobs, "second") == {}

    jobs.report({"attempt": 1, "size": size}, "stretchy")
    jobs.wait_phase("Running", "second")
    assert pods_of(jobs, "stretchy") == {name: uid for name, uid in before.items() if name != "stretchy-worker-1"}
    assert jobs.condition("Resizing", "stretchy")["reason"] == "AsGranted"
    assert jobs.status("stretchy")["phase"] == "Running"

    jobs.delete("second")
    eventually("it takes the GPU", lambda: jobs.status("stretchy")["assignment"]["size"]["workers"] == 2)
    assert len(pods_of(jobs, "stretchy")) == len(before)
    assert {"Shrinking", "Growing", "Resized"} <= set(jobs.event_reasons())
