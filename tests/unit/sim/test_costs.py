"""Costs of engines and trainers, modelled and measured."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from longshore.sim.costs import Costs
from longshore.sim.hardware import GPUS, MODELS, ModelShape, gpu_named, model_named, model_of
from longshore.sim.profile import DecodePoint, Profile

COSTS = Costs(GPUS["H800"], MODELS["Qwen2.5-7B"])


def test_one_request_decodes_as_fast_as_weights_are_read() -> None:
    weights_s = 2 * 7.62e9 / (0.75 * 3.35e12)
    bare = Costs(GPUS["H800"], MODELS["Qwen2.5-7B"], Profile(step_overhead_s=0, request_overhead_s=0))
    assert bare.decode_step(1, 1).step_s(0) == pytest.approx(weights_s)


@settings(deadline=None)
@given(st.integers(1, 4000), st.integers(0, 10**6), st.sampled_from([1, 2, 4, 8]))
def test_a_step_never_gets_cheaper_with_more_requests_or_more_context(running: int, context: int, tp_size: int) -> None:
    step_s = COSTS.decode_step(running, tp_size).step_s(context)
    assert step_s <= COSTS.decode_step(running + 1, tp_size).step_s(context)
    assert step_s <= COSTS.decode_step(running, tp_size).step_s(context + 1)


def test_more_gpus_speed_a_large_batch_up_and_communication_eats_into_it() -> None:
    alone, eight = (COSTS.decode_step(512, tp_size).step_s(500_000) for tp_size in (1, 8))
    assert alone / 8 < eight < alone / 2


def test_two_gpus_hold_more_than_twice_the_kv_cache_of_one() -> None:
    assert COSTS.kv_capacity_tokens(2, 0.5) > 2 * COSTS.kv_capacity_tokens(1, 0.5)


def test_weights_that_leave_no_kv_cache_are_refused() -> None:
    large = Costs(GPUS["RTX4090"], MODELS["Qwen2.5-32B"])
    with pytest.raises(
        ValueError, match=r"gpuMemoryUtilization: 0.9 of a RTX4090 leaves no KV cache beside Qwen2.5-32B"
    ):
        large.kv_capacity_tokens(1, 0.9)


def test_a_profile_replaces_what_it_has_measured() -> None:
    profile = Profile(
        prefill_tokens_per_s=1000,
        kv_capacity_tokens={2: 77},
        train_tokens_per_s=500,
        optimizer_s=3,
        publish_s=4,
        to_training_s=5,
        to_rollout_s=6,
        regroup_s=7,
        migration_s=8,
    )
    costs = Costs(GPUS["H800"], MODELS["Qwen2.5-7B"], profile)
    assert costs.prefill_s(4000, 2) == 2
    assert costs.kv_capacity_tokens(2, 0.5) == 77
    assert costs.kv_capacity_tokens(1, 0.5) == COSTS.kv_capacity_tokens(1, 0.5)
    assert costs.train_s(2000, 2, num_extra_forwards=1) == 2
    assert costs.optimizer_s(1, 8) == 3
    assert costs.publish_s(1) == 4
    assert (costs.to_training_s(8), costs.to_rollout_s(8), costs.regroup_s(2)) == (5, 6, 7)
    assert (costs.migration_s(), COSTS.migration_s()) == (8, 0)


def points(*rows: tuple[int, int, float]) -> list[DecodePoint]:
    return [DecodePoint(tp_size=1, num_running=n, context_tokens=c, step_s=s) for n, c, s in rows]


@settings(deadline=None)
@given(
    st.floats(0.001, 0.1), st.floats(0, 0.01), st.floats(0, 1e-6), st.integers(2, 64), st.integers(1, 300),
    st.integers(0, 10**6),
)  # fmt: skip
def test_a_linear_step_time_is_recovered_from_its_points(
    base: float, per_request: float, slope: float, larger: int, running: int, context: int
) -> None:
    def step_s(n: int, c: int) -> float:
        return base + per_request * n + slope * c

    measured = points(*((n, c, step_s(n, c)) for n in (1, larger) for c in (100, 50_000 * n)))
    costs = Costs(GPUS["H800"], MODELS["Qwen2.5-7B"], Profile(decode=measured))
    assert costs.decode_step(running, 1).step_s(context) == pytest.approx(step_s(running, context), rel=1e-6)


def test_sizes_that_were_not_measured_are_modelled() -> None:
    costs = Costs(GPUS["H800"], MODELS["Qwen2.5-7B"], Profile(decode=points((1, 0, 0.5))))
    assert costs.decode_step(1, 2) == COSTS.decode_step(1, 2)
    assert costs.decode_step(9, 1).base_s == 0.5
    assert costs.decode_step(9, 1).per_context_token_s == COSTS.decode_step(9, 1).per_context_token_s


def test_training_grows_faster_than_linearly_with_length_and_shrinks_with_gpus() -> None:
    assert COSTS.train_s(20_000, 1, 1) > 2 * COSTS.train_s(10_000, 1, 1)
    assert COSTS.train_s(10_000, 4, 1) == pytest.approx(COSTS.train_s(10_000, 1, 1) / 4)


def test_a_size_stands_for_a_model_without_a_name() -> None:
    model = model_named("13B")
    assert model == model_of(13e9)
    assert 12 * model.num_layers * model.hidden_size**2 == pytest.approx(13e9, rel=0.1)


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("Qwen/Qwen2.5-7B", MODELS["Qwen2.5-7B"]),
        ("models/Qwen2.5-7B-Instruct/", MODELS["Qwen2.5-7B"]),
        ("Qwen3-4B-Instruct-2507", MODELS["Qwen3-4B"]),
        ("meta-llama/Llama-3.1-8B-Instruct", model_of(8e9)),
        ("Qwen2.5-Math-1.5B", model_of(1.5e9)),
        ("13b", model_of(13e9)),
        ("qwen2.5-7b-instruct", MODELS["Qwen2.5-7B"]),
        ("0.5", model_of(0.5e9)),
        ("135M", model_of(135e6)),
        ("HuggingFaceTB/SmolLM2-135M-Instruct", model_of(135e6)),
        ("gemma-3-270m", model_of(270e6)),
        ("Llama-3-8B-Instruct-1M", model_of(8e9)),
    ],
)
def test_a_name_says_what_the_model_is_where_it_has_one_size(name: str, shape: ModelShape) -> None:
    assert model_named(name) == shape


@pytest.mark.parametrize(
    "name",
    ["inf", "nan", "1e400", "-5B", "0", "0B", "0.0B", f"{'9' * 400}B", "", "B", "/", "gemma-3n-E4B",
     "fits-4bit", "own-7B-of-13B"],
)  # fmt: skip
def test_a_name_without_a_usable_size_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match=r"is not known; choose one of .*, or a size such as 13B"):
        model_named(name)


@pytest.mark.parametrize(
    "name", ["Qwen3-30B-A3B", "Qwen/Qwen3-235B-A22B-Instruct-2507", "Mixtral-8x7B-v0.1", "qwen1.5-moe-a2.7b"]
)
def test_the_name_of_a_mixture_of_experts_is_refused_with_what_helps(name: str) -> None:
    with pytest.raises(ValueError, match=r"is a mixture of experts by its name, .*; give a measured profile instead"):
        model_named(name)


def test_unknown_names_are_refused_with_the_known_ones() -> None:
    with pytest.raises(ValueError, match=r"GPU TPU is not known; choose one of A100-40, A100-80, B200, H100"):
        gpu_named("TPU")
    with pytest.raises(ValueError, match=r"model Lama is not known; choose one of Qwen2\.5-14B"):
        model_named("Lama")


def test_an_adapter_costs_little_beside_passes_over_frozen_weights() -> None:
    lora = Costs(GPUS["H800"], MODELS["Qwen2.5-7B"], lora_rank=32)
    assert lora.num_trained == pytest.approx(80e6, rel=0.2), "rank times both sides of every linear layer"
    assert lora.train_s(1000, 1, 0) == pytest.approx(2 / 3 * COSTS.train_s(1000, 1, 0))
    assert lora.optimizer_s(1, 1) < COSTS.optimizer_s(1, 1) / 50
    assert lora.publish_s(1) < COSTS.publish_s(1)
    assert lora.to_rollout_s(1) < lora.to_training_s(1) < COSTS.to_training_s(1)
