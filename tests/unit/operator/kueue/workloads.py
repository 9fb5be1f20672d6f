"""Workloads of a job in the states that Kueue and the operator give them."""

from dataclasses import replace
from typing import Any

from longshore_operator.config import OperatorConfig
from longshore_operator.kueue.view import KueueView
from longshore_operator.kueue.workload import workload
from longshore_operator.plan import PatchObject
from tests.unit.operator.model import make_job

CONFIG = OperatorConfig(runtime_image="runtime:1", kueue=True)
VIEW = KueueView("team", "v1beta2")


def conditions(**by_type: str) -> dict[str, Any]:
    """Return a Workload with conditions, each given as `Status/Reason/message`."""
    found = [
        dict(zip(("status", "reason", "message"), text.split("/"), strict=True))
        | {"type": kind, "lastTransitionTime": "2025-12-31T00:00:00Z"}
        for kind, text in by_type.items()
    ]
    return {"status": {"conditions": found}}


def stored(view: KueueView, **by_type: str) -> KueueView:
    """Return a view with the Workload of the job, as the API server has it."""
    made = workload(make_job(), CONFIG, view)
    made["metadata"] |= {"uid": "workload-uid", "resourceVersion": "7"}
    return replace(view, workload=made | conditions(**by_type))


def inactive(view: KueueView, *, by: str = "") -> KueueView:
    """Return a view in which the Workload takes no part, because the job is suspended, or by somebody's will."""
    assert view.workload is not None
    metadata, spec = view.workload["metadata"], {**view.workload["spec"], "active": False}
    if by:
        managers = [{"manager": "longshore-operator", "fieldsV1": {"f:spec": {"f:queueName": {}}}}]
        managers.append({"manager": by, "fieldsV1": {"f:spec": {"f:active": {}}}})
        metadata = {**metadata, "managedFields": managers}
    else:
        metadata = {**metadata, "annotations": {**metadata["annotations"], "longshore.dev/suspended": "true"}}
    return replace(view, workload={**view.workload, "metadata": metadata, "spec": spec})


SUSPENDED, RESUMED = (
    PatchObject(
        "demo-rljob",
        "Workload@v1beta2",
        {"metadata": {"annotations": {"longshore.dev/suspended": mark}}, "spec": {"active": mark is None}},
    )
    for mark in ("true", None)
)

ELASTIC = {"replicas": 8, "minReplicas": 2, "gpusPerPod": 4}


def assigned(count: int) -> KueueView:
    """Return a view of an admitted Workload with so many workers."""
    view = stored(VIEW, Admitted="True/Admitted/", QuotaReserved="True/QuotaReserved/")
    assert view.workload is not None
    admission = {"podSetAssignments": [{"name": "coordinator", "count": 1}, {"name": "worker", "count": count}]}
    return replace(view, workload={**view.workload, "status": {**view.status, "admission": admission}})
