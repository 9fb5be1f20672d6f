"""A small cluster in memory, for specifications of the operator: jobs, pods, and a clock that is set by hand."""

import json
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Any

from longshore.api import names
from longshore.api.names import Component
from longshore.api.rljob import RLJob
from longshore.api.runtime_status import RuntimeStatus
from longshore.api.status import Phase, RLJobStatus
from longshore_kube.times import rfc3339
from longshore_operator.config import OperatorConfig
from longshore_operator.context import Observed
from longshore_operator.notices import newest_notice
from longshore_operator.plan import (
    Apply,
    CreateObject,
    CreateOnce,
    CreatePod,
    DeleteJob,
    DeleteObject,
    DeletePod,
    Event,
    LabelPod,
    Plan,
)
from longshore_operator.pod_group_api import PodGroupView
from longshore_operator.pod_view import PodView
from longshore_operator.reconcile import reconcile
from longshore_operator.settings import pod_settings_fingerprint

START = datetime(2026, 1, 1, tzinfo=UTC)
CONFIG = OperatorConfig(runtime_image="runtime:1")

SPEC: dict[str, Any] = {
    "model": {"builtin": "Tiny"},
    "data": {"builtin": "Counting"},
    "algorithm": {"steps": 3, "promptsPerStep": 4, "responsesPerPrompt": 2, "maxResponseTokens": 64},
    "storage": {"create": {"size": "1Gi"}},
    "workers": {"replicas": 2, "gpusPerPod": 1},
    "reward": {"pods": 1},
}

ALL_PODS = ["demo-coordinator", "demo-reward-0", "demo-worker-0", "demo-worker-1"]
"""Pods of a job like SPEC."""


def make_job(status: RLJobStatus | None = None, generation: int = 1, **spec: Any) -> RLJob:
    """A job with two workers and one reward pod, as the API server would store it."""
    job = _job_of(json.dumps(SPEC | spec))
    stored = (status or RLJobStatus()).model_dump(mode="json", by_alias=True, exclude_none=True)
    return job.model_copy(
        update={
            "metadata": {"name": "demo", "namespace": "team", "uid": "job-uid", "generation": generation},
            "status": RLJobStatus.model_validate(stored),
        }
    )


@lru_cache(maxsize=64)
def _job_of(spec: str) -> RLJob:
    """The same job again and again, with another status each time."""
    return RLJob.model_validate({"metadata": {"name": "demo"}, "spec": json.loads(spec)})


@lru_cache(maxsize=64)
def _spec_hash_of(spec: str) -> str:
    return pod_settings_fingerprint(_job_of(spec).spec)


@dataclass
class Cluster:
    """The cluster: what the operator applied, and what became of it."""

    spec: dict[str, Any] = field(default_factory=dict)
    status: RLJobStatus = field(default_factory=RLJobStatus)
    now: datetime = START
    generation: int = 1
    pods: dict[str, PodView] = field(default_factory=dict)
    children: dict[tuple[str, str], str] = field(default_factory=dict)
    manifests: dict[tuple[str, str], dict[str, Any]] = field(default_factory=dict)
    events: list[Event] = field(default_factory=list)
    job_deleted: bool = False
    reported_rejection: int = 0
    reported_notice: tuple[int, int] = (0, 0)
    config: OperatorConfig = CONFIG
    pod_group: dict[str, Any] | None = None
    """The PodGroup of the job."""
    pod_group_mistake: str = ""
    """Why there can be none."""
    _num_created: int = 0
    _applied_for: tuple[int, int] = (0, 0)
    _when_applied: tuple[object, ...] = ()

    @property
    def job(self) -> RLJob:
        return make_job(self.status, self.generation, **self.spec)

    def observed(self, pods: tuple[PodView, ...] | None = None, **more: Any) -> Observed:
        seen = tuple(self.pods.values()) if pods is None else pods
        spec = json.dumps(SPEC | self.spec)
        remembered: dict[str, Any] = {
            "reported_rejection": self.reported_rejection,
            "reported_notice": self.reported_notice,
            "spec_hash": _spec_hash_of(spec),
        }
        if _job_of(spec).spec.scheduling.pod_group is not None:
            remembered["pod_group"] = PodGroupView(self.pod_group, self.pod_group_mistake)
        remembered |= {"ray_token": "t0ken", "judge_token": "0ther", "reward_token": "own"}
        return Observed(pods=seen, children=dict(self.children), **(remembered | more))

    def plan(self, pods: tuple[PodView, ...] | None = None, **more: Any) -> Plan:
        """What a pass would do that looks at every child."""
        return reconcile(self.job, self.observed(pods, **more), self.now, self.config)

    def step(self, pods: tuple[PodView, ...] | None = None) -> Plan:
        """Make one pass of the operator.

        It remembers for what it has applied all children, unless it has restarted or somebody has changed them.
        """
        remembers = self._when_applied == (self.children, self.config)
        plan = self.plan(pods, applied_for=self._applied_for if remembers else (0, 0))
        self.apply(plan)
        return plan

    def reconcile_until_stable(self, limit: int = 30) -> None:
        """Passes until nothing is left to do; everything healthy comes up in between."""
        for _ in range(limit):
            before = (self.status, dict(self.pods), self.pod_group)
            self.step()
            self.kubelet()
            if before == (self.status, self.pods, self.pod_group):
                return
        raise AssertionError(f"not settled after {limit} passes: {self.status}")

    def apply(self, plan: Plan) -> None:
        if plan.status is not None:
            self.status = plan.status
        for action in plan.actions:
            self._apply(action)
        if plan.has_all_children and plan.status is not None:
            self._applied_for = self.generation, plan.status.attempt
            self._when_applied = dict(self.children), self.config
        self.reported_notice = max(self.reported_notice, newest_notice(self.status.runtime))

    def _apply(self, action: object) -> None:
        match action:
            case Apply(is_kept=True):
                self.children[action.key] = ""
                self.manifests.setdefault(action.key, action.manifest)
            case Apply():
                self.children[action.key] = action.fingerprint
                self.manifests[action.key] = action.manifest
            case CreateOnce():
                self.children.setdefault(action.key, "")
                self.manifests.setdefault(action.key, action.manifest)
            case CreatePod():
                if action.name not in self.pods:
                    self.pods[action.name] = self._new_pod(action.manifest)
                    self.manifests["Pod", action.name] = action.manifest
            case DeletePod():
                self.delete(action.name, action.uid)
            case LabelPod():
                self.label(action.name, action.uid, action.labels)
            case CreateObject() if action.manifest["kind"] == "PodGroup":
                assert self.pod_group is None, "there is one PodGroup"
                self._num_created += 1
                uid = {"uid": f"group-{self._num_created}"}
                self.pod_group = action.manifest | {"metadata": action.manifest["metadata"] | uid}
            case DeleteObject() if action.kind.startswith("PodGroup"):
                if self.pod_group is not None and self.pod_group["metadata"]["uid"] == action.uid:
                    self.pod_group = None
            case DeleteJob():
                self.job_deleted = True
            case Event():
                self.events.append(action)
                if action.reason == "AssignmentRejected":
                    self.reported_rejection = self.status.assignment.epoch

    def _new_pod(self, manifest: dict[str, Any]) -> PodView:
        from longshore_operator.pod_view import pod_view

        self._num_created += 1
        metadata = manifest["metadata"] | {"uid": f"uid-{self._num_created}", "resourceVersion": "1"}
        return pod_view(manifest | {"metadata": metadata, "status": {"phase": "Pending"}})

    # What happens to pods

    def kubelet(self) -> None:
        """Healthy progress of every pod by one stage: scheduled, running, ready; and deleted ones go."""
        for name, pod in list(self.pods.items()):
            if pod.deleting:
                del self.pods[name]
            elif pod.phase == "Pending" and not pod.scheduled:
                self.change(name, scheduled=True, node="node-0")
            elif pod.phase == "Pending":
                self.change(name, phase="Running", ip=f"10.0.0.{pod.index + 1}")
            elif pod.phase == "Running":
                self.change(name, ready=True, ready_since=pod.ready_since or rfc3339(self.now))

    def change(self, name: str, **fields: Any) -> None:
        self.pods[name] = replace(self.pods[name], **fields)

    def exit(self, name: str, code: int, message: str = "") -> None:
        self.change(
            name,
            phase="Succeeded" if code == 0 else "Failed",
            ready=False,
            exit_code=code,
            termination_message=message,
        )

    def delete(self, name: str, uid: str | None = None) -> None:
        """A delete request: pods without a node go at once, as do ended ones; others are given their grace."""
        pod = self.pods.get(name)
        if pod is None or (uid is not None and pod.uid != uid):
            return
        if pod.scheduled and not pod.terminal:
            self.change(name, deleting=True, ready=False)
        else:
            del self.pods[name]

    def label(self, name: str, uid: str, labels: dict[str, str]) -> None:
        pod = self.pods.get(name)
        if pod is not None and pod.uid == uid:
            role, tp_size = labels.get(names.LABEL_ROLE, pod.role), labels.get(names.LABEL_TP_SIZE, pod.tp_size)
            self.change(name, role=role, tp_size=tp_size)

    def report(self, runtime: RuntimeStatus) -> None:
        """The coordinator reports, and the operator looks until nothing is left to do."""
        self.status = self.status.model_copy(update={"runtime": runtime})
        self.reconcile_until_stable()

    def pass_time(self, seconds: float) -> None:
        self.now += timedelta(seconds=seconds)

    # Reading

    def names(self, keep: Callable[[PodView], bool] = lambda _: True) -> list[str]:
        return sorted(pod.name for pod in self.pods.values() if keep(pod))

    def condition(self, kind: str) -> tuple[str, str, str]:
        """(status, reason, message) of a condition."""
        found = next(c for c in self.status.conditions if c.type == kind)
        return found.status.value, found.reason, found.message

    def workers(self) -> list[PodView]:
        return [pod for pod in self.pods.values() if pod.component is Component.WORKER]


def running_cluster(**spec: Any) -> Cluster:
    """A job whose pods are all ready."""
    cluster = Cluster(spec=spec)
    cluster.reconcile_until_stable()
    assert cluster.status.phase is Phase.RUNNING
    return cluster
