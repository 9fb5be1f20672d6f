"""What a spec asks of the nodes of GPU pods, in the manifests of pods."""

from typing import Any

import pytest

from longshore_operator import pods
from longshore_operator.config import OperatorConfig
from longshore_operator.topology import avoid_nodes
from tests.unit.operator.model import make_job

CONFIG = OperatorConfig(runtime_image="runtime:1")
RACK = "example.com/rack"
GPU_PODS = {"key": "longshore.dev/component", "operator": "In", "values": ["worker", "trainer"]}
OF_THE_JOB = {"matchLabels": {"longshore.dev/job": "demo"}, "matchExpressions": [GPU_PODS]}


def worker(template: dict[str, Any] | None = None, **scheduling: Any) -> dict[str, Any]:
    job = make_job(scheduling=scheduling, workers={"gpusPerPod": 1, "template": template or {}})
    spec: dict[str, Any] = pods.worker_pod(job, CONFIG, 1, 0, "10.0.0.1", 1)["spec"]
    return spec


def test_a_job_that_asks_for_nothing_has_no_constraint() -> None:
    assert not {"affinity", "topologySpreadConstraints"} & worker().keys()


@pytest.mark.parametrize(
    ("required", "affinity"),
    [
        (
            True,
            {"requiredDuringSchedulingIgnoredDuringExecution": [{"topologyKey": RACK, "labelSelector": OF_THE_JOB}]},
        ),
        (
            False,
            {
                "preferredDuringSchedulingIgnoredDuringExecution": [
                    {"weight": 100, "podAffinityTerm": {"topologyKey": RACK, "labelSelector": OF_THE_JOB}}
                ]
            },
        ),
    ],
)
def test_workers_and_trainers_seek_the_domain_of_their_job(required: bool, affinity: dict[str, Any]) -> None:
    scheduling = {"topology": {"key": RACK, "required": required}}
    assert worker(**scheduling)["affinity"] == {"podAffinity": affinity}
    job = make_job(scheduling=scheduling, placement="Disaggregated", trainerWorkers={"replicas": 2})
    assert pods.trainer_pod(job, CONFIG, 1, 0, "10.0.0.1")["spec"]["affinity"] == {"podAffinity": affinity}
    assert "affinity" not in pods.coordinator_pod(job, CONFIG, 1)["spec"]
    assert "affinity" not in pods.reward_pod(job, CONFIG, 1, 0, "10.0.0.1")["spec"]


@pytest.mark.parametrize(
    "sizes",
    [{"trainer": {"fsdpSize": 4}}, {"rollout": {"engine": {"tensorParallelSize": 4}}}],
    ids=["replica", "engine"],
)
def test_the_pods_of_a_set_seek_each_other_besides_the_domain_of_their_job(sizes: dict[str, Any]) -> None:
    workers, topology = {"replicas": 4, "gpusPerPod": 2}, {"topology": {"key": RACK}}
    job = make_job(scheduling=topology, workers=workers, **sizes)
    for index, mates in ((0, ["0", "1"]), (3, ["2", "3"])):
        affinity = pods.worker_pod(job, CONFIG, 1, index, "10.0.0.1", 1)["spec"]["affinity"]["podAffinity"]
        of_job, of_set = affinity["preferredDuringSchedulingIgnoredDuringExecution"]
        assert of_job["podAffinityTerm"]["labelSelector"] == OF_THE_JOB
        assert of_set["podAffinityTerm"] == {
            "topologyKey": RACK,
            "labelSelector": {
                "matchLabels": {"longshore.dev/job": "demo", "longshore.dev/component": "worker"},
                "matchExpressions": [{"key": "longshore.dev/index", "operator": "In", "values": mates}],
            },
        }


@pytest.mark.parametrize(("required", "otherwise"), [(True, "DoNotSchedule"), (False, "ScheduleAnyway")])
def test_pods_are_spread_evenly_over_the_domains(required: bool, otherwise: str) -> None:
    spec = worker(topology={"mode": "Spread", "key": RACK, "required": required})
    (constraint,) = spec["topologySpreadConstraints"]
    assert constraint == {
        "maxSkew": 1, "topologyKey": RACK, "whenUnsatisfiable": otherwise, "labelSelector": OF_THE_JOB,
    }  # fmt: skip
    assert "affinity" not in spec


def test_packed_pods_seek_the_nodes_of_other_jobs_less_than_their_own_domain() -> None:
    spec = worker(packNodes=True, topology={"key": RACK})
    own, others = spec["affinity"]["podAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"]
    assert own["weight"] > others["weight"]
    term = others["podAffinityTerm"]
    assert (term["topologyKey"], term["namespaceSelector"]) == ("kubernetes.io/hostname", {})
    assert "longshore.dev/job" not in term["labelSelector"]["matchLabels"]


def test_the_affinity_of_a_template_is_added() -> None:
    nodes = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": []}}}
    spec = worker({"spec": {"affinity": nodes}}, topology={"key": RACK})
    assert spec["affinity"].keys() == {"nodeAffinity", "podAffinity"}


def test_nodes_are_avoided_besides_what_a_template_says_about_nodes() -> None:
    own = {"weight": 1, "preference": {"matchExpressions": [{"key": "disk", "operator": "In", "values": ["ssd"]}]}}
    preferred = "preferredDuringSchedulingIgnoredDuringExecution"
    template = {"spec": {"affinity": {"nodeAffinity": {preferred: [own]}, "podAffinity": {}}}}
    pod = {"spec": worker(template)}
    fields = [{"key": "metadata.name", "operator": "NotIn", "values": [node]} for node in ("a", "b")]
    wanted = [own, {"weight": 75, "preference": {"matchFields": fields}}]
    assert avoid_nodes(pod, ["a", "b"])["spec"]["affinity"]["nodeAffinity"] == {preferred: wanted}
    assert avoid_nodes(pod, []) == pod
    for odd in ("a", {"nodeAffinity": "a"}, {"nodeAffinity": {preferred: "a"}}):
        assert avoid_nodes({"spec": {"affinity": odd}}, ["a"]) == {"spec": {"affinity": odd}}, (
            "the API server refuses it"
        )
