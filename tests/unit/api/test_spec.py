"""Rules over the fields of a job: what breaks a promise is refused, by the API server and from Python alike."""

import copy
import json
from typing import Any

import httpx
import pytest
from pydantic import ValidationError

from longshore.api.crd import rljob_crd
from longshore.api.mistakes import sentence
from longshore.api.spec import RLJobSpec
from longshore_devcluster.apiserver.crd.cel import RuleSet
from longshore_devcluster.apiserver.crd.structural import structural
from longshore_devcluster.apiserver.crd.version import CustomVersion

Json = dict[str, Any]

_SCHEMA = structural(rljob_crd()["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"])
API_SERVER = CustomVersion(_SCHEMA, RuleSet(_SCHEMA))
VALID: Json = {
    "model": {"builtin": "Tiny", "maxContextTokens": 256},
    "data": {"builtin": "Counting"},
    "algorithm": {"steps": 1, "promptsPerStep": 4, "responsesPerPrompt": 2, "maxResponseTokens": 64},
    "storage": {"create": {"size": "1Gi"}},
}
RELAXED = {"rollout.onPolicy": "Relaxed"}
CLOSER = ("99999/", "65536", ":0/", "[:::]/", "10.0.0.999/", "-/", "a..b/")
"""Ends of addresses at which one has to look closer than the schema can: the operator does."""
WHITENED = {"algorithm.name": "ReinforcePlusPlus"}


def spec(changes: Json) -> Json:
    """A valid spec with changes by path; None removes a field."""
    changed = copy.deepcopy(VALID)
    for path, value in changes.items():
        *parents, name = path.split(".")
        node = changed
        for parent in parents:
            node = node.setdefault(parent, {})
        if value is None:
            del node[name]
        else:
            node[name] = value
    return changed


def strategy(name: str, **rollout: Any) -> Json:
    """Changes that choose a strategy."""
    return {"rollout.strategy": name, **{f"rollout.{field}": value for field, value in rollout.items()}}


def reward(**function: Any) -> Json:
    """Changes that score with one function."""
    return {"reward.functions": [{"name": "only", **function}]}


def judge(placement: str, **judge: Any) -> Json:
    """Changes that score with one judge."""
    return reward(kind="Judge", judge={"placement": placement, **judge}) | {"data.builtin": None, "data.path": "a"}


def service(url: str) -> Json:
    """Changes that score with one service."""
    return reward(kind="HTTP", http={"url": url}) | {"data.builtin": None, "data.path": "a"}


def megatron(gpus: int, **sizes: int) -> Json:
    """Changes that split the trainer, on pods with so many GPUs."""
    trainer = {f"trainer.{field}": size for field, size in sizes.items()}
    return {"workers.gpusPerPod": gpus, "trainer.backend": "Megatron", **trainer}


def disaggregated(gpus: int) -> Json:
    """Changes that give the trainer two pods of its own."""
    return {"placement": "Disaggregated", "trainerWorkers": {"replicas": 2, "gpusPerPod": gpus}}


def from_python(changes: Json) -> str:
    """What is said to those who build a spec in Python; nothing if it is valid."""
    try:
        RLJobSpec.model_validate(spec(changes))
    except ValidationError as error:
        return str(error.errors()[0]["msg"])
    return ""


def from_api_server(changes: Json, old: Json | None = None) -> list[str]:
    """Errors of `kubectl apply`; `old`: changes of the spec before."""
    new, before = spec(changes), None if old is None else spec(old)
    for one in (new, before):
        if one is not None:
            API_SERVER.fill_defaults(one)
    return [f"{error.field}: {error.message}" for error in API_SERVER.validate(new, before)]


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        (strategy("PartialRollout"), "rollout.strategy"),
        (strategy("TailBatching", leftovers="KeepTokens"), "rollout.leftovers"),
        (strategy("ReorderRollout", leftovers="KeepTokens"), "rollout.leftovers"),
        (RELAXED | strategy("PartialRollout", leftovers="DropTokens"), "rollout.leftovers"),
        (strategy("Synchronous", leftovers="DropTokens"), "rollout.leftovers"),
        (strategy("GroupPipeline", leftovers="DropTokens"), "rollout.leftovers"),
        (RELAXED | strategy("GroupPipeline", leftovers="KeepTokens"), "rollout.leftovers"),
        (WHITENED | {"algorithm.promptsPerUpdate": 2}, "algorithm.promptsPerUpdate"),
        (WHITENED | strategy("GroupPipeline"), "rollout.handover"),
        (WHITENED | strategy("Synchronous", handover="Pipelined"), "rollout.handover"),
        (
            RELAXED | strategy("PartialRollout", partialRollout={"groupFactor": 3, "maxPolicyVersions": 2}),
            "groupFactor",
        ),
        ({"algorithm.promptsPerUpdate": 3}, "promptsPerUpdate"),
        ({"algorithm.promptsPerUpdate": 8}, "promptsPerUpdate"),
        ({"algorithm.maxResponseTokens": 256}, "algorithm.maxResponseTokens"),
        ({"workers.gpusPerPod": 4, "rollout.engine.tensorParallelSize": 3}, "rollout.engine.tensorParallelSize"),
        ({"trainer.dataParallelSize": 2}, "trainer.dataParallelSize"),
        ({"workers.gpusPerPod": 2, "trainer.tensorParallelSize": 2}, "trainer.tensorParallelSize"),
        ({"workers.gpusPerPod": 0, "trainer.pipelineParallelSize": 2}, "trainer.pipelineParallelSize"),
        ({"workers.gpusPerPod": 2, "trainer.backend": "Fake", "trainer.contextParallelSize": 2}, "contextParallelSize"),
        (megatron(gpus=2, fsdpSize=2), "trainer.fsdpSize"),
        ({"workers.gpusPerPod": 0, "trainer.backend": "Fake", "trainer.fsdpSize": 2}, "trainer.fsdpSize"),
        ({"workers.gpusPerPod": 4, "trainer.fsdpSize": 3}, "trainer.fsdpSize"),
        ({"workers.gpusPerPod": 4, "trainer.fsdpSize": 2, "trainer.dataParallelSize": 3}, "trainer.dataParallelSize"),
        (disaggregated(gpus=3) | {"trainer.fsdpSize": 2}, "trainer.fsdpSize"),
        (megatron(gpus=2, tensorParallelSize=2, pipelineParallelSize=2), "trainer.tensorParallelSize"),
        (megatron(gpus=4, tensorParallelSize=2, dataParallelSize=3), "trainer.dataParallelSize"),
        (megatron(gpus=0, tensorParallelSize=2, dataParallelSize=2), "trainer.dataParallelSize"),
        (reward(kind="Python"), "importPath"),
        (reward(kind="Maths", importPath="rewards:score"), "importPath"),
        (reward(kind="HTTP"), "http"),
        (reward(kind="Judge"), "judge"),
        (judge("Pool", modelPath="judge"), "pool"),
        (judge("Pool", pool={}), "modelPath"),
        (judge("Pool", pool={}, modelPath="judge", url="http://judge/v1"), "url"),
        (judge("Colocated", pool={}, modelPath="judge"), "pool"),
        (judge("Remote", pool={}, url="http://judge/v1"), "pool"),
        ({"data": {"path": "data/a.jsonl"}}, "reward.functions"),
        (reward(kind="Task", domains=["maths"]), "data.domainField"),
        ({"reward.pods": 2, "reward.maxPods": 1}, "maxPods"),
        (reward(kind="Code") | {"reward.pods": 0}, "pods"),
        (reward(kind="Code") | {"reward.pods": 0, "reward.maxPods": 2}, "pods"),
        ({"reward.pods": 0, "reward.runtimeClassName": "gvisor"}, "runtimeClassName"),
        ({"model.builtin": None, "model.path": "models/a", "model.warmStartSteps": 5}, "model.warmStartSteps"),
        (strategy("TailBatching", handover="Streamed") | {"algorithm.promptsPerUpdate": 2}, "promptsPerUpdate"),
        (strategy("GroupPipeline", handover="Streamed"), "rollout.handover"),
        (WHITENED | strategy("Synchronous", handover="Streamed"), "rollout.handover"),
        ({"placement": "Disaggregated"}, "trainerWorkers"),
        ({"trainerWorkers": {}}, "trainerWorkers"),
        (disaggregated(gpus=1) | {"trainer.dataParallelSize": 3}, "trainer.dataParallelSize"),
        (
            disaggregated(gpus=3) | {"trainer.backend": "Megatron", "trainer.tensorParallelSize": 2},
            "trainer.tensorParallelSize",
        ),
        ({"model.maxContextTokens": 2049}, "maxContextTokens"),
        ({"data.promptTemplate": "Think step by step: {question}"}, "promptTemplate"),
        ({"model.path": "models/a"}, "model"),
        ({"data.path": "data/a.jsonl"}, "data"),
        ({"storage.claimName": "other"}, "storage"),
    ],
    ids=lambda value: value if isinstance(value, str) else ",".join(f"{path}={one}" for path, one in value.items()),
)
def test_what_breaks_a_promise_is_refused_with_the_field(changes: Json, field: str) -> None:
    assert f"{field}:" in from_python(changes)
    errors = from_api_server(changes)
    assert len(errors) == 1, errors
    assert field in errors[0].split(": ")[0]


@pytest.mark.parametrize(
    "url",
    [
        "http://grader:port/", "http://grader:99999/", "http://grader:65536", "http://grader:0/", "http://grader:/",
        "http://[::1", "http://[:::]/", "http://10.0.0.999/", "http://:80/", "http:///score", "http://", "http://a b/",
        "http://-/", "http://a..b/", "ftp://grader/", "grader:8000", "http://grader/a b", "http://grader/\t",
    ],
)  # fmt: skip
@pytest.mark.parametrize("kind", ["http", "judge"])
def test_an_address_that_nobody_can_ask_is_refused_with_the_field(kind: str, url: str) -> None:
    changes = service(url) if kind == "http" else judge("Remote", url=url)
    with pytest.raises(ValidationError) as caught:
        RLJobSpec.model_validate(spec(changes))
    told = sentence(caught.value, "spec")
    assert told.startswith(f"spec.reward.functions.0.{kind}.url: must be http:// or https://, a host, and if a port")
    assert told.endswith(f", not {json.dumps(url)}")
    if not url.endswith(CLOSER):
        assert [error.split(": ")[0] for error in from_api_server(changes)] == [f"reward.functions[0].{kind}.url"]


@pytest.mark.parametrize(
    "url",
    [
        "http://169.254.169.254/latest", "http://169.254.170.2/", "http://[fd00:ec2::254]/", "http://100.100.100.200/",
        "http://168.63.129.16/", "http://metadata.google.internal/", "http://METADATA.Google.internal.:80/x",
        "http://user@metadata/", "http://[::ffff:169.254.169.254]/", "http://[fe80::1]/", "https://metadata.goog",
    ],
)  # fmt: skip
def test_the_metadata_services_of_clouds_are_no_addresses(url: str) -> None:
    for changes in (service(url), judge("Remote", url=url)):
        assert "must not be the metadata service of a cloud" in from_python(changes)


@pytest.mark.parametrize("url", ["http://0xA9FEA9FE/", "http://2852039166/", "http://169.254.43518/"])
def test_numbers_that_resolvers_read_as_addresses_are_none(url: str) -> None:
    assert "must be http:// or https://" in from_python(service(url))


@pytest.mark.parametrize("field", ["model.path", "data.path", "storage.output"])
@pytest.mark.parametrize("path", ["../x", "a/../../x", "a/.."])
def test_a_path_stays_in_the_storage(field: str, path: str) -> None:
    other = {"model.path": "model.builtin", "data.path": "data.builtin"}.get(field)
    changes: Json = {field: path} | ({other: None} if other else {}) | reward(kind="Maths")
    assert "must stay inside the storage of the job: remove the '..'" in from_python(changes)
    (error,) = from_api_server(changes)
    assert error.startswith(f"{field}: ")
    assert "must stay inside the storage" in error


@pytest.mark.parametrize("path", ["a..b/c", "..a", "a/...", "models/a/./b", "a//b/"])
def test_dots_in_names_are_no_way_out(path: str) -> None:
    changes: Json = {"model.builtin": None, "model.path": path}
    assert (from_python(changes), from_api_server(changes)) == ("", [])


@pytest.mark.parametrize(
    "url",
    [
        "http://grader", "https://grader.default.svc.:8443/v1?x=1#y", "http://10.0.0.9:65535/", "http://[::1]:1/v1",
        "http://user:secret@my_grader/", "http://GRADER-2/%20", "http://7up/",
    ],
)  # fmt: skip
def test_an_address_that_can_be_asked_is_taken(url: str) -> None:
    for changes in (service(url), judge("Remote", url=url)):
        assert (from_python(changes), from_api_server(changes)) == ("", [])
    httpx.URL(url)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        strategy("Synchronous"),
        strategy("ReorderRollout"),
        strategy("GroupPipeline"),
        RELAXED | strategy("PartialRollout"),
        RELAXED | strategy("PartialRollout", leftovers="KeepTokens"),
        RELAXED | strategy("TailBatching", leftovers="KeepTokens"),
        RELAXED | strategy("ReorderRollout", leftovers="KeepTokens"),
        strategy("TailBatching", leftovers="DropTokens"),
        strategy("TailBatching", handover="Pipelined") | {"algorithm.promptsPerUpdate": 2},
        strategy("TailBatching", admission={"frontierWidth": 2, "maxActivePerEngine": 3, "adaptive": True}),
        strategy("GroupPipeline", admission={"frontierWidth": 1}) | {"algorithm.promptsPerUpdate": 2},
        strategy("GroupPipeline", handover="AfterRound"),
        {"algorithm.dynamicSampling": True},
        strategy("GroupPipeline") | {"algorithm.dynamicSampling": True},
        RELAXED | strategy("PartialRollout", partialRollout={"groupFactor": 2, "maxPolicyVersions": 2}),
        RELAXED | strategy("PartialRollout", partialRollout={"groupFactor": 1.5, "maxPolicyVersions": 2}),
        WHITENED,
        WHITENED | {"algorithm.promptsPerUpdate": 4},
        WHITENED | strategy("GroupPipeline", handover="AfterRound"),
        {"algorithm.promptsPerUpdate": 2},
        strategy("TailBatching", handover="Streamed"),
        strategy("Synchronous", handover="Streamed", repurposing={"trigger": "Fixed", "fraction": 0.4}),
        RELAXED | strategy("PartialRollout", handover="Streamed"),
        strategy("TailBatching", engine={"parallelism": "Adaptive"}),
        disaggregated(gpus=2) | {"trainer.dataParallelSize": 4},
        disaggregated(gpus=1) | strategy("GroupPipeline"),
        megatron(gpus=8, tensorParallelSize=2, pipelineParallelSize=2, contextParallelSize=2, dataParallelSize=1),
        megatron(gpus=4, tensorParallelSize=2, dataParallelSize=2),
        megatron(gpus=0, tensorParallelSize=2, contextParallelSize=2),
        {"workers.gpusPerPod": 4, "trainer.fsdpSize": 2, "trainer.dataParallelSize": 2},
        {"workers.gpusPerPod": 0, "trainer.fsdpSize": 2},
    ],
    ids=lambda value: ",".join(f"{path}={one}" for path, one in value.items()) or "defaults",
)
def test_what_keeps_every_promise_is_taken(changes: Json) -> None:
    assert from_python(changes) == ""
    assert from_api_server(changes) == []


@pytest.mark.parametrize("changes", [strategy("ReorderRollout"), {"algorithm.promptsPerUpdate": 2}])
def test_a_running_job_is_suspended_before_its_strategy_or_batch_changes(changes: Json) -> None:
    assert "may change only while the job is suspended" in from_api_server(changes, old={})[0]
    assert from_api_server(changes | {"suspend": True}, old={"suspend": True}) == []


def test_a_running_job_is_suspended_before_the_pods_of_its_trainer_change() -> None:
    before, more = disaggregated(gpus=1), disaggregated(gpus=2)
    assert from_api_server(before, old=before) == []
    (error,) = from_api_server(more, old=before)
    assert "trainerWorkers may change only while the job is suspended" in error
    assert from_api_server(more | {"suspend": True}, old=before | {"suspend": True}) == []


@pytest.mark.parametrize(
    ("changes", "keeps_tokens", "is_pipelined", "repurposes"),
    [
        ({}, False, False, False),
        (strategy("GroupPipeline"), False, True, False),
        (strategy("GroupPipeline", handover="AfterRound"), False, False, False),
        (strategy("TailBatching", handover="Pipelined"), False, True, False),
        (strategy("TailBatching", handover="Streamed"), False, False, True),
        (strategy("TailBatching", handover="Streamed", repurposing={"trigger": "Never"}), False, False, False),
        (RELAXED | strategy("PartialRollout"), True, False, False),
        (RELAXED | strategy("TailBatching", leftovers="KeepTokens"), True, False, False),
    ],
)
def test_fields_that_are_not_set_follow_the_strategy(
    changes: Json, keeps_tokens: bool, is_pipelined: bool, repurposes: bool
) -> None:
    rollout = RLJobSpec.model_validate(spec(changes)).rollout
    assert (rollout.keeps_tokens, rollout.is_pipelined, rollout.repurposes) == (keeps_tokens, is_pipelined, repurposes)
