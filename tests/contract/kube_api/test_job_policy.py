"""What the chart's ValidatingAdmissionPolicy says of RLJobs when they are written."""

import json
import time
from collections.abc import Iterator
from typing import Any

import pytest

from longshore.api import names
from longshore_operator.template_rules import refusals
from tests.contract.kube_api.api import Answer, Api, eventually
from tests.contract.kube_api.test_definitions import quickstart_job
from tests.contract.kube_api.test_install import Installer, installing

pytest.importorskip("helm_python")

Json = dict[str, Any]

LIMITS = {"maxGpus": 8, "maxPods": 6, "images": ["registry.example.com/rl/"], "requireQueue": True}
QUEUE = {"kueue.x-k8s.io/queue-name": "team"}
OWN = "longshore"


@pytest.fixture(scope="module")
def installer(api: Api, kubeconfig: str) -> Iterator[Installer]:
    with installing(api, kubeconfig) as installer:
        set_limits(installer)
        yield installer


def set_limits(installer: Installer, **other: Any) -> None:
    """Install or upgrade the chart."""
    installer.install(jobPolicy=LIMITS | other, templates={"priorityClasses": ["urgent"]})


@pytest.fixture(scope="module")
def jobs(api: Api, installer: Installer) -> str:
    """Where jobs are written, once the policy is in force."""
    path = f"/apis/{names.API_VERSION}/namespaces/default/{names.PLURAL}"
    eventually("the policy", lambda: "kueue.x-k8s.io/queue-name" in create(api, path, labels={}).text)
    return path


def rljob() -> Json:
    return quickstart_job() | {"apiVersion": names.API_VERSION}


def create(api: Api, path: str, labels: Json | None = None, **spec: Any) -> Answer:
    """Ask for a job without keeping it."""
    job = rljob()
    metadata = {"name": "demo", "labels": QUEUE if labels is None else labels}
    return api.post(path, {**job, "metadata": metadata, "spec": {**job["spec"], **spec}}, dryRun="All")


def templated(**pod: Any) -> Json:
    return {"workers": {"template": {"spec": pod}}}


def with_container(**container: Any) -> Json:
    return templated(containers=[{"name": OWN, **container}])


REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
EIGHT_GPUS: Json = {"workers": {"replicas": 2, "gpusPerPod": 4}, "reward": {"pods": 1}}


def hosted(**pods: Any) -> Json:
    """A job with an environment, and what that says of its pods."""
    return {"environments": [{"name": "world", "kind": "Python", "importPath": "games:Guess", "pods": pods}]}


HARMLESS: list[Json] = [
    {},
    {"image": "registry.example.com/rl/runtime:2"},
    {"coordinator": {"template": None}},
    templated(nodeSelector={"gpu": "h100"}, volumes=None, containers=None),
    templated(priorityClassName="urgent", runtimeClassName="gvisor"),
    templated(volumes=[{"name": "cache", "emptyDir": {}}], containers=[{"name": OWN, "volumeMounts": []}]),
    with_container(securityContext=None, ports=None),
    templated(volumes=[{"name": "all", "projected": {"sources": None}}, {"name": "none", "projected": None}]),
    with_container(securityContext={"runAsUser": 1001}, ports=[{"containerPort": 9000}]),
    EIGHT_GPUS,
    hosted(),
    hosted(count=2, image="registry.example.com/rl/world:3", runtimeClassName="kata", resources={"cpu": 2}),
    templated(
        initContainers=[{"name": "proxy", "image": "registry.example.com/rl/p", "restartPolicy": "Always"}],
        containers=[{"name": OWN, "restartPolicy": None}],
    ),
    {"coordinator": {"resources": {"cpu": 1, "rdma/hca": 1}}},
    with_container(resources={"requests": {"cpu": 1}, "limits": None}),
    with_container(resources=None),
    templated(affinity={"podAntiAffinity": {REQUIRED: [{"topologyKey": "rack", "labelSelector": {}}]}}),
    templated(affinity={"podAntiAffinity": {REQUIRED: None}}, resources={"requests": {"cpu": 8}}, resourceClaims=[]),
    templated(affinity={"podAntiAffinity": None}, resources=None, resourceClaims=None),
]
REFUSED: list[tuple[str, Json]] = [
    ("has a field that is not for templates", templated(hostNetwork=True)),
    ("has a field that is not for templates", {"coordinator": {"template": {"spec": {"serviceAccountName": "admin"}}}}),
    ("has a field that is not for templates", {"reward": {"template": {"spec": {"nodeName": "node-0"}}}}),
    ("only configMap, csi", templated(volumes=[{"name": "host", "hostPath": {"path": "/"}}])),
    (
        "is another identity",
        templated(volumes=[{"name": "t", "projected": {"sources": [{"serviceAccountToken": {"path": "t"}}]}}]),
    ),
    ("has a securityContext that is not for templates", with_container(securityContext={"privileged": True})),
    (
        "has a securityContext that is not for templates",
        templated(initContainers=[{"name": "i", "image": "registry.example.com/rl/i",
                                   "securityContext": {"capabilities": {"add": ["SYS_ADMIN"]}}}]),
    ),
    ("but the operator replaces it with its pod", with_container(restartPolicy="Always")),
    ("but the operator replaces it with its pod", with_container(restartPolicyRules=[{"action": "Restart"}])),
    (
        "but the operator replaces it with its pod",
        templated(initContainers=[{"name": "i", "image": "registry.example.com/rl/i", "restartPolicy": "OnFailure"}]),
    ),
    ("opens a port of its node", with_container(ports=[{"containerPort": 1, "hostPort": 1}])),
    *(
        (
            "keeps pods of other namespaces from nodes",
            templated(affinity={"podAntiAffinity": {REQUIRED: [{"topologyKey": "rack", scope: of_all}]}}),
        )
        for scope, of_all in (("namespaceSelector", {}), ("namespaces", ["team-b"]))
    ),
    ("only urgent may be named here", templated(priorityClassName="system-node-critical")),
    ("only gvisor, kata may be named here", {"reward": {"runtimeClassName": "runc"}}),
    ("only gvisor, kata may be named here", hosted(runtimeClassName="runc")),
    ("has a field that is not for templates", hosted(template={"spec": {"hostPID": True}})),
    ("are not counted against the limit of 8 GPUs", hosted(resources={"nvidia.com/gpu": 1})),
    ("more than 6 pods", hosted(count=9)),
    ("images of jobs must begin with registry.example.com/rl/", hosted(image="docker.io/anybody/anything")),
    ("more than 8 GPUs", {"workers": {"replicas": 3, "gpusPerPod": 4}}),
    ("are not counted against the limit of 8 GPUs", {"coordinator": {"resources": {"nvidia.com/gpu": 8}}}),
    ("are not counted against the limit of 8 GPUs", {"reward": {"resources": {"nvidia.com/gpu.shared": 8}}}),
    ("are not counted against the limit of 8 GPUs", {"workers": {"resources": {"nvidia.com/mig-1g.5gb": 8}}}),
    (
        "are not counted against the limit of 8 GPUs",
        {"workers": {"gpuResourceName": "habana.ai/gaudi", "resources": {"habana.ai/gaudi": 8}}},
    ),
    (
        "are not counted against the limit of 8 GPUs",
        {"coordinator": {"template": {"spec": {"containers": [
            {"name": OWN},
            {"name": "more", "image": "registry.example.com/rl/i", "resources": {"limits": {"amd.com/gpu": 8}}},
        ]}}}},
    ),
    (
        "are not counted against the limit of 8 GPUs",
        {"workers": {"template": {"spec": {
            "resourceClaims": [{"name": "gpus", "resourceClaimTemplateName": "eight"}],
            "containers": [{"name": OWN, "image": "registry.example.com/rl/i"}],
        }}}},
    ),
    *(
        (
            "are not counted against the limit of 8 GPUs",
            {"coordinator": {"resources": {f"deviceclass.resource.kubernetes.io/{name}": 7}}},
        )
        for name in ("h100", "mig.nvidia.com")
    ),
    ("more than 6 pods", {"workers": {"replicas": 2, "gpusPerPod": 1}, "reward": {"pods": 1, "maxPods": 9}}),
    ("images of jobs must begin with registry.example.com/rl/", {"image": "docker.io/anybody/anything"}),
    ("images of jobs must begin with", with_container(image="docker.io/anybody/anything")),
]  # fmt: skip


@pytest.mark.parametrize("spec", HARMLESS, ids=json.dumps)
def test_harmless_jobs_are_accepted(api: Api, jobs: str, spec: Json) -> None:
    answer = create(api, jobs, **spec)
    assert answer.status == 201, answer.text


@pytest.mark.parametrize(("why", "spec"), REFUSED, ids=[json.dumps(spec) for _, spec in REFUSED])
def test_a_job_that_goes_beyond_what_is_allowed_is_refused_with_a_sentence(
    api: Api, jobs: str, why: str, spec: Json
) -> None:
    answer = create(api, jobs, **spec)
    assert answer.status in (403, 422), answer.text
    assert why in answer.json["message"]


def test_a_job_without_a_queue_is_refused_where_one_is_required(api: Api, jobs: str) -> None:
    for labels in ({}, {"other": "x"}, {"kueue.x-k8s.io/queue-name": ""}):
        answer = create(api, jobs, labels=labels)
        assert "set the label kueue.x-k8s.io/queue-name" in answer.json["message"]


def test_a_job_cannot_leave_its_queue_where_one_is_required(api: Api, jobs: str) -> None:
    metadata = {"name": "queued", "labels": QUEUE | {"other": "x"}}
    made = api.post(jobs, rljob() | {"metadata": metadata})
    assert made.status == 201, made.text
    path = f"{jobs}/queued"

    def relabelled(**labels: str | None) -> Answer:
        return api.patch(path, {"metadata": {"labels": labels}})

    try:
        for empty in (None, ""):
            answer = relabelled(**{"kueue.x-k8s.io/queue-name": empty})
            assert answer.status in (403, 422), answer.text
            assert "set the label kueue.x-k8s.io/queue-name" in answer.json["message"]
        assert relabelled(other=None).status == 200
        assert relabelled(**{"kueue.x-k8s.io/queue-name": "another"}).status == 200
        assert api.patch(path, {"spec": {"suspend": True}}).status == 200
    finally:
        assert api.delete(path).status == 200


@pytest.mark.parametrize("spec", [spec for why, spec in REFUSED if "template" in json.dumps(spec)], ids=json.dumps)
def test_what_the_policy_refuses_in_templates_the_operator_refuses_too(spec: Json) -> None:
    [part] = spec.values()
    part = part[0]["pods"] if isinstance(part, list) else part
    if "image" not in json.dumps(part):
        assert refusals(part["template"])


@pytest.fixture
def limits_again(api: Api, installer: Installer, jobs: str) -> Iterator[None]:
    """The limits of all other tests are in force afterwards."""
    yield
    set_limits(installer)
    eventually("the limits of before", lambda: create(api, jobs, **EIGHT_GPUS).status == 201)


@pytest.mark.usefixtures("limits_again")
def test_a_job_that_exists_can_be_suspended_and_labelled_though_it_is_too_large_now(
    api: Api, installer: Installer, jobs: str
) -> None:
    job = rljob()
    spec = {**job["spec"], **EIGHT_GPUS}
    assert api.post(jobs, {**job, "metadata": {"name": "old", "labels": QUEUE}, "spec": spec}).status == 201
    path = f"{jobs}/old"
    set_limits(installer, maxGpus=4)

    def is_refused() -> bool:
        limit = int(time.monotonic()) % 100
        answer = api.patch(path, {"spec": {"suspend": True, "backoffLimit": limit}})
        return answer.status != 200 and "more than 4 GPUs" in answer.json["message"]

    eventually("the new limit", is_refused)
    assert api.patch(path, {"spec": {"suspend": True}}).status == 200
    assert api.patch(path, {"spec": {"suspend": False}}).status == 200
    assert api.patch(path, {"metadata": {"labels": {"team": "a"}}}).status == 200
    assert api.delete(path).status == 200
