"""A job takes no GPUs past the admission: what its pods request is what is counted."""

from dataclasses import replace
from typing import Any

import pytest

from longshore.api.status import Phase
from longshore_operator.admission.admission_status import uncounted_gpus
from longshore_operator.config import AdmissionConfig
from longshore_operator.kueue.view import KueueView
from longshore_operator.reconcile import reconcile
from tests.unit.operator.admission.test_reconcile_admission import ADMITTED
from tests.unit.operator.model import CONFIG, Cluster, make_job
from tests.unit.operator.test_judge_pools import judged

GPU = "nvidia.com/gpu"
DEVICES = "deviceclass.resource.kubernetes.io/mig.nvidia.com"
LIMITED = replace(CONFIG, admission=AdmissionConfig(quotas={"team": {GPU: 8, "amd.com/gpu": 8}}))
MORE = {"workers": {"replicas": 2, "gpusPerPod": 1}, "coordinator": {"resources": {GPU: "8"}}}


def template(kind: str = "containers", name: str = "longshore", amount: Any = 8, resource: str = GPU) -> dict[str, Any]:
    resources = {key: {resource: amount} for key in ("requests", "limits")}
    return {"template": {"spec": {kind: [{"name": name, "resources": resources}]}}}


@pytest.mark.parametrize(
    ("field", "spec"),
    [
        ("coordinator", {"coordinator": {"resources": {GPU: "8"}}}),
        ("coordinator", {"coordinator": template()}),
        ("reward", {"reward": {"pods": 1, "resources": {GPU: 1}}}),
        ("workers", {"workers": {"gpusPerPod": 1, **template(name="sidecar", amount="1")}}),
        ("workers", {"workers": {"gpusPerPod": 1, **template("initContainers", "first", 2)}}),
        ("workers", {"workers": {"gpusPerPod": 1, **template(resource="amd.com/gpu", amount=1)}}),
        (
            "trainerWorkers",
            {"placement": "Disaggregated", "trainerWorkers": {"replicas": 1, "gpusPerPod": 1, **template()}},
        ),
    ],
)
def test_gpus_that_nobody_counts_are_refused_with_the_field(field: str, spec: dict[str, Any]) -> None:
    refused = uncounted_gpus(make_job(**spec), LIMITED)
    assert refused is not None
    assert refused.startswith(f"spec.{field}: a pod requests ")


@pytest.mark.parametrize(
    ("field", "spec"),
    [
        ("coordinator", {"coordinator": {"resources": {DEVICES: 8}}}),
        ("workers", {"workers": template(resource=DEVICES)}),
        ("workers", {"workers": {"gpusPerPod": 8, "gpuResourceName": DEVICES}}),
    ],
)
def test_devices_of_a_class_without_a_limit_are_refused(field: str, spec: dict[str, Any]) -> None:
    refused = uncounted_gpus(make_job(**spec), LIMITED)
    assert refused is not None
    assert refused.startswith(f"spec.{field}: a pod requests {DEVICES}, devices of a DeviceClass")


def test_devices_of_a_class_with_a_limit_are_counted() -> None:
    limited = replace(CONFIG, admission=AdmissionConfig(quotas={"team": {DEVICES: 8}}))
    workers = {"gpusPerPod": 8, "gpuResourceName": DEVICES}
    assert uncounted_gpus(make_job(workers=workers), limited) is None
    assert uncounted_gpus(make_job(workers=workers, coordinator={"resources": {DEVICES: 1}}), limited) is not None


def test_resource_claims_of_a_template_are_refused_where_gpus_are_limited() -> None:
    claims = {"template": {"spec": {"resourceClaims": [{"name": "gpus", "resourceClaimTemplateName": "eight"}]}}}
    refused = uncounted_gpus(make_job(workers=claims), LIMITED)
    assert refused is not None
    assert refused.startswith("spec.workers.template.spec.resourceClaims: ")
    assert uncounted_gpus(make_job(workers=claims), CONFIG) is None


def test_a_judge_is_named_by_its_reward_function() -> None:
    spec = judged()
    pool = next(one["judge"]["pool"] for one in spec["reward"]["functions"] if "pool" in one.get("judge", {}))
    pool |= template(name="sidecar")
    refused = uncounted_gpus(make_job(**spec), LIMITED)
    assert refused is not None
    assert ".judge.pool: a pod requests 8 nvidia.com/gpu" in refused


@pytest.mark.parametrize(
    "spec",
    [
        {},
        judged(),
        {"workers": {"gpusPerPod": 4, "resources": {"cpu": "8", "rdma/hca": "1"}}},
        {"workers": {"gpusPerPod": 4, **template(amount="4")}},
        {"workers": {"gpusPerPod": 4, **template(resource="rdma/hca")}},
    ],
)
def test_what_is_counted_and_what_has_no_limit_is_allowed(spec: dict[str, Any]) -> None:
    assert uncounted_gpus(make_job(**spec), LIMITED) is None


def test_without_limits_everything_is_allowed() -> None:
    assert uncounted_gpus(make_job(**MORE), CONFIG) is None


def test_a_job_with_such_pods_fails_before_it_has_any() -> None:
    cluster = Cluster(spec=MORE, config=LIMITED)
    cluster.step()
    assert (cluster.status.phase, cluster.pods) == (Phase.FAILED, {})
    assert cluster.condition("Failed")[1:] == (
        "TemplateRefused",
        "spec.coordinator: a pod requests 8 nvidia.com/gpu besides gpusPerPod, and only gpusPerPod of workers, "
        "trainerWorkers and judge pools is counted against the limits; remove them from resources and template",
    )


def test_kueue_counts_every_request() -> None:
    cluster = Cluster(spec=MORE, config=replace(LIMITED, kueue=True))
    cluster.apply(reconcile(cluster.job, cluster.observed(kueue=KueueView("team")), cluster.now, cluster.config))
    assert cluster.status.phase is Phase.QUEUED


def test_a_job_that_runs_when_limits_come_keeps_its_gpus_until_its_settings_change() -> None:
    cluster = Cluster(spec=MORE)
    for _ in range(9):
        cluster.step()
        cluster.kubelet()
    cluster.config = LIMITED
    cluster.apply(cluster.plan(admission=ADMITTED))
    assert cluster.status.phase is Phase.RUNNING
    cluster.spec, cluster.generation = MORE | {"checkpoint": {"everySteps": 2}}, 4
    cluster.apply(cluster.plan(admission=ADMITTED))
    assert cluster.status.phase is Phase.FAILED
