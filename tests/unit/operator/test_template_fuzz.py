"""Whatever a template holds: it is refused with a sentence, or its pods are the job's and keep to the standard."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longshore.api.names import Component
from longshore.api.status import Phase
from longshore_operator import template_rules
from longshore_operator.plan import CreatePod, Plan
from tests.unit.operator.model import CONFIG, Cluster

Json = Any
FIELDS = (
    "metadata", "spec", "labels", "annotations", "ownerReferences", "name", "containers", "initContainers", "volumes",
    "env", "envFrom", "ports", "volumeMounts", "tolerations", "resources", "requests", "limits", "securityContext",
    "runAsNonRoot", "runAsUser", "capabilities", "seccompProfile", "allowPrivilegeEscalation", "readinessProbe",
    "httpGet", "lifecycle", "preStop", "projected", "sources", "nodeSelector", "hostAliases", "imagePullSecrets",
    "terminationGracePeriodSeconds", "priorityClassName", "longshore.dev/job", "team", "mountPath", "containerPort",
    "image", "value", "hostname", "serviceAccountName", "restartPolicy",
)  # fmt: skip
SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-5, 2**40),
    st.floats(allow_nan=False, allow_infinity=False),
    st.sampled_from(["longshore", "sidecar", "storage", "demo", "", "x"]),
    st.text(max_size=8),
)
ANYTHING = st.recursive(
    SCALARS,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(st.one_of(st.sampled_from(FIELDS), st.text(max_size=6)), inner, max_size=4),
    ),
    max_leaves=20,
)
AMOUNTS = st.dictionaries(
    st.sampled_from(["cpu", "memory", "nvidia.com/gpu"]),
    st.one_of(SCALARS, st.sampled_from(["500m", "2Gi", "1e3", "1e99999999", "1e-99999999"])),
    max_size=2,
)
RESOURCES = st.one_of(ANYTHING, st.fixed_dictionaries({}, optional={"requests": AMOUNTS, "limits": AMOUNTS}))
CONTAINERS = st.lists(
    st.builds(
        lambda fields, resources, name: {**fields, **resources, "name": name},
        st.dictionaries(st.sampled_from(FIELDS), ANYTHING, max_size=3),
        st.fixed_dictionaries({}, optional={"resources": RESOURCES}),
        st.sampled_from(["longshore", "sidecar"]),
    ),
    max_size=2,
)
LIKELY = st.fixed_dictionaries(
    {},
    optional={
        "metadata": st.one_of(
            ANYTHING,
            st.fixed_dictionaries(
                {},
                optional={
                    field: st.one_of(ANYTHING, st.dictionaries(st.sampled_from(FIELDS), st.text()))
                    for field in ("labels", "annotations")
                },
            ),
        ),
        "spec": st.one_of(
            ANYTHING,
            st.fixed_dictionaries(
                {},
                optional={
                    "containers": CONTAINERS,
                    "initContainers": CONTAINERS,
                    "securityContext": ANYTHING,
                    "nodeSelector": ANYTHING,
                    "overhead": AMOUNTS,
                },
            ),
        ),
    },
)
TEMPLATES = st.one_of(LIKELY, st.dictionaries(st.text(max_size=6), ANYTHING, max_size=3))
NEVER_REFUSED = {
    "spec": {"containers": [{"name": "sidecar", "image": "x"}], "initContainers": [{"name": "first", "image": "x"}]}
}


def spec_with(template: Json) -> dict[str, Any]:
    """All pods of every kind that a job can have carry the template, and a PodGroup adds up what they request."""
    pool = {"replicas": 1, "gpusPerPod": 0, "template": template}
    judge = {"name": "judge", "kind": "Judge", "judge": {"placement": "Pool", "modelPath": "m", "pool": pool}}
    return {
        "coordinator": {"template": template},
        "workers": {"replicas": 1, "gpusPerPod": 1, "template": template},
        "reward": {"pods": 1, "template": template, "functions": [judge]},
        "environments": [{"name": "a", "kind": "OpenEnv", "server": {"image": "a:1"}, "pods": {"template": template}}],
        "placement": "Disaggregated",
        "scheduling": {"podGroup": "Volcano"},
        "trainerWorkers": {"replicas": 1, "gpusPerPod": 1, "template": template},
    }


def plans(template: Json, privileged: bool) -> Iterator[Plan]:
    """Those of a job's first pass, and of the one in which its coordinator has an address."""
    cluster = Cluster(spec_with(template), config=replace(CONFIG, allow_privileged_templates=privileged))
    for _ in range(5):
        yield cluster.step()
        cluster.kubelet()


@given(TEMPLATES, st.booleans())
def test_any_template_is_refused_with_a_sentence_or_keeps_its_pods_the_jobs(template: Json, privileged: bool) -> None:
    holds(template, privileged)


@pytest.mark.parametrize("privileged", [False, True])
def test_pods_of_every_component_are_looked_at(privileged: bool) -> None:
    assert holds(NEVER_REFUSED, privileged) == set(Component)


STEALS = {
    "metadata": {
        "name": "mine",
        "namespace": "other",
        "ownerReferences": [],
        "labels": {"longshore.dev/job": "other", "longshore.dev/component": "x", "app.kubernetes.io/managed-by": "me"},
    }
}
ESCAPES = {
    "restart policy": {"restartPolicy": "Always"},
    "restart policy of a container": {"containers": [{"name": "longshore", "restartPolicy": "Always"}]},
    "account": {"serviceAccountName": "admin"},
    "token": {"automountServiceAccountToken": None},
    "host": {"hostNetwork": True, "hostPID": True, "hostIPC": True, "hostUsers": True, "nodeName": "n"},
    "other pods": {"priority": 1_000_000, "shareProcessNamespace": True},
    "root": {"securityContext": {"runAsNonRoot": False, "seccompProfile": {"type": "Unconfined"}}},
    **{
        f"root in {kind}": {kind: [{"name": name, "image": "x", "securityContext": security}]}
        for kind, name in (("containers", "longshore"), ("containers", "sidecar"), ("initContainers", "first"))
        for security in (
            {
                "runAsNonRoot": False,
                "allowPrivilegeEscalation": True,
                "privileged": True,
                "procMount": "Unmasked",
                "capabilities": {"add": ["SYS_ADMIN"], "drop": None},
            },
        )
    },
}


@pytest.mark.parametrize("privileged", [False, True])
def test_a_template_that_the_rules_miss_makes_no_pod_of_another_job(
    privileged: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(template_rules, "refusals", lambda *_, **__: [])
    assert holds(STEALS, privileged) == set(Component)


@pytest.mark.parametrize("spec_part", ESCAPES.values(), ids=ESCAPES)
def test_a_template_that_the_rules_miss_keeps_its_pods_to_the_standard(
    spec_part: Json, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(template_rules, "refusals", lambda *_, **__: [])
    assert holds({"spec": spec_part}, privileged=False) == set(Component)


def holds(template: Json, privileged: bool) -> set[str]:
    """The components whose pods were looked at; none where the template was refused."""
    seen = set()
    for plan in plans(template, privileged):
        assert plan.status is not None
        created = [action.manifest for action in plan.actions if isinstance(action, CreatePod)]
        if plan.status.phase is Phase.FAILED:
            (failed,) = [one for one in plan.status.conditions if one.type == "Failed"]
            assert failed.reason == "TemplateRefused"
            assert failed.message.startswith("spec.coordinator.template.") or "spec.workers.template." in failed.message
            assert created == []
        for pod in created:
            seen.add(pod["metadata"]["labels"]["longshore.dev/component"])
            is_the_jobs(pod)
            if not privileged:
                keeps_the_standard(pod)
    return seen


def is_the_jobs(pod: dict[str, Any]) -> None:
    metadata = pod["metadata"]
    assert metadata["namespace"] == "team"
    assert metadata["name"].startswith("demo-")
    (owner,) = metadata["ownerReferences"]
    assert (owner["uid"], owner["controller"]) == ("job-uid", True)
    labels = metadata["labels"]
    assert labels["longshore.dev/job"] == labels["app.kubernetes.io/instance"] == "demo"
    assert labels["app.kubernetes.io/managed-by"] == "longshore"
    assert {"longshore.dev/attempt", "longshore.dev/index", "longshore.dev/component"} <= labels.keys()


def keeps_the_standard(pod: dict[str, Any]) -> None:
    spec = pod["spec"]
    assert spec["restartPolicy"] == "Never"
    assert spec.get("serviceAccountName") != "admin"
    assert not any(spec.get(field) for field in ("hostNetwork", "hostPID", "hostIPC", "hostUsers", "nodeName"))
    assert not any(spec.get(field) for field in ("priority", "shareProcessNamespace"))
    assert spec["automountServiceAccountToken"] is (
        pod["metadata"]["labels"]["longshore.dev/component"] == "coordinator"
    )
    assert spec["securityContext"]["runAsNonRoot"] is True
    assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert spec["containers"]
    assert not any("restartPolicy" in container for container in spec["containers"])
    for container in [*spec["containers"], *(spec.get("initContainers") or ())]:
        security = container["securityContext"]
        assert not {"privileged", "procMount"} & security.keys()
        assert security["allowPrivilegeEscalation"] is False
        assert security["capabilities"] == {"drop": ["ALL"]}
        assert security["runAsNonRoot"] is True
        assert security["seccompProfile"] == {"type": "RuntimeDefault"}
