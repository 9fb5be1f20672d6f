"""Defaults of deployments, replica sets and jobs."""

from longshore_devcluster.apiserver.builtin.pods import fill_template_spec
from longshore_devcluster.apiserver.schema.node import Object


def _fill_template(spec: Object) -> None:
    template = spec.setdefault("template", {})
    template.setdefault("metadata", {})
    fill_template_spec(template.setdefault("spec", {}))


def fill_deployment(deployment: Object) -> None:
    spec = deployment.setdefault("spec", {})
    spec.setdefault("replicas", 1)
    spec.setdefault("revisionHistoryLimit", 10)
    spec.setdefault("progressDeadlineSeconds", 600)
    strategy = spec.setdefault("strategy", {})
    strategy.setdefault("type", "RollingUpdate")
    if strategy["type"] == "RollingUpdate":
        rolling = strategy.get("rollingUpdate") or {}
        strategy["rollingUpdate"] = {"maxUnavailable": "25%", "maxSurge": "25%", **rolling}
    _fill_template(spec)
    deployment.setdefault("status", {})


def fill_replica_set(replica_set: Object) -> None:
    spec = replica_set.setdefault("spec", {})
    spec.setdefault("replicas", 1)
    labels = ((spec.get("template") or {}).get("metadata") or {}).get("labels")
    if labels and not spec.get("selector"):
        spec["selector"] = {"matchLabels": labels}
    _fill_template(spec)
    replica_set.setdefault("status", {"replicas": 0})


def fill_job(job: Object) -> None:
    spec = job.setdefault("spec", {})
    if spec.get("completions") is None and spec.get("parallelism") is None:
        spec["completions"] = 1
    spec.setdefault("parallelism", 1)
    spec.setdefault("backoffLimit", 6)
    spec.setdefault("completionMode", "NonIndexed")
    spec.setdefault("suspend", False)
    spec.setdefault("podReplacementPolicy", "TerminatingOrFailed")
    uid = job["metadata"].get("uid")
    if uid and not spec.get("manualSelector"):
        _select_by_uid(job, spec, uid)
    _fill_template(spec)
    job.setdefault("status", {})


def _select_by_uid(job: Object, spec: Object, uid: str) -> None:
    labels = {
        "batch.kubernetes.io/controller-uid": uid,
        "batch.kubernetes.io/job-name": job["metadata"]["name"],
        "controller-uid": uid,
        "job-name": job["metadata"]["name"],
    }
    spec.setdefault("selector", {"matchLabels": {"batch.kubernetes.io/controller-uid": uid}})
    metadata = spec.setdefault("template", {}).setdefault("metadata", {})
    metadata["labels"] = {**(metadata.get("labels") or {}), **labels}
