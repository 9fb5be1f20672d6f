"""`longshore convert` of verl's configurations: the job trains as verl would, and what differs is said."""

from typing import Any, Final

import pytest

from longshore_cli.convert import report
from longshore_cli.convert.conversion import convert
from longshore_cli.convert.verl import VERL
from tests.unit.cli.conversions import ACTOR, FIXED, VERL_GSPO, VERL_RUN, VLLM, converted, spec, trl, verl


def test_a_run_of_verl_becomes_the_same_job_with_verls_defaults_where_it_is_silent() -> None:
    found = spec(verl())
    assert found["algorithm"] == {
        "steps": 105, "promptsPerStep": 1024, "promptsPerUpdate": 256, "responsesPerPrompt": 5,
        "epochsPerStep": 1, "maxResponseTokens": 1024, "temperature": 1.0, "learningRate": 1e-6,
        "learningRateSchedule": "Constant", "warmupSteps": 0, "adamBeta1": 0.9, "adamBeta2": 0.999,
        "weightDecay": 0.01, "maxGradNorm": 1.0, "klCoefficient": 0.0,
        "objective": {"name": "GRPO", "clipLow": 0.2, "clipHigh": 0.2, "dualClip": 3.0},
        "rolloutCorrection": {"rolloutIs": "None", "rolloutRs": "None"},
    }  # fmt: skip
    assert found["model"] == {"hub": "Qwen/Qwen2-7B-Instruct", "maxContextTokens": 1536}
    assert found["data"] == {
        "path": "data/gsm8k/train.parquet", "format": "Parquet", "promptField": "prompt", "domainField": "data_source",
        "answerField": "reward_model.ground_truth", "maxPromptTokens": 512,
    }  # fmt: skip
    assert found["rollout"] == {
        "strategy": "Synchronous", "engine": {"tensorParallelSize": 2, "gpuMemoryUtilization": 0.5}
    }  # fmt: skip
    assert found["workers"] == {"replicas": 1, "gpusPerPod": 8}
    assert found["trainer"] == {"backend": "Torch", "fsdpSize": 8}


@pytest.mark.parametrize(
    ("estimator", "loss", "aggregation", "expected"),
    [
        ("grpo", "vanilla", "token-mean", {"name": "GRPO"}),
        ("grpo", "vanilla", "seq-mean-token-mean", {"name": "GRPO", "aggregation": "SequenceMean"}),
        ("rloo", "vanilla", "seq-mean-token-sum", {"name": "RLOO"}),
        ("rloo_vectorized", "vanilla", "token-mean", {"name": "RLOO", "aggregation": "TokenMean"}),
        ("opo", "vanilla", "token-mean", {"name": "GRPO", "advantage": "LengthWeighted"}),
        ("grpo_passk", "vanilla", "token-mean", {"name": "GRPO", "advantage": "PassAtK"}),
        ("reinforce_plus_plus", "vanilla", "token-mean", {"name": "ReinforcePlusPlus", "advantage": "Whitened"}),
        ("reinforce_plus_plus_baseline", "vanilla", "token-mean", {"name": "ReinforcePlusPlus"}),
        ("grpo", "gspo", "seq-mean-token-mean", {"name": "GSPO"}),
        ("grpo", "gspo", "token-mean", {"name": "GSPO", "aggregation": "TokenMean"}),
        ("rloo", "cispo", "token-mean", {"name": "CISPO", "advantage": "LeaveOneOut"}),
        ("grpo", "sapo", "token-mean", {"name": "SAPO", "temperaturePositive": 2.0}),
        ("grpo", "geo_mean", "token-mean", {"name": "GMPO"}),
        ("gpg", "gpg", "token-mean", {"name": "GPG"}),
        ("grpo", "dro", "token-mean", {"name": "DRO", "beta": 0.5}),
        ("grpo", "dppo_kl", "token-mean", {"name": "DPPO", "divergence": "KL", "maxRatio": 3.0, "divergenceLow": 0.2,
                                          "divergenceHigh": 0.2}),
    ],
)  # fmt: skip
def test_advantage_loss_and_aggregation_are_converted_apart(
    estimator: str, loss: str, aggregation: str, expected: dict[str, Any]
) -> None:
    found = verl(
        algorithm__adv_estimator=estimator,
        **{f"{ACTOR}policy_loss__loss_mode": loss, f"{ACTOR}loss_agg_mode": aggregation},
        **{f"{ACTOR}tau_pos": 2.0, f"{ACTOR}policy_loss__dro_beta": 0.5, f"{ACTOR}ppo_mini_batch_size": 1024},
    )
    clips = {"clipLow", "clipHigh", "dualClip"}
    given = spec(found)["algorithm"]["objective"]
    assert {key: value for key, value in given.items() if key not in clips} == expected
    assert ("dualClip" in given) == (loss == "vanilla")


def test_without_the_deviation_and_with_a_constant_length_grpo_is_dr_grpo() -> None:
    changed = {"algorithm__norm_adv_by_std_in_grpo": False, f"{ACTOR}loss_agg_mode": "seq-mean-token-sum-norm"}
    assert spec(verl(**changed))["algorithm"]["objective"]["name"] == "DrGRPO"


@pytest.mark.parametrize(("kind", "ours"), [("kl", "K1"), ("mse", "K2"), ("k3+", "K2"), ("abs", None)])
def test_the_kl_estimator_is_converted(kind: str, ours: str | None) -> None:
    found = verl(**{f"{ACTOR}use_kl_loss": True, f"{ACTOR}kl_loss_type": kind})
    assert spec(found)["algorithm"].get("klEstimator") == ours
    assert ("actor_rollout_ref.actor.kl_loss_type" in found.left_out) == (ours is None)


def test_a_warm_up_is_counted_in_updates() -> None:
    found = spec(verl(actor_rollout_ref__actor__optim__lr_warmup_steps=10, actor_rollout_ref__actor__ppo_epochs=2))
    assert found["algorithm"]["warmupSteps"] == 10 * 4 * 2


@pytest.mark.parametrize(
    ("given", "norm"),
    [
        ({}, 1.0),
        ({"actor_rollout_ref__actor__grad_clip": 0.7}, 0.7),
        ({"actor_rollout_ref__actor__grad_clip": 0.7, "actor_rollout_ref__actor__optim__clip_grad": 0.5}, 0.5),
        ({"actor_rollout_ref__actor__optim__grad_clip": 0.3, "actor_rollout_ref__actor__optim__clip_grad": 0.5}, 0.3),
    ],
)
def test_gradients_are_clipped_as_verls_optimizer_does(given: dict[str, Any], norm: float) -> None:
    found = verl(**given)
    assert spec(found)["algorithm"]["maxGradNorm"] == norm
    losers = {key.replace("__", ".") for key, value in given.items() if value != norm}
    assert {key for key in found.left_out if "norm" in key or "clip_grad" in key or "grad_clip" in key} == losers


@pytest.mark.parametrize(
    "group",
    ["reward.reward_kwargs.overlong_buffer_cfg", "reward_model.reward_kwargs.overlong_buffer_cfg",
     "reward_model.overlong_buffer"],
)  # fmt: skip
def test_the_penalty_of_long_responses_has_three_names(group: str) -> None:
    given = {f"{group}.enable": True, f"{group}.len": 512, f"{group}.penalty_factor": 1.0}
    algorithm = spec(convert(VERL, VERL_RUN | given, FIXED))["algorithm"]
    assert (algorithm["overlongBufferTokens"], algorithm["overlongPenalty"]) == (512, 1.0)


def test_verls_older_configuration_for_megatron_chooses_it() -> None:
    sizes = {f"actor_rollout_ref.actor.megatron.{name}_model_parallel_size": 2 for name in ("tensor", "pipeline")}
    for name in ("ppo_megatron_trainer", "ppo_megatron_trainer.yaml"):
        trainer = spec(convert(VERL, VERL_RUN | sizes | {"--config-name": name}, FIXED))["trainer"]
        assert trainer["backend"] == "Megatron"
        assert (trainer["tensorParallelSize"], trainer["pipelineParallelSize"]) == (2, 2)
    for chosen in ({}, {"--config-name": "dapo_megatron_trainer"}):
        assert spec(convert(VERL, VERL_RUN | sizes | chosen, FIXED))["trainer"]["backend"] == "Megatron"
    without = convert(VERL, VERL_RUN | sizes | {"actor_rollout_ref.actor.strategy": "fsdp"}, FIXED)
    assert all("set model_engine=megatron" in without.left_out[key] for key in sizes)


def test_a_warm_up_of_zero_steps_is_unset_as_in_verl() -> None:
    optim = "actor_rollout_ref__actor__optim__"
    found = verl(**{f"{optim}lr_warmup_steps": 0, f"{optim}lr_warmup_steps_ratio": 0.2})
    assert spec(found)["algorithm"]["warmupSteps"] == 21 * 4


def test_epochs_are_steps_where_the_size_of_the_data_is_given() -> None:
    found = verl(trainer__total_training_steps=None, trainer__total_epochs=15, num_rows=7473)
    assert spec(found)["algorithm"]["steps"] == 15 * 7
    assert "add num_rows=N" in verl(trainer__total_training_steps=None).prevented["trainer.total_training_steps"]


def test_a_reward_function_stays_as_it_is() -> None:
    found = verl(reward__custom_reward_function__path="rewards/mine.py", reward__custom_reward_function__name="score")
    (function,) = spec(found)["reward"]["functions"]
    assert function == {"name": "reward", "kind": "Python", "importPath": "mine:score", "signature": "Verl"}
    assert "Submit the job with `--with rewards/mine.py`." in found.to_do


def test_a_path_is_below_the_storage_and_to_be_copied() -> None:
    found = verl(actor_rollout_ref__model__path="/mnt/models/Qwen2.5-7B/")
    assert spec(found)["model"]["path"] == "models/Qwen2.5-7B"
    assert any("longshore put shared /mnt/models/Qwen2.5-7B/ models/Qwen2.5-7B" in one for one in found.to_do)


def test_files_of_the_same_name_stay_apart() -> None:
    found = spec(verl(data__train_files=["/mnt/gsm8k/train.parquet", "/mnt/math/train.parquet"]))
    paths = [source["path"] for source in found["data"]["sources"]]
    assert paths == ["data/gsm8k/train.parquet", "data/math/train.parquet"]


def test_arguments_of_vllm_that_a_job_cannot_give_it_are_left_out_with_the_reason() -> None:
    given = {"max_num_batched_tokens": 8192, "pipeline_parallel_size": 2}
    found = verl(**{f"actor_rollout_ref__rollout__engine_kwargs__vllm__{name}": value for name, value in given.items()})
    assert spec(found)["rollout"]["engine"]["extraArgs"] == {"max_num_batched_tokens": 8192}
    reason = found.left_out["actor_rollout_ref.rollout.engine_kwargs.vllm.pipeline_parallel_size"]
    assert reason.startswith("pipeline_parallel_size would give an engine other GPUs")


_CONFIG: Final = "actor_rollout_ref.model.override_config"


def test_mappings_stay_mappings() -> None:
    found = converted(
        f"+{VLLM}.compilation_config={{level: 3, pass_config: {{enable_noop: true}}}}",
        f"+{VLLM}.compilation_config.cache_dir=/tmp/c",
        "+data.apply_chat_template_kwargs={enable_thinking: false, style: {tone: {warm: 1}}}",
    )
    assert spec(found)["rollout"]["engine"]["extraArgs"] == {
        "compilation_config": {"level": 3, "pass_config": {"enable_noop": True}, "cache_dir": "/tmp/c"}
    }
    arguments = {"enable_thinking": False, "style": {"tone": {"warm": 1}}}
    assert spec(found)["data"]["chat"] == {"templateArguments": arguments}
    assert not [key for key in found.left_out if key.startswith((VLLM, "data."))]
    assert spec(trl(**{"chat_template_kwargs.style.tone": "dry"}))["data"]["chat"] == {
        "templateArguments": {"style": {"tone": "dry"}}
    }


def test_a_mapping_takes_the_place_of_a_value_that_was_there() -> None:
    given = {f"{VLLM}.compilation_config": 3, f"{VLLM}.compilation_config.level": 2}
    engine = spec(convert(VERL, VERL_RUN | given, FIXED))["rollout"]["engine"]
    assert engine["extraArgs"] == {"compilation_config": {"level": 2}}


def test_a_mapping_that_vllm_cannot_have_is_left_out_with_all_its_keys() -> None:
    found = converted(f"+{VLLM}.override_generation_config={{top_k: 5, stop: {{a: 1}}}}")
    assert "extraArgs" not in spec(found)["rollout"]["engine"]
    for key in ("top_k", "stop.a"):
        assert "has no effect" in found.left_out[f"{VLLM}.override_generation_config.{key}"]


@pytest.mark.parametrize(
    ("typed", "key"),
    [
        (f"+{VLLM}.hf_overrides={{rope_parameters: {{rope_type: yarn}}}}",
         f"{VLLM}.hf_overrides.rope_parameters.rope_type"),
        (f"+{_CONFIG}.rope_scaling.type=yarn", f"{_CONFIG}.rope_scaling.type"),
        (f"+{_CONFIG}={{max_position_embeddings: 131072}}", f"{_CONFIG}.max_position_embeddings"),
    ],
)  # fmt: skip
def test_what_changes_the_model_belongs_into_its_files(typed: str, key: str) -> None:
    found = converted(typed)
    assert "extraArgs" not in spec(found)["rollout"]["engine"]
    assert "changes" in found.left_out[key] and "the model's config.json" in found.left_out[key]


def test_engines_sample_up_to_the_limit_of_the_rollout() -> None:
    key = "actor_rollout_ref.rollout.response_length"
    found = convert(VERL, VERL_RUN | {key: 4096}, FIXED)
    assert spec(found)["algorithm"]["maxResponseTokens"] == 4096
    assert spec(found)["model"]["maxContextTokens"] == 512 + 4096
    assert "sample up to" in found.left_out["data.max_response_length"]
    same = convert(VERL, VERL_RUN | {key: "${oc.select:data.max_response_length,512}"}, FIXED)
    assert spec(same)["algorithm"]["maxResponseTokens"] == 1024
    assert "data.max_response_length" in same.converted


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("actor_rollout_ref.rollout.agent.default_agent_loop", "tool_agent", "no functions are named"),
        ("actor_rollout_ref.rollout.agent.agent_loop_config_path", "agents.yaml", "agent loops are not run"),
    ],
)
def test_agents_prevent_a_job_even_where_several_turns_are_switched_off(key: str, value: str, message: str) -> None:
    found = convert(VERL, VERL_RUN | {"actor_rollout_ref.rollout.multi_turn.enable": False, key: value}, FIXED)
    assert message in found.prevented[key]
    single = convert(
        VERL, VERL_RUN | {"actor_rollout_ref.rollout.agent.default_agent_loop": "single_turn_agent"}, FIXED
    )
    assert "actor_rollout_ref.rollout.agent.default_agent_loop" in single.same


@pytest.mark.parametrize(
    ("mode", "samples", "temperature"),
    [(None, False, 0.7), ("async", None, 0.7), ("sync", False, 0.0), ("sync", True, 0.7)],
)
def test_evaluation_has_its_temperature_unless_an_older_mode_is_greedy(
    mode: str | None, samples: bool | None, temperature: float
) -> None:
    rollout = "actor_rollout_ref__rollout__"
    given = {
        f"{rollout}mode": mode,
        f"{rollout}val_kwargs__do_sample": samples,
        f"{rollout}val_kwargs__temperature": 0.7,
    }
    assert spec(verl(**given))["evaluation"]["temperature"] == temperature


def test_no_prompts_are_held_out_where_nothing_is_evaluated() -> None:
    assert spec(verl(trainer__val_before_train=False))["data"]["heldOutPrompts"] == 0
    for given in ({}, {"trainer__test_freq": 5}, {"trainer__val_before_train": False, "trainer__test_freq": 5}):
        assert "heldOutPrompts" not in spec(verl(**given))["data"]


@pytest.mark.parametrize("key", ["actor_rollout_ref.model.lora_rank", "actor_rollout_ref.model.lora.rank"])
def test_an_adapter_is_trained_as_one_of_the_same_size(key: str) -> None:
    model = "actor_rollout_ref.model"
    found = convert(VERL, VERL_RUN | {key: 32, f"{model}.target_modules": ["q_proj", "k_proj"]}, FIXED)
    assert spec(found)["trainer"]["lora"] == {"rank": 32, "alpha": 16, "targetModules": ["q_proj", "k_proj"]}
    every = convert(VERL, VERL_RUN | {key: 8, f"{model}.target_modules": "all-linear"}, FIXED)
    assert spec(every)["trainer"]["lora"] == {"rank": 8, "alpha": 16}
    without = convert(VERL, VERL_RUN | {key: 0}, FIXED)
    assert key in without.same and "lora" not in spec(without)["trainer"]


def test_megatron_trains_every_weight_at_a_rate_for_a_person_to_choose() -> None:
    key = "actor_rollout_ref.model.lora.rank"
    rate = "actor_rollout_ref.actor.optim.lr"
    found = convert(VERL, VERL_RUN | {key: 32, rate: 1e-5, "actor_rollout_ref.actor.strategy": "megatron"}, FIXED)
    assert found.left_out[key] == "every weight is trained, and no adapter"
    assert any("learningRate: 1e-05 was chosen for an adapter" in one for one in found.to_do)


def test_a_least_learning_rate_is_a_share_of_the_largest() -> None:
    optim = "actor_rollout_ref__actor__optim__"
    given = {f"{optim}lr": 1e-5, f"{optim}min_lr": 1e-6}
    cosine = spec(verl(**given, **{f"{optim}lr_decay_style": "cosine"}))["algorithm"]
    assert cosine["minLearningRateRatio"] == pytest.approx(0.1)
    assert "minLearningRateRatio" not in spec(verl(**given))["algorithm"], "a constant rate has no least one"


def test_a_critic_is_that_of_ppo_with_its_own_rate_and_clip() -> None:
    given = {"critic__optim__lr": 2e-5, "critic__grad_clip": 0.5, "critic__model__path": "Qwen/Value"}
    found = verl(algorithm__adv_estimator="gae", algorithm__lam=0.95, **given)
    expected = {"name": "PPO", "gamma": 1.0, "gaeLambda": 0.95, "valueLearningRate": 2e-5, "valueClip": 0.5}
    assert spec(found)["algorithm"]["objective"].items() >= expected.items()
    assert "critic.grad_clip" in found.left_out
    assert any("set spec.algorithm.objective.valueModel" in one for one in found.to_do)
    without = verl(algorithm__lam=0.95, **given)
    assert "algorithm.lam" not in without.beside_learning
    assert {"critic.optim.lr", "critic.model.path"} <= without.beside_learning


@pytest.mark.parametrize(
    ("key", "same", "other"),
    [
        ("actor_rollout_ref.actor.fsdp_config.dtype", "bfloat16", "float16"),
        ("actor_rollout_ref.actor.fsdp_config.model_dtype", "fp32", "bf16"),
        ("actor_rollout_ref.actor.megatron.dtype", "bfloat16", "float16"),
        ("actor_rollout_ref.actor.fsdp_config.mixed_precision.param_dtype", "bf16", "fp16"),
        ("actor_rollout_ref.actor.fsdp_config.mixed_precision.reduce_dtype", "fp32", "bf16"),
        ("actor_rollout_ref.actor.optim.exp_avg_dtype", "fp32", "bf16"),
        ("actor_rollout_ref.actor.router_replay.mode", "disabled", "R3"),
        ("actor_rollout_ref.actor.megatron.router_replay.mode", "disabled", "R3"),
        ("trainer.critic_warmup", 0, 20),
    ],
)
def test_what_changes_the_numbers_or_the_experts_may_change_what_is_learned(key: str, same: Any, other: Any) -> None:
    assert key in convert(VERL, VERL_RUN | {key: same}, FIXED).same
    found = convert(VERL, VERL_RUN | {key: other}, FIXED)
    assert key in found.left_out and key not in found.beside_learning


def test_engines_that_compute_in_another_dtype_than_trainers_are_to_be_looked_at() -> None:
    found = verl(actor_rollout_ref__rollout__dtype="float16")
    assert spec(found)["rollout"]["engine"]["dtype"] == "float16"
    assert any("engines compute in float16, and trainers in bfloat16" in one for one in found.to_do)
    assert not any("bfloat16" in one for one in verl(actor_rollout_ref__rollout__dtype="bfloat16").to_do)


@pytest.mark.parametrize(("filters", "is_beside"), [(True, True), (False, False)])
def test_prompts_that_verl_dispatches_may_be_a_batch_of_older_versions(filters: bool, is_beside: bool) -> None:
    key = "data.gen_batch_size"
    found = convert(VERL, VERL_RUN | {"algorithm.filter_groups.enable": filters, key: 3072}, FIXED)
    assert key in found.left_out and (key in found.beside_learning) == is_beside
    assert key not in convert(VERL, VERL_RUN | {key: 1024}, FIXED).left_out


def test_the_penalty_of_long_responses_ends_where_responses_do() -> None:
    group = "reward_model.reward_kwargs"
    given = {f"{group}.overlong_buffer_cfg.{name}": value for name, value in (("enable", True), ("len", 512))}
    found = convert(VERL, VERL_RUN | given | {f"{group}.max_resp_len": 1024}, FIXED)
    assert f"{group}.max_resp_len" not in found.left_out
    other = convert(VERL, VERL_RUN | given | {f"{group}.max_resp_len": 20480}, FIXED)
    assert "maxResponseTokens" in other.left_out[f"{group}.max_resp_len"]


def test_gspo_has_no_dual_clip_to_lose() -> None:
    key = "actor_rollout_ref.actor.clip_ratio_c"
    assert not any(name.startswith(key) for name in verl(**VERL_GSPO).left_out)
    assert spec(convert(VERL, VERL_RUN | {key: 10.0}, FIXED))["algorithm"]["objective"]["dualClip"] == 10.0


def test_a_reference_in_the_default_of_another_is_followed() -> None:
    qat = "actor_rollout_ref.rollout.qat"
    nested = (
        "${oc.select:actor_rollout_ref.actor.fsdp_config.qat,${oc.select:actor_rollout_ref.actor.megatron.qat,null}}"
    )
    assert qat in convert(VERL, VERL_RUN | {qat: nested}, FIXED).same


def test_a_reward_manager_counts_although_the_reward_model_of_its_section_is_off() -> None:
    given = {"reward_model.enable": False, "reward_model.reward_manager": "prime"}
    text = "\n".join(report.lines(convert(VERL, VERL_RUN | given, FIXED), VERL, VERL_RUN | given, ()))
    assert "  reward_model.reward_manager = prime: there are no other managers than verl's naive and dapo." in text
    assert "switched off" not in text


@pytest.mark.parametrize(
    ("manager", "is_converted", "asks"), [("dapo", True, False), (None, True, True), ("naive", False, False)]
)
def test_the_penalty_of_long_responses_is_that_of_the_manager_dapo(
    manager: str | None, is_converted: bool, asks: bool
) -> None:
    group = "reward_model.reward_kwargs.overlong_buffer_cfg"
    given = {f"{group}.enable": True, f"{group}.len": 512, "reward_model.reward_manager": manager}
    found = convert(VERL, VERL_RUN | given, FIXED)
    assert ("overlongBufferTokens" in spec(found)["algorithm"]) == is_converted
    assert (f"{group}.enable" in found.left_out) != is_converted
    assert any("unless verl's reward manager is dapo" in one for one in found.to_do) == asks
    assert any("weight: 2" in one for one in found.to_do) == is_converted, "verl's own function gives -1 or 1"


def test_groups_are_compared_before_the_penalty_by_another_metric_than_the_reward() -> None:
    metric = {"algorithm.filter_groups.enable": True, "algorithm.filter_groups.metric": "score"}
    group = "reward_model.reward_kwargs.overlong_buffer_cfg"
    penalty = {f"{group}.enable": True, f"{group}.len": 512, "reward_model.reward_manager": "dapo"}
    key = "algorithm.filter_groups.metric"
    assert key not in convert(VERL, VERL_RUN | metric, FIXED).left_out
    assert key in convert(VERL, VERL_RUN | metric | penalty, FIXED).left_out


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("reward.reward_manager.module.path", "mine.py"),
        ("reward.reward_manager.source", "importlib"),
        ("trainer.v1.sampler.custom_sampler.path", "mine.py"),
        ("actor_rollout_ref.model.lora_adapter_path", "adapter"),
        ("actor_rollout_ref.model.mtp.enable_train", True),
    ],
)
def test_programs_of_a_persons_own_may_change_what_is_learned(key: str, value: Any) -> None:
    found = convert(VERL, VERL_RUN | {key: value}, FIXED)
    assert key in found.left_out and key not in found.beside_learning


@pytest.mark.parametrize(("rows", "ends"), [(None, "if 2 epochs are fewer"), (5000, "after 8"), (500_000, None)])
def test_verl_may_end_with_its_epochs(rows: int | None, ends: str | None) -> None:
    found = verl(trainer__total_epochs=2, num_rows=rows)
    assert spec(found)["algorithm"]["steps"] == 105
    assert [one.partition("verl ends ")[2] for one in found.to_do if "verl ends" in one] == (
        [f"{ends}."] if ends else []
    )


def test_megatron_has_its_own_betas_and_decays_other_weights() -> None:
    given = {f"{ACTOR}strategy": "megatron", f"{ACTOR}optim__betas": [0.9, 0.95], f"{ACTOR}optim__weight_decay": 0.1}
    found = verl(**given)
    assert spec(found)["algorithm"]["adamBeta2"] == 0.999
    assert "does not pass it on" in found.left_out["actor_rollout_ref.actor.optim.betas"]
    assert any("biases and norms" in one for one in found.to_do)
    plain = verl(**given | {f"{ACTOR}strategy": "fsdp"})
    assert spec(plain)["algorithm"]["adamBeta2"] == 0.95
    assert not any("biases and norms" in one for one in plain.to_do)


@pytest.mark.parametrize(("factor", "is_lost"), [(1024, False), (512, True), (None, True)])
def test_dr_grpo_divides_by_the_longest_response_that_there_may_be(factor: int | None, is_lost: bool) -> None:
    given = {"algorithm__norm_adv_by_std_in_grpo": False, f"{ACTOR}loss_agg_mode": "seq-mean-token-sum-norm"}
    found = verl(**given, **{f"{ACTOR}loss_scale_factor": factor})
    assert any(key.startswith("actor_rollout_ref.actor.loss_scale_factor") for key in found.left_out) == is_lost
    assert not any("loss_scale_factor" in key for key in verl(**{f"{ACTOR}loss_scale_factor": factor}).left_out)


def test_a_single_response_is_reinforce_plus_plus_without_baseline() -> None:
    alone = {"algorithm__adv_estimator": "reinforce_plus_plus", "actor_rollout_ref__rollout__n": 1,
             f"{ACTOR}ppo_mini_batch_size": 1024}  # fmt: skip
    algorithm = spec(verl(**alone))["algorithm"]
    assert (algorithm["objective"]["name"], algorithm["responsesPerPrompt"]) == ("ReinforcePlusPlus", 1)


def test_a_column_of_images_is_not_beside_what_is_learned() -> None:
    key = "data.image_key"
    assert key in verl(data__image_key="images").same
    found = verl(data__image_key="pictures")
    assert key in found.left_out and key not in found.beside_learning


def test_a_file_that_is_named_twice_weighs_twice() -> None:
    sources = spec(verl(data__train_files=["/d/a.parquet", "/d/a.parquet", "/d/b.parquet"]))["data"]["sources"]
    assert [one.get("weight", 1) for one in sources] == [2, 1]


def test_fully_asynchronous_training_names_the_batch_of_a_step() -> None:
    given = {
        "data__train_batch_size": 0, "async_training__trigger_parameter_sync_step": 4,
        "rollout__total_rollout_steps": 10_240, "trainer__total_training_steps": None,
    }  # fmt: skip
    reason = verl(**given).prevented["data.train_batch_size"]
    assert "fully asynchronous" in reason and "data.train_batch_size=1024" in reason
    assert spec(verl(**given | {"data__train_batch_size": 1024}))["algorithm"]["steps"] == 10
