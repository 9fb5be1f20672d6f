"""A job from `kubectl apply` to its end, with the real kubectl, operator, Ray and vLLM."""

import json
import time
import urllib.request
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import yaml

from longshore.api import contract
from longshore.page.view import JobPageView
from longshore.record.model import LaneState, RecordOutcome, RoundRecord
from longshore.record.timeline import gpu_lanes
from tests.e2e.held import held
from tests.e2e.jobs import Cluster, Job, Json, assert_every_draw_once, fake_job, hashed_reward

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]


def small_quickstart(root: Path) -> Json:
    """The quickstart's manifest, cut down to a minute."""
    documents = yaml.safe_load_all((root / "manifests/quickstart.yaml").read_text())
    manifest: Json = next(document for document in documents if document["kind"] == "RLJob")
    manifest["metadata"]["name"] = "small"
    spec = manifest["spec"]
    spec["storage"] = {"create": {"size": "1Gi"}}
    spec["algorithm"]["warmStart"]["steps"] = 5
    spec["algorithm"] |= {"steps": 6, "promptsPerStep": 4, "responsesPerPrompt": 4, "maxResponseTokens": 32}
    spec["data"]["heldOutPrompts"] = 4
    return manifest


def test_a_job_trains_with_vllm_and_behaves_as_on_any_cluster(cluster: Cluster, root: Path, tmp_path: Path) -> None:
    manifest = small_quickstart(root)
    # Nobody listens there.
    manifest["spec"]["tracking"] = {
        "mlflow": {"address": "http://127.0.0.1:9"},
        "openTelemetry": {"endpoint": "http://127.0.0.1:9"},
    }
    with held(manifest, num_scored=70) as goes_on:
        job = cluster.apply(manifest)
        job.wait_step(2)
        assert_the_page_is_served(cluster)
        goes_on.set()
        cluster.kubectl("wait", "--for=condition=Complete", "rljob/small", "--timeout=400s")
    status = job.status()
    assert status["phase"] == "Succeeded", job.story()
    runtime = status["runtime"]
    shown = [notice["message"] for notice in runtime["notices"] if notice["reason"] == "TrackerFailed"]
    assert sorted(message.partition(":")[0] for message in shown) == ["tracking.mlflow", "tracking.openTelemetry"]
    assert runtime["short"]["rounds"] >= 4
    assert runtime["long"]["rounds"] >= 1
    assert runtime["draws"]["deferred"] == 0
    assert runtime["heldOut"]["before"] is not None
    assert_every_draw_once(job.ledger(), num_prompts=4, num_responses=4)
    mismatches = [values["rollout_corr/log_prob_mismatch_max"] for values in job.metrics()]
    assert max(mismatches) < 1e-3, "engine and trainer disagree about log-probabilities"

    table = cluster.kubectl("get", "rljobs", "small")
    assert table.splitlines()[0].split() == [
        "NAME", "PHASE", "ROUND", "STEP", "STEPS", "REWARD", "ROLLOUT-GPUS", "TRAINER-GPUS", "AGE",
    ]  # fmt: skip
    assert table.splitlines()[1].split()[:2] == ["small", "Succeeded"]
    assert "Finished" in cluster.kubectl("describe", "rljob", "small")
    log = cluster.kubectl("logs", "-f", "small-coordinator")
    assert "finished" in log
    assert "might not work" not in log, "a library warns of what does not concern users"
    job.wait_nothing_runs()

    cluster.longshore("report", "small", "-o", str(tmp_path / "report.html"))
    assert_a_report_shows_it(tmp_path / "report.html")
    cluster.longshore("fetch", "small", str(tmp_path / "model"))
    from transformers import AutoModelForCausalLM, AutoTokenizer

    assert AutoModelForCausalLM.from_pretrained(tmp_path / "model").num_parameters() < 1_000_000
    assert AutoTokenizer.from_pretrained(tmp_path / "model").encode("12")
    assert_recorded(cluster, job, tmp_path)
    job.delete()


def assert_the_page_is_served(cluster: Cluster) -> None:
    """By the coordinator, while the job runs."""
    address = cluster.kubectl("get", "pod", "small-coordinator", "-o", "jsonpath={.status.podIP}")
    with urllib.request.urlopen(f"http://{address}:{contract.PAGE_PORT}/api/view", timeout=60) as answer:
        view = JobPageView.model_validate_json(answer.read())
    assert view.runtime is not None and view.runtime.step >= 2
    assert {"critic/rewards/mean", "perf/bubble_share"} <= view.curves.values.keys()


def assert_a_report_shows_it(path: Path) -> None:
    """Its rounds, with responses on the lanes, and its samples as text."""
    data = path.read_text(encoding="utf-8").split('<script type="application/json" id="data">')[1].split("</script>")[0]
    view = JobPageView.model_validate_json(data)
    assert view.cluster is not None and view.cluster.phase == "Succeeded"
    assert {event.reason for event in view.cluster.events or ()} >= {"Finished"}
    assert view.round_steps == view.sample_steps == tuple(digest.step for digest in view.digests)
    assert set(view.curves.steps) - {0} == set(view.round_steps)
    assert {0, view.round_steps[-1]} <= set(view.held_out_steps), "evaluations before the first step and after the last"
    assert {group.outcome for group in view.held_out[0]} == {"evaluated"}
    for step, shown in view.rounds.items():
        assert {"sampling", "training"} <= shown.seconds.keys()
        assert {"accepted"} <= {stay.outcome for lane in shown.lanes for stay in lane.stays}
        assert all(group.prompt and len(group.responses) == 4 for group in view.samples[step])


def assert_recorded(cluster: Cluster, job: Job, directory: Path) -> None:
    """Samples and rounds of every step, a trace of them, and a simulation with their lengths."""
    ledger = job.ledger()
    samples = [pq.read_table(path).to_pylist() for path in sorted((job.output() / "samples").iterdir())]
    rounds = [RoundRecord.from_bytes(path.read_bytes()) for path in sorted((job.output() / "rounds").iterdir())]
    assert [record.step for record in rounds] == [row["step"] for row in ledger] == list(range(1, len(ledger) + 1))
    for rows, record, row in zip(samples, rounds, ledger, strict=True):
        trained = {f"{draw}-{one}" for draw, some in row["trained"].items() for one in some}
        assert {f"{one['draw']}-{one['response_index']}" for one in rows} == trained
        assert {one.response for one in record.responses if one.outcome is RecordOutcome.ACCEPTED} == trained
        assert all(one["engine_s"] > 0 for one in rows)
        # A response whose first token ends it has no text.
        assert all(one["response"] or one["response_tokens"] == 1 for one in rows)
        for lane in gpu_lanes(record):
            states = {state for state, *_ in lane.spans}
            assert {LaneState.SAMPLING, LaneState.TRAINING} <= states, "every pod samples and trains"
    shown = cluster.longshore("trace", "small", "--rounds", "2:4", "--out", str(directory / "trace.json"))
    assert "rounds 2 to 4" in shown
    events = json.loads((directory / "trace.json").read_text())["traceEvents"]
    assert {event["name"] for event in events if event.get("cat") == "step"} == {
        f"step {record.step}, {record.kind.value}" for record in rounds[1:4]
    }
    shown = cluster.longshore("simulate", "--from", "small", "--strategies", "Synchronous", "--steps", "2")
    assert f"From small: {len(rounds)} rounds" in shown


@pytest.mark.soak
def test_the_job_of_the_notebook_trains_and_shows_what_the_notebook_says(
    cluster: Cluster, root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KUBECONFIG", str(cluster.kubeconfig))
    monkeypatch.chdir(tmp_path)
    *cells, clean_up = code_cells(root / "docs/how-to/use-from-python.ipynb")
    names: Json = {}
    for cell in cells:
        exec(cell, names)
    job = cluster.job("notebook")
    status = job.status()
    assert status["phase"] == "Succeeded", job.story()
    last_step = status["runtime"]["step"]
    assert list(names["metrics"].index) == list(range(last_step + 1)), "step 0 is the first evaluation"
    trained = set(job.ledger()[-1]["trained"])
    samples = names["samples"]
    assert set(samples["step"]) == {last_step}
    assert set(samples["draw"]) == trained and len(samples) == 4 * len(trained)
    assert samples["response"].str.len().max() > 0
    job.wait_nothing_runs()

    from transformers import AutoModelForCausalLM, AutoTokenizer

    assert AutoModelForCausalLM.from_pretrained(names["path"]).num_parameters() < 1_000_000
    assert AutoTokenizer.from_pretrained(names["path"]).encode("12")
    exec(clean_up, names)
    assert cluster.kubectl("get", "rljob", "notebook", "--ignore-not-found", "-o", "name") == ""
    job.assert_nothing_is_left()


def code_cells(notebook: Path) -> list[str]:
    """The programs of a notebook."""
    cells = json.loads(notebook.read_text())["cells"]
    return ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]


def test_losing_any_pod_costs_time_and_no_draw(cluster: Cluster, root: Path) -> None:
    manifest = small_quickstart(root)
    manifest["metadata"]["name"] = "lossy"
    manifest["spec"]["algorithm"] |= {"steps": 1_000}  # It is not to end before every pod was lost.
    manifest["spec"]["checkpoint"] = {"everySteps": 3}
    manifest["spec"]["backoffLimit"] = 10
    job = cluster.apply(manifest)
    job.wait_step(4)
    commands = job.commands()
    assert any("raylet" in command for command in commands)
    unwanted = ("ray/dashboard/", "runtime_env/agent/", "ray.util.client.server")
    assert [one for one in commands if any(part in one for part in unwanted)] == [], "no agent of Ray listens in a pod"
    cluster.kubectl("delete", "pod", "lossy-worker-1", "--wait=false")
    step = job.wait("a step after the loss", lambda s: s["runtime"]["step"] >= 1 and s["workers"]["ready"] < 2)
    job.wait("the pod is back", lambda s: s["workers"]["ready"] == 2)
    job.wait_step(step["runtime"]["step"] + 3)
    job.kill("reward-0")
    job.wait_step(job.status()["runtime"]["step"] + 3)
    job.kill("coordinator")
    job.wait_resumed(attempt=2)
    assert_every_draw_once(job.ledger(), num_prompts=4, num_responses=4, has_ended=False)
    cluster.longshore("suspend", "lossy")
    cluster.kubectl("wait", "--for=delete", "pods", "-l", "longshore.dev/job=lossy", "--timeout=150s")
    newest = max((job.output() / "checkpoints").glob("step-*"))
    assert int(newest.name.removeprefix("step-")) == job.status()["runtime"]["step"], "no finished step is repeated"
    assert "interrupted" in (job.output() / "logs" / "coordinator-2.log").read_text(), "it has ended by itself"
    job.delete()


def long_job(name: str, modules: Path) -> Json:
    """A job of many steps whose rewards tell responses apart."""
    reward, coordinator = hashed_reward(modules)
    steps = {"steps": 40, "promptsPerStep": 4, "responsesPerPrompt": 4, "maxResponseTokens": 200, "seed": 3}
    return fake_job(name, algorithm=steps, reward=reward, coordinator=coordinator)


def test_a_job_that_is_suspended_and_killed_ends_with_the_same_batches_and_weights(
    cluster: Cluster, tmp_path: Path
) -> None:
    undisturbed = cluster.apply(long_job("calm", tmp_path))
    manifest = long_job("disturbed", tmp_path)
    with held(manifest, num_scored=60) as goes_on:
        disturbed = cluster.apply(manifest)
        disturbed.wait_step(2)
        cluster.longshore("suspend", "disturbed")
        disturbed.wait("suspended", lambda status: status["phase"] == "Suspended")
        cluster.kubectl("wait", "--for=delete", "pods", "-l", "longshore.dev/job=disturbed", "--timeout=150s")
        goes_on.set()
        cluster.longshore("resume", "disturbed")
        disturbed.wait_step(disturbed.status()["runtime"]["step"] + 1 + time.time_ns() % 5)
        disturbed.kill("coordinator")
        for job in (undisturbed, disturbed):
            assert job.wait_finished()["phase"] == "Succeeded", job.story()
    assert disturbed.status()["failures"] == 1
    assert disturbed.ledger() == undisturbed.ledger()
    assert _final_weights(disturbed.output()) == _final_weights(undisturbed.output())
    assert_every_draw_once(disturbed.ledger(), num_prompts=4, num_responses=4)
    for job in (undisturbed, disturbed):
        job.delete()


@pytest.mark.soak
def test_partial_responses_are_continued_and_no_draw_is_lost(cluster: Cluster) -> None:
    engine = {"backend": "Fake", "extraArgs": {"step_s": 0.01}}
    rollout = {"strategy": "PartialRollout", "onPolicy": "Relaxed", "engine": engine}
    manifest = fake_job("partial", rollout=rollout)
    with held(manifest, num_scored=120) as goes_on:
        job = cluster.apply(manifest)
        job.wait_step(4)
        job.kill("coordinator")
        goes_on.set()
        assert job.wait_finished()["phase"] == "Succeeded", job.story()
    ledger = job.ledger()
    trained = [draw for row in ledger for draw in row["trained"]]
    assert len(set(trained)) == len(trained), "a draw was trained twice"
    assert {draw for row in ledger for draw in row["deferred"]} <= set(trained), "a deferred draw was lost"
    assert any(len(row["policy_versions"]) > 1 for row in ledger), "no response was continued"
    job.delete()


def _final_weights(output: Path) -> Json:
    newest = max((output / "checkpoints").iterdir())
    weights: Json = json.loads((newest / "trainer/trainer.json").read_text())
    return weights
