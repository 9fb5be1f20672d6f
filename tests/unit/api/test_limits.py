"""How large a job may be: what one job asks of the operator has bounds, and each is reported with its field."""

from typing import Any

import pytest

from longshore.api.limits import MAX_DEPTH, MAX_FREEFORM_BYTES, MAX_PODS, MAX_SPEC_BYTES
from longshore.api.spec import RLJobSpec
from tests.unit.api.specs import from_api_server, from_python, refusal, spec


def pools(count: int, replicas: int) -> dict[str, Any]:
    """Changes that score with so many judges, each with so many pods."""
    judge = {"placement": "Pool", "modelPath": "judge", "pool": {"replicas": replicas, "gpusPerPod": 0}}
    return {"reward.functions": [{"name": f"judge-{index}", "kind": "Judge", "judge": judge} for index in range(count)]}


def nested(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = {"a": value}
    return value


TOO_MANY = [
    pools(32, 4_096),
    {"workers.replicas": 4_096, "reward.pods": 1_000},
    {"workers.replicas": 4_096, "reward.maxPods": 1_000},
    {
        "placement": "Disaggregated",
        "workers": {"replicas": 2_500},
        "trainerWorkers": {"replicas": 2_500},
        "reward.pods": 1,
    },
]


@pytest.mark.parametrize("changes", TOO_MANY, ids=["judges", "rewards", "rewards at most", "trainers"])
def test_the_pods_of_a_job_are_bounded_together(changes: dict[str, Any]) -> None:
    for mistakes in (from_python(changes), from_api_server(changes)):
        assert any(f"more than {MAX_PODS:,} pods together" in message for _, message in mistakes)


def test_as_many_pods_as_the_bound_are_taken() -> None:
    changes = pools(1, MAX_PODS - 4_096 - 1) | {"workers.replicas": 4_096}
    assert RLJobSpec.model_validate(spec(changes)).num_pods == MAX_PODS
    assert from_api_server(changes) == []


@pytest.mark.parametrize("field", ["workers.template", "coordinator.template", "reward.template"])
def test_a_template_that_is_too_large_is_reported_with_its_field(field: str) -> None:
    assert refusal(spec({field: {"metadata": {"annotations": {"a": "x" * MAX_FREEFORM_BYTES}}}})) == (
        f"spec.{field}: the object is larger than 32 KiB"
    )


@pytest.mark.parametrize("depth", [MAX_DEPTH + 1, 255, 900])
@pytest.mark.parametrize("field", ["workers.template", "rollout.engine.extraArgs"])
def test_nesting_that_nothing_could_write_out_again_is_reported_with_its_field(field: str, depth: int) -> None:
    assert (
        refusal(spec({field: nested(depth)})) == f"spec.{field}: the object is nested more than {MAX_DEPTH} levels deep"
    )


def test_a_spec_that_is_too_large_as_a_whole_is_reported_with_its_largest_field() -> None:
    function = {"name": "a", "kind": "Maths", "domains": ["d" * MAX_SPEC_BYTES]}
    assert (
        refusal(spec({"reward.functions": [function]})) == "spec: reward is too large: a whole spec has at most 256 KiB"
    )


def test_what_is_nested_where_no_object_belongs_is_reported_without_being_shown() -> None:
    deep: Any = 1
    for _ in range(10_000):
        deep = [deep]
    assert "nested too deeply" in refusal(spec({"algorithm.steps": deep}))


@pytest.mark.parametrize("quantity", ["1" * 40, "many", "-1"])
def test_a_quantity_that_is_none_is_refused_from_python_as_by_the_api_server(quantity: str) -> None:
    changes = {"workers.resources": {"memory": quantity}}
    assert refusal(spec(changes)).startswith("spec.workers.resources.memory: a quantity is a number")
    assert from_api_server(changes)
