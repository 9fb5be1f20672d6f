"""What the API server says of requests and limits of a pod ends with the fields of the job that correct it."""

from typing import Any

import pytest

from longshore.api import contract
from tests.unit.operator.model import Cluster
from tests.unit.operator.test_disaggregated import apart
from tests.unit.operator.test_environment_pods import playing
from tests.unit.operator.test_judge_pools import judged
from tests.unit.operator.test_pods import all_pods

LIMIT_RANGE = (
    'Pod "demo-coordinator" is invalid: spec.containers[0].resources.requests: Invalid value: "2Gi": must be less than '
    "or equal to memory limit of 1Gi"
)
"""The default of a LimitRange is below the request."""
_FORBIDDEN = 'pods "demo-coordinator" is forbidden: failed quota: team:'
QUOTA = f"{_FORBIDDEN} must specify limits.cpu for: longshore; limits.memory for: longshore"
QUOTA_OF_REQUESTS = f"{_FORBIDDEN} must specify requests.ephemeral-storage for: longshore"
TEMPLATES = "spec.workers.template, spec.coordinator.template and spec.reward.template"


def shown(refusal: str, **spec: Any) -> str:
    cluster = Cluster(spec=spec)
    cluster.apply(cluster.plan(apply_error=refusal))
    _, reason, message = cluster.condition("Ready")
    assert reason == "ApplyFailed"
    return message


def test_a_limit_below_the_request_asks_for_a_higher_limit_or_a_lower_request() -> None:
    assert shown(LIMIT_RANGE) == (
        f"{LIMIT_RANGE}; that limit is one of the template or of a LimitRange of the namespace: set higher limits of "
        f"the container longshore in {TEMPLATES}, or lower resources there"
    )


@pytest.mark.parametrize(
    "refusal",
    [QUOTA, 'pods "demo-coordinator" is forbidden: failed quota: team: must specify limits.cpu,limits.memory'],
    ids=["with containers", "without"],
)
def test_limits_that_a_quota_requires_are_set_in_the_templates(refusal: str) -> None:
    assert shown(refusal) == f"{refusal}; set them as limits of the container longshore in {TEMPLATES}"


def test_requests_that_a_quota_requires_are_set_in_resources() -> None:
    assert shown(QUOTA_OF_REQUESTS) == (
        f"{QUOTA_OF_REQUESTS}; set them in resources of spec.workers, spec.coordinator and spec.reward"
    )


def test_containers_that_something_else_adds_are_named_as_they_are() -> None:
    refusal = f"{_FORBIDDEN} must specify limits.cpu for: istio-proxy,longshore; limits.memory for: istio-proxy"
    assert shown(refusal) == (
        f"{refusal}; set them as limits of the containers istio-proxy and longshore in {TEMPLATES}"
    )


@pytest.mark.parametrize(
    "refusal",
    [
        'admission webhook "validation.gatekeeper.sh" denied the request: pods must specify the label team',
        'persistentvolumeclaims "demo-storage" is forbidden: failed quota: q: must specify requests.storage',
    ],
)
def test_of_other_rules_only_their_own_words_are_shown(refusal: str) -> None:
    assert shown(refusal) == refusal


@pytest.mark.parametrize(
    ("spec", "last"),
    [
        ({"reward": {"pods": 0}}, "spec.workers.template and spec.coordinator.template"),
        (apart(), "spec.reward.template and spec.trainerWorkers.template"),
        (judged(), "[critic].judge.pool.template and spec.reward.functions[stylist].judge.pool.template"),
        (playing(), "spec.environments[shell].pods.template and spec.environments[game].pods.template"),
    ],
    ids=["no reward pods", "trainers", "judges", "environments"],
)
def test_every_component_with_pods_is_named(spec: dict[str, Any], last: str) -> None:
    assert shown(QUOTA, **spec).endswith(last)


def test_other_refusals_are_left_as_they_are() -> None:
    for refusal in ("pods is forbidden: exceeded quota: gpus", "ports[0].name: must be no more than 15 characters"):
        assert shown(refusal) == refusal


def test_limits_of_a_template_become_those_of_the_pod_but_requests_stay_the_jobs() -> None:
    limits = {"cpu": "16", "memory": "128Gi", "ephemeral-storage": "100Gi"}
    template = {"spec": {"containers": [{"name": contract.CONTAINER, "resources": {"limits": limits}}]}}
    asked = {"cpu": "8", "memory": "64Gi", "ephemeral-storage": "20Gi"}
    options = {"resources": asked, "template": template}
    for pod in all_pods(coordinator=options, workers=options, reward=options):
        resources = pod["spec"]["containers"][0]["resources"]
        assert (limits.items() <= resources["limits"].items()) and (asked.items() <= resources["requests"].items())


def test_a_template_limits_the_scratch_volume() -> None:
    template = {"spec": {"volumes": [{"name": "scratch", "emptyDir": {"sizeLimit": "100Gi"}}]}}
    worker = all_pods(workers={"template": template})[1]
    (scratch,) = [one for one in worker["spec"]["volumes"] if one["name"] == "scratch"]
    assert scratch == {"name": "scratch", "emptyDir": {"sizeLimit": "100Gi"}}
