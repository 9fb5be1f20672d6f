"""Pod templates: what merging does, and what is refused."""

from typing import Any

import pytest

from longshore_operator.template import merge, refusals

REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"spec": {"serviceAccountName": "admin"}}, "spec.serviceAccountName"),
    ({"spec": {"automountServiceAccountToken": True}}, "spec.automountServiceAccountToken"),
    ({"spec": {"hostNetwork": True}}, "spec.hostNetwork"),
    ({"spec": {"hostPID": True}}, "spec.hostPID"),
    ({"spec": {"hostIPC": True}}, "spec.hostIPC"),
    ({"spec": {"nodeName": "node-0"}}, "spec.nodeName"),
    ({"spec": {"restartPolicy": "Always"}}, "spec.restartPolicy"),
    ({"spec": {"volumes": [{"name": "v", "hostPath": {"path": "/"}}]}}, "hostPath"),
    (
        {"spec": {"volumes": [{"name": "v", "projected": {"sources": [{"serviceAccountToken": {}}]}}]}},
        "serviceAccountToken",
    ),
    ({"spec": {"securityContext": None}}, "spec.securityContext"),
    ({"spec": {"securityContext": {"runAsNonRoot": False}}}, "runAsNonRoot"),
    ({"spec": {"securityContext": {"runAsUser": 0}}}, "runAsUser"),
    ({"spec": {"securityContext": {"sysctls": [{"name": "a", "value": "b"}]}}}, "sysctls"),
    ({"spec": {"securityContext": {"seccompProfile": {"type": "Unconfined"}}}}, "seccompProfile"),
    ({"spec": {"containers": [{"name": "longshore", "securityContext": {"privileged": True}}]}}, "privileged"),
    (
        {"spec": {"containers": [{"name": "x", "securityContext": {"allowPrivilegeEscalation": True}}]}},
        "allowPrivilegeEscalation",
    ),
    (
        {"spec": {"initContainers": [{"name": "x", "securityContext": {"capabilities": {"add": ["IPC_LOCK"]}}}]}},
        "capabilities",
    ),
    ({"spec": {"containers": [{"name": "longshore", "securityContext": None}]}}, "securityContext"),
    ({"spec": {"containers": [{"name": "x", "ports": [{"containerPort": 1, "hostPort": 1}]}]}}, "hostPort"),
    ({"metadata": {"name": "mine"}}, "metadata.name"),
    ({"metadata": {"ownerReferences": []}}, "metadata.ownerReferences"),
    ({"metadata": {"labels": {"longshore.dev/attempt": "9"}}}, "longshore.dev/attempt"),
    ({"metadata": {"labels": {"app.kubernetes.io/managed-by": "me"}}}, "managed-by"),
    ({"status": {}}, "status"),
    ({"spec": "none"}, "shaped like a pod"),
    ({"spec": {"containers": "none"}}, "shaped like a pod"),
]


@pytest.mark.parametrize(("template", "where"), REFUSED, ids=[where for _, where in REFUSED])
def test_what_would_escalate_or_take_the_pod_away_is_refused(template: dict[str, Any], where: str) -> None:
    assert any(where in refusal for refusal in refusals(template))


def test_what_users_need_is_allowed() -> None:
    assert not refusals(
        {
            "metadata": {"labels": {"team": "rl"}, "annotations": {"example.com/a": "b"}},
            "spec": {
                "priorityClassName": "high",
                "runtimeClassName": "gvisor",
                "schedulerName": "volcano",
                "affinity": {},
                "topologySpreadConstraints": [],
                "securityContext": {"fsGroup": 2000, "runAsUser": 2000},
                "volumes": [{"name": "cache", "emptyDir": {}}],
                "containers": [
                    {
                        "name": "longshore",
                        "env": [{"name": "NCCL_DEBUG", "value": "INFO"}],
                        "volumeMounts": [{"name": "cache", "mountPath": "/cache"}],
                    }
                ],
            },
        }
    )


class TestMerge:
    BASE = {
        "labels": {"a": "1"},
        "containers": [{"name": "main", "image": "old", "env": [{"name": "A", "value": "1"}]}],
        "tolerations": [{"key": "gpu"}],
        "args": ["one"],
    }

    def test_objects_merge_and_lists_of_named_items_merge_by_name(self) -> None:
        patch = {
            "labels": {"b": "2"},
            "containers": [
                {"name": "main", "env": [{"name": "A", "value": "2"}, {"name": "B", "value": "3"}]},
                {"name": "sidecar"},
            ],
        }
        merged = merge(self.BASE, patch)
        assert merged["labels"] == {"a": "1", "b": "2"}
        assert merged["containers"] == [
            {
                "name": "main",
                "image": "old",
                "env": [{"name": "A", "value": "2"}, {"name": "B", "value": "3"}],
            },
            {"name": "sidecar"},
        ]

    def test_tolerations_are_added_and_other_lists_replaced(self) -> None:
        merged = merge(self.BASE, {"tolerations": [{"key": "spot"}], "args": ["two"]})
        assert merged["tolerations"] == [{"key": "gpu"}, {"key": "spot"}]
        assert merged["args"] == ["two"]

    def test_null_removes_a_field(self) -> None:
        assert "args" not in merge(self.BASE, {"args": None})

    def test_neither_side_is_changed(self) -> None:
        merge(self.BASE, {"labels": {"a": "9"}, "containers": [{"name": "main", "image": "new"}]})
        assert self.BASE["labels"] == {"a": "1"}
        assert self.BASE["containers"][0]["image"] == "old"
