"""What the chart's ValidatingAdmissionPolicy lets a coordinator write: status.runtime of its own job."""

from collections.abc import Iterator
from typing import Any

import pytest

from longshore.api import names
from tests.contract.kube_api.api import Answer, Api, eventually, role_binding
from tests.contract.kube_api.test_definitions import quickstart_job
from tests.contract.kube_api.test_install import installing

pytest.importorskip("helm_python")

Json = dict[str, Any]
RBAC = "/apis/rbac.authorization.k8s.io/v1"


@pytest.fixture(scope="module")
def installed(api: Api, kubeconfig: str) -> Iterator[None]:
    with installing(api, kubeconfig) as installer:
        installer.install()
        yield


class Job:
    """A stored RLJob, and its status as others write it."""

    def __init__(self, api: Api, namespace: str, name: str) -> None:
        self.api, self.namespace, self.name = api, namespace, name
        self.path = f"/apis/{names.API_VERSION}/namespaces/{namespace}/{names.PLURAL}/{name}"
        job = quickstart_job() | {"apiVersion": names.API_VERSION, "metadata": {"name": name}}
        answer = api.post(self.path.rpartition("/")[0], job)
        assert answer.status == 201, answer.text

    def apply_status(self, who: Api, status: Json, manager: str = names.COORDINATOR_FIELD_MANAGER) -> Answer:
        body = {"apiVersion": names.API_VERSION, "kind": names.KIND, "metadata": {"name": self.name}, "status": status}
        return who.apply(f"{self.path}/status", body, manager, force="true")

    def status(self) -> Json:
        found: Json = self.api.get(self.path).json.get("status", {})
        return found


@pytest.fixture
def job(api: Api, installed: None, namespace: str) -> Job:
    """A job of which the operator has written something."""
    job = Job(api, namespace, "demo")
    written = {"phase": "Running", "attempt": 1, "assignment": {"epoch": 3}}
    assert job.apply_status(api, written, names.OPERATOR_FIELD_MANAGER).status == 200
    return job


def account(api: Api, namespace: str, name: str, pod: str = "") -> Api:
    """A client with a token of a service account that may write every RLJob of the namespace."""
    accounts = f"/api/v1/namespaces/{namespace}/serviceaccounts"
    assert api.post(accounts, {"metadata": {"name": name}}).status == 201
    rule = {"apiGroups": [names.GROUP], "resources": [names.PLURAL, f"{names.PLURAL}/status"], "verbs": ["*"]}
    base = f"{RBAC}/namespaces/{namespace}"
    assert api.post(f"{base}/roles", {"metadata": {"name": name}, "rules": [rule]}).status == 201
    assert api.post(f"{base}/rolebindings", role_binding(name, namespace, name, name)).status == 201
    spec: Json = {}
    if pod:
        containers = [{"name": "c", "image": "x"}]
        body = {"schedulerName": "none", "serviceAccountName": name, "containers": containers}
        created = api.post(f"/api/v1/namespaces/{namespace}/pods", {"metadata": {"name": pod}, "spec": body})
        assert created.status == 201, created.text
        spec = {"boundObjectRef": {"kind": "Pod", "apiVersion": "v1", "name": pod}}
    token = api.post(f"{accounts}/{name}/token", {"spec": spec}).json["status"]["token"]
    return api.as_token(token)


@pytest.fixture
def coordinator(api: Api, job: Job) -> Api:
    """The coordinator's account, with more rights than the operator gives it: the policy holds regardless."""
    own = names.service_account(job.name)
    who = account(api, job.namespace, own, pod=own)
    eventually("the policy rules", lambda: "denied request" in job.apply_status(who, {"phase": "Failed"}).text)
    return who


def test_a_coordinator_reports(job: Job, coordinator: Api) -> None:
    for step in (1, 2):
        answer = job.apply_status(coordinator, {"runtime": {"attempt": 1, "step": step}})
        assert answer.status == 200, answer.text
    assert job.status()["runtime"]["step"] == 2
    assert job.status()["assignment"] == {"epoch": 3}


@pytest.mark.parametrize(
    "status",
    [
        {"phase": "Succeeded"},
        {"runtime": {"step": 1}, "attempt": 7},
        {"assignment": {"epoch": 4}},
        {
            "conditions": [
                {"type": "Complete", "status": "True", "reason": "r", "lastTransitionTime": "2026-01-01T00:00:00Z"}
            ]
        },
        {"completionTime": "2026-01-01T00:00:00Z"},
    ],
    ids=lambda status: "+".join(status),
)
def test_a_coordinator_writes_no_other_field_of_the_status(job: Job, coordinator: Api, status: Json) -> None:
    before = job.status()
    answer = job.apply_status(coordinator, status)
    assert (answer.status, answer.json["reason"]) == (403, "Forbidden")
    assert "a coordinator may write status.runtime and no other field of the status" in answer.json["message"]
    assert job.status() == before


def test_a_coordinator_removes_no_field_of_the_status(job: Job, coordinator: Api) -> None:
    answer = coordinator.patch(f"{job.path}/status", {"status": {"phase": None}})
    assert answer.status == 403
    assert job.status()["phase"] == "Running"


def test_a_coordinator_does_not_change_its_job(job: Job, coordinator: Api) -> None:
    answer = coordinator.patch(job.path, {"spec": {"suspend": True}})
    assert answer.status == 403
    assert "a coordinator may write the status of its own RLJob and nothing else" in answer.json["message"]
    assert not job.api.get(job.path).json["spec"].get("suspend")


def test_a_coordinator_writes_no_other_job(job: Job, coordinator: Api) -> None:
    other = Job(job.api, job.namespace, "other")
    assert other.apply_status(coordinator, {"runtime": {"step": 1}}).status == 403
    assert other.status() == {}


def test_others_are_not_meant(job: Job, coordinator: Api) -> None:
    person = account(job.api, job.namespace, "team-coordinator")

    def may_write() -> bool:
        answer = person.patch(job.path, {"spec": {"suspend": True}})
        assert "denied request" not in answer.text
        return answer.status == 200

    eventually("the rights of the account", may_write)
    nameless = quickstart_job() | {"apiVersion": names.API_VERSION, "metadata": {"generateName": "sweep-"}}
    assert person.post(job.path.rpartition("/")[0], nameless).status == 201
    assert job.apply_status(job.api, {"phase": "Suspended"}, names.OPERATOR_FIELD_MANAGER).status == 200
