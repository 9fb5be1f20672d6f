"""What a model cannot do is known from its configuration."""

from typing import Any

import pytest

from longshore.api.rollout import EngineSettings
from longshore.api.training import TrainerSettings
from longshore.checks.model_limits import (
    context_tokens,
    expert_mistakes,
    limit_mistakes,
    position_mistakes,
    possible_tp_sizes,
)

QWEN = {
    "model_type": "qwen2", "hidden_size": 1536, "num_attention_heads": 12, "num_key_value_heads": 2,
    "intermediate_size": 8960, "max_position_embeddings": 32768,
}  # fmt: skip


def mistakes(config: dict[str, Any], max_context_tokens: int = 4096, *, gpus: bool = True, **engine: Any) -> list[str]:
    return limit_mistakes(config, EngineSettings(**engine), max_context_tokens, has_accelerator=gpus)


def test_a_job_that_the_model_suits_has_no_mistakes() -> None:
    assert mistakes(QWEN, 32768) == mistakes(QWEN, gpus=False) == mistakes(QWEN, tensor_parallel_size=4) == []


@pytest.mark.parametrize(
    ("quantization", "method"),
    [({"quant_method": "gptq", "bits": 4}, "gptq"), ({"bits": 4}, "unknown"), (4, "unknown")],
)
def test_quantised_weights_are_refused_and_plain_ones_are_not(quantization: object, method: str) -> None:
    quantised = {"quantization_config": quantization}
    for config in (QWEN | quantised, {"text_config": QWEN | quantised}):
        (mistake,) = mistakes(config)
        assert f"the weights are quantised (quant_method '{method}')" in mistake
    assert mistakes(QWEN | {"quantization_config": None}) == []


def test_a_context_that_the_model_cannot_have_is_reported_with_what_it_can() -> None:
    mistake = "model.maxContextTokens: 32769 exceeds the 32768 tokens of the model; lower it"
    assert mistakes(QWEN, 32769) == [mistake]


@pytest.mark.parametrize(
    ("changes", "tokens"),
    [
        ({}, 32768),
        ({"rope_scaling": {"type": "linear", "factor": 4.0}}, 131072),
        ({"rope_parameters": {"rope_type": "dynamic", "factor": 2.0}}, 65536),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}, 32768),
        ({"rope_scaling": {"rope_type": "llama3", "factor": 8.0}}, 32768),
        ({"max_position_embeddings": None, "n_positions": 1024}, 1024),
        ({"max_position_embeddings": None}, None),
        ({"max_position_embeddings": "many"}, None),
    ],
)
def test_the_context_follows_from_the_configuration(changes: dict[str, Any], tokens: int | None) -> None:
    config = {**QWEN, **changes}
    assert context_tokens(config) == context_tokens({"text_config": config}) == tokens


@pytest.mark.parametrize(
    ("changes", "limit"),
    [
        ({"rope_parameters": {"rope_type": "longrope", "original_max_position_embeddings": 4096}}, 4096),
        ({"rope_scaling": {"type": "su"}, "original_max_position_embeddings": 4096}, 4096),
        ({"rope_parameters": {"rope_type": "dynamic", "factor": 2.0}}, 32768),
    ],
)
def test_positions_that_depend_on_the_longest_sequence_of_a_batch_are_refused(
    changes: dict[str, Any], limit: int
) -> None:
    """Trainers would compute them for one batch, and engines for the longest context."""
    config = {**QWEN, **changes}
    for one in (config, {"text_config": config}):
        assert list(position_mistakes(one, limit)) == []
        (mistake,) = position_mistakes(one, limit + 1)
        kind = next(iter(changes.values()))
        assert mistake == (
            f"model.maxContextTokens: {limit + 1} exceeds {limit} tokens, beyond which engines and trainers compute "
            f"other positions with {kind.get('rope_type', kind.get('type'))!r} RoPE; lower it to {limit}"
        )


def test_scaling_by_a_fixed_base_is_no_scaling_by_batches() -> None:
    fixed = QWEN | {"rope_parameters": {"rope_type": "dynamic", "alpha": 1000.0}}
    assert list(position_mistakes(fixed, 1_000_000)) == []


@pytest.mark.parametrize("config", [QWEN | {"head_dim": 16}, QWEN | {"hidden_size": 12 * 48}])
def test_heads_that_have_no_kernel_on_the_cpu_are_refused_there_alone(config: dict[str, Any]) -> None:
    (mistake,) = mistakes(config, gpus=False)
    size = config.get("head_dim", 48)
    assert mistake.startswith(
        f"model.path: the attention heads have size {size}, which vLLM does not support on the CPU"
    )
    assert mistakes(config) == mistakes(config, gpus=False, backend="Fake") == []


def test_a_model_that_does_not_split_is_reported_with_the_field() -> None:
    (mistake,) = mistakes(QWEN, tensor_parallel_size=8)
    assert mistake.startswith("rollout.engine.tensorParallelSize: the model does not split into 8 parts")


@pytest.mark.parametrize("config", [{}, {"text_config": 3}, {"num_attention_heads": 0, "hidden_size": "x"}])
def test_nothing_is_said_where_the_configuration_says_nothing(config: dict[str, Any]) -> None:
    assert mistakes(config, 10_000_000, gpus=False) == []


HEADS = {"num_attention_heads": 12, "num_key_value_heads": 2, "intermediate_size": 64}


@pytest.mark.parametrize(
    ("pods", "config", "configured", "sizes"),
    [
        ((8, 1), {}, 1, (1, 2, 4, 8)),
        ((8, 1), HEADS, 1, (1, 2, 4)),  # 12 heads do not divide by 8
        ((8, 1), {**HEADS, "num_attention_heads": 16}, 1, (1, 2, 4, 8)),  # two key-value heads are repeated
        ((8, 1), {**HEADS, "num_attention_heads": 24, "num_key_value_heads": 3}, 1, (1,)),
        ((8, 1), {**HEADS, "intermediate_size": 66}, 1, (1, 2)),
        ((6, 1), HEADS, 2, (1, 2)),
        ((6, 1), {**HEADS, "num_key_value_heads": 12, "intermediate_size": 96}, 3, (1, 2, 3)),
        ((4, 1), {"text_config": HEADS}, 1, (1, 2, 4)),
        ((4, 1), {"num_attention_heads": 2}, 1, (1, 2)),
        ((4, 4), {}, 8, (1, 2, 4, 8)),  # several pods only where that is configured
        ((4, 4), {}, 4, (1, 2, 4)),
        ((0, 1), HEADS, 1, (1,)),
    ],
)
def test_engines_can_have_sizes_that_fill_the_pods_and_split_the_model(
    pods: tuple[int, int], config: dict[str, Any], configured: int, sizes: tuple[int, ...]
) -> None:
    assert possible_tp_sizes(config, *pods, configured) == sizes


@pytest.mark.parametrize(
    ("config", "is_refused"),
    [({"num_experts": 8}, False), ({"text_config": {"n_routed_experts": 8}}, False), ({"hidden_size": 8}, True)],
)
def test_only_experts_that_a_model_has_are_replayed_or_spread(config: dict[str, Any], is_refused: bool) -> None:
    for asked in ({"router_replay": True}, {"expert_parallel": True, "fsdp_size": 4}):
        assert bool(list(expert_mistakes(config, TrainerSettings.model_validate(asked)))) == is_refused
    assert not list(expert_mistakes(config, TrainerSettings()))


def test_experts_are_spread_over_a_number_of_ranks_that_divides_theirs() -> None:
    spread = TrainerSettings(expert_parallel=True, fsdp_size=3)
    (mistake,) = expert_mistakes({"num_experts": 8}, spread)
    assert mistake.startswith("trainer.fsdpSize: 3 does not divide the model's 8 experts")
