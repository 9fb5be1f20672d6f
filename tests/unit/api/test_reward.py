"""What follows from the reward functions of a job: who computes, who waits, and what a pod needs for it."""

from typing import Any

import pytest

from longshore.api.environment import Environment
from longshore.api.reward import Reward

COMPUTES: list[dict[str, Any]] = [
    {"name": "task", "kind": "Task"},
    {"name": "maths", "kind": "Maths"},
    {"name": "python", "kind": "Python", "importPath": "rewards:score"},
    {"name": "tests", "kind": "Code"},
]
WAITS: list[dict[str, Any]] = [
    {"name": "service", "kind": "HTTP", "http": {"url": "http://service/"}},
    {"name": "remote", "kind": "Judge", "judge": {"placement": "Remote", "url": "http://judge/v1"}},
    {"name": "pool", "kind": "Judge", "judge": {"placement": "Pool", "modelPath": "judge", "pool": {}}},
]
COLOCATED: list[dict[str, Any]] = [{"name": "beside", "kind": "Judge", "judge": {"modelPath": "judge"}}]
MIB = 1 << 20


def reward(*functions: dict[str, Any], **fields: Any) -> Reward:
    return Reward.model_validate({"functions": functions, **fields})


def test_services_and_judges_elsewhere_are_waited_for_and_nothing_else() -> None:
    every = reward(*WAITS, *COLOCATED, *COMPUTES)
    assert [one.name for one in every.waiting] == [one["name"] for one in WAITS]
    assert [one.name for one in every.computing] == [one["name"] for one in COMPUTES]
    assert [one.name for one in every.functions if one.is_colocated] == ["beside"]


@pytest.mark.parametrize(
    ("functions", "num_computing", "num_waiting", "sized_per_pod"),
    [
        (COMPUTES[:1], 3, 0, 3),
        (WAITS[:1], 0, 20, 20),
        ([*WAITS, *COMPUTES], 3, 20, 3),
        ([*WAITS, *COLOCATED], 0, 20, 20),
        (COLOCATED, 0, 0, 3),
    ],
    ids=["computes", "waits", "both", "waits-and-colocated", "colocated"],
)
def test_a_pod_has_workers_for_all_functions_and_its_size_is_that_of_computing_ones(
    functions: list[dict[str, Any]], num_computing: int, num_waiting: int, sized_per_pod: int
) -> None:
    """Without functions that compute, those that wait decide the size."""
    one = reward(*functions, workersPerPod=3, requestsPerPod=20)
    assert (one.num_computing, one.num_waiting, one.sized_per_pod) == (num_computing, num_waiting, sized_per_pod)


def test_memory_for_a_request_is_small_beside_that_of_a_worker_that_computes() -> None:
    code = {"name": "tests", "kind": "Code", "code": {"memory": "512Mi"}}
    assert reward(*WAITS).pod_memory_bytes == 2_048 * MIB + 32 * 32 * MIB
    assert reward(code).pod_memory_bytes == 2_048 * MIB + 2 * 1_536 * MIB
    assert reward(code, *WAITS, requestsPerPod=4).pod_memory_bytes == 2_048 * MIB + 2 * 1_536 * MIB + 4 * 32 * MIB


def test_memory_of_a_pod_covers_the_interpreters_of_its_episodes() -> None:
    fields = {"name": "code", "kind": "Python", "episodesPerPod": 10}
    own = Environment.model_validate({**fields, "tools": ["mine:search"]})
    with_python = Environment.model_validate({**fields, "tools": ["mine:search", "longshore_runtime.tools:python"]})
    assert own.pod_memory_bytes == 1_024 * MIB + 10 * 32 * MIB
    assert with_python.pod_memory_bytes == own.pod_memory_bytes + 10 * 128 * MIB
