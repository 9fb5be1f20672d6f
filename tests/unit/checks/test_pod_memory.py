"""The estimate of the memory of pods that compute on the CPU, and the micro-batches that follow from it."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longshore.api.quantity import parse_bytes
from longshore.api.rollout import EngineDtype
from longshore.api.spec import RLJobSpec
from longshore.api.training import Recompute
from longshore.checks.memory import ModelSize
from longshore.checks.pod_memory import (
    CPU_KV_CACHE_BYTES,
    coordinator_memory,
    cpu_kv_cache_bytes,
    pod_memory_mistakes,
    pod_need,
    with_fitting_trainer,
)

LARGE = {"promptsPerStep": 512, "responsesPerPrompt": 16, "maxResponseTokens": 32_768}
REMOTE_TEACHER = {"name": "Distillation", "teacher": {"endpoint": {"url": "http://teacher/v1", "modelName": "large"}}}
SMOLLM2 = ModelSize(134_515_008, 30, 576, 1536, 49152, 3, 64, is_tied=True)
GEMMA3 = ModelSize(268_098_176, 18, 640, 2048, 262144, 1, 256, is_tied=True, num_heads=4)
GIB = float(1 << 30)


def spec(memory: str | None = "9Gi", context: int = 512, **changes: Any) -> RLJobSpec:
    resources = {} if memory is None else {"resources": {"memory": memory}}
    whole: dict[str, Any] = {
        "model": {"path": "m", "maxContextTokens": context},
        "data": {"path": "d"},
        "reward": {"functions": [{"name": "maths", "kind": "Maths"}]},
        "algorithm": {"steps": 1, "promptsPerStep": 4, "responsesPerPrompt": 2, "maxResponseTokens": 64},
        "workers": {"gpusPerPod": 1, "gpuResourceName": "longshore.dev/pretend-gpu", **resources},
        "storage": {"claimName": "shared"},
    }
    for name, fields in changes.items():
        whole[name] = whole.get(name, {}) | fields
    return RLJobSpec.model_validate(whole)


def micro_batch_tokens(job: RLJobSpec, model: ModelSize) -> int | None:
    """Tokens of a micro-batch that are chosen for a job."""
    return with_fitting_trainer(job, model).trainer.max_tokens_per_micro_batch


def recompute(job: RLJobSpec, model: ModelSize) -> Recompute | None:
    """What is computed again."""
    return with_fitting_trainer(job, model).trainer.recompute


def test_default_micro_batch_of_a_real_model_fits_its_pod() -> None:
    chosen = with_fitting_trainer(spec(), SMOLLM2)
    assert 1024 <= (chosen.trainer.max_tokens_per_micro_batch or 0) < 16_384, "16,384 tokens need 25 GiB"
    assert pod_need(chosen, SMOLLM2).total_bytes <= 9 * GIB
    assert pod_need(chosen.with_trainer(max_tokens_per_micro_batch=16_384), SMOLLM2).total_bytes > 18 * GIB
    assert pod_memory_mistakes(spec(), SMOLLM2) == []


def test_layers_are_computed_again_where_a_pod_holds_too_few_tokens_otherwise() -> None:
    chosen = [recompute(spec(memory), SMOLLM2) for memory in ("9Gi", "7500Mi", "6Gi")]
    assert chosen == ["None", "Selective", "Full"]


def test_micro_batch_that_the_job_sets_has_layers_computed_again_until_it_fits() -> None:
    job = spec("13Gi", trainer={"maxTokensPerMicroBatch": 4096})
    assert (recompute(job, SMOLLM2), pod_memory_mistakes(job, SMOLLM2)) == ("Selective", [])


def test_what_the_job_says_of_recomputation_stays() -> None:
    job = spec("16Gi", trainer={"recompute": "Full"})
    assert recompute(job, SMOLLM2) == "Full"
    (mistake,) = pod_memory_mistakes(spec("6Gi", trainer={"recompute": "None"}), SMOLLM2)
    assert "unset trainer.recompute, or raise it to" in mistake


def test_large_pod_gets_the_whole_default() -> None:
    assert micro_batch_tokens(spec("64Gi"), SMOLLM2) == 16_384


def test_large_vocabulary_does_not_fill_the_pod_with_logits() -> None:
    assert pod_memory_mistakes(spec("13Gi"), GEMMA3) == []
    assert (micro_batch_tokens(spec("13Gi"), GEMMA3) or 0) >= 512


def test_set_micro_batch_that_does_not_fit_is_refused_with_one_that_does() -> None:
    (mistake,) = pod_memory_mistakes(spec(trainer={"maxTokensPerMicroBatch": 65_536}), SMOLLM2)
    assert mistake.startswith("workers.resources.memory: a pod has 9.0 GiB and needs about 1")
    fitting = int(mistake.split("set trainer.maxTokensPerMicroBatch to ")[1].split(",")[0])
    assert pod_memory_mistakes(spec(trainer={"maxTokensPerMicroBatch": fitting}), SMOLLM2) == []


def test_model_that_fits_with_no_micro_batch_is_refused_with_the_memory_it_needs() -> None:
    (mistake,) = pod_memory_mistakes(spec(None), GEMMA3)
    assert "a pod has 4.0 GiB" in mistake, "the default of a pod that requests nothing"
    enough = mistake.split("raise it to ")[1].partition("Gi")[0]
    assert pod_memory_mistakes(spec(f"{enough}Gi"), GEMMA3) == []


def test_long_context_is_refused_where_one_response_does_not_fit() -> None:
    (mistake,) = pod_memory_mistakes(spec(context=32_768), SMOLLM2)
    assert "or lower model.maxContextTokens" in mistake


def test_limit_of_the_template_counts_instead_of_the_request() -> None:
    container = {"name": "longshore", "resources": {"limits": {"memory": "64Gi"}}}
    workers = {**spec().workers.model_dump(mode="json"), "template": {"spec": {"containers": [container]}}}
    assert micro_batch_tokens(spec(workers=workers), SMOLLM2) == 16_384


def test_pods_with_real_gpus_are_not_estimated() -> None:
    workers = {"gpuResourceName": "nvidia.com/gpu", "resources": {"memory": "1Gi"}}
    assert pod_memory_mistakes(spec(workers={"gpusPerPod": 1, **workers}), SMOLLM2) == []
    job = spec(workers={"gpusPerPod": 1, **workers})
    assert with_fitting_trainer(job, SMOLLM2) is job


def test_trainers_apart_from_engines_are_estimated_in_pods_of_their_own() -> None:
    trainers = {"gpusPerPod": 1, "gpuResourceName": "longshore.dev/pretend-gpu", "resources": {"memory": "2Gi"}}
    apart = {**spec().model_dump(mode="json"), "placement": "Disaggregated", "trainerWorkers": trainers}
    (mistake,) = pod_memory_mistakes(RLJobSpec.model_validate(apart), SMOLLM2)
    assert mistake.startswith("trainerWorkers.resources.memory: a pod has 2.0 GiB")


@given(memory_gib=st.integers(5, 40), context=st.sampled_from([256, 512, 1024, 2048]))
def test_chosen_micro_batch_fits_unless_the_job_is_refused(memory_gib: int, context: int) -> None:
    job = spec(f"{memory_gib}Gi", context)
    need = pod_need(with_fitting_trainer(job, SMOLLM2), SMOLLM2)
    assert (need.total_bytes <= memory_gib * GIB) == (pod_memory_mistakes(job, SMOLLM2) == [])


@pytest.mark.parametrize("model", [SMOLLM2, GEMMA3])
def test_more_memory_never_has_more_computed_again_nor_gives_smaller_micro_batches(model: ModelSize) -> None:
    chosen = [with_fitting_trainer(spec(f"{gib}Gi"), model).trainer for gib in range(6, 48, 2)]
    ways = [list(Recompute).index(one.recompute or Recompute.FULL) for one in chosen]
    assert ways == sorted(ways, reverse=True)
    for way in set(ways):
        tokens = [
            one.max_tokens_per_micro_batch or 0 for one, its_way in zip(chosen, ways, strict=True) if its_way == way
        ]
        assert tokens == sorted(tokens)


@pytest.mark.parametrize(
    ("algorithm", "memory"),
    [
        ({}, "2Gi"),
        ({"promptsPerStep": 64, "responsesPerPrompt": 8, "maxResponseTokens": 16_384}, "3Gi"),
        (LARGE, "16Gi"),
        (LARGE | {"objective": REMOTE_TEACHER}, "20Gi"),
    ],
)
def test_coordinator_requests_memory_for_the_tokens_of_its_steps(algorithm: dict[str, Any], memory: str) -> None:
    context = algorithm.get("maxResponseTokens", 64) + 1024
    assert coordinator_memory(spec(context=context, algorithm=algorithm)) == memory


def test_experts_of_all_tokens_need_memory_of_the_coordinator() -> None:
    """48 layers and 8 experts, as Qwen3-30B-A3B has: 384 bytes a token, 25 times what it takes otherwise."""
    job = spec(context=16_384 + 1024, algorithm=LARGE | {"maxResponseTokens": 16_384})
    plain, with_experts = (parse_bytes(coordinator_memory(job, size)) for size in (0, 384))
    num_responses = job.algorithm.prompts_per_step * job.algorithm.responses_per_prompt
    tokens = num_responses * (4 * 16_384 + 4 * 1024)
    assert with_experts - plain == pytest.approx(tokens * 384, abs=1 << 30)


def test_engine_on_the_cpu_has_a_kv_cache_for_a_request_of_the_longest_context() -> None:
    token_bytes = 2 * 30 * 3 * 64 * 4
    assert cpu_kv_cache_bytes(SMOLLM2, 512, EngineDtype.AUTO) == CPU_KV_CACHE_BYTES
    for context in (2048, 2049, 8192):
        assert cpu_kv_cache_bytes(SMOLLM2, context, EngineDtype.AUTO) >= (context + 32) * token_bytes
    longer = [pod_need(spec(context=context), SMOLLM2).parts["engines"] for context in (1024, 2048)]
    assert longer[1] - longer[0] > 2048 * token_bytes - CPU_KV_CACHE_BYTES, "the pod has room for it"
