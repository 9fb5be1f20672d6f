"""The estimate of GPU memory, against sums that were made by hand for Qwen2.5-7B."""

import re
from dataclasses import replace
from typing import Any

import pytest

from longshore.api.spec import RLJobSpec
from longshore.api.training import Lora, Recompute, TrainerDtype
from longshore.checks.memory import (
    ModelSize,
    engine_need,
    memory_mistakes,
    num_top_tokens,
    trainer_need,
    values_per_token,
)
from longshore.checks.pod_memory import pod_need

SIZES = {
    "num_hidden_layers": 28, "hidden_size": 3584, "intermediate_size": 18944, "vocab_size": 152064,
    "num_attention_heads": 28, "num_key_value_heads": 4,
}  # fmt: skip
CONFIG = {**SIZES, "tie_word_embeddings": False}
NUM_PARAMETERS = 7_615_616_512
MODEL = ModelSize.of(CONFIG, NUM_PARAMETERS)
GIB = float(1 << 30)


def spec(**changes: Any) -> RLJobSpec:
    whole: dict[str, Any] = {
        "model": {"path": "m", "maxContextTokens": 8192},
        "data": {"path": "d"},
        "reward": {"functions": [{"name": "maths", "kind": "Maths"}]},
        "algorithm": {"steps": 1, "promptsPerStep": 4, "responsesPerPrompt": 2, "maxResponseTokens": 64},
        "trainer": {"fsdpSize": 8},
        "workers": {"gpusPerPod": 8},
        "storage": {"claimName": "shared"},
    }
    for name, fields in changes.items():
        whole[name] = whole.get(name, {}) | fields
    return RLJobSpec.model_validate(whole)


@pytest.fixture
def model() -> ModelSize:
    assert MODEL is not None
    return MODEL


def test_an_engine_holds_weights_and_the_keys_and_values_of_one_long_request(model: ModelSize) -> None:
    need = engine_need(spec(rollout={"engine": {"maxNumSeqs": 1}}), model).parts
    assert need["weights"] == 2 * NUM_PARAMETERS
    assert need["KV cache"] == 8192 * 57_344, "2 x 28 layers x 4 heads x 128 values x 2 bytes for a token"
    split = engine_need(spec(rollout={"engine": {"tensorParallelSize": 8}}), model).parts
    assert split["weights"] == need["weights"] / 8
    assert split["KV cache"] == need["KV cache"] / 4, "a key-value head is not split"
    single = engine_need(spec(rollout={"engine": {"dtype": "float32"}}), model).parts
    assert (single["weights"], single["KV cache"]) == (2 * need["weights"], 2 * need["KV cache"])
    eight_bits = spec(algorithm={"rolloutCorrection": {}}, rollout={"engine": {"quantization": "FP8"}})
    assert engine_need(eight_bits, model).parts["weights"] == NUM_PARAMETERS + model.outside_layers, (
        "a byte in layers, and two outside of them"
    )


def test_experts_of_a_token_keep_what_each_of_them_is_given_and_returns() -> None:
    mixture = {**CONFIG, "num_experts": 128, "num_experts_per_tok": 8, "moe_intermediate_size": 768}
    dense, sparse = (ModelSize.of(one, NUM_PARAMETERS) for one in ({**CONFIG, "intermediate_size": 8 * 768}, mixture))
    assert dense is not None and sparse is not None
    sparse = replace(sparse, intermediate_size=dense.intermediate_size)
    assert sparse.experts_per_token == 8
    job = spec(trainer={"fsdpSize": 1})
    added = {way: values_per_token(job, sparse, way) - values_per_token(job, dense, way) for way in Recompute}
    routed = 8 * SIZES["hidden_size"]
    assert added == {
        Recompute.NONE: 28 * 2 * routed + 2 * routed,
        Recompute.SELECTIVE: 28 * routed + 2 * routed,
        Recompute.FULL: 2 * routed,
    }


def test_experts_that_are_spread_are_not_put_together_and_tokens_are_sent() -> None:
    mixture = {**CONFIG, "num_experts": 128, "num_experts_per_tok": 8, "moe_intermediate_size": 768}
    experts = 3 * 128 * SIZES["hidden_size"] * 768
    model = ModelSize.of(mixture, NUM_PARAMETERS + 28 * experts)
    assert model is not None and model.experts == experts
    gathered, spread = (spec(trainer={"fsdpSize": 8, "expertParallel": one}) for one in (False, True))
    before, after = trainer_need(gathered, model).parts, trainer_need(spread, model).parts
    assert before["whole layers"] - after["whole layers"] == pytest.approx(16 * experts, rel=0.1)
    assert after["own experts"] == 6 * experts / 8
    nothing_again = spread.with_trainer(recompute=Recompute.NONE)
    assert trainer_need(nothing_again, model).parts["own experts"] == (4 + 2 * 28) * experts / 8
    in_float32 = nothing_again.with_trainer(dtype=TrainerDtype.FLOAT32)
    assert trainer_need(in_float32, model).parts["own experts"] == 4 * experts / 8
    routed = 2 * 8 * SIZES["hidden_size"]
    assert values_per_token(spread, model, Recompute.FULL) - values_per_token(gathered, model, Recompute.FULL) == routed


def test_adapted_experts_count_with_each_projection() -> None:
    mixture = {**CONFIG, "num_experts": 128, "num_experts_per_tok": 8, "moe_intermediate_size": 768}
    model = ModelSize.of(mixture, NUM_PARAMETERS)
    assert model is not None
    added = model.adapter_parameters(Lora(rank=16, experts=True)) - model.adapter_parameters(Lora(rank=16))
    assert added == 28 * 128 * 3 * 16 * (SIZES["hidden_size"] + 768)


def test_experts_without_a_size_of_their_own_are_as_large_as_an_mlp() -> None:
    mixture = ModelSize.of({**CONFIG, "num_local_experts": 8, "num_experts_per_tok": 2}, NUM_PARAMETERS)
    assert mixture is not None and mixture.intermediate_size == 2 * SIZES["intermediate_size"]


def test_a_cache_of_a_given_size_is_taken_as_given(model: ModelSize) -> None:
    given = spec(rollout={"engine": {"kvCache": "8Gi", "tensorParallelSize": 2}})
    assert engine_need(given, model).parts["KV cache"] == 4 * GIB


def test_a_trainer_holds_16_bytes_per_parameter_at_its_step(model: ModelSize) -> None:
    need = trainer_need(spec(trainer={"fsdpSize": 1}), model)
    state = {name: need.parts[name] / NUM_PARAMETERS for name in ("weights", "gradients", "moments")}
    assert state == {"weights": 4, "gradients": 4, "moments": 8}
    assert need.total_bytes == pytest.approx(16 * NUM_PARAMETERS + GIB)


def test_the_moments_are_there_during_a_pass_where_nothing_moves_them_away(model: ModelSize) -> None:
    one, two = (trainer_need(spec(algorithm={"promptsPerUpdate": size}), model) for size in (4, 2))
    assert "activations" in one.parts and "moments" not in one.parts
    assert two.total_bytes - one.total_bytes == NUM_PARAMETERS  # 8 bytes over 8 shards


def test_a_kl_penalty_costs_a_second_copy_unless_it_waits_on_the_host(model: ModelSize) -> None:
    plain = trainer_need(spec(), model).total_bytes
    kl = {"klCoefficient": 0.1}
    assert trainer_need(spec(algorithm=kl), model).total_bytes - plain == NUM_PARAMETERS / 2
    assert trainer_need(spec(algorithm=kl, trainer={"offloadReference": True}), model).total_bytes == plain


def test_the_most_likely_tokens_of_a_teacher_cost_memory(model: ModelSize) -> None:
    none, some = (
        spec(algorithm={"objective": {"name": "Distillation", "teacher": {"path": "t"}, "topTokens": number}})
        for number in (0, 64)
    )
    before, after = (trainer_need(job, model).parts["activations"] for job in (none, some))
    assert after - before == 16384 * 64 * 40
    kept = [pod_need(job, model).parts["teacher's tokens"] for job in (none, some)]
    assert kept == [0, 4 * 2 * 64 * 64 * 8]
    assert num_top_tokens(some, replace(model, vocab_size=50)) == 50


@pytest.mark.parametrize("trainer", [{}, {"lora": {"rank": 16}}])
def test_a_teacher_costs_a_second_copy_unless_it_is_behind_an_endpoint(
    model: ModelSize, trainer: dict[str, Any]
) -> None:
    plain = trainer_need(spec(trainer=trainer), model).total_bytes
    endpoint = {"url": "http://teacher/v1", "modelName": "large"}
    for teacher, copy_bytes in (({"path": "teacher"}, NUM_PARAMETERS / 2), ({"endpoint": endpoint}, 0)):
        objective = {"name": "Distillation", "teacher": teacher, "topTokens": 0}
        need = trainer_need(spec(trainer=trainer, algorithm={"objective": objective}), model)
        assert need.total_bytes - plain == copy_bytes


def test_a_critic_is_a_second_model_with_its_own_optimizer(model: ModelSize) -> None:
    critic = {"objective": {"name": "PPO"}}
    plain, doubled = (trainer_need(spec(algorithm=one, trainer={"fsdpSize": 1}), model) for one in ({}, critic))
    assert doubled.total_bytes - plain.total_bytes == 16 * NUM_PARAMETERS
    assert (trainer_need(spec(algorithm=critic), model).total_bytes - trainer_need(spec(), model).total_bytes) == (
        NUM_PARAMETERS  # Weights and gradients over 8 shards, while the moments are on the host.
    )


def test_what_no_layer_has_is_whole_on_every_rank_for_a_whole_pass(model: ModelSize) -> None:
    embeddings = 2 * 152064 * 3584
    four, eight = (trainer_need(spec(trainer={"fsdpSize": size}), model).parts for size in (4, 8))
    assert four["whole embeddings"] == eight["whole embeddings"] == 10 * embeddings
    assert eight["whole layers"] == pytest.approx(16 * (NUM_PARAMETERS - embeddings) / 28)
    assert eight["gradient of the embedding"] == 2 * embeddings
    tied = ModelSize.of({**CONFIG, "tie_word_embeddings": True}, NUM_PARAMETERS)
    assert tied is not None
    parts = trainer_need(spec(), tied).parts
    assert (parts["whole embeddings"], parts["gradient of the embedding"]) == (5 * embeddings, 4 * embeddings)
    alone = trainer_need(spec(trainer={"fsdpSize": 1}), model)
    assert "whole embeddings" not in alone.parts


def test_megatron_spreads_weights_over_a_replica_and_moments_over_all_of_them(model: ModelSize) -> None:
    sizes = {"backend": "Megatron", "fsdpSize": 1, "tensorParallelSize": 2, "pipelineParallelSize": 2}
    need = trainer_need(spec(trainer=sizes, algorithm={"promptsPerUpdate": 2}, workers={"replicas": 2}), model).parts
    assert need["weights"] == 4 * NUM_PARAMETERS / 4
    assert need["moments"] == 8 * NUM_PARAMETERS / 4 / 4, "2 pods of 8 GPUs hold 4 replicas"


def test_7b_fits_eight_h100_sharded_and_not_one(model: ModelSize) -> None:
    assert memory_mistakes(spec(), model, 80e9) == []
    (mistake,) = memory_mistakes(spec(trainer={"fsdpSize": 1}), model, 80e9)
    assert mistake.startswith("trainer: a GPU has 73.5 GiB for it, and it needs about 114.5 GiB")
    assert mistake.endswith("; set fsdpSize to 2, or set fsdpSize to 4")
    (mistake,) = memory_mistakes(spec(rollout={"engine": {"gpuMemoryUtilization": 0.2}}), model, 80e9)
    assert mistake.startswith("rollout.engine.gpuMemoryUtilization: 0.2 of a GPU's 74.5 GiB are 14.9 GiB")
    assert mistake.endswith("; raise it to 0.23, or set tensorParallelSize to 2")


@pytest.mark.parametrize(
    ("changes", "remedy"),
    [
        ({"trainer": {"maxTokensPerMicroBatch": 65_536}}, "lower maxTokensPerMicroBatch to 8192"),
        ({"trainer": {"fsdpSize": 1}, "workers": {"gpusPerPod": 1}}, "no size of a trainer fits: lower"),
        ({"model": {"maxContextTokens": 131_072}}, "set backend to Megatron and tensorParallelSize to"),
        ({"rollout": {"engine": {"kvCache": "500Gi"}}}, "lower kvCache"),
    ],
)
def test_only_what_makes_the_job_fit_is_advised(changes: dict[str, Any], remedy: str, model: ModelSize) -> None:
    (mistake,) = memory_mistakes(spec(**changes), model, 80e9)
    assert f"; {remedy}" in mistake


def test_what_is_advised_makes_the_job_fit(model: ModelSize) -> None:
    sizes = {"fsdpSize": 1, "maxTokensPerMicroBatch": 65_536}
    (mistake,) = memory_mistakes(spec(trainer=sizes), model, 80e9)
    found = re.search(r"set fsdpSize to (\d+) and lower maxTokensPerMicroBatch to (\d+)", mistake)
    assert found is not None
    advised = {"fsdpSize": int(found[1]), "maxTokensPerMicroBatch": int(found[2])}
    assert memory_mistakes(spec(trainer=advised), model, 80e9) == []


def test_an_engine_that_stays_awake_leaves_the_trainer_less(model: ModelSize) -> None:
    awake = {"engine": {"sleepLevel": 0, "gpuMemoryUtilization": 0.9}}
    (mistake,) = memory_mistakes(spec(rollout=awake), model, 80e9)
    assert mistake.startswith("trainer: a GPU has 7.5 GiB for it")
    apart = {"placement": "Disaggregated", "trainerWorkers": {"gpusPerPod": 8}}
    separate = RLJobSpec.model_validate(spec(rollout=awake).model_dump() | apart)
    assert memory_mistakes(separate, model, 80e9) == []


@pytest.mark.parametrize("config", [{"attn_logit_softcapping": 50.0}, {"model_type": "gpt_oss"}])
def test_scores_without_a_kernel_cost_the_square_of_the_context(config: dict[str, Any], model: ModelSize) -> None:
    with_scores = ModelSize.of({**CONFIG, **config}, NUM_PARAMETERS)
    assert with_scores is not None
    square = 28 * 8192  # heads · tokens that a token sees
    for recompute, per_layer in ((Recompute.NONE, 2), (Recompute.SELECTIVE, 1), (Recompute.FULL, 0)):
        more = values_per_token(spec(), with_scores, recompute) - values_per_token(spec(), model, recompute)
        assert more == pytest.approx((28 * per_layer + 4) * square)
    assert ModelSize.of({**CONFIG, "attn_logit_softcapping": None}, NUM_PARAMETERS) == model


def test_nothing_is_estimated_from_a_configuration_without_sizes() -> None:
    assert ModelSize.of({}, 1) is None
    assert ModelSize.of({"text_config": CONFIG}, 1) == ModelSize.of(CONFIG, 1)


@pytest.mark.parametrize(
    ("config", "is_tied"),
    [
        ({**CONFIG, "tie_word_embeddings": True}, True),
        ({"tie_word_embeddings": False, "text_config": {**CONFIG, "tie_word_embeddings": True}}, True),
        ({"tie_word_embeddings": True, "text_config": SIZES}, True),
        (SIZES, False),
    ],
)
def test_the_language_model_says_whether_its_embeddings_are_tied(config: dict[str, Any], is_tied: bool) -> None:
    """Transformers reads it in the same way; most models whose configuration does not say it are not tied."""
    size = ModelSize.of(config, 1)
    assert size is not None
    assert size.is_tied == is_tied


def test_an_adapter_costs_16_bytes_and_a_frozen_weight_two(model: ModelSize) -> None:
    lora = {"fsdpSize": 1, "lora": {"rank": 16}}
    adapter = 16 * 28 * (2 * (3584 + 3584) + 2 * (3584 + 512) + 3 * (3584 + 18944))
    need = trainer_need(spec(trainer=lora, algorithm={"klCoefficient": 0.1}), model)
    held = {name: need.parts.get(name, 0.0) for name in ("frozen weights", "weights", "gradients", "reference")}
    assert held == {
        "frozen weights": 2 * NUM_PARAMETERS,
        "weights": 4 * adapter,
        "gradients": 4 * adapter,
        "reference": 0,
    }
    whole = trainer_need(spec(trainer={"fsdpSize": 1}), model)
    assert need.total_bytes < whole.total_bytes / 3
    some = spec(trainer={"fsdpSize": 1, "lora": {"rank": 16, "targetModules": ["q_proj", "self_attn.v_proj"]}})
    assert trainer_need(some, model).parts["weights"] == 4 * 16 * 28 * (2 * 3584 + 3584 + 512)


def test_a_warm_start_before_an_adapter_counts_all_weights_and_no_reference(model: ModelSize) -> None:
    warm: dict[str, Any] = {"warmStart": {"steps": 1, "data": {"path": "rows.jsonl"}}}
    adapter: dict[str, Any] = {"fsdpSize": 1, "lora": {"rank": 16}}
    both = spec(trainer=adapter, algorithm={"klCoefficient": 0.1, **warm})
    assert trainer_need(both, model) == trainer_need(spec(trainer={"fsdpSize": 1}), model)
    alone = both.model_copy(update={"workers": both.workers.model_copy(update={"replicas": 1, "gpus_per_pod": 1})})
    (mistake,) = memory_mistakes(alone, model, 80e9)
    assert mistake.endswith("; remove algorithm.warmStart, which trains all weights")
    penalised: dict[str, Any] = {"klCoefficient": 0.1}
    whole = spec(trainer={"fsdpSize": 1}, algorithm=penalised)
    assert trainer_need(spec(trainer={"fsdpSize": 1}, algorithm=penalised | warm), model) == trainer_need(whole, model)
    assert trainer_need(spec(trainer=adapter), model).total_bytes < trainer_need(both, model).total_bytes / 3


def test_layers_in_float32_need_no_copies_and_frozen_weights_of_four_bytes(model: ModelSize) -> None:
    exact: dict[str, Any] = {"fsdpSize": 1, "dtype": "float32"}
    apart = {"placement": "Disaggregated", "trainerWorkers": {"gpusPerPod": 8}}  # There, a pass needs most.
    usual, wide = (spec(trainer=one).model_dump() | apart for one in ({"fsdpSize": 1}, exact))
    assert "copies" in trainer_need(RLJobSpec.model_validate(usual), model).parts
    assert "copies" not in trainer_need(RLJobSpec.model_validate(wide), model).parts
    assert trainer_need(spec(trainer=exact | {"lora": {}}), model).parts["frozen weights"] == 4 * NUM_PARAMETERS
