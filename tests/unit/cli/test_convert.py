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
from longshore_cli.convert import report
from longshore_cli.convert.conversion import Conversion, convert
from longshore_cli.convert.mapping import System
from longshore_cli.convert.systems import SYSTEMS, job_name, system_of
from longshore_cli.convert.trl import TRL
from longshore_cli.convert.verl import VERL
from longshore_cli.main import app
from longshore_cli.simulate.errors import BadInput
from tests.properties import examples
from tests.unit.cli.conversions import FIXED, RUNS, TRL_RUN, VERL_RUN, spec, trl, verl

_SCHEMA: Final[dict[str, Any]] = rljob_crd()["spec"]["versions"][0]["schema"]["openAPIV3Schema"]


def test_what_is_left_out_has_a_reason_and_what_is_the_same_has_none() -> None:
    found = verl(algorithm__use_kl_in_reward=True, actor_rollout_ref__rollout__top_p=1.0)
    assert "part of the loss" in found.left_out["algorithm.use_kl_in_reward"]
    assert "actor_rollout_ref.rollout.top_p" in found.same
    off = verl(actor_rollout_ref__rollout__top_p=0.9)
    assert "importance ratios would be wrong" in off.left_out["actor_rollout_ref.rollout.top_p"]


def test_cispo_keeps_its_bounds() -> None:
    """Weights of verl lie between 1 - clip_ratio_low and 1 + clip_ratio_high, and those of TRL below epsilon_high."""
    loss = {f"actor_rollout_ref__actor__{key}": value for key, value in (
        ("policy_loss__loss_mode", "cispo"), ("clip_ratio_low", 0.5), ("clip_ratio_high", 4.0))}  # fmt: skip
    expected = {"name": "CISPO", "clipLow": 0.5, "clipHigh": 4.0}
    for found, objective in (
        (verl(**loss), expected),
        (trl(loss_type="cispo", epsilon_high=5.0), {"name": "CISPO", "advantageEpsilon": 1e-4, "clipHigh": 4.0}),
    ):
        assert found.job is not None and found.job["spec"]["algorithm"]["objective"] == objective


def test_a_misspelt_key_is_reported_with_what_it_may_mean() -> None:
    found = verl(actor_rollout_ref__actor__clip_ratio_hgh=0.28, foo=1, actor_rollout_ref__rollout__skip_all=1)
    assert found.unknown == {
        "actor_rollout_ref.actor.clip_ratio_hgh": "did you mean actor_rollout_ref.actor.clip_ratio_high?", "foo": "",
        "actor_rollout_ref.rollout.skip_all": "",
    }  # fmt: skip
    moved = verl(actor_rollout_ref__actor__loss_mode="kl_cov").unknown
    assert moved == {"actor_rollout_ref.actor.loss_mode": "did you mean actor_rollout_ref.actor.policy_loss.loss_mode?"}
    section = verl(actor_rollout_ref__actr__clip_ratio_high=0.28).unknown
    assert section == {
        "actor_rollout_ref.actr.clip_ratio_high": "did you mean actor_rollout_ref.actor.clip_ratio_high?"
    }


TEACHERS: Final = "distillation.teacher_models"
TAUGHT: Final = {"distillation.enabled": True, f"{TEACHERS}.teacher_model.model_path": "Qwen/Qwen2.5-7B-Instruct"}


@pytest.mark.parametrize(
    ("loss", "settings"),
    [
        ({"loss_mode": "forward_kl_topk", "topk": 32, "use_task_rewards": False}, {"topTokens": 32}),
        ({"loss_mode": "k3", "distillation_loss_coef": 4.0}, {"rewardWeight": 0.25}),
        ({"loss_mode": "k1", "use_policy_gradient": True, "use_task_rewards": False, "clip_ratio_high": 0.3},
         {"topTokens": 0, "clipHigh": 0.3}),
    ],
)  # fmt: skip
def test_distillation_of_a_teacher_keeps_its_loss(loss: dict[str, Any], settings: dict[str, Any]) -> None:
    found = verl(**TAUGHT, **{f"distillation.distillation_loss.{key}": value for key, value in loss.items()})
    expected = {"name": "Distillation", "teacher": {"hub": "Qwen/Qwen2.5-7B-Instruct"}, **settings}
    objective = spec(found)["algorithm"]["objective"]
    assert {key: objective[key] for key in expected} == expected
    assert objective.get("rewardWeight", 0) == settings.get("rewardWeight", 0)


@pytest.mark.parametrize(
    ("found", "key", "message"),
    [
        (verl(algorithm__adv_estimator="gae", actor_rollout_ref__actor__policy_loss__loss_mode="gspo"),
         "actor_rollout_ref.actor.policy_loss.loss_mode", "gspo has no critic"),
        (verl(actor_rollout_ref__rollout__n=1), "actor_rollout_ref.rollout.n", "a single response is its own mean"),
        (verl(actor_rollout_ref__rollout__tensor_model_parallel_size=3),
         "actor_rollout_ref.rollout.tensor_model_parallel_size", "must divide gpusPerPod"),
        (verl(actor_rollout_ref__actor__optim__lr="fast"), "actor_rollout_ref.actor.optim.lr", "valid number"),
        (verl(data__train_files=None), "data.train_files", "a job needs data"),
        (verl(actor_rollout_ref__rollout__multi_turn__enable=True), "actor_rollout_ref.rollout.multi_turn.enable",
         "no functions are named"),
        (verl(reward_model__enable=True), "reward_model.enable", "a judge"),
        (trl(reward_model_name_or_path="a/b"), "reward_model_name_or_path", "a judge"),
        (trl(loss_type="cispo", importance_sampling_level="sequence"), "importance_sampling_level", "of tokens"),
        (trl(loss_type="cispo"), "epsilon_high", "weights of at most 0.2"),
        (verl(algorithm__adv_estimator="remax"), "algorithm.adv_estimator", "greedy response"),
        (verl(actor_rollout_ref__actor__loss_agg_mode="token-sum"), "actor_rollout_ref.actor.loss_agg_mode",
         "choose one of token-mean"),
        (trl(loss_type="zzz"), "loss_type", "choose one of dapo"),
        (verl(distillation__enabled=True), f"{TEACHERS}.teacher_model.model_path", "needs a teacher"),
        (verl(**TAUGHT, **{f"{TEACHERS}.other.model_path": "a/b"}), f"{TEACHERS}.teacher_model.model_path",
         "a job has one teacher"),
        (verl(**TAUGHT, distillation__distillation_loss__loss_mode="k2"), "distillation.distillation_loss.loss_mode",
         "k2 with use_policy_gradient=false: choose forward_kl_topk"),
        (verl(**TAUGHT, algorithm__adv_estimator="gae"), "algorithm.adv_estimator", "beside a teacher"),
        (verl(**TAUGHT, actor_rollout_ref__actor__use_kl_loss=True), "actor_rollout_ref.actor.use_kl_loss",
         "whose only reference is the teacher"),
        (verl(trainer__val_only=True), "trainer.val_only", "a job trains"),
        (verl(data__tool_config_path="tools.yaml"), "data.tool_config_path", "classes of tools are not run"),
        (verl(data__train_files=["a.parquet", "/d/b.pkl"]), "data.train_files", "/d/b.pkl: files .pkl are not read"),
        (trl(dataset_name="rows.csv"), "dataset_name", "files .csv are not read"),
        (verl(actor_rollout_ref__model__path="Qwen/Qwen2.5-VL-7B-Instruct"), "actor_rollout_ref.model.path", "vision"),
        (trl(model_name_or_path="/models/llava-1.5"), "model_name_or_path", "vision"),
        (verl(actor_rollout_ref__actor__megatron__tensor_model_parallel_size=8, data__seed=1,
              actor_rollout_ref__actor__megatron__pipeline_model_parallel_size=4),
         "actor_rollout_ref.actor.megatron.tensor_model_parallel_size", "must divide gpusPerPod"),
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
    assert job_name({"output_dir": "out/7B-run"}) == "run-7b-run"
    assert job_name({"trainer.experiment_name": "1.5b-16k-grpo"}) == "run-1-5b-16k-grpo"
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
    refused = CliRunner().invoke(app, ["convert", str(file), "algorithm.adv_estimator=remax"])
    assert (refused.exit_code, refused.stdout) == (1, "")
    assert "algorithm.adv_estimator: remax: its baseline is a greedy" in refused.stderr


def test_the_whole_configuration_of_verl_is_only_what_its_pages_say(tmp_path: Path) -> None:
    """Keys of the parts that Longshore does not have are known by their sections."""
    sections = ("critic.optim.lr", "actor_rollout_ref.actor.profiler.enable", "distillation.topk", "ray_kwargs.x")
    found = convert(VERL, VERL_RUN | dict.fromkeys(sections, 1), FIXED)
    assert set(sections) <= set(found.left_out)
    assert not found.unknown


def test_values_that_a_job_only_lacks_are_asked_for() -> None:
    given_keys = {**TRL_RUN, "dataset_name": None, "loss_type": "zzz"}
    lines = list(report.lines(convert(TRL, given_keys, FIXED), TRL, given_keys, ()))
    needed, impossible = (
        lines.index(text) for text in ("Needed for a job (add it as key=value):", "No RLJob can do this:")
    )
    assert lines[needed + 1].startswith("  dataset_name: it is unset")
    assert lines[impossible + 1].startswith("  loss_type: zzz")
