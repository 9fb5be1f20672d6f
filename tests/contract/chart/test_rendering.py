"""What the chart renders from its values, without a cluster."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client import CollectorRegistry

from longshore.api import names
from longshore.api.scheduling import PodGroupKind
from longshore_operator import template_rules
from longshore_operator.admission.demand import Limits
from longshore_operator.config import AdmissionConfig, OperatorConfig, RdmaDevices
from longshore_operator.main import parse
from longshore_operator.metrics import OperatorMetrics
from longshore_operator.pod_group_api import APIS
from longshore_operator.pods import coordinator_pod
from longshore_runtime.telemetry.step_gauges import MAX_DOMAINS, MAX_NAME_BYTES, StepGauges
from tests.unit.chart.test_alerts_and_dashboards import Selectors
from tests.unit.operator.model import CONFIG, make_job

helm = pytest.importorskip("helm_python", reason="the chart is rendered with helm-python-sdk")

CHART = Path(__file__).parents[3] / "charts" / "longshore"
GPU = "nvidia.com/gpu"
DIGEST = f"sha256:{'0123456789abcdef' * 4}"
Json = dict[str, Any]
MAX_OTHER_STEP_METRICS = 250
"""More than those of `docs/reference/metrics.md` and two of each of 32 reward functions."""

# Facts of the definitions of the Prometheus operator (monitoring.coreos.com/v1), whose API server prunes other fields.
DURATION = re.compile(r"^(0|(([0-9]+)y)?(([0-9]+)w)?(([0-9]+)d)?(([0-9]+)h)?(([0-9]+)m)?(([0-9]+)s)?(([0-9]+)ms)?)$")
SERVICE_MONITOR = {"endpoints", "selector", "namespaceSelector", "jobLabel", "targetLabels", "podTargetLabels"}
POD_MONITOR = {
    "podMetricsEndpoints", "selector", "namespaceSelector", "jobLabel", "podTargetLabels", "sampleLimit", "labelLimit",
    "labelNameLengthLimit", "labelValueLengthLimit",
}  # fmt: skip
ENDPOINT = {
    "port", "path", "scheme", "params", "interval", "scrapeTimeout", "honorLabels", "relabelings", "metricRelabelings",
}  # fmt: skip
WORKLOADS = {"CronJob", "DaemonSet", "Deployment", "Job", "Pod", "StatefulSet"}
RULE = {"alert", "expr", "for", "keep_firing_for", "labels", "annotations"}


def rendered(namespace: str | None = None, /, release: str = "longshore", **values: Any) -> dict[tuple[str, str], Json]:
    """Objects by kind and name."""
    with helm.Chart.load(str(CHART)) as chart:
        chart.validate_schema(values)
        texts = chart.render(values, name=release, namespace=namespace)
    pages = [text for name, text in texts.items() if name.endswith(".yaml")]
    objects = [one for text in pages for one in yaml.load_all(text, yaml.CSafeLoader) if one]
    return {(one["kind"], one["metadata"]["name"]): one for one in objects}


def refusal(**values: Any) -> str:
    with pytest.raises(helm.HelmError) as caught:
        rendered(**values)
    return str(caught.value)


def pod(**values: Any) -> Json:
    found: Json = rendered(**values)["Deployment", "longshore-operator"]["spec"]["template"]
    return found


class TestOperatorPod:
    def test_an_image_is_named_by_its_tag_or_by_its_digest(self) -> None:
        images = [{}, {"tag": "2"}, {"tag": "2", "digest": DIGEST}]
        found = [pod(image=image)["spec"]["containers"][0]["image"] for image in images]
        assert found == ["longshore-operator:0.1.0", "longshore-operator:2", f"longshore-operator@{DIGEST}"]

    def test_names_are_short_enough_with_the_longest_name_of_a_release_and_can_be_chosen(self) -> None:
        long = "ml-platform-production-eu-west-1-reinforcement-learni"
        assert len(long) == 53, "Helm takes no longer one"
        for objects in (rendered(release=long), rendered(fullnameOverride=f"{long}-2")):
            names_of = [name for kind, name in objects if kind in ("Service", "Deployment", "ServiceAccount")]
            assert names_of
            assert all(len(name) <= 63 and not name.endswith("-") for name in names_of)
        assert ("Deployment", "ours") in rendered(fullnameOverride="ours")

    def test_pods_prefer_other_nodes_and_zones_than_their_like(self) -> None:
        template = pod(replicas=2)
        [term] = template["spec"]["affinity"]["podAntiAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"]
        [spread] = template["spec"]["topologySpreadConstraints"]
        for selector in (term["podAffinityTerm"]["labelSelector"], spread["labelSelector"]):
            assert selector["matchLabels"].items() <= template["metadata"]["labels"].items()
        assert spread["whenUnsatisfiable"] == "ScheduleAnyway"

    def test_given_placement_takes_the_place_of_the_preferences(self) -> None:
        spread = [{"maxSkew": 2, "topologyKey": "rack", "whenUnsatisfiable": "DoNotSchedule"}]
        spec = pod(affinity={"nodeAffinity": {}}, topologySpreadConstraints=spread)["spec"]
        assert spec["affinity"] == {"nodeAffinity": {}}
        assert spec["topologySpreadConstraints"] == spread

    def test_a_priority_class_of_the_charts_own_is_used_unless_another_is_named(self) -> None:
        objects = rendered(priorityClass={"create": True, "value": 500})
        assert objects["PriorityClass", "longshore-operator"]["value"] == 500
        assert pod(priorityClass={"create": True})["spec"]["priorityClassName"] == "longshore-operator"
        named = pod(priorityClass={"create": True}, priorityClassName="system-cluster-critical")
        assert named["spec"]["priorityClassName"] == "system-cluster-critical"
        assert "priorityClassName" not in pod()["spec"]


def options(**values: Any) -> OperatorConfig:
    """What the operator makes of the command line in its pod."""
    (container,) = pod(**values)["spec"]["containers"]
    assert container["command"][:3] == ["python", "-m", "longshore_operator"]
    return parse(container["command"][3:]).config


class TestPodUser:
    def test_pods_run_as_the_user_of_the_images_or_as_another(self) -> None:
        for value, user in ((None, 1000), ("", 1000), (1_000_680_000, 1_000_680_000)):
            values = {} if value is None else {"podUser": value}
            objects = rendered(**values)
            of_operator = objects["Deployment", "longshore-operator"]["spec"]["template"]["spec"]["securityContext"]
            assert of_operator == objects["Pod", "longshore-operator-test"]["spec"]["securityContext"]
            assert (of_operator["runAsUser"], of_operator["runAsGroup"], options(**values).pod_user) == (user,) * 3

    def test_the_cluster_may_assign_them(self) -> None:
        security = pod(podUser="assigned")["spec"]["securityContext"]
        assert security == {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}
        assert options(podUser="assigned").pod_user is None

    @pytest.mark.parametrize("user", [0, -1, "root", 1.5])
    def test_what_is_no_user_is_refused(self, user: Any) -> None:
        assert "podUser" in refusal(podUser=user)


def test_pods_of_jobs_pull_their_images_with_the_secrets_of_the_values() -> None:
    assert options(runtimeImagePullSecrets=[{"name": "a"}, {"name": "b"}]).image_pull_secrets == ("a", "b")
    assert options().image_pull_secrets == ()


def test_rdma_devices_reach_the_operator_once_a_resource_is_named() -> None:
    assert options().rdma is None
    found = options(rdma={"resource": "rdma/hca", "count": 8}).rdma
    assert found == RdmaDevices(resource="rdma/hca", count=8)
    assert options(rdma={"resource": "rdma/hca"}).rdma == RdmaDevices(resource="rdma/hca")
    for wrong in ({"resource": "hca"}, {"count": 0}, {"ipcLock": True}):
        assert "rdma" in refusal(rdma=wrong)


class TestPolicies:
    def test_they_are_there_where_helm_does_not_ask_the_cluster(self) -> None:
        found = {name for kind, name in rendered() if kind == "ValidatingAdmissionPolicy"}
        assert found == {"longshore-operator-jobs", "longshore-operator-coordinators"}

    def test_a_queue_is_not_required_of_jobs_which_the_operator_would_not_run_in_one(self) -> None:
        for values in ({"watchNamespace": "team"}, {"kueue": {"enabled": False}}):
            assert "jobPolicy.requireQueue" in refusal(jobPolicy={"requireQueue": True}, **values)


class TestTemplatesOfJobs:
    def test_classes_that_the_values_list_are_allowed_and_no_others(self) -> None:
        assert options().priority_classes == frozenset()
        assert options().runtime_classes == {"gvisor", "kata"}
        listed = options(templates={"priorityClasses": ["batch", "urgent"], "runtimeClasses": []})
        assert (listed.priority_classes, listed.runtime_classes) == ({"batch", "urgent"}, frozenset())
        assert not listed.allow_privileged_templates
        assert options(allowPrivilegedTemplates=True).allow_privileged_templates

    @pytest.mark.parametrize(
        "values", [{"priorityClasses": "batch"}, {"runtimeClasses": [1]}, {"classes": []}], ids=str
    )
    def test_what_is_no_list_of_names_is_refused(self, values: Json) -> None:
        (field,) = values
        assert field in refusal(templates=values)


class TestOperator:
    def test_who_may_read_the_pages_of_jobs_reaches_it(self) -> None:
        peer = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": 'a "quoted" name'}}}
        assert options(jobPage={"from": [peer]}).page_peers == (peer,)
        assert options().page_peers == ()

    def test_limits_of_jobs_reach_it_and_other_limits_start_another_pod(self) -> None:
        assert not any("--admission" in word for word in pod()["spec"]["containers"][0]["command"])
        marks = set()
        for gpus in (8, 16):
            objects = rendered(admission={"capacity": {GPU: gpus}, "quotas": {"team": {GPU: 4}}})
            [limits] = [one["data"]["admission.json"] for (kind, _), one in objects.items() if kind == "ConfigMap"]
            assert AdmissionConfig.model_validate_json(limits).limits == Limits({GPU: gpus}, {"team": {GPU: 4}})
            template = objects["Deployment", "longshore-operator"]["spec"]["template"]
            assert "--admission=/etc/longshore/admission.json" in template["spec"]["containers"][0]["command"]
            marks.add(template["metadata"]["annotations"]["longshore.dev/admission"])
        assert len(marks) == 2

    def test_for_one_namespace_it_needs_no_cluster_wide_rights_and_does_without_kueue(self) -> None:
        everywhere = str(rendered())
        in_one = str(rendered(watchNamespace="team", rbac={"aggregatedRoles": False}))
        assert "--namespace=team" in in_one and "--namespace" not in everywhere
        for cluster_wide in ("'kind': 'ClusterRole", "--kueue", "'apiGroups': ['kueue.x-k8s.io']"):
            assert cluster_wide in everywhere and cluster_wide not in in_one

    def test_operators_for_several_namespaces_lead_beside_each_other(self) -> None:
        def lease(release: str, **values: Any) -> set[str]:
            objects = rendered(release=release, **values)
            name = next(value["metadata"]["name"] for (kind, _), value in objects.items() if kind == "Deployment")
            command = objects["Deployment", name]["spec"]["template"]["spec"]["containers"][0]["command"]
            [rule] = [rule for rule in objects["Role", f"{name}-leader"]["rules"] if "resourceNames" in rule]
            given = {argument.removeprefix("--lease-name=") for argument in command if "--lease-name=" in argument}
            return given | set(rule["resourceNames"])

        assert lease("a", watchNamespace="team-a") == {"a-longshore-operator"}
        assert lease("b", watchNamespace="team-b") == {"b-longshore-operator"}
        assert lease("a") == lease("b") == {"longshore-operator"}, "two for all namespaces would do everything twice"

    def test_helm_refuses_a_second_operator_for_all_namespaces(self) -> None:
        def bindings(release: str, **values: Any) -> set[str]:
            return {name for kind, name in rendered(release=release, **values) if kind == "ClusterRoleBinding"}

        assert bindings("a") & bindings("b"), "of one name, and the second release does not own it"
        assert not bindings("a") & bindings("b", watchNamespace="team")

    def test_operators_for_one_namespace_each_share_nothing_but_the_definition(self) -> None:
        def common(**values: Any) -> set[str]:
            first = rendered("a", release="a", watchNamespace="team-a", **values)
            return {kind for kind, _ in first.keys() & rendered("b", release="b", watchNamespace="team-b", **values)}

        assert common() == {"CustomResourceDefinition"}
        assert common(crd={"install": False}) == set()

    def test_one_that_is_not_healthy_keeps_nobody_from_draining_its_node(self) -> None:
        budget = rendered(podDisruptionBudget={"enabled": True})["PodDisruptionBudget", "longshore-operator"]
        assert budget["spec"]["unhealthyPodEvictionPolicy"] == "AlwaysAllow"

    def test_a_namespace_whose_name_looks_like_a_number_is_a_text(self) -> None:
        objects = rendered(watchNamespace="2024", monitoring={"podMonitor": {"enabled": True}})
        assert objects["Role", "longshore-operator"]["metadata"]["namespace"] == "2024"
        assert objects["RoleBinding", "longshore-operator"]["metadata"]["namespace"] == "2024"
        selected = [
            one["spec"]["matchResources"] for (kind, _), one in objects.items() if kind.endswith("PolicyBinding")
        ]
        name = {"kubernetes.io/metadata.name": "2024"}
        assert selected == [{"namespaceSelector": {"matchLabels": name}}] * 2
        monitor = objects["PodMonitor", "longshore-operator-coordinators"]
        assert monitor["spec"]["namespaceSelector"] == {"matchNames": ["2024"]}

    def test_switches_switch(self) -> None:
        enabled = {"enabled": True}
        values: Json = {"podDisruptionBudget": enabled, "networkPolicy": enabled, "crd": {"install": False}}
        kinds, by_default = ({kind for kind, _ in objects} for objects in (rendered(**values), rendered()))
        assert kinds - by_default == {"PodDisruptionBudget", "NetworkPolicy"}
        assert by_default - kinds == {"CustomResourceDefinition"}
        assert not options(jobNetworkPolicies={"enabled": False}).network_policies and options().network_policies


class TestPodGroups:
    def test_the_operator_may_use_those_that_are_listed_and_no_others(self) -> None:
        def found(kinds: list[str], scope: str = "") -> tuple[list[str], set[str]]:
            objects = rendered(podGroups=kinds, watchNamespace=scope)
            rules = objects["Role" if scope else "ClusterRole", "longshore-operator"]["rules"]
            groups = {rule["apiGroups"][0] for rule in rules if rule["resources"] == ["podgroups"]}
            command = objects["Deployment", "longshore-operator"]["spec"]["template"]["spec"]["containers"][0][
                "command"
            ]
            return [one for one in command if one.startswith("--pod-groups")], groups

        assert found([]) == ([], set())
        assert found(["Volcano"]) == (["--pod-groups=Volcano"], {"scheduling.volcano.sh"})
        every = [kind.value for kind in PodGroupKind]
        assert found(every, "team")[1] == {api.group for api in APIS.values()}
        assert parse(["run", "--namespace=team", "--runtime-image=x", *found(every)[0]]).config.pod_groups == set(
            PodGroupKind
        )

    def test_a_kind_that_does_not_exist_is_refused(self) -> None:
        assert "podGroups" in refusal(podGroups=["YuniKorn"])


class TestMonitoring:
    def test_monitors_find_ports_that_exist(self) -> None:
        objects = rendered(monitoring={"serviceMonitor": {"enabled": True}, "podMonitor": {"enabled": True}})
        monitor, service = (
            objects["ServiceMonitor", "longshore-operator"],
            objects["Service", "longshore-operator-metrics"],
        )
        assert monitor["spec"]["selector"]["matchLabels"].items() <= service["metadata"]["labels"].items()
        assert monitor["spec"]["endpoints"] == [{"port": service["spec"]["ports"][0]["name"], "interval": "30s"}]

        coordinators, coordinator = (
            objects["PodMonitor", "longshore-operator-coordinators"],
            coordinator_pod(make_job(), CONFIG, 1),
        )
        assert coordinators["spec"]["selector"]["matchLabels"].items() <= coordinator["metadata"]["labels"].items()
        ports = [port["name"] for port in coordinator["spec"]["containers"][0]["ports"]]
        assert coordinators["spec"]["podMetricsEndpoints"][0]["port"] in ports
        assert coordinators["spec"]["namespaceSelector"] == {"any": True}

    def test_they_have_only_what_the_definitions_of_the_prometheus_operator_know(self) -> None:
        every = {"enabled": True, "interval": "1m30s"}
        objects = rendered(
            monitoring={
                "serviceMonitor": every,
                "podMonitor": every,
                "rules": {"enabled": True, "for": {"LongshoreJobStuck": "1d12h"}},
            }
        )
        service, pods = (
            objects["ServiceMonitor", "longshore-operator"]["spec"],
            objects["PodMonitor", "longshore-operator-coordinators"]["spec"],
        )
        assert {"endpoints", "selector"} <= service.keys() <= SERVICE_MONITOR
        assert {"podMetricsEndpoints", "selector"} <= pods.keys() <= POD_MONITOR
        endpoints = [*service["endpoints"], *pods["podMetricsEndpoints"]]
        assert all(endpoint.keys() <= ENDPOINT for endpoint in endpoints)
        [group] = objects["PrometheusRule", "longshore-operator"]["spec"]["groups"]
        assert {"name", "rules"} == group.keys()
        for rule in group["rules"]:
            assert {"alert", "expr"} <= rule.keys() <= RULE
            assert all(isinstance(text, str) for text in (*rule["labels"].values(), *rule["annotations"].values()))
        durations = [*(one["interval"] for one in endpoints), *(rule["for"] for rule in group["rules"])]
        assert all(DURATION.match(duration) for duration in durations), durations

    @pytest.mark.parametrize("duration", ["", "30s1h", "soon", "5"])
    def test_a_duration_that_the_prometheus_operator_refuses_is_refused_at_once(self, duration: str) -> None:
        assert "interval" in refusal(monitoring={"podMonitor": {"interval": duration}})

    def test_an_operator_of_one_namespace_has_coordinators_there_alone(self) -> None:
        objects = rendered(watchNamespace="team", monitoring={"podMonitor": {"enabled": True}})
        selector = objects["PodMonitor", "longshore-operator-coordinators"]["spec"]["namespaceSelector"]
        assert selector == {"matchNames": ["team"]}

    def test_a_monitor_of_a_service_that_is_switched_off_is_refused(self) -> None:
        reported = refusal(monitoring={"serviceMonitor": {"enabled": True}}, metrics={"service": {"enabled": False}})
        assert "needs metrics.service.enabled: set it to true" in reported

    def test_alerts_hold_for_as_long_as_the_values_say(self) -> None:
        def rules(**value: Any) -> dict[str, str]:
            rule = rendered(monitoring={"rules": {"enabled": True, **value}})["PrometheusRule", "longshore-operator"]
            return {one["alert"]: one["for"] for one in rule["spec"]["groups"][0]["rules"]}

        changed = rules() | {"LongshoreJobStuck": "2h"}
        assert rules(**{"for": {"LongshoreJobStuck": "2h"}}) == changed != rules()

    def test_a_duration_for_an_alert_that_does_not_exist_names_those_that_do(self) -> None:
        reported = refusal(monitoring={"rules": {"enabled": True, "for": {"LongshoreJobStock": "2h"}}})
        assert "monitoring.rules.for.LongshoreJobStock: there is no such alert; choose from" in reported
        assert "LongshoreJobStuck" in reported

    def test_placeholders_of_alerts_are_left_to_prometheus(self) -> None:
        rule = rendered(monitoring={"rules": {"enabled": True}})["PrometheusRule", "longshore-operator"]
        rules = rule["spec"]["groups"][0]["rules"]
        written = yaml.safe_load((CHART / "files" / "alerts.yaml").read_text())
        assert rules == written

    def test_of_a_coordinator_nothing_is_kept_but_its_steps_and_no_more_than_it_has(self) -> None:
        objects = rendered(monitoring={"podMonitor": {"enabled": True}})
        spec = objects["PodMonitor", "longshore-operator-coordinators"]["spec"]
        [endpoint] = spec["podMetricsEndpoints"]
        assert "honorLabels" not in endpoint, "a pod does not choose its namespace"
        registry = CollectorRegistry()
        most = {f"{number}{'x' * 300}"[:MAX_NAME_BYTES]: 0.0 for number in range(MAX_OTHER_STEP_METRICS)}
        StepGauges(registry).show_step(most | {f"reward/domain/{one}/mean": 0.0 for one in range(2 * MAX_DOMAINS)})
        samples = [sample for family in registry.collect() for sample in family.samples]
        [keep] = endpoint["metricRelabelings"]
        assert (keep["action"], keep["sourceLabels"]) == ("keep", ["__name__"])
        assert all(re.fullmatch(keep["regex"], sample.name) for sample in samples)
        assert not any(re.fullmatch(keep["regex"], family.name) for family in OperatorMetrics().registry.collect())
        assert len(samples) == MAX_OTHER_STEP_METRICS + MAX_DOMAINS <= spec["sampleLimit"]
        longest = max(len(value) for sample in samples for value in sample.labels.values())
        assert longest == MAX_NAME_BYTES <= spec["labelValueLengthLimit"]

    def test_metrics_of_other_operators_are_not_taken_for_those_of_this_one(self) -> None:
        on = {"enabled": True}
        monitoring = {"rules": on, "serviceMonitor": on, "dashboards": on}
        objects = rendered("here", monitoring=monitoring)
        assert ("Service", "longshore-operator-metrics") in objects
        rules = objects["PrometheusRule", "longshore-operator"]["spec"]["groups"][0]["rules"]
        boards = [
            json.loads(content)
            for (kind, name), one in objects.items()
            if kind == "ConfigMap" and name.endswith("-dashboard")
            for content in one["data"].values()
        ]
        targets = [target["expr"] for board in boards for panel in board["panels"] for target in panel["targets"]]
        queries = [one["query"]["query"] for board in boards for one in board["templating"]["list"] if "refresh" in one]
        asked = [re.sub(r"label_values\((.+), \w+\)", r"\1", query) for query in queries]
        for expression in (*(rule["expr"] for rule in rules), *targets, *asked):
            for selector in Selectors(expression):
                found = {one.name: one.value for one in selector.matchers.matchers}
                if selector.name.startswith("longshore_operator_"):
                    assert (found["namespace"], found["service"]) == ("here", "longshore-operator-metrics"), expression
                else:
                    assert "service" not in found, expression

    def test_dashboards_are_config_maps_that_the_sidecar_finds(self) -> None:
        objects = rendered(monitoring={"dashboards": {"enabled": True, "annotations": {"folder": "RL"}}})
        boards = {name: one for (kind, name), one in objects.items() if name.endswith("-dashboard")}
        assert boards.keys() == {"longshore-operator-fleet-dashboard", "longshore-operator-job-dashboard"}
        for board in boards.values():
            assert board["metadata"]["labels"]["grafana_dashboard"] == "1"
            assert board["metadata"]["annotations"] == {"folder": "RL"}
            [(file, content)] = board["data"].items()
            assert json.loads(content) == json.loads((CHART / "files" / "dashboards" / file).read_text())

    def test_nothing_of_it_is_there_by_default(self) -> None:
        kinds = {kind for kind, _ in rendered()}
        assert not kinds & {"ServiceMonitor", "PodMonitor", "PrometheusRule", "PriorityClass"}


def test_the_chart_is_sound() -> None:
    assert helm.lint(str(CHART))["errors"] == []


def test_multikueue_may_copy_jobs_and_their_status_where_the_values_name_its_account() -> None:
    assert ("ClusterRole", "longshore-operator-multikueue") not in rendered()
    objects = rendered(kueue={"multiKueue": {"serviceAccount": "kueue-controller-manager"}})
    account = {"kind": "ServiceAccount", "name": "kueue-controller-manager", "namespace": "kueue-system"}
    assert objects["ClusterRoleBinding", "longshore-operator-multikueue"]["subjects"] == [account]
    rules = objects["ClusterRole", "longshore-operator-multikueue"]["rules"]
    assert {one: rule["verbs"] for rule in rules for one in rule["resources"]} == {
        "rljobs": ["get", "list", "watch", "create", "delete"],
        "rljobs/status": ["get", "patch", "update"],
    }


def test_the_chart_test_asks_the_service_of_the_operator_and_is_no_pod_of_it() -> None:
    objects = rendered(metrics={"port": 9000})
    test, service = objects["Pod", "longshore-operator-test"], objects["Service", "longshore-operator-metrics"]
    assert test["metadata"]["annotations"]["helm.sh/hook"] == "test"
    assert f"http://{service['metadata']['name']}:9000" in test["spec"]["containers"][0]["command"][-1]
    assert not service["spec"]["selector"].items() <= test["metadata"]["labels"].items()


def test_every_pod_of_the_chart_can_be_created_under_a_quota_of_requests_and_memory() -> None:
    pods = [one["spec"].get("template", one)["spec"] for (kind, _), one in rendered().items() if kind in WORKLOADS]
    assert len(pods) == 2
    for container in (one for spec in pods for one in (*spec["containers"], *spec.get("initContainers", ()))):
        assert container["resources"]["requests"].keys() >= {"cpu", "memory"}
        assert "memory" in container["resources"]["limits"]


def test_jobs_are_viewed_and_edited_by_those_who_view_and_edit_other_things() -> None:
    objects = rendered()
    for name, aggregate, may_write in (("viewer", "view", False), ("editor", "edit", True), ("admin", "admin", True)):
        role = objects["ClusterRole", f"longshore-operator-rljob-{name}"]
        assert role["metadata"]["labels"][f"rbac.authorization.k8s.io/aggregate-to-{aggregate}"] == "true"
        verbs = {verb for rule in role["rules"] if rule["resources"] == [names.PLURAL] for verb in rule["verbs"]}
        assert ({"create", "patch", "delete"} <= verbs) is may_write


@pytest.mark.parametrize(
    ("name", "rule"),
    [
        ("own", template_rules._POD_FIELDS),
        ("volumes", template_rules._VOLUMES),
        ("projected", template_rules._PROJECTED),
        ("security", template_rules._CONTAINER_SECURITY),
    ],
)
def test_the_policy_for_jobs_has_the_lists_of_the_operator(name: str, rule: Any) -> None:
    text = (CHART / "templates" / "jobpolicy.yaml").read_text()
    [found] = re.findall(rf"\${name} := list ([^}}]*)}}}}", text)
    assert set(re.findall(r'"(\w+)"', found)) == set(rule)


@pytest.mark.parametrize(
    "values",
    [
        {"replicas": "two"},
        {"typo": 1},
        {"watchNamespace": "Not A Name"},
        {"metrics": {"port": 80}},
        {"admission": {"capacity": {GPU: -1}}},
        {"admission": {"priorityClasses": {"a": 1}}},
        {"image": {"digest": "latest"}},
        {"monitoring": {"rules": {"for": {"LongshoreJobStuck": "soon"}}}},
        {"monitoring": {"podMonitor": {"interval": 30}}},
        {"jobPolicy": {"maxGpus": -1}},
        {"jobPolicy": {"images": [""]}},
        {"priorityClass": {"value": 2_000_000_000}},
    ],
    ids=str,
)
def test_wrong_values_are_refused(values: Json) -> None:
    (field,) = values
    assert field in refusal(**values)


@pytest.mark.parametrize(("limits", "name"), [({"capacity": {"gpu": 1}}, "gpu"), ({"quotas": {"Team": {}}}, "Team")])
def test_limits_under_a_wrong_name_are_refused(limits: Json, name: str) -> None:
    assert f"'{name}' does not match" in refusal(admission=limits)
