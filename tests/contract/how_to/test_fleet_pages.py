"""Pages for those who run many jobs: every command works as it is written, and shows what the page shows."""

import re
from pathlib import Path
from typing import Any, Final

from kubernetes import client

from longshore.api import names
from tests.contract.how_to.conftest import install
from tests.contract.how_to.pages import Json, Page, Shell
from tests.contract.operator.harness import GPU as PRETEND_GPU
from tests.contract.operator.harness import RELEASE_NAMESPACE, SERVICE_ACCOUNT, Jobs, eventually, job_spec
from tests.contract.operator.kueue import ON_LINUX, FakeKueue, Kueue, install_definitions

GPU: Final = "nvidia.com/gpu"
NOT_RUN: Final = {
    "helm test": "its pod asks a Service by name, and the embedded cluster resolves no names; "
    "tests/contract/operator/test_operation.py runs the program of that pod",
}
"""Commands that no test can run here, and why."""


def spec_of(*fragments: Json, replicas: int = 1, gpus_per_pod: int = 8, **fields: Any) -> Json:
    """A spec whose pods compute nothing, with fragments of a page."""
    spec = job_spec(replicas=replicas, gpus_per_pod=gpus_per_pod)
    spec["workers"]["gpuResourceName"] = GPU
    for fragment in fragments:
        for name, value in fragment["spec"].items():
            spec[name] = spec[name] | value if isinstance(spec.get(name), dict) else value
    return spec | fields


def wait_operator(jobs: Jobs) -> None:
    """Wait until the operator of the newest revision leads, and there is no other."""
    apps, coordination = client.AppsV1Api(jobs.cluster.client), client.CoordinationV1Api(jobs.cluster.client)

    def ready() -> bool:
        found = apps.read_namespaced_deployment(SERVICE_ACCOUNT, RELEASE_NAMESPACE)
        wanted, status = found.spec.replicas, found.status
        counts = (status.replicas, status.updated_replicas, status.available_replicas)
        return status.observed_generation == found.metadata.generation and set(counts) == {wanted}

    def leads() -> bool:
        lease = coordination.read_namespaced_lease(SERVICE_ACCOUNT, RELEASE_NAMESPACE)
        pods = jobs.cluster.core.list_namespaced_pod(RELEASE_NAMESPACE).items
        newest = max(pod.metadata.creation_timestamp for pod in pods)
        return bool(lease.spec.holder_identity) and lease.spec.acquire_time >= newest

    eventually("the operator is replaced", ready)
    eventually("the new operator leads", leads)


def says(jobs: Jobs, name: str, kind: str, message: str) -> None:
    """Wait until a condition has a message."""
    eventually(f"{kind} of {name}: {message}", lambda: jobs.condition(kind, name).get("message") == message)


def rows(text: str) -> list[list[str]]:
    """Words of each line, in columns."""
    return [re.split(r" {2,}", line.strip()) for line in text.splitlines() if line.strip()]


def pod_images(jobs: Jobs) -> set[str]:
    return {pod.spec.containers[0].image for pod in jobs.pods().values()}


def test_queues_and_quotas(shell: Shell, teams: tuple[Jobs, Jobs]) -> None:
    install(shell)
    page, (a, b) = Page("queues-and-quotas.md", shell, NOT_RUN), teams
    page.save("admission.yaml", "admission")
    page.run("helm upgrade")
    wait_operator(a)

    a.create("old", **spec_of(replicas=3))
    b.create("old", **spec_of(replicas=4))
    a.wait_phase("Running", "old")
    b.wait_phase("Running", "old")
    for name in ("before-1", "before-2", "gsm8k"):
        a.create(name, **spec_of(replicas=2))
    a.wait_phase("Queued", "gsm8k")
    seen = page.run("kubectl get rljobs", "team-a")
    assert ["gsm8k", "Queued"] in [row[:2] for row in rows(seen.printed)]
    says(a, "gsm8k", "Admitted", "the job needs 16 nvidia.com/gpu, and 8 are free; 2 jobs are ahead")
    seen = page.run("kubectl get rljob gsm8k", "team-a")
    assert seen.printed == seen.shown
    for jobs, name in ((a, "old"), (b, "old"), (a, "before-1"), (a, "before-2"), (a, "gsm8k")):
        jobs.delete(name)
    eventually("all jobs are gone", lambda: not a.pods() and not b.pods())

    urgent = page.yaml("labels", about="longshore.dev/priority-class")["metadata"]["labels"]
    a.create("gsm8k", labels=urgent, **spec_of(page.yaml("workers")))
    assert a.wait_phase("Running", "gsm8k")["admission"]["gpus"] == {GPU: 48}
    seen = page.run("kubectl get rljob gsm8k", "team-a")
    assert seen.printed == seen.shown
    a.delete("gsm8k")
    eventually("the job is gone", lambda: not a.pods())

    install_definitions(a.cluster)
    kueue = Kueue(a.cluster, "urgent")
    with FakeKueue(a.cluster):
        kueue.create_queue("team-a", 2, ON_LINUX)
        kueue.create_local_queue("team-a", "team-a")
        spec = spec_of(replicas=2, gpus_per_pod=2)
        spec["workers"]["gpuResourceName"] = PRETEND_GPU
        a.create("gsm8k", labels=page.yaml("labels", about="kueue.x-k8s.io")["metadata"]["labels"], **spec)
        a.wait_condition("Admitted", "QuotaPending", "gsm8k")
        eventually("Kueue has looked", lambda: "insufficient" in a.condition("Admitted", "gsm8k")["message"])
        assert "insufficient unused quota" in page.run("kubectl get rljob gsm8k", "team-a").printed
        assert "gsm8k-rljob" in page.run("kubectl get workload", "team-a").printed
        kueue.change("team-a", "gsm8k", active=False)
        a.wait_reported("gsm8k", "Deactivated", "set spec.active of Workload gsm8k-rljob to false")
        page.run("kubectl patch workload", "team-a")
        a.wait_reported("gsm8k", "QuotaPending", "insufficient unused quota")
        a.delete("gsm8k")
    page.run("helm upgrade")
    access = client.RbacAuthorizationV1Api(a.cluster.client)
    [account] = access.read_cluster_role_binding(f"{SERVICE_ACCOUNT}-multikueue").subjects
    assert (account.name, account.namespace) == ("kueue-controller-manager", "kueue-system")
    page.run("helm upgrade")
    wait_operator(a)
    apps = client.AppsV1Api(a.cluster.client)
    [container] = apps.read_namespaced_deployment(SERVICE_ACCOUNT, RELEASE_NAMESPACE).spec.template.spec.containers
    assert {"--pod-groups=Volcano", "--admission=/etc/longshore/admission.json"} <= set(container.command)
    page.ends_here()


def test_monitor_a_fleet(shell: Shell, teams: tuple[Jobs, Jobs]) -> None:
    install(shell, {"admission": {"capacity": {GPU: 40}}})
    page, (a, b) = Page("monitor-a-fleet.md", shell, NOT_RUN), teams
    steps = job_spec()["algorithm"]
    alone = {"placement": "Disaggregated", "rollout": {"strategy": "GroupPipeline"}}
    spec = spec_of(replicas=3, algorithm=steps | {"steps": 200}, **alone)
    trainers = {"replicas": 1, **{name: spec["workers"][name] for name in spec["workers"] if name != "replicas"}}
    a.create("gsm8k", **spec, trainerWorkers=trainers)
    a.wait_phase("Running", "gsm8k")
    figures = {"stepSeconds": 120.0, "tokensPerSecond": 1234.0, "bubbleShare": 0.1, "step": 41, "steps": 200}
    a.report({"attempt": 1, **figures}, "gsm8k")
    b.create("dapo", **spec_of(replicas=2, algorithm=steps | {"steps": 300}))
    says(b, "dapo", "Admitted", "the job needs 16 nvidia.com/gpu, and 8 are free")

    seen = page.run("longshore top -A")
    assert rows(seen.printed) == rows(seen.shown)
    seen = page.run("longshore queue -A")
    waits = rows(seen.shown)[0].index("WAITS")
    assert [row[:waits] + row[waits + 1 :] for row in rows(seen.printed)] == [
        row[:waits] + row[waits + 1 :] for row in rows(seen.shown)
    ]
    page.ends_here()


def test_upgrade_and_uninstall(shell: Shell, teams: tuple[Jobs, Jobs]) -> None:
    install(shell)
    page, (a, b) = Page("upgrade-and-uninstall.md", shell, NOT_RUN), teams
    a.create("first", **spec_of())
    b.create("other", **spec_of())
    status = a.wait_phase("Running", "first")
    before = {name: pod.metadata.uid for name, pod in a.pods().items()}
    page.run("helm upgrade", REGISTRY="registry.example/team")
    wait_operator(a)
    assert {name: pod.metadata.uid for name, pod in a.pods().items()} == before
    assert a.status("first")["settings"] == status["settings"]

    page.run("longshore suspend NAME", "team-a", NAME="first")
    a.wait_phase("Suspended", "first")
    page.run("longshore resume NAME", "team-a", NAME="first")
    a.wait_phase("Running", "first", attempt=2)
    assert pod_images(a) == {"registry.example/team/longshore-runtime:0.2.0"}

    write_model(a, "first")
    page.run("longshore fetch NAME", "team-a", NAME="first")
    assert (shell.folder / "first" / "model.safetensors").read_bytes() == b"weights"
    page.run("kubectl delete rljobs --all --all-namespaces")
    eventually("all pods are gone", lambda: not a.pods() and not b.pods())
    page.run("helm uninstall")
    install(shell)
    assert "Longshore is removed" in page.run("longshore down --cluster current").printed
    assert a.get("first") is None, "the definition is there"
    page.run("kubectl delete crd")
    page.run("kubectl delete namespace")
    assert "longshore-system" not in shell.run("kubectl get namespaces -o name")
    page.ends_here()


def write_model(jobs: Jobs, name: str) -> None:
    """What training leaves in the storage of a job, and in its status."""
    job = jobs.get(name)
    assert job is not None
    claim = jobs.cluster.core.read_namespaced_persistent_volume_claim(names.storage_claim(name), jobs.namespace)
    volume = jobs.cluster.core.read_persistent_volume(claim.spec.volume_name)
    path = f"{names.default_output(name, job['metadata']['uid'])}/model"
    jobs.report({"attempt": job["status"]["attempt"], "finalModel": path}, name)
    model = Path(volume.spec.host_path.path) / path
    model.mkdir(parents=True)
    (model / "model.safetensors").write_bytes(b"weights")
