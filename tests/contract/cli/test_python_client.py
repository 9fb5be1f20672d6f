"""`longshore.client` against a real API server with a real kubelet."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from longshore.api.status import Phase
from longshore.client import (
    ClientError,
    Job,
    JobFailed,
    JobTimeout,
    RLJob,
    RLJobSpec,
    Target,
    fetch,
    get,
    list_jobs,
    submit,
    watch,
)
from longshore_client import jobs
from longshore_client.kube import Kube
from longshore_client.transfer import copy
from longshore_kube.errors import ApiError
from longshore_kube.resources import Json
from tests.contract.cli.manifests import IMAGE, claim, job, pod, report
from tests.unit.cli.samples import at_step, condition


@pytest.fixture
def target(kubeconfig: Path, crd: None) -> Target:
    """Where the jobs go."""
    return Target(kubeconfig)


@pytest.fixture
def demo(target: Target, kube: Kube) -> Job:
    """A job with storage."""
    kube.apply(claim("shared"))
    return submit(job("demo"), target=target, image=IMAGE)


def test_a_job_is_a_model_a_mapping_or_a_file(target: Target, manifest: Path) -> None:
    model = RLJob(metadata={"name": "model"}, spec=RLJobSpec.model_validate(job("model")["spec"]))
    for one in (model, job("mapping"), manifest, str(manifest)):
        assert submit(one, target=target).phase is Phase.PENDING
    assert [one.name for one in list_jobs(target=target)] == ["demo", "mapping", "model"]
    assert get("model", target=target).spec == get("mapping", target=target).spec


def test_a_job_that_has_ended_is_not_submitted_again(demo: Job, target: Target, kube: Kube) -> None:
    report(kube, "demo", {"phase": "Succeeded"})
    with pytest.raises(ClientError, match="'demo' has succeeded already, and an ended job never runs again"):
        submit(job("demo"), target=target)


def test_only_what_was_set_is_applied_so_that_the_server_keeps_its_defaults(target: Target, kube: Kube) -> None:
    spec = RLJobSpec.model_validate(job("demo")["spec"])
    submit(RLJob(metadata={"name": "demo"}, spec=spec), target=target)
    (managed,) = [one for one in kube.job("demo")["metadata"]["managedFields"] if one["manager"] == "longshore-cli"]
    owned = managed["fieldsV1"]["f:spec"]
    assert owned.keys() == {"f:model", "f:data", "f:algorithm", "f:storage"}


def test_reward_modules_travel_with_the_job(target: Target, kube: Kube, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("def score(prompt, response, answer):\n    return 1.0\n")
    functions = [{"name": "mine", "kind": "Python", "importPath": "mine:score"}]
    mine = submit(job("demo", reward={"functions": functions}), modules=[tmp_path / "mine.py"], target=target)
    assert mine.spec.modules is not None
    assert kube.find(f"/api/v1/namespaces/default/configmaps/{mine.spec.modules.config_map}") is not None


def test_mistakes_are_one_sentence(target: Target, tmp_path: Path) -> None:
    with pytest.raises(ClientError, match="onPolicy must be Relaxed with strategy PartialRollout") as refused:
        submit(_written(tmp_path, job("demo", rollout={"strategy": "PartialRollout"})), target=target)
    assert isinstance(refused.value.__cause__, ApiError)
    with pytest.raises(ClientError, match="holds 2 RLJobs; submit one at a time"):
        submit(_written(tmp_path, job("a"), job("b")), target=target)
    with pytest.raises(ClientError, match=r"spec\.algorithm\.steps: input should be greater than or equal to 1, not 0"):
        submit(job("demo", algorithm=job("demo")["spec"]["algorithm"] | {"steps": 0}), target=target)
    with pytest.raises(ClientError, match=r"metadata\.name is required"):
        submit(RLJob.model_validate({"spec": job("demo")["spec"]}), target=target)
    with pytest.raises(ClientError, match="There is no RLJob 'nobody' in namespace 'default'"):
        get("nobody", target=target)


def test_a_refused_change_names_the_fields_and_the_commands(demo: Job, target: Target) -> None:
    changed = job("demo", algorithm=demo.spec.algorithm.model_dump(mode="json", exclude_unset=True) | {"steps": 77})
    with pytest.raises(ClientError, match=r"^algorithm\.steps: this may change only while") as refused:
        submit(changed, target=target)
    assert "`longshore suspend demo`" in refused.value.fix
    demo.suspend()
    assert submit(changed, target=target).spec.algorithm.steps == 77


def test_whatever_is_expected_to_go_wrong_is_one_kind_of_error(demo: Job, tmp_path: Path) -> None:
    assert issubclass(JobTimeout, ClientError) and issubclass(JobFailed, ClientError)
    with pytest.raises(ClientError, match="'nurse' is no component"):
        next(demo.logs("nurse"))
    with pytest.raises(ClientError, match="No usable kubeconfig"):
        list_jobs(target=Target(tmp_path / "none"))


def _written(folder: Path, *documents: Json) -> Path:
    path = folder / "job.yaml"
    path.write_text("\n---\n".join(map(json.dumps, documents)))
    return path


def test_a_watch_shows_every_status_until_the_job_ends(demo: Job, kube: Kube, target: Target) -> None:
    report(kube, "demo", {"phase": "Running", "runtime": at_step(0)})
    steps = []
    for status in watch("demo", target=target):
        assert status.runtime is not None
        steps.append(status.runtime.step)
        if status.phase is Phase.RUNNING and steps[-1] < 2:
            report(kube, "demo", {"runtime": at_step(steps[-1] + 1)})
        elif status.phase is Phase.RUNNING:
            report(kube, "demo", {"phase": "Succeeded"})
    assert steps == [0, 1, 2, 2]
    assert demo.wait().phase is Phase.SUCCEEDED
    assert repr(demo) == "<RLJob demo: Succeeded, step 2/3, reward 0.52>"


def test_waiting_ends_with_the_reason_of_a_failure_or_with_the_time(demo: Job, kube: Kube) -> None:
    with pytest.raises(JobTimeout, match=r"'demo' is still Pending after 0\.5 s"):
        demo.wait(timeout_s=0.5)
    why = condition("Failed", "True", "UserError", "data.path: there is no such file")
    report(kube, "demo", {"phase": "Failed", "conditions": [why]})
    with pytest.raises(JobFailed, match=r"'demo' failed: UserError: data\.path: there is no such file"):
        demo.wait()


def test_waiting_for_a_job_that_was_deleted_ends_at_once(demo: Job) -> None:
    demo.delete()
    with pytest.raises(ClientError, match="The RLJob 'demo' was deleted"):
        demo.wait()


def test_a_job_is_suspended_resumed_and_deleted(demo: Job, kube: Kube) -> None:
    assert demo.suspend().spec.suspend
    assert not demo.resume().spec.suspend
    kube.request("POST", "/api/v1/namespaces/default/events", _event(kube.job("demo")))
    assert [(one.reason, one.message) for one in demo.events()] == [("Suspended", "by hand")]
    demo.delete()
    assert kube.find_job("demo") is None
    with pytest.raises(ClientError, match="There is no RLJob 'demo'"):
        demo.refresh()


def _event(about: Json) -> Json:
    metadata = about["metadata"]
    reference = {"kind": "RLJob", "name": "demo", "namespace": metadata["namespace"], "uid": metadata["uid"]}
    return {"apiVersion": "v1", "kind": "Event", "metadata": {"name": "demo.1"}, "involvedObject": reference,
            "reason": "Suspended", "message": "by hand", "type": "Normal"}  # fmt: skip


@pytest.fixture
def trained(demo: Job, kube: Kube, tmp_path: Path) -> Iterator[Job]:
    """A job that has written metrics, samples and a model."""
    import pandas

    folder = tmp_path / "output"
    (folder / "samples").mkdir(parents=True)
    steps = [{"step": 0, "val/reward/mean": 0.0}, {"step": 1, "actor/lr": 0.5}, {"step": 2, "actor/lr": 0.25},
             {"step": 2, "val/reward/mean": 1.0}]  # fmt: skip
    (folder / "metrics.jsonl").write_text("".join(f"{json.dumps(step)}\n" for step in steps) + '{"step": 3, "act')
    for step in (1, 2):
        pandas.DataFrame({"step": [step, step], "response": ["3 2 1", "3 1"]}).to_parquet(
            folder / "samples" / f"step-{step:06d}.parquet"
        )
    (folder / "samples" / ".step-000003.parquet").write_bytes(b"unfinished")
    (folder / "model").mkdir()
    (folder / "model" / "config.json").write_text("{}")
    output = jobs.output_path(kube.job("demo"))
    copy.put(kube, jobs.claim_of(kube, "demo", IMAGE), folder, output, force=False)
    report(kube, "demo", {"phase": "Succeeded", "runtime": {"finalModel": f"{output}/model"}})
    yield demo.refresh()


def test_what_a_job_wrote_is_read_as_data_frames_and_its_model_is_copied(trained: Job, tmp_path: Path) -> None:
    metrics = trained.metrics()
    assert list(metrics.index) == [0, 1, 2], "a step and its evaluation are one row"
    assert metrics["actor/lr"].tolist()[1:] == [0.5, 0.25]
    assert metrics["val/reward/mean"].isna().tolist() == [False, True, False]
    assert trained.samples()["step"].tolist() == [2, 2]
    assert trained.samples(step=1)["response"].tolist() == ["3 2 1", "3 1"]
    with pytest.raises(ClientError, match=r"there is no .*/samples/step-000009.parquet' in the storage"):
        trained.samples(step=9)
    copied = fetch(trained, tmp_path / "copied")
    assert [path.name for path in copied.iterdir()] == ["config.json"]


def test_a_program_in_a_pod_asks_with_the_service_account_of_the_pod(demo: Job, kubeconfig: Path, kube: Kube) -> None:
    rules = [{"apiGroups": ["longshore.dev"], "resources": ["rljobs"], "verbs": ["get", "list", "patch"]}]
    subjects = [{"kind": "ServiceAccount", "name": "notebook", "namespace": "default"}]
    rbac, kind = "rbac.authorization.k8s.io", {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role"}
    for one in (
        {"apiVersion": "v1", "kind": "ServiceAccount"},
        {"apiVersion": f"{rbac}/v1", "kind": "Role", "rules": rules},
        {
            "apiVersion": f"{rbac}/v1",
            "kind": "RoleBinding",
            "subjects": subjects,
            "roleRef": kind | {"name": "notebook"},
        },
    ):
        kube.apply(one | {"metadata": {"name": "notebook"}})
    program = (
        "from longshore.client import get, list_jobs; print(list_jobs()); print(get('demo').suspend().spec.suspend)"
    )
    notebook = pod("notebook", program)
    notebook["spec"]["serviceAccountName"] = "notebook"
    kube.apply(notebook)
    lines = jobs.pod_log(kube, "notebook", follow=True, tail_lines=None)
    assert list(lines) == ["[<RLJob demo: Pending, step 0/3>]", "True"]
    assert demo.refresh().spec.suspend
