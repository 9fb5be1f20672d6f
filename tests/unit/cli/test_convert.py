"""`longshore convert`: configurations of verl and TRL become RLJobs, and nothing of them goes without a word."""

import json
from pathlib import Path
from typing import Any, Final

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from longshore.api.crd import rljob_crd
from longshore.api.rljob import RLJob
from longshore_cli.convert import report, sources
from longshore_cli.convert.conversion import Conversion, convert
from longshore_cli.convert.mapping import System
from longshore_cli.convert.systems import SYSTEMS, job_name, system_of
from longshore_cli.convert.trl import TRL
from longshore_cli.convert.verl import VERL
from longshore_cli.main import app
from longshore_cli.simulate.errors import BadInput
from tests.properties import examples

_SCHEMA: Final[dict[str, Any]] = rljob_crd()["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
FIXED: Final = {"metadata.name": "converted", "spec.storage.claimName": "shared"}
VERL_RUN: Final = {
    "algorithm.adv_estimator": "grpo",
    "data.train_files": "~/data/gsm8k/train.parquet",
    "data.train_batch_size": 1024,
    "data.max_prompt_length": 512,
    "data.max_response_length": 1024,
    "actor_rollout_ref.model.path": "Qwen/Qwen2-7B-Instruct",
    "actor_rollout_ref.actor.ppo_mini_batch_size": 256,
    "actor_rollout_ref.rollout.n": 5,
    "trainer.total_training_steps": 105,
}
TRL_RUN: Final = {
    "model_name_or_path": "Qwen/Qwen2.5-0.5B",
    "dataset_name": "openai/gsm8k",
    "dataset_config": "main",
    "reward_funcs": ["accuracy_reward"],
    "per_device_train_batch_size": 16,
    "num_generations": 8,
    "num_processes": 4,
    "max_steps": 100,
}
RUNS: Final = {VERL.name: VERL_RUN, TRL.name: TRL_RUN}


def verl(**changed: Any) -> Conversion:
    """A run of verl; `__` in names stands for dots."""
    return convert(VERL, VERL_RUN | {key.replace("__", "."): value for key, value in changed.items()}, FIXED)


def trl(**changed: Any) -> Conversion:
    return convert(TRL, TRL_RUN | changed, FIXED)


def spec(found: Conversion) -> dict[str, Any]:
    assert found.job is not None, found.prevented
    wanted: dict[str, Any] = found.job["spec"]
    return wanted


def test_a_run_of_verl_becomes_the_same_job_with_verls_defaults_where_it_is_silent() -> None:
    found = spec(verl())
    assert found["algorithm"] == {
        "name": "GRPO", "steps": 105, "promptsPerStep": 1024, "promptsPerUpdate": 256, "responsesPerPrompt": 5,
        "epochsPerStep": 1, "maxResponseTokens": 1024, "temperature": 1.0, "learningRate": 1e-6,
        "learningRateSchedule": "Constant", "warmupSteps": 0, "adamBeta1": 0.9, "adamBeta2": 0.999,
        "weightDecay": 0.01, "maxGradNorm": 1.0, "clipLow": 0.2, "clipHigh": 0.2, "klCoefficient": 0.0,
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


def test_a_run_of_trl_becomes_the_same_job() -> None:
    found = spec(trl(epsilon_high=0.28, steps_per_generation=4, gradient_accumulation_steps=2))
    algorithm = found["algorithm"]
    assert (algorithm["promptsPerStep"], algorithm["promptsPerUpdate"], algorithm["responsesPerPrompt"]) == (32, 16, 8)
    assert algorithm["steps"] == 50, "a generation of TRL makes two updates"
    assert (algorithm["clipLow"], algorithm["clipHigh"]) == (0.2, 0.28)
    assert algorithm["learningRateSchedule"] == "Linear"
    assert algorithm["rolloutCorrection"] == {
        "rolloutIs": "Sequence", "rolloutRs": "Sequence", "rolloutIsThreshold": 3.0, "rolloutRsThreshold": 3.0
    }  # fmt: skip
    assert found["data"]["answerField"] == "solution"
    assert found["reward"]["functions"] == [{"name": "accuracy", "kind": "Maths"}]
    assert found["workers"] == {"replicas": 1, "gpusPerPod": 4}


_ACTOR: Final = "actor_rollout_ref__actor__"


@pytest.mark.parametrize(
    ("changed", "name"),
    [
        ({}, "GRPO"),
        ({"algorithm__adv_estimator": "rloo"}, "RLOO"),
        ({"algorithm__adv_estimator": "reinforce_plus_plus_baseline", f"{_ACTOR}ppo_mini_batch_size": 1024},
         "ReinforcePlusPlus"),
        ({f"{_ACTOR}policy_loss__loss_mode": "gspo", f"{_ACTOR}loss_agg_mode": "seq-mean-token-mean"}, "GSPO"),
        ({"algorithm__norm_adv_by_std_in_grpo": False, f"{_ACTOR}loss_agg_mode": "seq-mean-token-sum-norm"}, "DrGRPO"),
    ],
)  # fmt: skip
def test_objectives_are_distinguished_by_several_keys(changed: dict[str, Any], name: str) -> None:
    found = verl(**changed)
    assert spec(found)["algorithm"]["name"] == name
    assert (f"{_ACTOR}loss_agg_mode".replace("__", ".") in found.left_out) == (name == "RLOO")


def test_a_warm_up_is_counted_in_updates() -> None:
    found = spec(verl(actor_rollout_ref__actor__optim__lr_warmup_steps=10, actor_rollout_ref__actor__ppo_epochs=2))
    assert found["algorithm"]["warmupSteps"] == 10 * 4 * 2


def test_bounds_of_verls_rejection_are_those_of_the_reciprocal_ratio() -> None:
    prefix = "algorithm__rollout_correction__"
    given = {
        f"{prefix}rollout_is": "token",
        f"{prefix}rollout_rs": "seq_mean_k1",
        f"{prefix}rollout_rs_threshold": "0.5_4",
    }
    assert spec(verl(**given))["algorithm"]["rolloutCorrection"] == {
        "rolloutIs": "Token", "rolloutIsThreshold": 2.0, "rolloutRs": "Geometric", "rolloutRsThreshold": 2.0,
        "rolloutRsThresholdLower": 0.25,
    }  # fmt: skip


def test_what_rejects_responses_is_reported_where_bypass_mode_leaves_the_correction_out() -> None:
    prefix = "algorithm.rollout_correction."
    given = {f"{prefix}bypass_mode": True, f"{prefix}rollout_rs": "token_k1,seq_max_k2"}
    found = convert(VERL, VERL_RUN | given, FIXED)
    assert "rolloutCorrection" not in spec(found)["algorithm"]
    assert "nothing is rejected" in found.left_out[f"{prefix}rollout_rs"]


_VERL_GSPO: Final = {f"{_ACTOR}policy_loss__loss_mode": "gspo", f"{_ACTOR}loss_agg_mode": "seq-mean-token-mean"}


def test_gspo_clips_to_the_trainers_own_log_probabilities_without_a_correction() -> None:
    plain, bypassed = verl(**_VERL_GSPO), verl(**_VERL_GSPO, algorithm__rollout_correction__bypass_mode=True)
    of_trl = trl(loss_type="grpo", importance_sampling_level="sequence", vllm_importance_sampling_correction=False)
    for found in (plain, bypassed, of_trl):
        assert spec(found)["algorithm"]["name"] == "GSPO"
        assert "rolloutCorrection" not in spec(found)["algorithm"]
    key = "algorithm.rollout_correction.bypass_mode"
    assert "the trainer's own" in bypassed.left_out[key]
    assert key not in plain.left_out


def test_a_correction_of_gspo_is_kept() -> None:
    found = spec(verl(**_VERL_GSPO, algorithm__rollout_correction__rollout_is="token"))
    assert found["algorithm"]["rolloutCorrection"]["rolloutIs"] == "Token"
    by_sequence = trl(loss_type="grpo", importance_sampling_level="sequence")
    assert spec(by_sequence)["algorithm"]["rolloutCorrection"]["rolloutIs"] == "Sequence"


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
    assert not set(found.left_out) & {key.replace("__", ".") for key in given}


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
    without = convert(VERL, VERL_RUN | sizes, FIXED)
    assert all("set model_engine=megatron" in without.left_out[key] for key in sizes)


def test_a_warm_up_of_zero_steps_is_unset_as_in_verl() -> None:
    optim = "actor_rollout_ref__actor__optim__"
    found = verl(**{f"{optim}lr_warmup_steps": 0, f"{optim}lr_warmup_steps_ratio": 0.2})
    assert spec(found)["algorithm"]["warmupSteps"] == 21 * 4


@pytest.mark.parametrize(
    ("given", "every"),
    [({}, 10), ({"logging_steps": 4}, 4), ({"eval_steps": 30}, 30), ({"eval_steps": 0.1}, 10)],
)
def test_trl_evaluates_at_an_interval_of_updates_or_a_share_of_all_and_samples_as_in_training(
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


def test_reward_functions_that_trl_brings_are_to_be_copied_and_its_penalty_is_a_field() -> None:
    names = ["think_format_reward", "get_soft_overlong_punishment", "mine.answer_format_reward", "accuracy_reward"]
    found = trl(reward_funcs=names, reward_weights=[1.0, 0.5, 2.0, 3.0])
    assert [(one.get("importPath"), one["weight"]) for one in spec(found)["reward"]["functions"]] == [
        ("trl_rewards:think_format_reward", 1.0), ("mine:answer_format_reward", 2.0), (None, 3.0)
    ]  # fmt: skip
    assert any(one.startswith("Copy think_format_reward") for one in found.to_do)
    assert any("overlongBufferTokens" in one for one in found.to_do)
    assert "rewards nothing" in trl(reward_funcs=["get_soft_overlong_punishment"]).prevented["reward_funcs"]


def test_a_directory_has_no_revision() -> None:
    path = {"model_name_or_path": "/data/models/Qwen2.5-1.5B"}
    assert "revision" not in spec(trl(model_revision="main", **path))["model"]
    assert "directory" in trl(model_revision="v2", **path).left_out["model_revision"]
    assert spec(trl(model_revision="v2"))["model"]["revision"] == "v2"


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
    assert any("longshore put CLAIM /mnt/models/Qwen2.5-7B/ models/Qwen2.5-7B" in one for one in found.to_do)


def test_files_of_the_same_name_stay_apart() -> None:
    found = spec(verl(data__train_files=["/mnt/gsm8k/train.parquet", "/mnt/math/train.parquet"]))
    paths = [source["path"] for source in found["data"]["sources"]]
    assert paths == ["data/gsm8k/train.parquet", "data/math/train.parquet"]


def test_what_is_left_out_has_a_reason_and_what_is_the_same_has_none() -> None:
    found = verl(actor_rollout_ref__actor__entropy_coeff=0.001, actor_rollout_ref__rollout__top_p=1.0)
    assert "no entropy bonus" in found.left_out["actor_rollout_ref.actor.entropy_coeff"]
    assert "actor_rollout_ref.rollout.top_p" in found.same
    assert any("clip_ratio_c = 3.0 (by default)" in key for key in found.left_out), "a default that differs is reported"
    off = verl(actor_rollout_ref__rollout__top_p=0.9)
    assert "importance ratios would be wrong" in off.left_out["actor_rollout_ref.rollout.top_p"]


def test_arguments_of_vllm_that_a_job_cannot_give_it_are_left_out_with_the_reason() -> None:
    given = {"max_num_batched_tokens": 8192, "pipeline_parallel_size": 2}
    found = verl(**{f"actor_rollout_ref__rollout__engine_kwargs__vllm__{name}": value for name, value in given.items()})
    assert spec(found)["rollout"]["engine"]["extraArgs"] == {"max_num_batched_tokens": 8192}
    reason = found.left_out["actor_rollout_ref.rollout.engine_kwargs.vllm.pipeline_parallel_size"]
    assert reason.startswith("pipeline_parallel_size would give an engine other GPUs")


VLLM: Final = "actor_rollout_ref.rollout.engine_kwargs.vllm"
_CONFIG: Final = "actor_rollout_ref.model.override_config"


def converted(*typed: str) -> Conversion:
    """A run of verl with settings as they are typed."""
    return convert(VERL, VERL_RUN | sources.read(typed).given, FIXED)


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


def test_the_kind_of_attention_changes_no_model() -> None:
    key = f"{_CONFIG}.attn_implementation"
    assert converted(f"+{key}=eager").left_out[key] == "the trainer chooses automatically"
    assert _CONFIG in converted(f"{_CONFIG}={{}}").same


def test_a_misspelt_key_is_reported_with_what_it_may_mean() -> None:
    found = verl(actor_rollout_ref__actor__clip_ratio_hgh=0.28, foo=1)
    assert found.unknown == {
        "actor_rollout_ref.actor.clip_ratio_hgh": "did you mean actor_rollout_ref.actor.clip_ratio_high?", "foo": ""
    }  # fmt: skip


@pytest.mark.parametrize(
    ("found", "key", "message"),
    [
        (verl(algorithm__adv_estimator="gae"), "algorithm.adv_estimator", "it needs a critic"),
        (verl(actor_rollout_ref__rollout__n=1), "actor_rollout_ref.rollout.n", "greater than or equal to 2, not 1"),
        (verl(actor_rollout_ref__rollout__tensor_model_parallel_size=3),
         "actor_rollout_ref.rollout.tensor_model_parallel_size", "must divide workers.gpusPerPod"),
        (verl(actor_rollout_ref__actor__optim__lr="fast"), "actor_rollout_ref.actor.optim.lr", "valid number"),
        (verl(data__train_files=None), "data.train_files", "a job needs data"),
        (verl(actor_rollout_ref__rollout__multi_turn__enable=True), "actor_rollout_ref.rollout.multi_turn.enable",
         "one turn"),
        (verl(reward_model__enable=True), "reward_model.enable", "a judge"),
        (trl(reward_model_name_or_path="a/b"), "reward_model_name_or_path", "a judge"),
        (trl(loss_type="cispo"), "loss_type", "choose one of dapo"),
        (trl(num_processes=None), "num_processes", "per process"),
        (trl(per_device_train_batch_size=3), "gradient_accumulation_steps", "no whole groups of 8"),
        (trl(max_completion_length=0), "max_completion_length", "responses need a limit"),
    ],
)  # fmt: skip
def test_the_key_that_prevents_a_job_is_named(found: Conversion, key: str, message: str) -> None:
    assert found.job is None
    assert message in found.prevented[key]


_VALUES: Final = st.one_of(
    st.none(), st.booleans(), st.integers(-2, 2000), st.floats(-1, 4, allow_nan=False),
    st.sampled_from(["grpo", "gspo", "vllm", "cosine", "sequence", "token", "dapo", "a/b", "/x/y.parquet", "", "zzz"]),
    st.lists(st.sampled_from(["a.parquet", "b.jsonl", 1, 0.5]), max_size=3),
)  # fmt: skip


def _keys(system: System) -> list[str]:
    known = [key.replace("*", "any") for key in system.known_keys()]
    return [*known, "unknown", "actor_rollout_ref.actor.unknown"]


@pytest.mark.parametrize("system", SYSTEMS.values(), ids=SYSTEMS)
@settings(max_examples=examples(60), deadline=None)
@given(data=st.data())
def test_every_key_is_accounted_for_and_a_job_is_valid_or_its_obstacle_named(
    system: System, data: st.DataObject
) -> None:
    changed = data.draw(st.dictionaries(st.sampled_from(_keys(system)), _VALUES, max_size=12))
    given_keys = RUNS[system.name] | changed
    found = convert(system, given_keys, FIXED)
    message = [*found.converted, *found.same, *found.left_out, *found.unknown]
    if found.job is None:
        fields = {path for one in system.entries for path in one.fields}
        known = {key for one in system.entries for key in one.keys}
        assert found.prevented
        assert all(key in known or key in fields or key.startswith("spec.") for key in found.prevented)
    else:
        RLJob.model_validate_json(json.dumps(found.job), strict=True)
        assert set(given_keys) <= set(message)
    assert not set(found.converted) & set(found.unknown)


@pytest.mark.parametrize("system", SYSTEMS.values(), ids=SYSTEMS)
def test_tables_name_fields_that_exist(system: System) -> None:
    paths = [*(path for one in system.entries for path in one.fields), *system.always]
    assert [path for path in paths if not _exists(path)] == []


def _exists(path: str) -> bool:
    schema = _SCHEMA
    for name in path.split("."):
        schema = schema.get("properties", {}).get(name)
        if schema is None:
            return False
    return True


def test_the_system_and_the_name_follow_from_the_keys() -> None:
    assert system_of(VERL_RUN) is VERL
    assert system_of(TRL_RUN) is TRL
    other = {
        "grpo.num_prompts_per_step": 32,
        "policy.model_name": "a/b",
        "cluster.num_nodes": 4,
        "grpo.max_num_steps": 9,
    }
    with pytest.raises(
        BadInput, match=r"neither verl's nor TRL's: verl does not know grpo\.num_prompts_per_step, policy"
    ):
        system_of(other | {"data.shuffle": True})
    assert system_of(other, "verl") is VERL
    assert job_name({"trainer.experiment_name": "Qwen2_7b@function/RM_"}) == "rm"
    assert job_name({"output_dir": "out/7B-run"}) == "b-run"
    assert job_name({}) == "converted"


def test_the_manifest_goes_to_standard_output_and_everything_else_to_standard_error(tmp_path: Path) -> None:
    file = tmp_path / "verl.yaml"
    file.write_text(yaml.safe_dump(VERL_RUN))
    done = CliRunner().invoke(app, ["convert", str(file), "trainer.logger=[wandb]", "--config-name=mine"])
    assert done.exit_code == 0, done.output
    manifest = yaml.safe_load(done.stdout)
    RLJob.model_validate(manifest)
    assert list(manifest) == ["apiVersion", "kind", "metadata", "spec"]
    assert list(manifest["spec"])[:3] == ["model", "data", "algorithm"], "sections are in the order of the reference"
    assert "trainer.logger = ['wandb']: metrics go to TensorBoard files" in done.stderr
    assert "--config-name = mine: files that are composed are not read" in done.stderr
    refused = CliRunner().invoke(app, ["convert", str(file), "algorithm.adv_estimator=gae"])
    assert (refused.exit_code, refused.stdout) == (1, "")
    assert "algorithm.adv_estimator: gae: it needs a critic" in refused.stderr


def test_the_whole_configuration_of_verl_is_only_what_its_pages_say(tmp_path: Path) -> None:
    """Keys of the parts that Longshore does not have are known by their sections."""
    sections = ("critic.optim.lr", "actor_rollout_ref.actor.profiler.enable", "distillation.enabled", "ray_kwargs.x")
    found = convert(VERL, VERL_RUN | dict.fromkeys(sections, 1), FIXED)
    assert set(sections) <= set(found.left_out)
    assert not found.unknown


def test_the_report_says_first_what_changes_the_result_and_is_short_about_all_else() -> None:
    others = {f"critic.optim.x{number}": number for number in range(1, 21)}
    section = "actor_rollout_ref.rollout.multi_turn"
    off = {f"{section}.enable": False, f"{section}.max_user_turns": 3, f"{section}.format": "hermes"}
    changes = {"actor_rollout_ref.rollout.top_p": 0.9, "actor_rollout_ref.rollout.top_k": 5}
    given_keys = VERL_RUN | others | {"trainer.val_only": True} | off | changes
    lines = list(report.lines(convert(VERL, given_keys, FIXED), VERL, given_keys, ()))
    first, beside = (next(n for n, line in enumerate(lines) if text in line) for text in ("may change", "no part in"))
    assert first == 1
    whole = "tokens are sampled from the whole distribution, or importance ratios would be wrong."
    for key, value in changes.items():
        assert f"  {key} = {value}: {whole}" in lines[first:beside]
    assert "  trainer.val_only = True: a job trains." in lines[first:beside]
    shown = "critic.optim.x1 = 1, critic.optim.x2 = 2, critic.optim.x3 = 3 and 17 more"
    assert lines[beside + 1 : beside + 3] == [f"  {shown}: there is no critic.", f"  switched off: {section} (2 keys)."]


def test_what_is_switched_on_is_reported_in_full() -> None:
    given_keys = VERL_RUN | {"distillation.enabled": True, "distillation.topk": 32}
    text = "\n".join(report.lines(convert(VERL, given_keys, FIXED), VERL, given_keys, ()))
    assert "  distillation.enabled = True: there is no teacher." in text
    assert "switched off" not in text
