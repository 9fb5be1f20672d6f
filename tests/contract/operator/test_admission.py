"""Jobs that need the same GPUs, with the operator's own admission: real API server, scheduler and pods."""

import json
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.contract.operator.harness import GPU, Jobs, Operator, eventually, job_spec, operators

Start = Callable[..., Operator]


@pytest.fixture
def start(jobs: Jobs, operator_kubeconfig: Path, tmp_path: Path) -> Iterator[Start]:
    """Starts an operator for the namespace of the test, with two GPUs and other limits."""
    limits = tmp_path / "admission.json"
    with operators(jobs, operator_kubeconfig, tmp_path, f"--admission={limits}") as start:

        def make(**others: Any) -> Operator:
            values = {"capacity": {GPU: 2}, "priorityClasses": {"urgent": {"value": 100}}} | others
            limits.write_text(json.dumps(values))
            return start()

        yield make


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
    jobs.wait_reported("second", "QuotaPending", f"the job needs 2 {GPU}, and 0 are free")
    jobs.wait_reported("huge", "TooLarge", f"needs 3 {GPU} and may have 2 at most")

    jobs.create("urgent", labels={"longshore.dev/priority-class": "urgent"}, **job_spec())
    jobs.wait_phase("Queued", "first")
    jobs.wait_phase("Running", "urgent")
    assert jobs.gpu_pods("first") == {}, "the GPUs are free before another job gets them"
    assert "Preempted" in jobs.event_reasons()

    before = jobs.gpu_pods("urgent")
    operator.stop(signal.SIGKILL)
    jobs.create("third", **job_spec())
    start()
    jobs.wait_reported("third", "QuotaPending", f"the job needs 2 {GPU}, and 0 are free; 2 jobs are ahead")
    assert jobs.gpu_pods("urgent") == before
    assert jobs.gpu_pods("second") == jobs.gpu_pods("huge") == {}

    jobs.delete("urgent")
    assert jobs.wait_phase("Running", "first")["attempt"] == 2
    assert "Resumed" in jobs.event_reasons()
    jobs.patch({"suspend": True}, "first")
    jobs.wait_phase("Running", "second")
    eventually("the suspended job has no pods", lambda: not jobs.gpu_pods("first"))


def test_an_elastic_job_gives_a_gpu_back_once_its_coordinator_does_without_it(jobs: Jobs, start: Start) -> None:
    start()
    spec = job_spec(replicas=2)
    jobs.create("stretchy", **spec | {"workers": spec["workers"] | {"minReplicas": 1}})
    status = jobs.wait_phase("Running", "stretchy")
    assert (status["admission"]["workers"], status["admission"]["gpus"]) == (2, {GPU: 2})
    jobs.report({"attempt": 1}, "stretchy")
    before = jobs.gpu_pods("stretchy")

    jobs.create("second", **job_spec(replicas=1))
    jobs.wait_reported("second", "QuotaPending", f"the job needs 1 {GPU}")
    eventually("it is asked for a pod", lambda: jobs.condition("Resizing", "stretchy").get("reason") == "Shrinking")
    size = jobs.status("stretchy")["assignment"]["size"]
    assert size == {"epoch": 2, "workers": 1, "held": 2}
    assert jobs.gpu_pods("stretchy") == before, "its coordinator may use both"
    assert jobs.gpu_pods("second") == {}

    jobs.report({"attempt": 1, "size": size}, "stretchy")
    jobs.wait_phase("Running", "second")
    assert jobs.gpu_pods("stretchy") == {name: uid for name, uid in before.items() if name != "stretchy-worker-1"}
    assert jobs.condition("Resizing", "stretchy")["reason"] == "AsGranted"
    assert jobs.status("stretchy")["phase"] == "Running"

    jobs.delete("second")
    eventually("it takes the GPU", lambda: jobs.status("stretchy")["assignment"]["size"]["workers"] == 2)
    assert len(jobs.gpu_pods("stretchy")) == len(before)
    assert {"Shrinking", "Growing", "Resized"} <= set(jobs.event_reasons())


def test_a_quota_above_the_capacity_is_logged_and_its_jobs_start_once_corrected(jobs: Jobs, start: Start) -> None:
    quotas = {jobs.namespace: {GPU: 3}}
    operator = start(quotas=quotas)
    jobs.create("wide", **job_spec(replicas=3))
    jobs.wait_reported("wide", "TooLarge", f"needs 3 {GPU} and may have 2 at most")
    assert f"admission.quotas.{jobs.namespace}: 3 {GPU} are more than the 2 of admission.capacity" in operator.log()
    operator.stop()
    operator = start(quotas=quotas, capacity={GPU: 4})
    assert jobs.wait_phase("Running", "wide")["admission"]["gpus"] == {GPU: 3}
    assert "are more than" not in operator.log()
