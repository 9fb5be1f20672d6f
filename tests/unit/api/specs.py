"""Specs that break rules, and what is said about them by the API server and in Python."""

import copy
from typing import Any

import pytest
from pydantic import ValidationError

from longshore.api.crd import rljob_crd
from longshore.api.field_names import written_path
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
WITHOUT_SIBLINGS: Json = {"algorithm.objective.name": "ReinforcePlusPlus", "algorithm.responsesPerPrompt": 1}
TRUNCATED: Json = {
    "algorithm.objective.name": "TPPO", "algorithm.responsesPerPrompt": 1, "rollout.strategy": "PartialRollout",
    "rollout.onPolicy": "Relaxed",
}  # fmt: skip
CORRECTED: Json = {"algorithm.rolloutCorrection": {}}
SPREAD: Json = {"workers.gpusPerPod": 2, "trainer.fsdpSize": 2, "trainer.expertParallel": True}
REPLAYED: Json = {"trainer.routerReplay": True, "coordinator.resources": {"memory": "8Gi"}}
WHITENED = {"algorithm.objective.name": "ReinforcePlusPlus"}


def spec(changes: Json) -> Json:
    """A valid spec with changes by path; None removes a field."""
    changed = copy.deepcopy(VALID)
    for path, value in changes.items():
        *parents, name = path.split(".")
        node = changed
        for parent in parents:
            node = node.setdefault(parent, {})
        if value is None:
            node.pop(name, None)
        else:
            node[name] = value
    return changed


def strategy(name: str, **rollout: Any) -> Json:
    """Changes that choose a strategy."""
    return {"rollout.strategy": name, **{f"rollout.{field}": value for field, value in rollout.items()}}


def reward(**function: Any) -> Json:
    """Changes that score with one function."""
    return {"reward.functions": [{"name": "only", **function}]}


def environment(**fields: Any) -> Json:
    """A job with this environment alone, by default of a Python class."""
    return {"environments": [{"name": "world", **({"kind": "Python", "importPath": "games:Guess"} | fields)}]}


SERVER: Json = {"image": "game:1"}
GAME: Json = {"data.builtin": "Guessing"} | environment(kind="Task", importPath=None)
WON: Json = reward(kind="Environment")


def judge(placement: str, **judge: Any) -> Json:
    """Changes that score with one judge."""
    return reward(kind="Judge", judge={"placement": placement, **judge}) | {"data.builtin": None, "data.path": "a"}


TEACHER: Json = {"url": "http://teacher/v1", "modelName": "large"}


def taught(teacher: Json) -> Json:
    """Changes that distil a teacher."""
    return {"algorithm.objective": {"name": "Distillation", "teacher": teacher}}


def sources(*each: Json) -> Json:
    """Changes that train on several data sets."""
    named = [{"name": f"set-{number}", **one} for number, one in enumerate(each)]
    return reward(kind="Maths") | {"data.builtin": None, "data.sources": named}


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


def from_python(changes: Json) -> list[tuple[str, str]]:
    """(Field, message) of each mistake that is reported to those who build a spec in Python."""
    try:
        RLJobSpec.model_validate(spec(changes))
    except ValidationError as error:
        return [(_path(written_path(RLJobSpec, one["loc"])), one["msg"]) for one in error.errors()]
    return []


def from_api_server(changes: Json, old: Json | None = None) -> list[tuple[str, str]]:
    """(Field, message) of each error of `kubectl apply`; `old`: changes of the spec before."""
    new, before = spec(changes), None if old is None else spec(old)
    for one in (new, before):
        if one is not None:
            API_SERVER.fill_defaults(one)
    return [(error.field, error.message.removeprefix("Invalid value: ")) for error in API_SERVER.validate(new, before)]


def refusal(stored: Any) -> str:
    """The sentence with which Python refuses a spec."""
    with pytest.raises(ValidationError) as caught:
        RLJobSpec.model_validate(stored)
    return sentence(caught.value, "spec")


def _path(location: tuple[int | str, ...]) -> str:
    """As the API server writes it."""
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in location).removeprefix(".")


BROKEN: list[tuple[Json, str]] = [
    ({"scheduling.queue": "research"}, "scheduling.queue"),
    ({"scheduling.queue": "research", "scheduling.podGroup": "Kubernetes"}, "scheduling.queue"),
    ({"scheduling.schedulerName": "batch"}, "scheduling.schedulerName"),
    ({"tracking": {"wandb": {}}}, "tracking.wandb.tokenSecret"),
    ({"algorithm.overlongBufferTokens": 65}, "algorithm.overlongBufferTokens"),
    ({"algorithm.objective": {"name": "Custom"}}, "algorithm.objective.importPath"),
    ({"algorithm.objective.importPath": "losses:mine"}, "algorithm.objective.name"),
    ({"algorithm.objective": {"name": "SAPO", "clipLow": 0.1}}, "algorithm.objective.name"),
    ({"algorithm.objective.advantage": "Whitened", "algorithm.promptsPerUpdate": 2}, "algorithm.promptsPerUpdate"),
    (
        {
            "algorithm.objective": {"name": "ReinforcePlusPlus", "advantage": "Centred"},
            "algorithm.responsesPerPrompt": 1,
        },
        "algorithm.responsesPerPrompt",
    ),
    ({"algorithm.responsesPerPrompt": 1}, "algorithm.responsesPerPrompt"),
    (WITHOUT_SIBLINGS | {"algorithm.dynamicSampling": True}, "algorithm.dynamicSampling"),
    (WITHOUT_SIBLINGS | {"algorithm.promptsPerStep": 1}, "algorithm.promptsPerStep"),
    (
        {"algorithm.rolloutCorrection": {"rolloutRsThreshold": 2, "rolloutRsThresholdLower": 2}},
        "algorithm.rolloutCorrection.rolloutRsThresholdLower",
    ),
    ({"rollout.engine.quantization": "FP8"}, "rollout.engine.quantization"),
    (
        {"rollout.engine.quantization": "FP8", "algorithm.rolloutCorrection": {"rolloutIs": "None"}},
        "rollout.engine.quantization",
    ),
    (CORRECTED | {"rollout.engine.quantization": "FP8", "trainer.lora": {}}, "rollout.engine.quantization"),
    (CORRECTED | {"rollout.engine.quantization": "FP8", "workers.gpusPerPod": 0}, "rollout.engine.quantization"),
    (
        CORRECTED | {"rollout.engine.quantization": "FP8", "rollout.engine.dtype": "float32"},
        "rollout.engine.quantization",
    ),
    (CORRECTED | strategy("GroupPipeline") | {"algorithm.promptsPerUpdate": 2}, "algorithm.rolloutCorrection"),
    (strategy("GroupPipeline") | {"algorithm.epochsPerStep": 2}, "rollout.handover"),
    (strategy("TailBatching", handover="Streamed") | {"algorithm.epochsPerStep": 2}, "rollout.handover"),
    (strategy("TailBatching", handover="Pipelined") | {"algorithm.epochsPerStep": 2}, "rollout.handover"),
    (disaggregated(gpus=1) | {"workers.replicas": 4_096, "reward.pods": 903}, "workers.replicas"),
    (
        reward(kind="Code", code={"minTimeoutSeconds": 2, "maxTimeoutSeconds": 1}),
        "reward.functions[0].code.minTimeoutSeconds",
    ),
    (judge("Remote"), "reward.functions[0].judge.url"),
    (strategy("PartialRollout"), "rollout.onPolicy"),
    (strategy("TailBatching", leftovers="KeepTokens"), "rollout.onPolicy"),
    (strategy("ReorderRollout", leftovers="KeepTokens"), "rollout.onPolicy"),
    (RELAXED | strategy("PartialRollout", leftovers="DropTokens"), "rollout.leftovers"),
    (RELAXED | strategy("PartialRollout", leftovers="KeepTokens"), "rollout.leftovers"),
    (strategy("Synchronous", leftovers="DropTokens"), "rollout.leftovers"),
    (strategy("GroupPipeline", leftovers="DropTokens"), "rollout.leftovers"),
    (RELAXED | strategy("GroupPipeline", leftovers="KeepTokens"), "rollout.leftovers"),
    (WHITENED | {"algorithm.promptsPerUpdate": 2}, "algorithm.promptsPerUpdate"),
    (WHITENED | strategy("GroupPipeline"), "rollout.handover"),
    ({"algorithm.objective.name": "PPO"} | strategy("GroupPipeline"), "rollout.handover"),
    ({"algorithm.objective.name": "PPO", "algorithm.objective.advantage": "Centred"}, "algorithm.objective.advantage"),
    ({"algorithm.objective.advantage": "GAE"}, "algorithm.objective.advantage"),
    ({"algorithm.objective.name": "PPO", "trainer.backend": "Megatron"}, "trainer.backend"),
    (TRUNCATED | {"algorithm.responsesPerPrompt": 2}, "algorithm.responsesPerPrompt"),
    (TRUNCATED | {"algorithm.maskStaleTokens": True}, "algorithm.maskStaleTokens"),
    (TRUNCATED | {"algorithm.promptsPerUpdate": 2}, "algorithm.promptsPerUpdate"),
    (TRUNCATED | strategy("TailBatching"), "rollout.strategy"),
    (WHITENED | strategy("Synchronous", handover="Pipelined"), "rollout.handover"),
    (
        RELAXED | strategy("PartialRollout", partialRollout={"groupFactor": 3, "maxPolicyVersions": 2}),
        "rollout.partialRollout.groupFactor",
    ),
    (strategy("Auto", leftovers="KeepTokens"), "rollout.onPolicy"),
    ({"algorithm.promptsPerUpdate": 3}, "algorithm.promptsPerUpdate"),
    ({"algorithm.promptsPerUpdate": 8}, "algorithm.promptsPerUpdate"),
    ({"algorithm.maxResponseTokens": 256}, "algorithm.maxResponseTokens"),
    ({"workers.gpusPerPod": 4, "rollout.engine.tensorParallelSize": 3}, "rollout.engine.tensorParallelSize"),
    ({"trainer.dataParallelSize": 2}, "trainer.dataParallelSize"),
    ({"workers.minReplicas": 2}, "workers.minReplicas"),
    ({"workers.replicas": 2, "workers.minReplicas": 1, "trainer.dataParallelSize": 2}, "trainer.dataParallelSize"),
    ({"workers.gpusPerPod": 2, "trainer.tensorParallelSize": 2}, "trainer.backend"),
    ({"workers.gpusPerPod": 0, "trainer.pipelineParallelSize": 2}, "trainer.backend"),
    (
        {"workers.gpusPerPod": 2, "trainer.backend": "Fake", "trainer.contextParallelSize": 2},
        "trainer.backend",
    ),
    (megatron(gpus=2, fsdpSize=2), "trainer.fsdpSize"),
    ({"workers.gpusPerPod": 0, "trainer.backend": "Fake", "trainer.fsdpSize": 2}, "trainer.fsdpSize"),
    ({"trainer.backend": "Fake", "trainer.lora": {}}, "trainer.lora"),
    ({"trainer.lora": {"rank": 8}, "trainer.offloadReference": True}, "trainer.offloadReference"),
    (REPLAYED | {"trainer.backend": "Megatron"}, "trainer.routerReplay"),
    ({"trainer.expertParallel": True}, "trainer.expertParallel"),
    (SPREAD | {"trainer.lora": {"experts": True}}, "trainer.expertParallel"),
    (REPLAYED | {"workers.gpusPerPod": 0}, "trainer.routerReplay"),
    (REPLAYED | {"trainer.torchCompile": True}, "trainer.torchCompile"),
    ({"trainer.backend": "Megatron", "trainer.torchCompile": True}, "trainer.torchCompile"),
    ({"trainer.lora": {"experts": True}, "trainer.torchCompile": True}, "trainer.torchCompile"),
    (REPLAYED | {"workers.gpuResourceName": "longshore.dev/gpu"}, "trainer.routerReplay"),
    (REPLAYED | {"coordinator.resources": {}}, "coordinator.resources"),
    ({"trainer.lora": {}, "rollout.engine.sleepLevel": 2}, "rollout.engine.sleepLevel"),
    ({"algorithm.objective.name": "PPO", "trainer.lora": {}}, "trainer.lora"),
    ({"workers.gpusPerPod": 0, "trainer.lora": {"experts": True}}, "trainer.lora"),
    ({"workers.gpusPerPod": 4, "trainer.fsdpSize": 3}, "trainer.fsdpSize"),
    ({"workers.gpusPerPod": 4, "trainer.fsdpSize": 2, "trainer.dataParallelSize": 3}, "trainer.dataParallelSize"),
    (disaggregated(gpus=3) | {"trainer.fsdpSize": 2}, "trainer.fsdpSize"),
    (megatron(gpus=2, tensorParallelSize=2, pipelineParallelSize=2), "trainer.tensorParallelSize"),
    (megatron(gpus=4, tensorParallelSize=2, dataParallelSize=3), "trainer.dataParallelSize"),
    (megatron(gpus=0, tensorParallelSize=2, dataParallelSize=2), "trainer.dataParallelSize"),
    (environment(importPath=None), "environments[0].kind"),
    (GAME | reward(kind="Maths") | environment(kind="Task"), "environments[0].importPath"),
    (environment(tools=["tools:add"]), "environments[0].tools"),
    (environment(kind="Agent", importPath=None), "environments[0].kind"),
    (environment(kind="Agent", command=["python"]), "environments[0].kind"),
    (environment(command=["python"]), "environments[0].kind"),
    (environment(kind="Verifiers", importPath=None), "environments[0].kind"),
    (GAME | WON | environment(kind="Task", importPath=None, tools=["tools:add"]), "environments[0].kind"),
    (environment(kind="OpenEnv", importPath=None), "environments[0].kind"),
    (environment(kind="OpenEnv", importPath=None, url="http://host:8000", server=SERVER), "environments[0].kind"),
    (environment(kind="OpenEnv", importPath=None, server=SERVER | {"port": 8002}), "environments[0].server.port"),
    (environment(server=SERVER), "environments[0].kind"),
    (environment(kind="OpenEnv", url="http://host:8000"), "environments[0].importPath"),
    (environment(url="http://host:8000"), "environments[0].kind"),
    ({"data.builtin": "Guessing"} | reward(kind="Maths"), "environments"),
    (environment(kind="Task", importPath=None), "environments"),
    (GAME | reward(kind="Task"), "reward.functions"),
    (environment() | strategy("PartialRollout"), "rollout.strategy"),
    (environment() | strategy("TailBatching", leftovers="KeepTokens"), "rollout.strategy"),
    (
        {"environments": [*environment()["environments"], {"name": "b", "kind": "Python", "importPath": "a:B"}]},
        "environments",
    ),
    (environment(pods={"count": 1_024}) | {"workers.replicas": 4_000}, "workers.replicas"),
    (environment(domains=["maths"]), "data.domainField"),
    (reward(kind="Environment"), "reward.functions"),
    (reward(kind="Python"), "reward.functions[0].importPath"),
    (reward(kind="Maths", importPath="rewards:score"), "reward.functions[0].importPath"),
    (reward(kind="HTTP"), "reward.functions[0].http"),
    (reward(kind="Judge"), "reward.functions[0].judge"),
    (judge("Pool", modelPath="judge"), "reward.functions[0].judge.pool"),
    (judge("Pool", pool={}), "reward.functions[0].judge.modelPath"),
    (judge("Pool", pool={}, modelPath="judge", url="http://judge/v1"), "reward.functions[0].judge.url"),
    (judge("Colocated", pool={}, modelPath="judge"), "reward.functions[0].judge.pool"),
    (judge("Remote", pool={}, url="http://judge/v1"), "reward.functions[0].judge.pool"),
    ({"data": {"path": "data/a.jsonl"}}, "reward.functions"),
    (reward(kind="Task", domains=["maths"]), "data.domainField"),
    ({"reward.pods": 2, "reward.maxPods": 1}, "reward.maxPods"),
    (reward(kind="Code") | {"reward.pods": 0}, "reward.pods"),
    (reward(kind="Code") | {"reward.pods": 0, "reward.maxPods": 2}, "reward.pods"),
    ({"reward.pods": 0, "reward.runtimeClassName": "gvisor"}, "reward.runtimeClassName"),
    ({"model.builtin": None, "model.path": "models/a", "algorithm.warmStart": {"steps": 5}}, "algorithm.warmStart"),
    (
        {"algorithm.objective": {"name": "Distillation", "teacher": {"path": "a"}}, "algorithm.klCoefficient": 0.1},
        "algorithm.klCoefficient",
    ),
    (taught({"path": "a", "endpoint": TEACHER}), "algorithm.objective.teacher"),
    (
        {"algorithm.objective": {"name": "Distillation", "topTokens": 8, "teacher": {"endpoint": TEACHER}}},
        "algorithm.objective.topTokens",
    ),
    (taught({"endpoint": TEACHER}) | {"algorithm.temperature": 0.7}, "algorithm.temperature"),
    (strategy("TailBatching", handover="Streamed") | {"algorithm.promptsPerUpdate": 2}, "algorithm.promptsPerUpdate"),
    (strategy("GroupPipeline", handover="Streamed"), "rollout.handover"),
    (WHITENED | strategy("Synchronous", handover="Streamed"), "rollout.handover"),
    ({"placement": "Disaggregated"}, "trainerWorkers"),
    ({"trainerWorkers": {}}, "trainerWorkers"),
    (disaggregated(gpus=1) | {"trainer.dataParallelSize": 3}, "trainer.dataParallelSize"),
    (
        disaggregated(gpus=3) | {"trainer.backend": "Megatron", "trainer.tensorParallelSize": 2},
        "trainer.tensorParallelSize",
    ),
    ({"model.maxContextTokens": 2049}, "model.maxContextTokens"),
    ({"data.promptTemplate": "Think step by step: {question}"}, "data.promptTemplate"),
    ({"model.path": "models/a"}, "model"),
    ({"model.hub": "Qwen/Qwen2.5-1.5B"}, "model"),
    ({"model.revision": "main"}, "model.revision"),
    ({"data.path": "data/a.jsonl"}, "data"),
    ({"data.hub": "openai/gsm8k"}, "data"),
    ({"data.config": "main"}, "data.config"),
    ({"data.chat": {}}, "data.chat"),
    (sources({}), "data.sources[0]"),
    (sources({"path": "a", "hub": "a/b"}), "data.sources[0]"),
    (sources({"path": "a", "domain": "maths", "domainField": "kind"}), "data.sources[0].domain"),
    (sources({"path": "a", "promptTemplate": "?"}), "data.sources[0].promptTemplate"),
    (sources({"path": "a"}) | {"data.split": "test"}, "data.sources"),
    (sources({"path": "a"}) | {"data.where": {"kind": "code"}}, "data.sources"),
    ({"storage.claimName": "other"}, "storage"),
]
"""Changes that break one rule, and the field to blame."""
