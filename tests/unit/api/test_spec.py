"""Rules over the fields of a job: what breaks a promise is refused, by the API server and from Python alike."""

import json

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from longshore.api.algorithm import Algorithm
from longshore.api.base import ApiModel
from longshore.api.mistakes import sentence
from longshore.api.model import Data, DataSource
from longshore.api.objectives.registry import OBJECTIVES
from longshore.api.reward import Reward, RewardFunction
from longshore.api.rljob import RLJob
from longshore.api.rollout import Handover, Leftovers, OnPolicy, Strategy
from longshore.api.spec import Placement, RLJobSpec
from longshore.api.training import TrainerBackend
from tests.properties import examples
from tests.unit.api.specs import (
    BROKEN,
    RELAXED,
    WHITENED,
    Json,
    disaggregated,
    environment,
    from_api_server,
    from_python,
    judge,
    megatron,
    reward,
    service,
    spec,
    strategy,
)

CLOSER = ("99999/", "65536", ":0/", "[:::]/", "10.0.0.999/", "-/", "a..b/")
"""Ends of addresses at which one has to look closer than the schema can: the operator does."""


@pytest.mark.parametrize(
    ("changes", "field"),
    BROKEN,
    ids=lambda value: value if isinstance(value, str) else ",".join(f"{path}={one}" for path, one in value.items()),
)
def test_what_breaks_a_promise_is_refused_by_both_in_the_same_sentence(changes: Json, field: str) -> None:
    (mistake,) = from_python(changes)
    assert mistake[0] == field
    assert from_api_server(changes) == [mistake]


def test_every_rule_that_both_check_is_broken_above() -> None:
    found = {message for changes, _ in BROKEN for _, message in from_python(changes)}
    models, tables = [*ApiModel.__subclasses__()], []
    for model in models:
        models += model.__subclasses__()
        tables.append(model.rules)
    in_spec = {rule.message for table in tables for rule in table if rule.in_schema and "oldSelf" not in rule.cel}
    assert in_spec - found == {rule.message for rule in RLJob.rules}


def test_arguments_of_a_chat_template_that_longshore_sets_are_refused() -> None:
    chat = {"templateArguments": {"enable_thinking": False, "tokenize": True}}
    changes = reward(kind="Maths") | {"data.builtin": None, "data.path": "a.jsonl", "data.chat": chat}
    ((field, found),) = from_python(changes)
    assert field == "data.chat.templateArguments"
    assert found.endswith("tokenize, which Longshore sets: remove them")


def test_two_sources_of_one_name_are_refused_by_both_each_in_its_own_words() -> None:
    twice = [{"name": "a", "path": "a"}] * 2
    changes = reward(kind="Maths") | {"data.builtin": None, "data.sources": twice}
    assert from_python(changes) == [("data.sources", "sources must have different names: rename one")]
    assert from_api_server(changes)[0][1].startswith("Duplicate value")


def test_two_functions_of_one_name_are_refused_by_both_each_in_its_own_words() -> None:
    changes = {"reward.functions": [{"name": "a", "kind": "Maths"}] * 2}
    assert from_python(changes) == [("reward.functions", "functions must have different names: rename one")]
    assert from_api_server(changes)[0][1].startswith("Duplicate value")


TOPICS: list[Json] = [
    {
        "model.builtin": [None], "model.path": ["models/a"], "model.maxContextTokens": [64, 65, 2_048, 2_049],
        "algorithm.warmStart": [
            {"steps": 5},
            *({"steps": 5, "data": one} for one in ({}, {"path": "a"}, {"hub": "a/b", "promptTemplate": "{prompt}"})),
        ],
        "data.builtin": [None], "data.path": ["a.jsonl"],
        "data.domainField": ["domain"], "data.promptTemplate": ["{prompt}", "prompt"], "storage.create": [None],
        "model.hub": ["a/b"], "model.revision": ["main"], "data.hub": ["a/b"], "data.config": ["c"], "data.chat": [{}],
        "data.sources": [
            [{"name": "a", **one}]
            for one in ({}, {"path": "a"}, {"path": "a", "domain": "algebra"}, {"hub": "a/b", "domainField": "kind"})
        ],
        "storage.claimName": ["shared"], "reward.functions": [[{"name": "a", "kind": "Maths", "domains": ["algebra"]}]],
    },
    {
        "algorithm.objective.name": [*OBJECTIVES], "algorithm.promptsPerUpdate": [1, 3, 4, 8],
        "algorithm.objective.clipHigh": [0.1, 0.2], "algorithm.overlongBufferTokens": [0, 64, 65],
        "algorithm.objective.importPath": ["losses:mine"], "algorithm.objective.settings": [{"cap": 2}],
        "algorithm.objective.advantageEpsilon": [1e-4], "rollout.handover": [*map(str, Handover)],
        "algorithm.epochsPerStep": [1, 2], "rollout.strategy": ["Synchronous", "GroupPipeline"],
        "algorithm.rolloutCorrection": [{}, {"rolloutRsThreshold": 1, "rolloutRsThresholdLower": 1}],
    },
    {
        "algorithm.objective.name": ["GRPO", "ReinforcePlusPlus"], "algorithm.promptsPerUpdate": [2, 4],
        "rollout.onPolicy": [*map(str, OnPolicy)], "rollout.strategy": [*map(str, Strategy)],
        "rollout.leftovers": [*map(str, Leftovers)],
        "rollout.handover": [*map(str, Handover)],
        "rollout.partialRollout": [{"groupFactor": 2.5, "maxPolicyVersions": 2}, {}],
    },
    {
        "algorithm.objective.name": ["PPO"],
        "trainer.backend": [*map(str, TrainerBackend)], "trainer.tensorParallelSize": [1, 2],
        "trainer.contextParallelSize": [1, 2], "trainer.pipelineParallelSize": [1, 2], "trainer.fsdpSize": [1, 2, 3],
        "trainer.dataParallelSize": [1, 2, 5], "workers.gpusPerPod": [0, 1, 2, 4], "workers.replicas": [1, 2],
        "workers.minReplicas": [1, 2],
        "placement": [*map(str, Placement)], "trainerWorkers": [{}, {"replicas": 2, "gpusPerPod": 4}],
        "rollout.engine.tensorParallelSize": [1, 2, 3],
    },
    {
        "workers.replicas": [1, 4_095, 4_096], "reward.pods": [0, 1, 904], "reward.maxPods": [0, 904, 905],
        "reward.runtimeClassName": ["gvisor"],
        "reward.functions": [
            [{"name": "a", **function}]
            for function in (
                {"kind": "Task"}, {"kind": "Maths", "http": {"url": "http://a/"}}, {"kind": "HTTP"}, {"kind": "Python"},
                {"kind": "Python", "importPath": "a:b"}, {"kind": "Code"},
                {"kind": "Code", "code": {"minTimeoutSeconds": 31}}, {"kind": "Judge"},
                {"kind": "Judge", "judge": {"modelPath": "a"}}, {"kind": "Judge", "judge": {"placement": "Remote"}},
                {"kind": "Judge", "judge": {"url": "http://a/"}}, {"kind": "Judge", "judge": {"placement": "Pool"}},
                {"kind": "Judge", "judge": {"placement": "Pool", "modelPath": "a", "pool": {"replicas": 904}}},
            )
        ],
    },
]  # fmt: skip
"""Fields that rules connect, with values on both sides of each."""


def changed_specs() -> st.SearchStrategy[Json]:
    """Changes of some fields of one topic."""
    return st.one_of(
        st.fixed_dictionaries({}, optional={field: st.sampled_from(values) for field, values in topic.items()})
        for topic in TOPICS
    )


@settings(max_examples=examples(100), deadline=None)
@given(changed_specs())
def test_python_and_the_api_server_always_agree(changes: Json) -> None:
    found, answered = set(from_python(changes)), set(from_api_server(changes))
    assert found <= answered
    unsaid = answered - found
    assert not unsaid or min(map(_level, found), default=9) < min(map(_level, unsaid)), "Python stops at inner models"


def _level(mistake: tuple[str, str]) -> int:
    """How far out the model is whose rule is broken."""
    field, message = mistake
    around = (DataSource, Data, RewardFunction, Algorithm, Reward, RLJobSpec)
    models = around if field.startswith("data.sources[") else (None, *around[1:])
    return next((n for n, model in enumerate(models, 1) if model and message in {r.message for r in model.rules}), 0)


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
    found = sentence(caught.value, "spec")
    assert found.startswith(f"spec.reward.functions.0.{kind}.url: must be http:// or https://, a host, and if a port")
    assert found.endswith("from 1 to 65535"), "the value may hold a password"
    if not url.endswith(CLOSER):
        assert [field for field, _ in from_api_server(changes)] == [f"reward.functions[0].{kind}.url"]


@pytest.mark.parametrize(
    "url",
    [
        "http://169.254.169.254/latest", "http://169.254.170.2/", "http://[fd00:ec2::254]/", "http://100.100.100.200/",
        "http://168.63.129.16/", "http://metadata.google.internal/", "http://METADATA.Google.internal.:80/x",
        "http://user@metadata/", "http://[::ffff:169.254.169.254]/", "http://[64:ff9b::a9fe:a9fe]/",
        "http://[::a9fe:a9fe]/", "http://[2002:a9fe:a9fe::]/", "http://[64:ff9b::6464:64c8]/", "http://[fe80::1]/", "https://metadata.goog",
    ],
)  # fmt: skip
def test_the_metadata_services_of_clouds_are_no_addresses(url: str) -> None:
    for changes in (service(url), judge("Remote", url=url)):
        assert "must not be the metadata service of a cloud" in from_python(changes)[0][1]


@pytest.mark.parametrize(
    ("cidr", "mistake"),
    [
        ("169.254.169.254/32", "must not be the metadata service of a cloud"),
        ("fd00:ec2::/48", "must not be the metadata service of a cloud"),
        ("::ffff:169.254.169.254/128", "must not be the metadata service of a cloud"),
        ("64:ff9b::a9fe:0/112", "must not be the metadata service of a cloud"),
        ("64:ff9b:1::a9fe:a9fe/128", "must not be the metadata service of a cloud"),
        ("64:ff9b:1:a9fe:a9:fe00::/96", "must not be the metadata service of a cloud"),
        ("64:ff9b:1::/48", "a block within 64:ff9b:1::/48, where NAT64 puts IPv4 addresses, must have a prefix of"),
        ("64:ff9b:1:2::/64", "a block within 64:ff9b:1::/48, where NAT64 puts IPv4 addresses, must have a prefix of"),
        ("10.0.0.1/8", "must be a block of addresses such as 203.0.113.0/24"),
        ("10.0.0.0/33", "must be a block of addresses such as 203.0.113.0/24"),
    ],
)
def test_environments_are_granted_blocks_of_addresses_which_are_none_of_metadata(cidr: str, mistake: str) -> None:
    ((field, said),) = from_python(environment(pods={"egress": [{"cidr": cidr, "ports": [443]}]}))
    assert (field, said[: len(mistake)]) == ("environments[0].pods.egress[0].cidr", mistake)


@pytest.mark.parametrize("url", ["http://0xA9FEA9FE/", "http://2852039166/", "http://169.254.43518/"])
def test_numbers_that_resolvers_read_as_addresses_are_none(url: str) -> None:
    assert "must be http:// or https://" in from_python(service(url))[0][1]


@pytest.mark.parametrize("field", ["model.path", "data.path", "storage.output"])
@pytest.mark.parametrize("path", ["../x", "a/../../x", "a/.."])
def test_a_path_stays_in_the_storage(field: str, path: str) -> None:
    other = {"model.path": "model.builtin", "data.path": "data.builtin"}.get(field)
    changes: Json = {field: path} | ({other: None} if other else {}) | reward(kind="Maths")
    found = "the path must stay inside the storage of the job: remove the '..'"
    assert from_python(changes) == [(field, found)]
    assert from_api_server(changes) == [(field, f"{json.dumps(path)}: {found}")]


@pytest.mark.parametrize("path", ["a..b/c", "..a", "a/...", "models/a/./b", "a//b/"])
def test_dots_in_names_are_no_way_out(path: str) -> None:
    changes: Json = {"model.builtin": None, "model.path": path}
    assert from_python(changes) == from_api_server(changes) == []


@pytest.mark.parametrize(
    "url",
    [
        "http://grader", "https://grader.default.svc.:8443/v1?x=1#y", "http://10.0.0.9:65535/", "http://[::1]:1/v1",
        "http://user:secret@my_grader/", "http://GRADER-2/%20", "http://7up/",
    ],
)  # fmt: skip
def test_an_address_that_can_be_asked_is_taken(url: str) -> None:
    for changes in (service(url), judge("Remote", url=url)):
        assert from_python(changes) == from_api_server(changes) == []
    httpx.URL(url)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        strategy("Synchronous"),
        strategy("ReorderRollout"),
        strategy("GroupPipeline"),
        RELAXED | strategy("PartialRollout"),
        RELAXED | strategy("TailBatching", leftovers="KeepTokens"),
        RELAXED | strategy("ReorderRollout", leftovers="KeepTokens"),
        strategy("TailBatching", leftovers="DropTokens"),
        strategy("TailBatching", handover="Pipelined") | {"algorithm.promptsPerUpdate": 2},
        strategy("TailBatching", admission={"frontierWidth": 2, "maxActivePerEngine": 3, "adaptive": True}),
        strategy("GroupPipeline", admission={"frontierWidth": 1}) | {"algorithm.promptsPerUpdate": 2},
        strategy("GroupPipeline", handover="AfterRound"),
        {"algorithm.dynamicSampling": True},
        {"algorithm.objective": {"name": "Custom", "importPath": "losses:mine", "settings": {"cap": 2.0}}},
        {"algorithm.objective.clipLow": 10, "algorithm.objective.clipHigh": 10},
        {"algorithm.objective.clipLow": 0.3, "algorithm.objective.clipHigh": 0.2},
        {"algorithm.objective.name": "ReinforcePlusPlus", "algorithm.responsesPerPrompt": 1},
        {"algorithm.objective.name": "GSPO", "algorithm.objective.clipLow": 3e-4, "algorithm.objective.clipHigh": 4e-4},
        {"algorithm.objective.name": "GSPO", "algorithm.promptsPerUpdate": 2} | strategy("GroupPipeline"),
        {"algorithm.objective.name": "GSPO", "algorithm.epochsPerStep": 2},
        {"algorithm.objective.name": "GSPO"} | strategy("TailBatching", handover="Streamed"),
        {"algorithm.objective.name": "GSPO"} | RELAXED | strategy("PartialRollout"),
        {
            "algorithm.objective.name": "DAPO",
            "algorithm.objective.clipHigh": 0.28,
            "algorithm.overlongBufferTokens": 64,
        },
        strategy("GroupPipeline") | {"algorithm.dynamicSampling": True},
        RELAXED | strategy("PartialRollout", partialRollout={"groupFactor": 2, "maxPolicyVersions": 2}),
        RELAXED | strategy("PartialRollout", partialRollout={"groupFactor": 1.5, "maxPolicyVersions": 2}),
        WHITENED,
        WHITENED | {"algorithm.promptsPerUpdate": 4},
        WHITENED | strategy("GroupPipeline", handover="AfterRound"),
        {"algorithm.promptsPerUpdate": 2},
        strategy("Auto"),
        strategy("Auto", tailBatching={"promptFactor": 2.5}, auto={"margin": 0.1}),
        strategy("TailBatching", tailBatching={"promptFactor": 2.5}),
        RELAXED | strategy("Auto", leftovers="KeepTokens"),
        strategy("Auto", handover="Streamed"),
        strategy("TailBatching", handover="Streamed"),
        strategy("Synchronous", handover="Streamed", repurposing={"trigger": "Fixed", "fraction": 0.4}),
        RELAXED | strategy("PartialRollout", handover="Streamed"),
        strategy("TailBatching", engine={"parallelism": "Adaptive"}),
        disaggregated(gpus=2) | {"trainer.dataParallelSize": 4},
        disaggregated(gpus=1) | strategy("GroupPipeline"),
        {"workers.replicas": 2, "workers.minReplicas": 1},
        {"scheduling.podGroup": "Volcano", "scheduling.queue": "research", "scheduling.schedulerName": "batch"},
        {"scheduling.topology": {"key": "rack"}, "scheduling.packNodes": True},
        megatron(gpus=8, tensorParallelSize=2, pipelineParallelSize=2, contextParallelSize=2, dataParallelSize=1),
        megatron(gpus=4, tensorParallelSize=2, dataParallelSize=2),
        megatron(gpus=0, tensorParallelSize=2, contextParallelSize=2),
        {"workers.gpusPerPod": 4, "trainer.fsdpSize": 2, "trainer.dataParallelSize": 2},
        {"workers.gpusPerPod": 0, "trainer.fsdpSize": 2},
    ],
    ids=lambda value: ",".join(f"{path}={one}" for path, one in value.items()) or "defaults",
)
def test_what_keeps_every_promise_is_taken(changes: Json) -> None:
    assert from_python(changes) == from_api_server(changes) == []


@pytest.mark.parametrize("changes", [strategy("ReorderRollout"), {"algorithm.promptsPerUpdate": 2}])
def test_a_running_job_is_suspended_before_its_strategy_or_batch_changes(changes: Json) -> None:
    assert "may change only while the job is suspended" in from_api_server(changes, old={})[0][1]
    assert from_api_server(changes | {"suspend": True}, old={"suspend": True}) == []


def test_a_running_job_is_suspended_before_the_pods_of_its_trainer_change() -> None:
    before, more = disaggregated(gpus=1), disaggregated(gpus=2)
    assert from_api_server(before, old=before) == []
    found = "trainerWorkers may change only while the job is suspended"
    ((field, message),) = from_api_server(more, old=before)
    assert (field, message) == ("trainerWorkers", f"{found}: run `longshore suspend` or set suspend to true first")
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
