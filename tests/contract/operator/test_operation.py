"""Running the operator: restarts, leadership, rights, health, and installation by the chart."""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from kubernetes import client, config

from tests.contract.operator.conftest import helm
from tests.contract.operator.harness import (
    CHART,
    CHART_VALUES,
    RELEASE_NAMESPACE,
    SERVICE_ACCOUNT,
    Cluster,
    Jobs,
    Operator,
    eventually,
    job_spec,
)
from tests.contract.operator.newer import NEW_FIELD

NEWER_IMAGE = os.environ.get("LONGSHORE_TEST_IMAGE", "newer")
"""On a real cluster an image that it can pull."""
METRICS_SERVICE = f"{SERVICE_ACCOUNT}-metrics"
METRICS_PORT = re.compile(rf"{METRICS_SERVICE}:\d+")
SERVICE = "kubernetes"
"""The service of the API server, in the namespace `default`."""


Start = Callable[..., Operator]


@pytest.fixture
def start(operator_kubeconfig: Path, tmp_path: Path) -> Iterator[Start]:
    """Starts an operator, for all namespaces where no options are given; all are stopped in the end."""
    started: list[Operator] = []

    def make(*options: str, **more: str) -> Operator:
        log = tmp_path / f"operator-{len(started)}.log"
        started.append(Operator(operator_kubeconfig, log, *(options or ("--all-namespaces",)), **more))
        return started[-1]

    yield make
    for process in started:
        process.stop()


def replaced(jobs: Jobs, name: str, before: dict[str, str]) -> bool:
    """Another pod has the name."""
    pod = jobs.pods().get(name)
    return pod is not None and pod.metadata.uid != before[name]


class TestRestart:
    def test_what_happened_meanwhile_is_dealt_with_and_healthy_pods_are_left_alone(
        self, jobs: Jobs, start: Start
    ) -> None:
        first = start()
        jobs.create("healthy", **job_spec())
        jobs.create("hurt", **job_spec())
        jobs.wait_phase("Running", "healthy")
        jobs.wait_phase("Running", "hurt")
        healthy = {name: pod.metadata.uid for name, pod in jobs.pods().items() if name.startswith("healthy")}
        first.stop(signal.SIGKILL)

        jobs.delete_pod("hurt-coordinator")
        eventually("the pod is gone", lambda: "hurt-coordinator" not in jobs.pods())
        start().wait_leading()
        status = jobs.wait_phase("Running", "hurt", attempt=2)
        assert status["failures"] == 0
        now = {name: pod.metadata.uid for name, pod in jobs.pods().items() if name.startswith("healthy")}
        assert now == healthy
        assert jobs.status("healthy")["attempt"] == 1

    def test_a_newer_version_with_other_defaults_and_image_restarts_no_running_job(
        self, jobs: Jobs, start: Start
    ) -> None:
        first = start()
        jobs.create(**job_spec())
        before = jobs.wait_phase("Running")["settings"]
        pods = {name: pod.metadata.uid for name, pod in jobs.pods().items()}
        first.stop()

        jobs.patch({"backoffLimit": 5})
        options = ("--all-namespaces", f"--runtime-image={NEWER_IMAGE}")
        start(*options, module="tests.contract.operator.newer")
        eventually("the newer version has looked", lambda: jobs.status()["settings"]["generation"] == 2)
        after = jobs.status()["settings"]
        assert after["fingerprint"] != before["fingerprint"]
        assert {name: pod.metadata.uid for name, pod in jobs.pods().items()} == pods

        jobs.delete_pod("demo-worker-0")
        eventually("the worker is replaced", lambda: replaced(jobs, "demo-worker-0", pods))
        jobs.wait_phase("Running", attempt=1)
        assert jobs.pods()["demo-worker-0"].spec.containers[0].image == "unused"
        settings = jobs.cluster.core.read_namespaced_config_map("demo-config", jobs.namespace).data["spec.json"]
        assert NEW_FIELD not in json.loads(settings)

        jobs.delete_pod("demo-coordinator")
        jobs.wait_phase("Running", attempt=2)
        assert {pod.spec.containers[0].image for pod in jobs.pods().values()} == {NEWER_IMAGE}
        settings = jobs.cluster.core.read_namespaced_config_map("demo-config", jobs.namespace).data["spec.json"]
        assert NEW_FIELD in json.loads(settings)

    def test_a_job_deleted_while_no_operator_runs_goes_away_with_its_pods(self, jobs: Jobs, start: Start) -> None:
        operator = start()
        jobs.create(**job_spec())
        jobs.wait_phase("Running")
        operator.stop()
        jobs.delete()
        eventually("job and pods are gone", lambda: jobs.get() is None and jobs.pods() == {})


class TestLeadership:
    def test_one_leads_and_the_other_takes_over_when_it_stops(self, jobs: Jobs, start: Start) -> None:
        first = start()
        first.wait_leading()
        second = start()
        eventually("the second serves its probes", lambda: answer(second, "readyz") == "standing by")
        assert answer(first, "readyz") == "leading"
        assert first.stop() == 0
        second.wait_leading()
        jobs.create(**job_spec())
        jobs.wait_phase("Running")


def answer(operator: Operator, path: str) -> str | None:
    """What a health endpoint says, or None while it does not answer."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{operator.health_port}/{path}", timeout=60) as response:
            return str(response.read().decode())
    except OSError:
        return None


class TestHealth:
    def test_a_working_operator_is_healthy_and_serves_its_metrics(self, jobs: Jobs, start: Start) -> None:
        operator = start()
        jobs.create(**job_spec(coordinator="exit 0"))
        jobs.wait_phase("Succeeded")
        assert answer(operator, "healthz") == "ok"

        def shown() -> bool:
            lines = (answer(operator, "metrics") or "").splitlines()
            jobs_shown = [line for line in lines if line.startswith('longshore_operator_jobs{phase="Succeeded"}')]
            return (
                bool(jobs_shown) and float(jobs_shown[0].split()[-1]) >= 1 and "longshore_operator_leader 1.0" in lines
            )

        eventually("the finished job is counted", shown)


class TestScope:
    def test_an_operator_for_one_namespace_leaves_others_alone(
        self, jobs: Jobs, cluster: Cluster, start: Start
    ) -> None:
        start(f"--namespace={jobs.namespace}")
        other = Jobs(cluster, "default")
        other.create("elsewhere", **job_spec())
        try:
            jobs.create(**job_spec())
            jobs.wait_phase("Running")
            assert other.status("elsewhere") == {}
        finally:
            other.delete("elsewhere")


class TestRights:
    @pytest.mark.parametrize(
        ("verb", "resource"),
        [
            ("get", "secrets"), ("list", "secrets"), ("patch", "secrets"), ("list", "configmaps"), ("patch", "nodes"),
            ("update", "pods"), ("patch", "pods/status"), ("create", "pods/exec"),
            ("update", "rljobs"), ("create", "rljobs"), ("get", "nodes"),
            ("bind", "roles"), ("escalate", "roles"), ("delete", "persistentvolumeclaims"), ("create", "namespaces"),
        ],
    )  # fmt: skip
    def test_the_operator_may_not(self, operator_kubeconfig: Path, verb: str, resource: str) -> None:
        assert not allowed(operator_kubeconfig, verb, resource)

    def test_the_operator_may_create_a_secret(self, operator_kubeconfig: Path) -> None:
        assert allowed(operator_kubeconfig, "create", "secrets")

    def test_a_coordinator_may_follow_its_own_job_and_patch_its_status_and_nothing_else(
        self, jobs: Jobs, start: Start, tmp_path: Path
    ) -> None:
        start()
        jobs.create(**job_spec())
        jobs.create("other", **job_spec())
        jobs.wait_phase("Running")
        access = jobs.cluster.token_kubeconfig(tmp_path / "coordinator", jobs.namespace, "demo-coordinator")
        own = {"name": "demo", "namespace": jobs.namespace}
        for verb in ("get", "list", "watch"):
            assert allowed(access, verb, "rljobs", **own)
        assert allowed(access, "patch", "rljobs/status", **own)
        for verb, resource, name in (
            ("get", "rljobs", "other"), ("patch", "rljobs/status", "other"), ("patch", "rljobs", "demo"),
            ("get", "secrets", ""), ("list", "pods", ""), ("create", "pods", ""),
        ):  # fmt: skip
            assert not allowed(access, verb, resource, namespace=jobs.namespace, name=name), (verb, resource, name)


def allowed(kubeconfig: Path, verb: str, resource: str, namespace: str = "default", name: str = "") -> bool:
    """Whether the API server would let the user of a kubeconfig do this."""
    plural, _, subresource = resource.partition("/")
    group = {"rljobs": "longshore.dev", "roles": "rbac.authorization.k8s.io"}.get(plural, "")
    attributes = client.V1ResourceAttributes(
        group=group, resource=plural, subresource=subresource, verb=verb, namespace=namespace, name=name
    )
    review = client.V1SelfSubjectAccessReview(spec=client.V1SelfSubjectAccessReviewSpec(resource_attributes=attributes))
    api = client.AuthorizationV1Api(config.new_client_from_config(str(kubeconfig)))
    return bool(api.create_self_subject_access_review(review).status.allowed)


@contextlib.contextmanager
def own_endpoints(cluster: Cluster) -> Iterator[set[int]]:
    """Ports behind the service `kubernetes`; a cluster that keeps none there gets one for the time being."""
    api = client.DiscoveryV1Api(cluster.client)
    name = f"metadata.name={SERVICE}"
    if found := api.list_namespaced_endpoint_slice("default", field_selector=name).items:
        yield {port.port for port in found[0].ports}
        return
    body = client.V1EndpointSlice(
        address_type="IPv4",
        endpoints=[client.V1Endpoint(addresses=["192.0.2.1"])],
        metadata=client.V1ObjectMeta(name=SERVICE),
        ports=[client.DiscoveryV1EndpointPort(name="https", port=16443, protocol="TCP")],
    )
    api.create_namespaced_endpoint_slice("default", body)
    try:
        yield {16443}
    finally:
        api.delete_namespaced_endpoint_slice(SERVICE, "default")


def chart_test(cluster: Cluster, values: dict[str, Any]) -> str:
    """Run the program of the chart's test, as `helm test` does; returns what it prints.

    Nothing resolves the names of services on the embedded cluster, so a pod that the service selects takes its place.
    """
    with helm.Chart.load(str(CHART)) as loaded:
        rendered = loaded.render(values, name="longshore", namespace=RELEASE_NAMESPACE)
    [text] = [text for name, text in rendered.items() if name.endswith("tests/operator.yaml")]
    program = yaml.safe_load(text)["spec"]["containers"][0]["command"][-1]

    service = cluster.core.read_namespaced_service(METRICS_SERVICE, RELEASE_NAMESPACE).spec
    selector = ",".join(f"{name}={value}" for name, value in service.selector.items())

    def address() -> str:
        pods = cluster.core.list_namespaced_pod(RELEASE_NAMESPACE, label_selector=selector).items
        ready = [pod for pod in pods if pod.status.container_statuses and pod.status.container_statuses[0].ready]
        numbers = [
            port.container_port
            for pod in ready
            for container in pod.spec.containers
            for port in container.ports
            if service.ports[0].target_port in (port.name, port.container_port)
        ]
        return f"{ready[0].status.pod_ip}:{numbers[0]}" if numbers else ""

    eventually("the service of the operator has a pod", lambda: bool(address()))
    port = METRICS_PORT.search(program)
    assert port is not None, "it asks the service of the operator"
    program = program.replace(port.group(), address())
    return subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60
    ).stdout


class TestChart:
    def test_coordinators_may_reach_the_api_server_on_the_port_that_it_has_here(self, cluster: Cluster) -> None:
        with (
            own_endpoints(cluster) as found,
            helm.Chart.load(str(CHART)) as chart,
            helm.Config(namespace=RELEASE_NAMESPACE, kubeconfig_path=str(cluster.kubeconfig)) as release,
        ):
            rendered = release.render(chart, {"networkPolicy": {"enabled": True}}, name="longshore")
        text = "\n".join(rendered.values())
        for port in {443, 6443, *found}:
            assert text.count(f"--api-server-port={port}\n") == 1
            assert text.count(f"port: {port}\n") == 1

    @pytest.mark.skipif("LONGSHORE_TEST_KUBECONFIG" in __import__("os").environ, reason="needs a pushed image")
    def test_an_installed_operator_runs_jobs(self, jobs: Jobs, cluster: Cluster) -> None:
        with helm.Config(namespace=RELEASE_NAMESPACE, kubeconfig_path=str(cluster.kubeconfig)) as release:
            with_policy = CHART_VALUES | {"replicas": 1, "jobPolicy": {"enabled": True}}
            release.upgrade(str(CHART), "longshore", with_policy, timeout=60)
            try:
                jobs.create(**job_spec())
                jobs.wait_phase("Running")
                apps = client.AppsV1Api(cluster.client)

                def ready() -> bool:
                    found = apps.read_namespaced_deployment(SERVICE_ACCOUNT, RELEASE_NAMESPACE)
                    return found.status.ready_replicas == 1

                eventually("the operator's pod is ready", ready)
                assert chart_test(cluster, with_policy).splitlines() == ["healthz ok", "readyz leading"]
            finally:
                release.upgrade(str(CHART), "longshore", CHART_VALUES, timeout=60)

        def stopped() -> bool:
            pods = cluster.core.list_namespaced_pod(RELEASE_NAMESPACE).items
            return not pods

        eventually("the operator's pod is gone", stopped)
