"""Runs of verl and TRL that `longshore convert` makes jobs of, for its tests."""

from typing import Any, Final

from longshore_cli.convert import sources
from longshore_cli.convert.conversion import Conversion, convert
from longshore_cli.convert.trl import TRL
from longshore_cli.convert.verl import VERL

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


VLLM: Final = "actor_rollout_ref.rollout.engine_kwargs.vllm"
ACTOR: Final = "actor_rollout_ref__actor__"
VERL_GSPO: Final = {f"{ACTOR}policy_loss__loss_mode": "gspo", f"{ACTOR}loss_agg_mode": "seq-mean-token-mean"}


def converted(*typed: str) -> Conversion:
    """A run of verl with settings as they are typed."""
    return convert(VERL, VERL_RUN | sources.read(typed).given, FIXED)
