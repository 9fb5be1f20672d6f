"""`longshore convert` of TRL's configurations: the job trains as TRL would, and what differs is said."""

from typing import Any

import pytest

from tests.unit.cli.conversions import spec, trl


def test_a_run_of_trl_becomes_the_same_job() -> None:
    found = spec(trl(epsilon_high=0.28, steps_per_generation=4, gradient_accumulation_steps=2))
    algorithm = found["algorithm"]
    assert (algorithm["promptsPerStep"], algorithm["promptsPerUpdate"], algorithm["responsesPerPrompt"]) == (32, 16, 8)
    assert algorithm["steps"] == 50, "a generation of TRL makes two updates"
    objective = algorithm["objective"]
    assert (objective["clipLow"], objective["clipHigh"]) == (0.2, 0.28)
    assert algorithm["learningRateSchedule"] == "Linear"
    assert algorithm["rolloutCorrection"] == {
        "rolloutIs": "Sequence", "rolloutRs": "Sequence", "rolloutIsThreshold": 3.0, "rolloutRsThreshold": 3.0
    }  # fmt: skip
    assert found["data"]["answerField"] == "solution"
    assert found["reward"]["functions"] == [{"name": "accuracy", "kind": "Maths"}]
    assert found["workers"] == {"replicas": 1, "gpusPerPod": 4}


@pytest.mark.parametrize(
    ("given", "every"),
    [({}, 10), ({"logging_steps": 4}, 4), ({"eval_steps": 30}, 30), ({"eval_steps": 0.1}, 10)],
)
def test_trl_evaluates_at_an_interval_or_share_of_updates_and_samples_as_in_training(
    given: dict[str, Any], every: int
) -> None:
    found = spec(trl(eval_strategy="steps", temperature=0.7, max_steps=100, **given))
    assert found["evaluation"] == {"everySteps": every, "responsesPerPrompt": 8, "temperature": 0.7}
    one = spec(trl(eval_strategy="steps", num_generations_eval=1))["evaluation"]
    assert one["responsesPerPrompt"] == 1
    assert "evaluation" not in spec(trl())


def test_trl_saves_after_a_share_of_all_updates() -> None:
    assert spec(trl(save_steps=0.1, max_steps=100))["checkpoint"]["everySteps"] == 10


def test_prompts_of_trl_may_fill_what_the_longest_response_leaves_of_the_context() -> None:
    found = trl(vllm_max_model_length=16384, max_completion_length=4096)
    assert spec(found)["data"]["maxPromptTokens"] == 12288
    assert spec(trl(max_prompt_length=512))["data"]["maxPromptTokens"] == 512
    assert any("spec.data.maxPromptTokens, 1024" in one for one in trl().to_do), "a limit that TRL does not have"
    none = trl(vllm_max_model_length=512, max_completion_length=512)
    assert "no room for a prompt" in none.prevented["vllm_max_model_length"]


def test_reward_functions_that_trl_brings_must_be_copied_and_its_penalty_is_a_field() -> None:
    names = ["think_format_reward", "get_soft_overlong_punishment", "mine.answer_format_reward", "accuracy_reward"]
    found = trl(reward_funcs=names, reward_weights=[1.0, 0.5, 2.0, 3.0])
    assert [(one.get("importPath"), one["weight"]) for one in spec(found)["reward"]["functions"]] == [
        ("trl_rewards:think_format_reward", 1.0), ("mine:answer_format_reward", 2.0), (None, 3.0)
    ]  # fmt: skip
    assert any(one.startswith("Copy think_format_reward") for one in found.to_do)
    assert "rewards nothing" in trl(reward_funcs=["get_soft_overlong_punishment"]).prevented["reward_funcs"]


def test_a_directory_has_no_revision() -> None:
    path = {"model_name_or_path": "/data/models/Qwen2.5-1.5B"}
    assert "revision" not in spec(trl(model_revision="main", **path))["model"]
    assert "directory" in trl(model_revision="v2", **path).left_out["model_revision"]
    assert spec(trl(model_revision="v2"))["model"]["revision"] == "v2"


@pytest.mark.parametrize("key", ["rollout_func", "quantization_config"])
def test_what_no_rljob_can_do_prevents_one(key: str) -> None:
    assert key in trl(**{key: "made()"}).prevented
    assert key in trl(**{f"{key}.load_in_4bit": True}).prevented
    for unset in (None, []):
        assert key in trl(**{key: unset}).same


@pytest.mark.parametrize(("tokens", "buffer"), [(1280, 256), (1024, None), (4096, None)])
def test_the_penalty_of_trl_is_a_field_where_it_ends_with_the_longest_response(tokens: int, buffer: int | None) -> None:
    functions = ["accuracy_reward", "get_soft_overlong_punishment"]
    found = trl(reward_funcs=functions, reward_weights=[1.0, 0.5], max_completion_length=tokens)
    algorithm = spec(found)["algorithm"]
    assert (algorithm.get("overlongBufferTokens"), algorithm.get("overlongPenalty")) == (buffer, buffer and 0.5)
    asks = any("from 1024 to 1280 tokens" in one for one in found.to_do)
    assert asks == (tokens == 4096), "no response of 1,024 tokens has a penalty in TRL either"


@pytest.mark.parametrize(
    ("given", "steps", "prompts"),
    [
        ({"num_rows": 100, "num_train_epochs": 3, "max_steps": None}, 36, 8),
        ({"gradient_accumulation_steps": 4, "steps_per_generation": 1}, 100, 32),
        ({"gradient_accumulation_steps": 4, "generation_batch_size": 128}, 100, 32),
    ],
)
def test_epochs_have_whole_batches_and_generations_of_one_update_are_one_step(
    given: dict[str, Any], steps: int, prompts: int
) -> None:
    algorithm = spec(trl(**given))["algorithm"]
    assert (algorithm["steps"], algorithm["promptsPerStep"]) == (steps, prompts)
    assert "promptsPerUpdate" not in algorithm


@pytest.mark.parametrize("other", [{"num_iterations": 2}, {"scale_rewards": "batch"}])
def test_small_generations_that_are_used_apart_prevent_a_job(other: dict[str, Any]) -> None:
    found = trl(gradient_accumulation_steps=4, steps_per_generation=1, **other)
    assert "no multiple of an update" in found.prevented["steps_per_generation"]


def test_a_constant_rate_has_no_warm_up_and_a_least_rate_is_a_share() -> None:
    assert spec(trl(lr_scheduler_type="constant", warmup_steps=10))["algorithm"]["warmupSteps"] == 0
    assert spec(trl(lr_scheduler_type="constant_with_warmup", warmup_steps=10))["algorithm"]["warmupSteps"] == 10
    given = {"lr_scheduler_type": "cosine_with_min_lr", "learning_rate": 1e-5, "lr_scheduler_kwargs.min_lr": 1e-6}
    assert spec(trl(**given))["algorithm"]["minLearningRateRatio"] == pytest.approx(0.1)


def test_masked_weights_need_no_largest_value_and_truncated_ones_do() -> None:
    given = {"vllm_importance_sampling_clip_max": None, "vllm_importance_sampling_mode": "token_mask"}
    correction = spec(trl(**given, vllm_importance_sampling_clip_min=0.5))["algorithm"]["rolloutCorrection"]
    assert (correction["rolloutRsThreshold"], correction["rolloutRsThresholdLower"]) == (1e6, 0.5)
    truncated = trl(**given | {"vllm_importance_sampling_mode": "token_truncate"})
    assert "vllm_importance_sampling_clip_max" in truncated.prevented


def test_a_temperature_for_the_engine_takes_the_place_of_the_other() -> None:
    found = spec(trl(temperature=1.0, eval_strategy="steps", **{"generation_kwargs.temperature": 0.6}))
    assert (found["algorithm"]["temperature"], found["evaluation"]["temperature"]) == (0.6, 0.6)


def test_nothing_is_held_out_where_trl_does_not_evaluate() -> None:
    assert spec(trl())["data"]["heldOutPrompts"] == 0
    assert "heldOutPrompts" not in spec(trl(eval_strategy="steps"))["data"]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"weight_decay": 0.1}, "spec.algorithm.weightDecay"),
        ({"peft_config": "LoraConfig(r=16)"}, "was chosen for an adapter"),
        ({"use_peft": True}, "spec.trainer.lora.targetModules"),
        ({"save_steps": 50}, "spec.checkpoint.keep"),
    ],
)
def test_what_a_person_must_look_at_is_said(given: dict[str, Any], message: str) -> None:
    assert any(message in one for one in trl(**given).to_do)
    neutral = {key: 5 if key == "save_steps" else None for key in given}
    assert not any(message in one for one in trl(save_total_limit=3, **neutral).to_do)


@pytest.mark.parametrize(
    ("given", "lora"),
    [
        ({"use_peft": True}, {"rank": 16, "alpha": 32, "targetModules": ["q_proj", "v_proj"]}),
        ({"use_peft": True, "lora_r": 4, "lora_target_modules": "all-linear"}, {"rank": 4, "alpha": 32}),
        ({"peft_config.r": 8, "peft_config.target_modules": ["up_proj"]},
         {"rank": 8, "alpha": 8, "targetModules": ["up_proj"]}),
    ],
)  # fmt: skip
def test_an_adapter_of_peft_is_trained_as_one_of_the_same_size(given: dict[str, Any], lora: dict[str, Any]) -> None:
    assert spec(trl(**given))["trainer"]["lora"] == lora
    assert "lora" not in spec(trl(lora_r=8)).get("trainer", {})
    is_guessed = not any("target_modules" in key for key in given)
    assert any("targetModules" in one for one in trl(**given).to_do) is is_guessed


@pytest.mark.parametrize(
    "key",
    ["attn_implementation", "model_init_kwargs.attn_implementation",
     "per_device_eval_batch_size", "eval_accumulation_steps", "ref_model_sync_steps", "entropy_target",
     "max_tool_calling_iterations"],
)  # fmt: skip
def test_what_belongs_to_features_that_are_off_has_no_part_in_what_is_learned(key: str) -> None:
    assert key in trl(**{key: 8}).beside_learning


@pytest.mark.parametrize(
    ("key", "same", "other"),
    [
        ("bf16", True, False),
        ("fp16", False, True),
        ("dtype", "float32", "auto"),
        ("model_init_kwargs.dtype", "float32", "bfloat16"),
        ("router_aux_loss_coef", 0.0, 0.1),
    ],
)
def test_what_changes_the_numbers_may_change_what_is_learned(key: str, same: Any, other: Any) -> None:
    assert key in trl(**{key: same}).same
    found = trl(**{key: other})
    assert key in found.left_out and key not in found.beside_learning


@pytest.mark.parametrize(
    ("loss", "aggregation"),
    [("dapo", "TokenMean"), ("bnpo", "TokenMean"), ("grpo", None), ("dr_grpo", "ConstantLength"),
     ("luspo", "SequenceSum")],
)  # fmt: skip
def test_ratios_of_responses_are_gspo_whatever_the_loss_adds_up(loss: str, aggregation: str | None) -> None:
    found = trl(loss_type=loss, importance_sampling_level="sequence", epsilon=3e-4, epsilon_high=4e-4)
    objective = spec(found)["algorithm"]["objective"]
    assert (objective["name"], objective.get("aggregation")) == ("GSPO", aggregation)
    assert ("loss_type" in found.left_out) == (loss == "bnpo")


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"loss_type": "sapo", "sapo_temperature_neg": 2.0, "vespo_k_pos": 9.0},
         {"name": "SAPO", "temperatureNegative": 2.0}),
        ({"loss_type": "vespo", "vespo_k_pos": 1.5}, {"name": "VESPO", "kPositive": 1.5}),
        ({"loss_type": "grpo", "delta": 4.0},
         {"name": "GRPO", "aggregation": "SequenceMean", "clipLow": 0.2, "clipHigh": 0.2, "dualClip": 4.0}),
        ({"multi_objective_aggregation": "normalize_then_sum"},
         {"name": "GRPO", "advantage": "NormalisedByFunction", "clipLow": 0.2, "clipHigh": 0.2}),
    ],
)  # fmt: skip
def test_losses_of_trl_are_objectives(given: dict[str, Any], expected: dict[str, Any]) -> None:
    found = spec(trl(**given))["algorithm"]["objective"]
    assert found == {"advantageEpsilon": 1e-4, **expected}


def test_penalties_of_trl_are_fields_of_the_algorithm() -> None:
    algorithm = spec(trl(beta=0.04, entropy_coef=0.01))["algorithm"]
    assert (algorithm["klCoefficient"], algorithm["klBiasCorrection"], algorithm["entropyCoefficient"]) == (
        0.04, True, 0.01,
    )  # fmt: skip
    assert "klBiasCorrection" not in spec(trl(beta=0.04, use_bias_correction_kl=False))["algorithm"]


def test_a_norm_of_zero_does_not_clip() -> None:
    assert spec(trl(max_grad_norm=0))["algorithm"]["maxGradNorm"] == 1e6


def test_prompts_that_trl_cuts_are_left_out() -> None:
    assert any("TRL cuts them" in one for one in trl(max_prompt_length=512).to_do)


def test_rewards_are_scaled_over_the_batch_with_one_update_alone() -> None:
    found = trl(scale_rewards="batch")
    assert spec(found)["algorithm"]["objective"]["advantage"] == "NormalisedByBatch"
    assert "scale_rewards" not in found.left_out
    several = trl(scale_rewards="batch", steps_per_generation=2)
    assert "advantage" not in spec(several)["algorithm"]["objective"]
    assert "needs the whole batch" in several.left_out["scale_rewards"]


def test_keys_of_open_r1_about_prompts_are_fields_of_the_data() -> None:
    data = spec(trl(chat_template="{{ messages }}", system_prompt="think", dataset_prompt_column="problem"))["data"]
    assert data["chat"] == {"template": "{{ messages }}", "systemPrompt": "think"}
    assert data["promptField"] == "problem"


def test_an_epsilon_of_ten_is_converted() -> None:
    algorithm = spec(trl(epsilon=10.0))["algorithm"]
    assert (algorithm["objective"]["clipLow"], algorithm["objective"]["clipHigh"]) == (10.0, 10.0)
