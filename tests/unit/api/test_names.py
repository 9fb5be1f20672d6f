"""Names of jobs: children are named after them, so not every name that Kubernetes accepts will do."""

import itertools

import pytest
import re2
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from longshore.api import names
from longshore.api.mistakes import sentence
from longshore.api.rljob import RLJob
from tests.unit.api.specs import from_api_server, from_python
from tests.unit.operator.model import make_job

LONGEST = "a" * names.MAX_JOB_NAME_LENGTH


def mistake(name: str) -> str:
    """What is said about a job of this name; nothing if it will do."""
    try:
        RLJob.model_validate(make_job().model_dump(mode="json") | {"metadata": {"name": name}})
    except ValidationError as error:
        return sentence(error)
    return ""


@pytest.mark.parametrize("name", ["a", "gsm8k", "a-1", LONGEST])
def test_these_names_will_do(name: str) -> None:
    assert mistake(name) == ""


@pytest.mark.parametrize("name", ["a.b", "1a", "A", "a-", "-a", "a_b", "", "a\n", "ä"])
def test_names_that_a_service_cannot_have_are_refused(name: str) -> None:
    assert mistake(name) == "metadata." + names.JOB_NAME_FORM_RULE


def test_a_name_that_is_too_long_for_pods_is_refused() -> None:
    assert mistake(LONGEST + "a") == "metadata." + names.JOB_NAME_LENGTH_RULE


@given(st.from_regex(names.JOB_NAME_PATTERN, fullmatch=True).filter(lambda name: len(name) <= 45))
def test_every_child_of_a_good_name_is_a_host_name(name: str) -> None:
    children = [
        names.coordinator_pod(name), names.worker_pod(name, 4095), names.trainer_pod(name, 4095),
        names.reward_pod(name, 4095), names.judge_pod(name, 131071), names.environment_pod(name, 4999),
        names.headless_service(name),
    ]  # fmt: skip
    assert all(re2.fullmatch("[a-z]([-a-z0-9]{0,61}[a-z0-9])?", child) for child in children)


_PARTS = ["a", "0", "worker", "coordinator", "pods", "config", "modules", "0123abcd", "longshore", "storage"]


def test_no_two_objects_of_a_kind_have_one_name() -> None:
    """Whatever jobs are called, such as one like the worker pod of another."""
    good = re2.compile(names.JOB_NAME_PATTERN)
    every = ["-".join(parts) for length in (1, 2, 3) for parts in itertools.product(_PARTS, repeat=length)]
    jobs = [name for name in every if good.fullmatch(name)]
    pods = [names.worker_pod, names.trainer_pod, names.reward_pod, names.judge_pod, names.environment_pod]
    pairs = [(job, environment) for job in jobs for environment in every if environment.count("-") < 2]
    kinds: dict[str, list[str]] = {
        "Pod": [pod(job, 0) for job in jobs for pod in pods] + list(map(names.coordinator_pod, jobs)),
        "Secret": [
            *(of(job, "0123abcd-4") for job in jobs for of in (names.ray_token_secret, names.reward_token_secret)),
            *(names.environment_token_secret(*pair, "0123abcd-4") for pair in pairs),
        ],
        "NetworkPolicy": [names.environment_policy(*pair) for pair in pairs],
        "ConfigMap": [
            *map(names.config_map, jobs),
            *(names.modules_config_map(job, "0123abcd") for job in jobs),
        ],
    }
    for kind, found in kinds.items():
        assert len(set(found)) == len(found), kind


@pytest.mark.parametrize(
    ("field", "good", "bad"),
    [
        ("storage.claimName", ["shared", "shared.models-1"], ["../secrets/of-another", "Shared", "a/b", "-a", ""]),
        (
            "scheduling.topology.key",
            ["rack", "kubernetes.io/hostname", "topology.example.com/Rack_1"],
            ["kubernetes.io/a rack", "/rack", "a/b/c", "rack-", ""],
        ),
    ],
)
def test_names_of_other_objects_are_refused_unless_something_can_have_them(
    field: str, good: list[str], bad: list[str]
) -> None:
    others = {"storage.create": None} if field.startswith("storage") else {}
    for name in good:
        assert from_python({field: name} | others) == from_api_server({field: name} | others) == []
    for name in bad:
        for mistakes in (from_python({field: name} | others), from_api_server({field: name} | others)):
            assert [where for where, _ in mistakes] == [field], name
