"""Pod templates: what merging does, and what is refused."""

from typing import Any

import pytest

from longshore.api import contract
from longshore_operator.plan import CreatePod
from longshore_operator.template import merge
from longshore_operator.template_rules import MAX_GRACE_S, Allowed, refusals
from tests.unit.operator.model import Cluster

REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
X = {"name": "x", "image": "x:1"}
"""Container that a template adds."""
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
        {"spec": {"containers": [{**X, "securityContext": {"allowPrivilegeEscalation": True}}]}},
        "allowPrivilegeEscalation",
    ),
    (
        {"spec": {"initContainers": [{**X, "securityContext": {"capabilities": {"add": ["IPC_LOCK"]}}}]}},
        "capabilities",
    ),
    ({"spec": {"containers": [{"name": "longshore", "securityContext": None}]}}, "securityContext"),
    ({"spec": {"containers": [{**X, "ports": [{"containerPort": 1, "hostPort": 1}]}]}}, "hostPort"),
    ({"metadata": {"name": "mine"}}, "metadata.name"),
    ({"metadata": {"ownerReferences": []}}, "metadata.ownerReferences"),
    ({"metadata": {"labels": {"longshore.dev/attempt": "9"}}}, "longshore.dev/attempt"),
    ({"metadata": {"labels": {"app.kubernetes.io/managed-by": "me"}}}, "managed-by"),
    ({"status": {}}, "status"),
    ({"spec": {"priorityClassName": "system-cluster-critical"}}, "spec.priorityClassName"),
    ({"spec": {"priority": 2_000_000_000}}, "spec.priority"),
    ({"spec": {"runtimeClassName": "unconfined"}}, "spec.runtimeClassName"),
    *(
        ({"spec": {"affinity": {"podAntiAffinity": {REQUIRED: [{"topologyKey": "rack", scope: of_all}]}}}}, scope)
        for scope, of_all in (("namespaceSelector", {}), ("namespaces", ["team-b"]))
    ),
    ({"spec": {"terminationGracePeriodSeconds": MAX_GRACE_S + 1}}, "spec.terminationGracePeriodSeconds"),
    ({"spec": {"shareProcessNamespace": True}}, "spec.shareProcessNamespace"),
    ({"spec": {"hostUsers": True}}, "spec.hostUsers"),
    (
        {"spec": {"schedulingGates": [{"name": "kueue.x-k8s.io/admission"}]}},
        "schedulingGates[kueue.x-k8s.io/admission]",
    ),
    *(
        ({"spec": {kind: [{**X, field: value}]}}, f"spec.{kind}[x].{field}: restarts")
        for kind, field, value in (
            ("containers", "restartPolicy", "Always"),
            ("containers", "restartPolicyRules", [{"action": "Restart"}]),
            ("initContainers", "restartPolicy", "OnFailure"),
        )
    ),
    ({"spec": {"hostnameOverride": "other"}}, "spec.hostnameOverride"),
    ({"spec": {"ephemeralContainers": [{"name": "x"}]}}, "spec.ephemeralContainers"),
    (
        {"spec": {"volumes": [{"name": "v", "projected": {"sources": [{"podCertificate": {}}]}}]}},
        "projected.podCertificate",
    ),
    ({"spec": {"containers": [{**X, "ports": [{"containerPort": 1, "hostIP": "0.0.0.0"}]}]}}, "hostIP"),
    *(
        ({"spec": {"containers": [{**X, probe: {kind: {"host": "10.0.0.1"}}}]}}, f"{probe}.{kind}.host")
        for probe in ("readinessProbe", "livenessProbe", "startupProbe")
        for kind in ("httpGet", "tcpSocket")
    ),
    *(
        (
            {"spec": {"initContainers": [{**X, "lifecycle": {hook: {"httpGet": {"host": "10.0.0.1"}}}}]}},
            f"lifecycle.{hook}.httpGet.host",
        )
        for hook in ("postStart", "preStop")
    ),
    (
        {"spec": {"containers": [{**X, "livenessProbe": {"terminationGracePeriodSeconds": 10_000}}]}},
        "livenessProbe.terminationGracePeriodSeconds",
    ),
    *(
        ({"metadata": {kind: {name: "x"}}}, f"metadata.{kind}[{name}]")
        for kind in ("labels", "annotations")
        for name in (
            "container.apparmor.security.beta.kubernetes.io/longshore",
            "seccomp.security.alpha.kubernetes.io/pod",
            "eks.amazonaws.com/role-arn",
            "iam.amazonaws.com/role",
            "iam.gke.io/gcp-service-account",
            "azure.workload.identity/use",
            "aadpodidbinding",
            "admission.datadoghq.com/java-lib.version",
            "cdi.k8s.io/gpus",
            "config.linkerd.io/proxy-image",
            "dapr.io/sidecar-image",
            "dev.gvisor.flag.network",
            "instrumentation.opentelemetry.io/inject-python",
            "io.kubernetes.cri.untrusted-workload",
            "io.kubernetes.cri-o.seccompNotifierAction/longshore",
            "kubernetes.io/anything",
            "operator.example.com/inject",
            "proxy.istio.io/config",
            "run.oci.handler",
            "sidecar.istio.io/proxyImage",
            "sidecar.istio.io/userVolume",
            "vault.hashicorp.com/agent-inject",
            "io.kubernetes.cri-o.Devices",
            "io.katacontainers.config.hypervisor.path",
            "devices.nri.io/container.longshore",
            "kubernetes.io/config.mirror",
        )
    ),
]

MISSHAPEN: list[tuple[Any, str]] = [
    *(
        ({"spec": {kind: [container]}}, f"spec.{kind}[{container['name']}].image: is missing")
        for kind, container in (
            ("containers", {"name": "x"}),
            ("containers", X | {"image": None}),
            ("containers", X | {"image": ""}),
            ("containers", {"name": "longshore", "image": None}),
            ("initContainers", {"name": "x"}),
            ("initContainers", {"name": "server", "env": []}),
        )
    ),
    ({"spec": {"containers": [X | {"image": 3}]}}, "spec.containers[x].image: must be a text"),
    ({"spec": None}, "spec: cannot be removed"),
    ({"metadata": None}, "metadata: cannot be removed"),
    ({"metadata": {"labels": None}}, "metadata.labels: cannot be removed"),
    ({"metadata": {"annotations": None}}, "metadata.annotations: cannot be removed"),
    ({"metadata": {"labels": {"team": 5}}}, "metadata.labels.team: must be a text"),
    ({"metadata": ["x"]}, "metadata: must be an object"),
    ({"spec": "none"}, "spec: must be an object"),
    ({"spec": {"containers": None}}, "spec.containers: cannot be removed"),
    ({"spec": {"containers": "none"}}, "spec.containers: must be a list"),
    ({"spec": {"containers": [None]}}, "spec.containers[0]: must be an object"),
    ({"spec": {"containers": [{"image": "x"}]}}, "spec.containers[0].name: is missing"),
    ({"spec": {"containers": [{"name": {}}]}}, "name: must be a text"),
    ({"spec": {"tolerations": 5}}, "spec.tolerations: must be a list"),
    ({"spec": {"schedulingGates": 5}}, "spec.schedulingGates: must be a list"),
    ({"spec": {"volumes": None}}, "spec.volumes: cannot be removed"),
    ({"spec": {"containers": [{"name": "longshore", "env": ["A"]}]}}, "spec.containers[longshore].env[0]"),
    ({"spec": {"containers": [{"name": "x", "ports": [{"containerPort": "http"}]}]}}, "must be an integer"),
    ({"spec": {"terminationGracePeriodSeconds": "long"}}, "spec.terminationGracePeriodSeconds: must be an integer"),
    ({"spec": {"terminationGracePeriodSeconds": True}}, "spec.terminationGracePeriodSeconds: must be an integer"),
    ({"spec": {"overhead": {"cpu": "1e99999999"}}}, "spec.overhead.cpu: must be a quantity, like 500m or 2Gi"),
    *(
        (
            {"spec": {"initContainers": [{"name": "x", "resources": {kind: {"cpu": amount}}}]}},
            f"spec.initContainers[x].resources.{kind}.cpu: must be a quantity",
        )
        for kind in ("requests", "limits")
        for amount in ("much", "1e99999999", ["1"], {"cpu": 1}, True)
    ),
]


@pytest.mark.parametrize(("template", "where"), MISSHAPEN, ids=[where for _, where in MISSHAPEN])
@pytest.mark.parametrize("everything", [False, True], ids=["by default", "privileged"])
def test_what_is_not_shaped_like_a_pod_is_refused_whatever_is_allowed(
    template: dict[str, Any], where: str, everything: bool
) -> None:
    assert any(where in refusal for refusal in refusals(template, Allowed(everything=everything)))


@pytest.mark.parametrize(
    ("template", "where"),
    [
        ({"initContainers": None}, "spec.initContainers: cannot be removed"),
        ({"initContainers": [{"name": "server", "restartPolicy": None}]}, "spec.initContainers[server].restartPolicy"),
    ],
)
def test_a_template_changes_the_server_of_an_environment_but_does_not_remove_it(
    template: dict[str, Any], where: str
) -> None:
    assert not refusals({"spec": {"initContainers": [{"name": "server", "env": []}]}}, has_server=True)
    assert any(where in refusal for refusal in refusals({"spec": template}, has_server=True))


def test_a_container_without_variables_still_knows_how_long_it_may_take_to_stop() -> None:
    """Null removes a field."""
    template = {"spec": {"containers": [{"name": "longshore", "env": None}]}}
    cluster = Cluster({"coordinator": {"template": template}})
    (made,) = [action for action in cluster.plan().actions if isinstance(action, CreatePod)]
    assert [one["name"] for one in made.manifest["spec"]["containers"][0]["env"]] == [
        contract.ENV_ATTEMPT,
        contract.ENV_GRACE,
    ]


@pytest.mark.parametrize(("template", "where"), REFUSED, ids=[where for _, where in REFUSED])
def test_nothing_else_is_refused_where_everything_is_allowed(template: dict[str, Any], where: str) -> None:
    assert refusals(template, Allowed(everything=True)) == []


@pytest.mark.parametrize(("template", "where"), REFUSED, ids=[where for _, where in REFUSED])
def test_what_would_escalate_or_take_the_pod_away_is_refused(template: dict[str, Any], where: str) -> None:
    assert any(where in refusal for refusal in refusals(template))


def test_what_users_need_is_allowed() -> None:
    allowed = Allowed(priority_classes=frozenset({"high"}), runtime_classes=frozenset({"gvisor"}))
    assert not refusals(
        {
            "metadata": {"labels": {"team": "rl"}, "annotations": {"example.com/a": "b"}},
            "spec": {
                "priorityClassName": "high",
                "runtimeClassName": "gvisor",
                "schedulerName": "volcano",
                "affinity": {"podAntiAffinity": {REQUIRED: [{"topologyKey": "rack", "labelSelector": {}}]}},
                "topologySpreadConstraints": [],
                "securityContext": {"fsGroup": 2000, "runAsUser": 2000},
                "volumes": [{"name": "cache", "emptyDir": {}}],
                "containers": [
                    {
                        "name": "longshore",
                        "env": [{"name": "NCCL_DEBUG", "value": "INFO"}],
                        "volumeMounts": [{"name": "cache", "mountPath": "/cache"}],
                        "readinessProbe": {"httpGet": {"path": "/", "port": 80}, "periodSeconds": 5},
                    }
                ],
                "terminationGracePeriodSeconds": MAX_GRACE_S,
                "hostUsers": False,
                "nodeSelector": {"zone": None},
            },
        },
        allowed,
    )


@pytest.mark.parametrize(
    "name",
    [
        "ad.datadoghq.com/longshore.checks",
        "cluster-autoscaler.kubernetes.io/safe-to-evict",
        "cost-centre",
        "example.com/team",
        "istio.io/dataplane-mode",
        "k8s.v1.cni.cncf.io/networks",
        "karpenter.sh/do-not-disrupt",
        "kubernetes.io/egress-bandwidth",
        "kueue.x-k8s.io/podset-required-topology",
        "linkerd.io/inject",
        "prometheus.io/scrape",
        "scheduling.k8s.io/group-name",
        "sidecar.istio.io/inject",
    ],
)
def test_metadata_that_leaves_the_pod_as_it_is_or_asks_for_the_mesh_is_allowed(name: str) -> None:
    assert not refusals({"metadata": {"labels": {name: "x"}, "annotations": {name: "x"}}})


def test_sidecars_and_gates_of_the_user_are_allowed() -> None:
    sidecar = {"name": "proxy", "image": "proxy:1", "restartPolicy": "Always"}
    assert not refusals({"spec": {"initContainers": [sidecar], "schedulingGates": [{"name": "example.com/licence"}]}})


def test_the_user_may_be_left_to_the_cluster() -> None:
    nobody = {"runAsUser": None, "runAsGroup": None, "fsGroup": None}
    assert not refusals({"spec": {"securityContext": nobody}})


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
