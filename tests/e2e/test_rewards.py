"""Rewards of every kind in jobs of the embedded cluster: routed, reported, retried, and never silently zero."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from statistics import fmean
from typing import Any, Final

import pytest
import yaml

from tests.contract.rewards.endpoint import TOKEN, Endpoint, Reply, serving
from tests.e2e.held import held
from tests.e2e.jobs import Cluster, Job, Json, claim, coordinator_with, fake_job
from tests.e2e.reward_inputs import USER_REWARDS, mixed_rows, write_judge, write_rows

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]

CLAIM: Final = "rewards"
BATCH: Final = {"steps": 2, "promptsPerStep": 4, "responsesPerPrompt": 4, "maxResponseTokens": 24, "seed": 3}


@pytest.fixture(scope="module")
def inputs(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Rows, a judge and a user's module, put into a claim as a user does it."""
    directory = tmp_path_factory.mktemp("inputs")
    write_rows(directory / "mixed.jsonl", mixed_rows(60))
    plain = [{"prompt": f"{n}?", "answer": "undefined" if n % 8 == 0 else "defined"} for n in range(60)]
    write_rows(directory / "plain.jsonl", plain)
    write_judge(directory / "judge")
    (directory / "user_rewards.py").write_text(USER_REWARDS)
    cluster.kubectl("apply", "-f", "-", stdin=yaml.safe_dump_all([claim(CLAIM), _secret()]))
    cluster.longshore("put", CLAIM, str(directory), "inputs")
    return directory


@pytest.fixture(scope="module")
def failures() -> list[Reply]:
    """What the service is yet to do before it answers."""
    return [Reply(500), Reply(503), Reply(hangs=True)]


@pytest.fixture(scope="module")
def endpoint(failures: list[Reply]) -> Iterator[Endpoint]:
    """A service that wants a token, and breaks down twice and hangs once before it answers."""

    def behaviour(path: str, body: Json) -> Reply:
        if path.startswith("/broken"):
            return Reply(500)
        return failures.pop() if failures else Reply(200, {"reward": len(body["response"]) / 100})

    with serving(behaviour, TOKEN) as endpoint:
        yield endpoint


def test_a_mixed_job_scores_each_domain_by_its_reward_and_survives_its_coordinator(
    cluster: Cluster, inputs: Path, root: Path
) -> None:
    """The functions are those of the manifest in the docs, with a judge that fits this test."""
    documents = yaml.safe_load_all((root / "manifests/mixed.yaml").read_text())
    reward: Json = next(document["spec"]["reward"] for document in documents if document["kind"] == "RLJob")
    critic = next(function for function in reward["functions"] if function["kind"] == "Judge")
    critic["judge"] |= {"modelPath": "inputs/judge", "promptTemplate": "Grade: {response}"}
    critic["judge"] |= {"scorePattern": r"(\d)", "maxScore": 9}
    algorithm = BATCH | {"steps": 8, "promptsPerStep": 6}
    functions = reward.pop("functions")
    manifest = _job("mixed", functions, "mixed", reward=reward, algorithm=algorithm, checkpoint={"everySteps": 1})
    with held(manifest, num_scored=84) as goes_on:
        job = cluster.apply(manifest)
        job.wait_step(2)
        anchors_before = _anchors(job, "tests")
        job.kill("coordinator")
        goes_on.set()
        assert job.wait_finished()["phase"] == "Succeeded", job.story()
    assert job.status()["attempt"] == 2
    steps = job.metrics()
    assert [values["step"] for values in steps] == list(range(1, 9))
    for function, domain, weight in (("maths", "algebra", 1.0), ("tests", "code", 1.0), ("critic", "taste", 0.5)):
        scored = [values for values in steps if f"reward/{function}/mean" in values]
        assert scored, f"{function} scored nothing"
        for values in scored:
            assert values[f"reward/domain/{domain}/mean"] == pytest.approx(weight * values[f"reward/{function}/mean"])
            assert values[f"reward/{function}/seconds"] > 0
    assert 0 < _mean(steps, "reward/tests/mean") < 1, "some responses are programs that print nothing"
    assert 0 < _mean(steps, "reward/critic/mean") < 1
    assert b"reward/domain/taste/mean" in b"".join(
        path.read_bytes() for path in (job.output() / "tensorboard").iterdir()
    )
    anchors = _anchors(job, "tests")
    assert anchors_before, "programs that passed have set time limits"
    assert all(anchors[key] >= seconds for key, seconds in anchors_before.items()), "a limit was forgotten"
    job.delete()


@pytest.mark.soak
def test_the_mixed_manifest_trains_a_real_model_on_real_engines(cluster: Cluster, root: Path, tmp_path: Path) -> None:
    """As its comments say: apply, put the inputs, resume. The judge is one that fits this test."""
    claim, manifest = yaml.safe_load_all((root / "manifests/mixed.yaml").read_text())
    manifest["metadata"]["name"] = "mixed-manifest"
    critic = next(function for function in manifest["spec"]["reward"]["functions"] if function["kind"] == "Judge")
    critic["judge"] |= {"promptTemplate": "Grade: {response}", "scorePattern": r"(\d)", "maxScore": 9}
    cluster.kubectl("apply", "-f", "-", stdin=yaml.safe_dump(claim))
    job = cluster.apply(manifest)
    write_rows(tmp_path / "mixed.jsonl", mixed_rows(60))
    write_judge(tmp_path / "judge")
    cluster.longshore("put", "longshore-mixed", str(tmp_path / "mixed.jsonl"), "data/mixed.jsonl")
    cluster.longshore("put", "longshore-mixed", str(tmp_path / "judge"), "models/judge")
    cluster.longshore("resume", "mixed-manifest")
    status = job.wait_finished()
    assert status["phase"] == "Succeeded", job.story()
    steps = job.metrics()
    assert len(steps) >= manifest["spec"]["algorithm"]["steps"]
    for domain in ("algebra", "code", "taste"):
        assert any(f"reward/domain/{domain}/mean" in values for values in steps), domain
    assert all(values["rollout_corr/log_prob_mismatch_max"] < 1e-3 for values in steps)
    assert "Rlimits" in status["runtime"]["rewardWorkers"]["sandbox"]
    assert status["runtime"]["rewardWorkers"]["gpuSharing"], "judges share the pods of the engines"
    job.delete()


def test_what_fails_is_retried_or_replaced_and_counted(
    cluster: Cluster, inputs: Path, endpoint: Endpoint, failures: list[Reply]
) -> None:
    functions: list[Json] = [
        {
            "name": "service",
            "kind": "HTTP",
            "http": {"url": f"{endpoint.address}/score"},
            "tokenSecret": {"name": "service-token"},
            "retries": 3,
            "timeoutSeconds": 10,
        },
        {
            "name": "mine",
            "kind": "Python",
            "importPath": "user_rewards:is_undefined_for_some",
            "onError": "Replace",
        },
    ]
    job = cluster.apply(_job("flaky", functions, "plain", code=inputs, algorithm=BATCH))
    assert job.wait_finished()["phase"] == "Succeeded", job.story()
    ledger = job.ledger()
    rejected = {draw: reason for row in ledger for draw, reason in row["rejected"].items()}
    assert rejected, "some rows have no reward"
    assert all("reward mine: inputs/plain.jsonl, line " in reason for reason in rejected.values())
    assert all("returned nan" in reason for reason in rejected.values())
    assert all(len(row["trained"]) == 4 for row in ledger), "batches are exact all the same"
    assert not rejected.keys() & {draw for row in ledger for draw in row["trained"]}
    assert failures == [], "the service has failed as often as it should"
    assert 0 < sum(values["reward/faults"] for values in job.metrics()) <= 3, "some of the three may be late"
    assert all("reward/service/mean" in values for values in job.metrics())
    job.delete()


@pytest.fixture(scope="module")
def failing(cluster: Cluster, inputs: Path, endpoint: Endpoint) -> Iterator[dict[str, Job]]:
    """All of them at once, which takes less time than one after the other."""
    with cluster.without_leftovers():
        yield {
            name: cluster.apply(_job(name, functions, "plain", code=inputs))
            for name, functions in _unusable(endpoint).items()
        }


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        (
            "raising",
            r"^reward\.functions\[mine\]\.importPath: it scores none of the 3 rows that were tried: reward mine: "
            r"inputs/plain.jsonl, line 1, its reference answer as the response: raised KeyError: 'level' "
            r"at user_rewards.py:6 in fails: .* Response: 'undefined'. Row: prompt: '0\?', ",
        ),
        ("broken", r"^reward mine: inputs/plain.jsonl, line \d+, .*: the service answered 500 \(3 times\). Response: "),
    ],
)
def test_a_reward_that_cannot_be_had_fails_the_job_with_one_sentence(
    failing: dict[str, Job], name: str, reason: str
) -> None:
    job = failing[name]
    assert job.wait_finished()["phase"] == "Failed"
    failed = job.condition("Failed")
    assert failed["reason"] == "UserError"
    assert re.search(reason, failed["message"]), failed["message"]
    assert "\n" not in failed["message"]
    job.wait_nothing_runs()
    job.delete()


def _unusable(endpoint: Endpoint) -> dict[str, list[Json]]:
    """Reward functions of jobs that cannot work."""
    token: Json = {"tokenSecret": {"name": "service-token"}}
    return {
        "raising": [{"name": "mine", "kind": "Python", "importPath": "user_rewards:fails"}],
        "broken": [{"name": "mine", "kind": "HTTP", "http": {"url": f"{endpoint.address}/broken"}} | token],
    }


def _job(name: str, functions: list[Json], data: str, *, code: Path | None = None, **spec: Any) -> Json:
    """A job with pretended sampling and training; `code`: directory of a user's modules."""
    domains = {"domainField": "domain"} if any("domains" in function for function in functions) else {}
    engine = {"backend": "Fake", "extraArgs": {"median_tokens": 2.0, "step_s": 0.03}}
    num_pods = int(any(function["kind"] == "Code" for function in functions))
    return fake_job(
        name,
        **{
            "model": {"path": "inputs/judge", "maxContextTokens": 256},
            "data": {"path": f"inputs/{data}.jsonl", "heldOutPrompts": 0, **domains},
            "algorithm": BATCH,
            "reward": {
                "pods": num_pods,
                "workersPerPod": 1,
                "requestsPerPod": 1,
                **spec.pop("reward", {}),
                "functions": functions,
            },
            "rollout": {"strategy": "Synchronous", "engine": engine},
            "coordinator": coordinator_with(code) if code else {},
            "storage": {"claimName": CLAIM},
            **spec,
        },
    )


def _mean(steps: list[Json], name: str) -> float:
    return fmean(values[name] for values in steps if name in values)


def _anchors(job: Job, function: str) -> dict[tuple[int, int], float]:
    """Longest time of a program that passed, by prompt and test case."""
    newest = max((job.output() / "checkpoints").glob("step-*"))
    learned = json.loads((newest / "state.json").read_text())["rewards"][function]["anchors"]
    return {(prompt, case): seconds for prompt, cases in learned for case, seconds in cases}


def _secret() -> Json:
    return {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "service-token"}, "stringData": {"token": TOKEN}}
