"""One pass is short whatever a job asks for: pods come and go in batches, and nothing is built twice."""

from collections.abc import Callable
from typing import Any

import pytest

from longshore_operator import children
from longshore_operator.plan import POD_BATCH, Apply, CreatePod, DeletePod, LabelPod, Plan
from tests.unit.operator.model import Cluster

LARGE: dict[str, Any] = {
    "workers": {"replicas": 100, "gpusPerPod": 1},
    "reward": {
        "pods": 1,
        "functions": [
            {"name": f"judge-{index}", "kind": "Judge", "judge": {"placement": "Pool", "modelPath": "m", "pool": pool}}
            for index, pool in enumerate([{"replicas": 40, "gpusPerPod": 0}] * 3)
        ],
    },
}


def size(plan: Plan) -> int:
    return sum(isinstance(action, CreatePod | DeletePod | LabelPod) for action in plan.actions)


def counted(monkeypatch: pytest.MonkeyPatch, module: Any, name: str) -> Callable[[], int]:
    """How often a function has been called so far."""
    calls, original = [], getattr(module, name)

    def called(*arguments: Any, **named: Any) -> Any:
        calls.append(name)
        return original(*arguments, **named)

    monkeypatch.setattr(module, name, called)
    return lambda: len(calls)


def until_there(cluster: Cluster, num_pods: int) -> list[Plan]:
    """Passes without any news in between, for as long as the operator itself asks for the next."""
    plans = [cluster.step()]
    while plans[-1].requeue_at == cluster.now:
        plans.append(cluster.step())
    assert len(cluster.pods) == num_pods
    return plans


def started(**spec: Any) -> Cluster:
    """A job whose coordinator has an address, and no other pods yet."""
    cluster = Cluster({**LARGE, **spec})
    cluster.step()
    cluster.kubelet()
    cluster.kubelet()
    return cluster


def test_pods_are_made_in_batches_that_follow_one_another_by_themselves() -> None:
    plans = until_there(started(), 1 + 100 + 120 + 1)
    assert [size(plan) for plan in plans] == [POD_BATCH] * 6 + [221 - 6 * POD_BATCH]


def test_pods_are_deleted_in_batches_that_follow_one_another_by_themselves() -> None:
    cluster = started()
    until_there(cluster, 222)
    cluster.spec["suspend"] = True
    plans = until_there(cluster, 1 + 100)
    assert cluster.pods["demo-coordinator"].deleting
    del cluster.pods["demo-coordinator"]
    plans += until_there(cluster, 0)
    assert max(size(plan) for plan in plans) == POD_BATCH


def test_children_are_not_built_again_once_this_generation_of_them_is_applied(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = started()
    assert cluster.plan().has_all_children
    num_built = counted(monkeypatch, children, "children")
    assert not [action for action in cluster.plan(applied_for=(1, 1)).actions if isinstance(action, Apply)]
    assert num_built() == 0
    cluster.generation = 2
    cluster.plan(applied_for=(1, 1))
    assert num_built() == 1
