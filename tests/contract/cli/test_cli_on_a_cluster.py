"""The command line against a real API server with a real kubelet."""

import itertools
import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

import psutil
import yaml
from typer.testing import CliRunner, Result

from longshore.api import contract
from longshore.page.view import JobPageView
from longshore_cli.main import app
from longshore_client import jobs
from longshore_client.kube import Kube
from longshore_kube.resources import PODS, Json
from tests import page_job
from tests.contract.cli.manifests import IMAGE, claim, job, pod, report
from tests.unit.cli.samples import at_step, condition

TIMEOUT_S = 180.0


def longshore(kubeconfig: Path, *arguments: object) -> Result:
    return CliRunner().invoke(app, [*map(str, arguments), "--kubeconfig", str(kubeconfig)])


def longshore_alone(kubeconfig: Path, *arguments: object) -> subprocess.CompletedProcess[str]:
    """Run a command in a process of its own: what it watches ends with it."""
    command = [sys.executable, "-m", "longshore_cli", *map(str, arguments)]
    environment = {**os.environ, "KUBECONFIG": str(kubeconfig)}
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


def report_when_there(kube: Kube, name: str, status: Json) -> None:
    """Write a status as soon as the job exists."""
    assert next(kube.watch(kube.jobs_path(), f"metadata.name={name}", timeout_s=TIMEOUT_S))
    report(kube, name, status)


def test_a_cluster_without_longshore_says_how_to_install_it(kubeconfig: Path, kube: Kube, tmp_path: Path) -> None:
    path = tmp_path / "unknown.yaml"
    path.write_text(yaml.safe_dump(job("demo") | {"apiVersion": "longshore.dev/v0"}))
    result = longshore(kubeconfig, "submit", path)
    assert result.exit_code == 1
    assert "does not know the kind RLJob" in result.stderr
    assert "longshore up" in result.stderr


def test_submit_applies_everything_and_again_changes_nothing(kubeconfig: Path, kube: Kube, manifest: Path) -> None:
    first = longshore(kubeconfig, "submit", manifest)
    assert first.stdout.splitlines() == ["persistentvolumeclaim/shared applied", "rljob/demo applied"], first.output
    before = kube.job("demo")["metadata"]["resourceVersion"]
    assert longshore(kubeconfig, "submit", manifest).exit_code == 0
    assert kube.job("demo")["metadata"]["resourceVersion"] == before


def test_a_job_that_has_ended_is_not_submitted_again_without_a_word(
    kubeconfig: Path, kube: Kube, manifest: Path
) -> None:
    longshore(kubeconfig, "submit", manifest)
    report(kube, "demo", {"phase": "Succeeded", "completionTime": "2026-01-01T00:05:12Z"})
    again = longshore(kubeconfig, "submit", manifest, "--wait")
    assert again.exit_code == 1
    assert again.stdout.splitlines()[-1] == "rljob/demo applied, but it has succeeded already and does not run again"
    assert "The RLJob 'demo' has succeeded already, and an ended job never runs again." in again.stderr
    assert "`kubectl delete rljob demo`" in again.stderr
    watched = longshore(kubeconfig, "watch", "demo")
    assert watched.exit_code == 0
    assert "ended at 2026-01-01T00:05:12Z; to run it again" in watched.stdout


def test_a_file_with_a_new_job_beside_an_ended_one_is_submitted(kubeconfig: Path, kube: Kube, manifest: Path) -> None:
    longshore(kubeconfig, "submit", manifest)
    report(kube, "demo", {"phase": "Failed"})
    manifest.write_text(f"{manifest.read_text()}---\n{yaml.safe_dump(job('new'))}")
    both = longshore(kubeconfig, "submit", manifest)
    assert both.exit_code == 0
    assert both.stdout.splitlines()[1:] == [
        "rljob/demo applied, but it has failed already and does not run again",
        "rljob/new applied",
    ]


def test_modules_of_rewards_are_submitted_with_their_job_and_go_with_it(
    kubeconfig: Path, kube: Kube, tmp_path: Path, crd: None
) -> None:
    module, path = tmp_path / "mine.py", tmp_path / "job.yaml"
    module.write_text("def score(prompt, response, answer):\n    return 1.0\n")
    functions = [{"name": "mine", "kind": "Python", "importPath": "mine:score"}]
    path.write_text(yaml.safe_dump(job("demo", reward={"functions": functions})))
    result = longshore(kubeconfig, "submit", path, "--with", module)
    applied, made = result.stdout.splitlines()
    assert applied == "rljob/demo applied", result.output
    (name,) = [made.removesuffix(" applied").removeprefix("configmap/")]
    config_map = kube.find(f"/api/v1/namespaces/default/configmaps/{name}")
    assert config_map is not None and config_map["data"] == {"mine.py": module.read_text()}
    uid = kube.job("demo")["metadata"]["uid"]
    assert [owner["uid"] for owner in config_map["metadata"]["ownerReferences"]] == [uid]
    assert kube.job("demo")["spec"]["modules"] == {"configMap": name, "files": ["mine.py"]}
    assert longshore(kubeconfig, "submit", path, "--with", module).stdout == result.stdout
    kubectl = ["kubectl", "--kubeconfig", str(kubeconfig), "describe", "rljob", "demo"]
    reported = subprocess.run(kubectl, capture_output=True, text=True, check=True).stdout
    assert name in reported and "mine.py" in reported


def test_modules_of_a_job_that_is_refused_do_not_stay(kubeconfig: Path, kube: Kube, tmp_path: Path, crd: None) -> None:
    module, path = tmp_path / "mine.py", tmp_path / "job.yaml"
    module.write_text("def score(prompt, response, answer):\n    return 1.0\n")
    functions = [{"name": "mine", "kind": "Python", "importPath": "mine:score"}]
    document = job("refused", reward={"functions": functions})
    document["metadata"]["name"] = "Refused"
    path.write_text(yaml.safe_dump(document))
    assert longshore(kubeconfig, "submit", path, "--with", module).exit_code == 1
    left = kube.request("GET", "/api/v1/namespaces/default/configmaps")["items"]
    assert not [one for one in left if "modules" in one["metadata"]["name"]]


def test_commands_name_a_job_that_does_not_exist(kubeconfig: Path, crd: None) -> None:
    for command in ("watch", "suspend", "resume", "fetch"):
        result = longshore(kubeconfig, command, "nobody")
        assert result.exit_code == 1
        assert "There is no RLJob 'nobody' in namespace 'default'." in result.stderr


def test_an_empty_name_means_no_job_rather_than_all(kubeconfig: Path, kube: Kube, manifest: Path) -> None:
    """As `longshore suspend "$JOB"` where JOB is not set."""
    longshore(kubeconfig, "submit", manifest)
    for command in ("watch", "suspend", "resume", "fetch", "trace", "report"):
        result = longshore(kubeconfig, command, "")
        assert (result.exit_code, result.stderr) == (1, "error: The name of the RLJob is empty.\n"), command
    assert kube.job("demo")["spec"]["suspend"] is False


def elsewhere(kube: Kube, directory: Path) -> tuple[Kube, Path]:
    """A namespace that is not the one of the kubeconfig, and a manifest that names it."""
    document = job("demo")
    document["metadata"]["namespace"] = "team-a"
    path = directory / "elsewhere.yaml"
    path.write_text(yaml.safe_dump(document))
    there = kube.within(document)
    kube.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "team-a"}})
    for item in there.items(there.jobs_path()):
        jobs.delete(there, item["metadata"]["name"])
    return there, path


def test_a_job_is_watched_in_the_namespace_that_its_manifest_names(
    kubeconfig: Path, kube: Kube, tmp_path: Path, crd: None
) -> None:
    there, path = elsewhere(kube, tmp_path)
    operator = threading.Thread(target=report_when_there, args=(there, "demo", {"phase": "Succeeded"}))
    operator.start()
    result = longshore_alone(kubeconfig, "submit", "--wait", path)
    operator.join()
    assert result.returncode == 0, result.stderr
    refused = longshore(kubeconfig, "submit", path, "-n", "default")
    assert refused.exit_code == 1
    assert "RLJob 'demo' names the namespace 'team-a', and --namespace is 'default'." in refused.stderr


def test_a_profile_is_measured_in_the_namespace_that_the_manifest_names(
    kubeconfig: Path, kube: Kube, tmp_path: Path, crd: None
) -> None:
    """A job of the same name elsewhere is somebody else's."""
    there, path = elsewhere(kube, tmp_path)
    kube.apply(job("demo-profile"))
    report(kube, "demo-profile", {"phase": "Succeeded", "runtime": at_step(3)})

    failed = {"phase": "Failed", "conditions": [condition("Failed", "True", "Bad", "no GPU")]}
    operator = threading.Thread(target=report_when_there, args=(there, "demo-profile", failed))
    operator.start()
    result = longshore_alone(kubeconfig, "profile", path, "--out", tmp_path / "profile.json")
    operator.join()
    assert "The RLJob 'demo-profile', which measures, failed" in result.stderr
    assert kube.find_job("demo-profile") is not None


def test_top_and_queue_show_all_jobs_and_those_that_wait(kubeconfig: Path, kube: Kube, manifest: Path) -> None:
    assert longshore(kubeconfig, "top").stdout == "There are no RLJobs.\n"
    longshore(kubeconfig, "submit", manifest)
    assert longshore(kubeconfig, "queue", "-A").stdout == "No RLJob waits for GPUs.\n"
    kube.apply(job("waits", workers={"replicas": 2, "gpusPerPod": 8}))
    why = condition("Admitted", "False", "QuotaPending", "the job needs 16 GPUs, and 8 are free")
    report(kube, "waits", {"phase": "Queued", "conditions": [why], "admission": {"position": 1}})
    report(kube, "demo", {"phase": "Running", "runtime": at_step(2, stepSeconds=60.0) | {"attempt": 1, "steps": 3}})
    top, waiting = longshore(kubeconfig, "top", "-A").stdout, longshore(kubeconfig, "queue").stdout
    assert [line.split()[1:6] for line in top.splitlines()[1:3]] == [
        ["demo", "Running", "–", "2/3", "60.0"], ["waits", "Queued", "1", "0/3", "–"]
    ]  # fmt: skip
    assert top.splitlines()[-1].split()[:3] == ["all", "1", "1"]
    [row] = waiting.splitlines()[1:]
    assert row.split()[:5] == ["1", "default", "waits", "–", "16"]
    assert row.endswith("the job needs 16 GPUs, and 8 are free")


def test_suspend_and_resume_change_the_spec_alone(kubeconfig: Path, kube: Kube, manifest: Path) -> None:
    longshore(kubeconfig, "submit", manifest)
    before = kube.job("demo")["spec"]
    assert longshore(kubeconfig, "suspend", "demo").exit_code == 0
    assert kube.job("demo")["spec"] == before | {"suspend": True}
    assert longshore(kubeconfig, "resume", "demo").exit_code == 0
    assert kube.job("demo")["spec"] == before


def test_ctrl_c_ends_the_watch_and_not_the_job(kubeconfig: Path, kube: Kube, manifest: Path) -> None:
    longshore(kubeconfig, "submit", manifest)
    reported = _watch_while(kubeconfig, kube, interrupt=True)
    assert reported.returncode == 130
    assert "what runs in the cluster runs on" in reported.stderr
    assert "Traceback" not in reported.stderr
    assert kube.find_job("demo") is not None


def test_watch_prints_every_step_until_the_job_succeeded(kubeconfig: Path, kube: Kube, manifest: Path) -> None:
    longshore(kubeconfig, "submit", manifest)
    reports: list[Json] = [{"phase": "Running", "attempt": 1, "runtime": at_step(step)} for step in (1, 2, 3)]
    reports.append({"phase": "Succeeded", "runtime": {"activity": "Done"}})
    report(kube, "demo", {"phase": "Running", "attempt": 1, "runtime": at_step(0)})
    reported = _watch_while(kubeconfig, kube, reports)
    assert reported.returncode == 0, reported.stderr
    assert [line.split("  ")[0] for line in reported.stdout.splitlines() if line.startswith("step")] == [
        "step 1/3", "step 2/3", "step 3/3"
    ]  # fmt: skip
    assert reported.stdout.splitlines()[-1].startswith("Succeeded after 3 steps")


def test_watch_ends_with_one_and_the_sentence_when_the_job_failed(kubeconfig: Path, kube: Kube, manifest: Path) -> None:
    longshore(kubeconfig, "submit", manifest)
    sentence = "data.path: there is no such file"
    report(kube, "demo", {"phase": "Failed", "conditions": [condition("Failed", "True", "UserError", sentence)]})
    reported = longshore(kubeconfig, "watch", "demo")
    assert reported.exit_code == 1
    assert reported.stdout.splitlines()[-1] == f"Failed: UserError: {sentence}"


def test_watch_ends_when_the_job_is_deleted(kubeconfig: Path, kube: Kube, manifest: Path) -> None:
    longshore(kubeconfig, "submit", manifest)
    reported = _watch_while(kubeconfig, kube, delete=True)
    assert reported.returncode == 1
    assert "The RLJob 'demo' was deleted." in reported.stderr


def _watch_while(
    kubeconfig: Path, kube: Kube, reports: Sequence[Json] = (), *, delete: bool = False, interrupt: bool = False
) -> subprocess.CompletedProcess[str]:
    """Watch in a process of its own; once it looks, write the reports, then delete the job or press Ctrl-C."""
    command = [sys.executable, "-m", "longshore_cli", "watch", "demo", "--kubeconfig", str(kubeconfig)]
    watching = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, preexec_fn=_as_in_the_foreground
    )
    giving_up = threading.Timer(TIMEOUT_S, watching.kill)
    giving_up.start()
    try:
        seen = _wait_until_it_looks(kube, watching)
        for status in reports:
            report(kube, "demo", status)
        if delete:
            kube.request("DELETE", kube.job_path("demo"))
        if interrupt:
            watching.send_signal(signal.SIGINT)
        stdout, stderr = watching.communicate()
        return subprocess.CompletedProcess(command, watching.returncode, seen + stdout, stderr)
    finally:
        giving_up.cancel()
        watching.kill()


def _as_in_the_foreground() -> None:
    """What a shell starts in the background ignores Ctrl-C, and so does whatever that starts."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def _wait_until_it_looks(kube: Kube, watching: "subprocess.Popen[str]") -> str:
    """New attempts are reported until the first of them is shown."""
    first: queue.SimpleQueue[str] = queue.SimpleQueue()
    assert watching.stdout is not None
    threading.Thread(target=lambda: first.put(watching.stdout.readline()), daemon=True).start()  # type: ignore[union-attr]
    for attempt in itertools.count(2):
        report(kube, "demo", {"attempt": attempt})
        try:
            return first.get(timeout=0.5)
        except queue.Empty:
            continue
    raise AssertionError


def test_files_go_into_a_claim_and_come_back(kubeconfig: Path, kube: Kube, manifest: Path, tmp_path: Path) -> None:
    longshore(kubeconfig, "submit", manifest)
    source = tmp_path / "model"
    (source / "sub").mkdir(parents=True)
    (source / "config.json").write_text("{}")
    (source / "sub" / "weights.bin").write_bytes(bytes(range(256)) * 12_000)
    put = longshore(kubeconfig, "put", "demo", source, "models/tiny", "--image", IMAGE)
    assert put.exit_code == 0, put.output
    fetched = longshore(kubeconfig, "fetch", "demo", tmp_path / "copy", "--path", "models/tiny", "--image", IMAGE)
    assert fetched.exit_code == 0, fetched.output
    assert "2 files" in fetched.stdout
    assert (tmp_path / "copy" / "sub" / "weights.bin").read_bytes() == (source / "sub" / "weights.bin").read_bytes()
    assert (tmp_path / "copy" / "config.json").read_text() == "{}"
    assert _helper_pods(kube) == []


def test_a_claim_takes_files_before_there_is_a_job(kubeconfig: Path, kube: Kube, tmp_path: Path) -> None:
    kube.apply(claim("early"))
    (tmp_path / "train.jsonl").write_text("{}")
    arguments = ("put", "early", tmp_path / "train.jsonl", "data/train.jsonl", "--image", IMAGE)
    assert longshore(kubeconfig, *arguments).exit_code == 0
    again = longshore(kubeconfig, *arguments)
    assert again.exit_code == 1
    assert "exists already" in again.stderr and "--force" in again.stderr
    assert longshore(kubeconfig, *arguments, "--force").exit_code == 0


def test_a_copy_that_fails_says_why_and_leaves_neither_files_nor_pod(
    kubeconfig: Path, kube: Kube, manifest: Path, tmp_path: Path
) -> None:
    longshore(kubeconfig, "submit", manifest)
    result = longshore(kubeconfig, "fetch", "demo", tmp_path / "copy", "--path", "nothing/here", "--image", IMAGE)
    assert result.exit_code == 1
    assert "there is no 'nothing/here' in the storage" in result.stderr
    assert not (tmp_path / "copy").exists()
    assert _helper_pods(kube) == []


def test_what_lies_at_the_destination_is_safe_before_a_pod_is_made(
    kubeconfig: Path, kube: Kube, manifest: Path, tmp_path: Path
) -> None:
    longshore(kubeconfig, "submit", manifest)
    (tmp_path / "copy").mkdir()
    result = longshore(kubeconfig, "fetch", "demo", tmp_path / "copy", "--path", "x", "--image", IMAGE)
    assert result.exit_code == 1
    assert "exists already" in result.stderr


def _helper_pods(kube: Kube) -> list[str]:
    return [item["metadata"]["name"] for item in kube.pods("longshore.dev/transfer=true")]


def test_logs_are_those_of_the_component(kubeconfig: Path, kube: Kube, manifest: Path) -> None:
    longshore(kubeconfig, "submit", manifest)
    kube.apply(pod("demo-worker-1", "print('one'); print('two')"))
    assert longshore(kubeconfig, "logs", "demo", "--component", "worker", "--index", "1", "-f").stdout == "one\ntwo\n"
    assert (
        longshore(kubeconfig, "logs", "demo", "--component", "worker", "--index", "1", "--tail", "1").stdout == "two\n"
    )
    missing = longshore(kubeconfig, "logs", "demo")
    assert missing.exit_code == 1
    assert "no pod demo-coordinator" in missing.stderr


def test_a_deleted_job_is_gone_with_its_pods_when_delete_returns(kube: Kube, manifest: Path) -> None:
    list(jobs.submit(kube, jobs.read_manifest(manifest)))
    owned = pod("demo-worker-0", "import signal; signal.pause()")
    owner = {
        **{key: job("demo")[key] for key in ("apiVersion", "kind")},
        "name": "demo",
        "uid": kube.job("demo")["metadata"]["uid"],
    }
    owned["metadata"] |= {"labels": {"longshore.dev/job": "demo"}, "ownerReferences": [owner]}
    owned["spec"]["terminationGracePeriodSeconds"] = 1
    kube.apply(owned)
    jobs.delete(kube, "demo")
    assert kube.find_job("demo") is None
    assert kube.pods("longshore.dev/job=demo") == []


_COORDINATOR: Final = """
import os, sys, threading
from pathlib import Path
from longshore.page.build import job_head
from longshore_runtime.page.files import JobFiles
from longshore_runtime.page.server import JobPage, page_hosts, page_server
from longshore.api.spec import RLJobSpec
spec = RLJobSpec.model_validate_json(sys.argv[2])
page = JobPage(job_head(spec, "demo", "default"), JobFiles(Path(sys.argv[1])), lambda: None)
with page_server(page, page_hosts(os.environ["POD_IP"], is_open=False)):
    threading.Event().wait()
"""


def test_the_page_of_a_job_comes_by_port_forward_and_comes_again_with_its_pod(
    kubeconfig: Path, kube: Kube, manifest: Path, tmp_path: Path
) -> None:
    """The coordinator is a pod that only serves its page."""
    longshore(kubeconfig, "submit", manifest)
    page_job.write_job(tmp_path / "output", 2)
    _start_coordinator(kube, tmp_path / "output")
    command = [sys.executable, "-m", "longshore_cli", "ui", "demo", "--no-browser", "--kubeconfig", str(kubeconfig)]
    showing = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, preexec_fn=_as_in_the_foreground)
    giving_up = threading.Timer(TIMEOUT_S, showing.kill)
    giving_up.start()
    try:
        assert showing.stdout is not None
        address = showing.stdout.readline().split()[0]
        assert "<!doctype html>" in _get(address)
        assert json.loads(_get(f"{address}api/cluster"))["phase"] == "Pending"
        assert json.loads(_get(f"{address}api/view"))["round_steps"] == [1, 2]
        jobs_pod = f"{PODS.path('default')}/demo-coordinator"
        kube.request("DELETE", jobs_pod, {"gracePeriodSeconds": 0})
        _until(lambda: kube.find(jobs_pod) is None)
        page_job.write_job(tmp_path / "output", 3)
        _start_coordinator(kube, tmp_path / "output")
        _until(lambda: json.loads(_get(f"{address}api/view") or "{}").get("round_steps") == [1, 2, 3])
        children = psutil.Process(showing.pid).children()
        assert [child.name() for child in children] == ["kubectl"]
        showing.send_signal(signal.SIGINT)
        assert showing.wait() == 0
        assert not any(child.is_running() for child in children), "what forwards the port ends as well"
    finally:
        giving_up.cancel()
        showing.kill()
        kube.request("DELETE", f"{PODS.path('default')}/demo-coordinator", {"gracePeriodSeconds": 0})


def test_the_page_of_a_finished_job_is_a_file(kubeconfig: Path, kube: Kube, manifest: Path, tmp_path: Path) -> None:
    longshore(kubeconfig, "submit", manifest)
    page_job.write_job(tmp_path / "output", 3)
    output = jobs.output_path(kube.job("demo"))
    assert longshore(kubeconfig, "put", "demo", tmp_path / "output", output, "--image", IMAGE).exit_code == 0
    report(kube, "demo", {"phase": "Succeeded", "conditions": [condition("Complete", "True", "Finished")]})

    reported = longshore(kubeconfig, "report", "demo", "-o", tmp_path / "report.html", "--image", IMAGE)
    assert reported.exit_code == 0, reported.output
    data = (tmp_path / "report.html").read_text(encoding="utf-8").split('id="data">')[1].split("</script>")[0]
    view = JobPageView.model_validate_json(data)
    assert view.round_steps == view.sample_steps == (1, 2, 3)
    assert view.cluster is not None and view.cluster.conditions[0].reason == "Finished"
    assert _helper_pods(kube) == []

    again = longshore(kubeconfig, "report", "demo", "-o", tmp_path / "report.html", "--image", IMAGE)
    assert again.exit_code == 1 and "--force" in again.stderr


def test_a_job_that_has_written_nothing_has_no_report(
    kubeconfig: Path, kube: Kube, manifest: Path, tmp_path: Path
) -> None:
    longshore(kubeconfig, "submit", manifest)
    reported = longshore(kubeconfig, "report", "demo", "-o", tmp_path / "report.html", "--image", IMAGE)
    assert reported.exit_code == 1
    assert "the job has written nothing yet" in reported.stderr
    assert not (tmp_path / "report.html").exists()


def _start_coordinator(kube: Kube, output: Path) -> None:
    spec = page_job.spec().model_dump_json()
    container = {
        "name": "longshore",
        "image": IMAGE,
        "command": ["python", "-c", _COORDINATOR, str(output), spec],
        "env": [{"name": "POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}],
        "readinessProbe": {"httpGet": {"path": "/", "port": contract.PAGE_PORT}, "periodSeconds": 1},
    }
    kube.apply(
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": "demo-coordinator"},
            "spec": {"restartPolicy": "Never", "containers": [container]},
        }
    )
    for _, found in kube.watch(PODS.path("default"), "metadata.name=demo-coordinator", timeout_s=TIMEOUT_S):
        if any(one["type"] == "Ready" and one["status"] == "True" for one in found["status"].get("conditions", ())):
            return
    raise AssertionError("the pod is not ready")


def _get(address: str) -> str:
    """What is answered; nothing while the coordinator is away."""
    try:
        with urllib.request.urlopen(address, timeout=TIMEOUT_S) as answer:
            return str(answer.read().decode())
    except urllib.error.HTTPError as error:
        assert error.code == 502, error
        return ""


def _until(holds: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + TIMEOUT_S
    while not holds():
        assert time.monotonic() < deadline_s
        time.sleep(0.1)  # Nothing tells when a port is forwarded again.
