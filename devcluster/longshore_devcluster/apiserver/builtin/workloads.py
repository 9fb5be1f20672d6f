"""Defaults of deployments and replica sets."""

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
