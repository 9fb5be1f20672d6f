"""Commands, as far as no cluster is needed: options, errors, and how jobs and paths are found."""

import json
import math
import re
from pathlib import Path
from typing import Any, cast

import helm_python
import pytest
from typer.testing import CliRunner

from longshore.api.names import Component
from longshore_cli import chart
from longshore_cli.cluster import is_available
from longshore_cli.examples import CHART
from longshore_cli.main import app
from longshore_client import jobs, outputs, state
from longshore_client.errors import ClientError
from longshore_client.explained import explain
from longshore_client.kube import Kube
from longshore_client.target import Target, kubeconfig_path
from longshore_kube.errors import AccessError, ApiError, KubeError, Unreachable, Unreadable
from tests.unit.cli.samples import at_step, rljob


def refused(status: int, message: str) -> ApiError:
    return ApiError(status, "x", message)


@pytest.mark.parametrize(
    ("error", "sentence", "fix"),
    [
        (AccessError("/x has no current-context"), "No usable kubeconfig: /x has no", "longshore up"),
        (refused(401, "Unauthorized"), "does not accept the credentials", "--context"),
        (refused(403, 'rljobs is forbidden: User "u"'), "Not allowed: rljobs is forbidden", "role"),
        (refused(404, "the server could not find the requested resource"), "does not know RLJobs", "longshore up"),
        (refused(422, "spec.steps: must be positive"), "spec.steps: must be positive", "Correct"),
        (refused(500, "boom"), "The API server answers 500: boom", ""),
        (Unreachable("https://here does not answer: Connection refused"), "Connection refused", "longshore up"),
        (Unreadable("the answer is larger than 4 MiB"), "cannot be understood: the answer is larger", "proxy"),
    ],
)  # fmt: skip
def test_an_expected_error_is_one_sentence_with_a_fix(error: KubeError, sentence: str, fix: str) -> None:
    explanation = explain(error)
    assert sentence in explanation.message
    assert "\n" not in explanation.message
    assert fix in explanation.fix


def test_a_missing_kubeconfig_ends_without_traceback(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["watch", "demo", "--kubeconfig", str(tmp_path / "none")])
    assert result.exit_code == 1
    assert "there is no kubeconfig at" in result.stderr
    assert "longshore up" in result.stderr
    assert "Traceback" not in result.output


def test_an_api_server_that_is_away_ends_without_traceback(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("longshore_kube.client._pause_s", lambda *_, **__: 0.0)
    config = tmp_path / "kubeconfig"
    config.write_text(json.dumps({
        "apiVersion": "v1", "kind": "Config", "current-context": "c", "users": [{"name": "u", "user": {}}],
        "clusters": [{"name": "c", "cluster": {"server": "http://127.0.0.1:1"}}],
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
    }))  # fmt: skip
    result = CliRunner().invoke(app, ["suspend", "demo", "--kubeconfig", str(config)])
    assert result.exit_code == 1
    assert "The API server http://127.0.0.1:1 does not answer: Connection refused." in result.stderr


def test_down_refuses_to_delete_data_on_a_cluster_that_is_not_embedded() -> None:
    result = CliRunner().invoke(app, ["down", "--cluster", "current", "--delete-data"])
    assert result.exit_code == 1
    assert "--delete-data works with the embedded cluster only" in result.stderr


def test_the_kubeconfig_is_the_option_then_the_variable_then_the_embedded_cluster(tmp_path: Path) -> None:
    environment = {"LONGSHORE_HOME": str(tmp_path)}
    assert kubeconfig_path(Target(), environment, "longshore") is None
    state.remember_kubeconfig(tmp_path / "embedded", environment)
    assert kubeconfig_path(Target(), environment, "longshore") == str(tmp_path / "embedded")
    assert kubeconfig_path(Target(), environment, "/usr/bin/kubectl-rljob") is None, "kubectl would not see it"
    assert kubeconfig_path(Target(), {**environment, "KUBECONFIG": "/a"}, "longshore") == "/a"
    assert kubeconfig_path(Target(Path("/b")), {**environment, "KUBECONFIG": "/a"}, "longshore") == "/b"
    state.forget_kubeconfig(environment)
    assert kubeconfig_path(Target(), environment, "longshore") is None


def test_the_jobs_of_a_manifest_are_found_among_other_objects(tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    path.write_text(
        "apiVersion: v1\nkind: PersistentVolumeClaim\nmetadata: {name: c}\n---\n"
        "apiVersion: longshore.dev/v1alpha1\nkind: RLJob\nmetadata: {name: j}\n---\n"
    )
    assert [job["metadata"]["name"] for job in jobs.jobs_in(jobs.read_manifest(path))] == ["j"]


def only_object(tmp_path: Path, body: str, metadata: str = "name: c") -> dict[str, Any]:
    path = tmp_path / "job.yaml"
    path.write_text(f"apiVersion: v1\nkind: ConfigMap\nmetadata: {{{metadata}}}\n{body}")
    [document] = jobs.read_manifest(path)
    return document


def test_a_null_namespace_in_a_manifest_means_the_namespace_of_the_command(tmp_path: Path) -> None:
    document = only_object(tmp_path, "", "name: c, namespace: ")
    jobs.require_namespace([document], "team")
    assert Kube(cast(Any, None), "team").within(document).namespace == "team"


def test_a_manifest_may_override_keys_that_it_merges(tmp_path: Path) -> None:
    base, inner = "base: &base {k: 1, l: 1}\nother: &other {m: 4}\n", "outer: {inner: &inner {<<: *base, k: 2}}\n"
    found = only_object(tmp_path, f"{base}{inner}data: {{<<: *other, <<: *inner, l: 3}}\n")
    assert found["data"] == {"k": 2, "l": 3, "m": 4}


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        (
            float,
            {
                "1e-06": 1e-06, "5e-4": 5e-4, "+.5": 0.5, "1e21": 1e21, "1_000.5": 1000.5, ".inf": math.inf,
                "-.Inf": -math.inf,
            },
        ),
        (
            int,
            {
                "12": 12, "-1_000": -1000, "-2.5E3": -2500, "1e3": 1000, "5.": 5, "08": 8, "017": 15, "0x1F": 31,
                "0b11": 3,
            },
        ),
        (bool, {"yes": True, "off": False}),
        (
            str,
            {
                text: text
                for text in (
                    "1:30", "-190:20:30", "1:30.5", "12e4567", "1e", "1.2.3", "500m", "2026-11-26",
                    "2026-11-26T10:00:00Z",
                )
            },
        ),
        (type(None), {"": None}),
    ],
)  # fmt: skip
def test_values_in_a_manifest_are_what_kubectl_reads(kind: type, values: dict[str, object], tmp_path: Path) -> None:
    found = only_object(tmp_path, "data:\n" + "".join(f"- {written}\n" for written in values))["data"]
    assert found == list(values.values())
    assert {type(value) for value in found} == {kind}


@pytest.mark.parametrize(
    ("content", "message", "fix"),
    [
        (b"apiVersion: 1\nkind: A\nmetadata: {name: a}\n", "apiVersion is no text but 1.", 'apiVersion: "1"'),
        (
            b"apiVersion: v1\nkind: A\nmetadata: {name: 123}\n",
            "metadata.name is no text but 123.",
            'metadata.name: "123"',
        ),
        (
            b"apiVersion: v1\nkind: A\nmetadata: {name: a, namespace: 7}\n",
            "metadata.namespace is no text but 7.",
            '"7"',
        ),
        ("apiVersion: v1\nkind: A\nmetadata: {name: a}\n".encode("utf-16"), "cannot be read", "text in UTF-8"),
        ("# Größe\n".encode("latin-1"), "cannot be read", "text in UTF-8"),
        (b"apiVersion: v1\nkind: A\nmetadata: []\n", "no Kubernetes object", "metadata.name"),
        (b"a: [\n", "is no YAML", ""),
        (b"kind: A\nspec:\n  steps: 1\n  name: x\n  'steps': 2\n", "line 5 has the key steps again, after line 3.", ""),
        (b"kind: A\nspec: {steps: 1, steps: 1}\n", "line 2 has the key steps again.", "Remove one"),
        (b"", "is empty", ""),
    ],
)
def test_a_manifest_that_cannot_be_submitted_is_explained(
    content: bytes, message: str, fix: str, tmp_path: Path
) -> None:
    path = tmp_path / "job.yaml"
    path.write_bytes(content)
    with pytest.raises(ClientError, match=re.escape(message)) as raised:
        jobs.read_manifest(path)
    assert fix in raised.value.fix


def test_pods_are_named_by_component_and_index() -> None:
    assert jobs.pod_name("demo", Component.COORDINATOR, 3) == "demo-coordinator"
    assert jobs.pod_name("demo", Component.WORKER, 3) == "demo-worker-3"
    assert jobs.pod_name("demo", Component.REWARD, 3) == "demo-reward-3"
    assert jobs.pod_name("demo", Component.JUDGE, 3) == "demo-judge-3"


def test_fetch_means_the_final_model_a_checkpoint_or_a_path() -> None:
    finished = rljob({**at_step(10), "finalModel": "rljobs/demo/final"}, phase="Succeeded")
    assert outputs.source_path(finished, None, None) == "rljobs/demo/final"
    assert outputs.source_path(finished, None, "rljobs/demo/metrics.jsonl") == "rljobs/demo/metrics.jsonl"
    assert outputs.source_path(finished, 7, None) == "rljobs/demo-uid-1/checkpoints/step-000007/trainer"
    with pytest.raises(ClientError, match="exclude each other"):
        outputs.source_path(finished, 7, "x")


def test_fetch_of_a_job_without_a_final_model_means_its_newest_checkpoint() -> None:
    running = rljob({**at_step(5), "checkpointStep": 4})
    assert outputs.source_path(running, None, None) == "rljobs/demo-uid-1/checkpoints/step-000004/trainer"
    with pytest.raises(ClientError, match="neither a final model nor a checkpoint"):
        outputs.source_path(rljob(at_step(5)), None, None)


class OneJob:
    """As much of `Kube` as suspending takes."""

    def __init__(self, job: dict[str, Any]) -> None:
        self._job = job

    def job(self, name: str) -> dict[str, Any]:
        return self._job

    def patch_job(self, name: str, patch: dict[str, Any]) -> None:
        raise AssertionError("a finished job is left alone")


@pytest.mark.parametrize(
    ("runtime", "fix"),
    [
        ({**at_step(5), "checkpointStep": 4}, "checkpoint, of step 4, correct its manifest, set storage.output to "
                                              "'rljobs/demo-uid-1', and submit it under another name"),
        (at_step(5), "`kubectl describe rljob demo` says why"),
    ],
)  # fmt: skip
def test_resume_of_a_failed_job_says_how_to_go_on(runtime: dict[str, Any], fix: str) -> None:
    kube = cast(Kube, OneJob(rljob(runtime, phase="Failed")))
    with pytest.raises(ClientError, match="'demo' failed already and cannot be resumed") as caught:
        jobs.set_suspended(kube, "demo", suspended=False)
    assert fix in caught.value.fix
    with pytest.raises(ClientError, match="'demo' failed already and cannot be suspended"):
        jobs.set_suspended(kube, "demo", suspended=True)


def test_resume_of_a_job_that_cannot_continue_says_what_comes_first() -> None:
    held = rljob(at_step(5), phase="Suspended")
    condition = {"type": "Suspended", "status": "True", "reason": "CannotContinue", "message": "model.path differs"}
    held["status"]["conditions"] = [condition | {"lastTransitionTime": "2026-11-30T12:00:00Z", "observedGeneration": 1}]
    with pytest.raises(ClientError, match=r"'demo' cannot go on: model\.path differs") as caught:
        jobs.set_suspended(cast(Kube, OneJob(held)), "demo", suspended=False)
    assert caught.value.fix.startswith("Run `longshore suspend demo`, correct it")


@pytest.mark.parametrize(
    ("image", "repository", "tag", "digest"),
    [("repo:1", "repo", "1", ""), ("host:5000/repo", "host:5000/repo", "latest", ""),
     ("host:5000/repo:1", "host:5000/repo", "1", ""), ("repo", "repo", "latest", ""),
     ("host:5000/repo@sha256:ab", "host:5000/repo", "", "sha256:ab"), ("repo:1@sha256:ab", "repo", "1", "sha256:ab")],
)  # fmt: skip
def test_an_image_becomes_values_of_the_chart(image: str, repository: str, tag: str, digest: str) -> None:
    values = chart.values({"image": {"pullPolicy": "Never"}}, image, "runtime:2")
    assert values == {
        "image": {"pullPolicy": "Never", "repository": repository, "tag": tag, "digest": digest},
        "runtimeImage": "runtime:2",
    }


def deployment(**status: int) -> dict[str, object]:
    return {"metadata": {"generation": 2}, "spec": {"replicas": 1}, "status": status}


def test_a_deployment_is_available_when_its_newest_revision_runs_alone() -> None:
    counts = {"replicas": 1, "updatedReplicas": 1, "availableReplicas": 1}
    assert is_available(deployment(observedGeneration=2, **counts))
    assert not is_available(deployment(observedGeneration=1, **counts))
    assert not is_available(deployment(observedGeneration=2, **{**counts, "replicas": 2}))
    assert not is_available(deployment(observedGeneration=2, **{**counts, "availableReplicas": 0}))
    assert not is_available(deployment())


def test_the_chart_accepts_the_values() -> None:
    with helm_python.Chart.load(str(CHART)) as loaded:
        loaded.validate_schema(chart.values({}, "registry/operator:1", "registry/runtime:1"))
        with pytest.raises(helm_python.HelmValuesError):
            loaded.validate_schema({"image": "registry/operator:1"})
