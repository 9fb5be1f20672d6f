"""From a manifest to a job to simulate."""

from dataclasses import replace
from typing import Any

import pytest

from longshore.api.algorithm import Algorithm
from longshore.api.model import BuiltinTask, Data, Model
from longshore.api.objectives.gspo import Gspo
from longshore.api.pods import ElasticWorkers, Storage, Workers
from longshore.api.rollout import (
    EngineSettings,
    Handover,
    Parallelism,
    Rollout,
    Strategy,
)
from longshore.api.spec import Placement, RLJobSpec
from longshore.api.training import TrainerSettings
from longshore.sim.hardware import GPUS, MODELS, ModelShape, model_named
from longshore.sim.job import GpuPool, SimJob, TrainerLayout, Training, job_of
from longshore.sim.profile import Profile
from longshore.sim.simulate import simulate
from tests.unit.sim.jobs import LENGTHS, job, rollout


def test_a_manifest_becomes_a_job_of_the_same_shape() -> None:
    spec = RLJobSpec(
        model=Model(path="models/qwen", max_context_tokens=8192),
        data=Data(builtin=BuiltinTask.COUNTING),
        algorithm=Algorithm(steps=10, prompts_per_step=4, responses_per_prompt=2, max_response_tokens=4096),
        rollout=Rollout(strategy=Strategy.TAIL_BATCHING),
        trainer=TrainerSettings(data_parallel_size=2),
        workers=ElasticWorkers(replicas=2, gpus_per_pod=4),
        storage=Storage(claim_name="data"),
    )
    job = job_of(spec, MODELS["Qwen3-8B"], GPUS["H100"], LENGTHS)
    assert job.gpus.pods() == ((0, 1, 2, 3), (4, 5, 6, 7))
    assert job.trainer.gpus_per_replica == 4
    assert job.groups_per_update == 4
    assert simulate(job, 1).steps[0].num_trained_samples == 8


@pytest.mark.parametrize(
    ("algorithm", "extra", "computes"),
    [
        ({}, 0, False),
        ({"kl_coefficient": 0.1}, 1, False),
        ({"rollout_correction": {}}, 0, False),
        ({"prompts_per_update": 8}, 0, False),
        ({"rollout_correction": {}, "prompts_per_update": 8}, 0, True),
        ({"rollout_correction": {}, "epochs_per_step": 2}, 0, True),
        ({"objective": Gspo()}, 0, False),
        ({"objective": Gspo(), "prompts_per_update": 8}, 0, True),
    ],
)
def test_a_pass_for_log_probs_is_charged_where_the_job_makes_one(
    algorithm: dict[str, Any], extra: int, computes: bool
) -> None:
    given = elastic(algorithm_changes=algorithm, rollout=Rollout(strategy=Strategy.SYNCHRONOUS))
    assert (given.trainer.num_extra_forwards, given.trainer.num_epochs) == (extra, algorithm.get("epochs_per_step", 1))
    assert passes_for_old_log_probs(given, 1) == [computes]


def test_only_a_long_round_of_several_updates_makes_a_pass_for_old_log_probs() -> None:
    given = elastic(algorithm_changes={"objective": Gspo()}, rollout=Rollout(strategy=Strategy.TAIL_BATCHING))
    assert passes_for_old_log_probs(given, 5) == [False] * 4 + [True]


def passes_for_old_log_probs(job: SimJob, num_steps: int) -> list[bool]:
    """Whether each step trains longer than that of a job whose ratios are relative to the engine."""
    others = replace(job, trainer=replace(job.trainer, compares_with_trainer=False))
    pairs = zip(simulate(job, num_steps).steps, simulate(others, num_steps).steps, strict=True)
    return [one.train_s > 1.01 * other.train_s for one, other in pairs]


def elastic(algorithm_changes: dict[str, Any] | None = None, profile: Profile | None = None, **changes: Any) -> SimJob:
    """Four pods of two GPUs."""
    spec = RLJobSpec(
        model=Model(path="models/qwen", max_context_tokens=8192),
        data=Data(builtin=BuiltinTask.COUNTING),
        algorithm=Algorithm.model_validate(
            {"steps": 10, "prompts_per_step": 16, "responses_per_prompt": 4, "max_response_tokens": 4096}
            | (algorithm_changes or {})
        ),
        workers=ElasticWorkers(replicas=4, gpus_per_pod=2),
        storage=Storage(claim_name="data"),
        **changes,
    )
    return job_of(spec, MODELS["Qwen3-8B"], GPUS["H100"], LENGTHS, profile)


def test_a_job_that_repurposes_pods_is_simulated_so() -> None:
    job = elastic(rollout=Rollout(handover=Handover.STREAMED, engine=EngineSettings(parallelism=Parallelism.ADAPTIVE)))
    assert (job.trainer.training, job.trainer.scale_down_at) == (Training.STREAMED, None)
    assert job.plans_parallelism
    steps = simulate(job, 5).steps
    assert any("GPUs to training at" in reason for step in steps for reason in step.scale_downs)


def test_trainers_in_pods_of_their_own_have_gpus_of_their_own() -> None:
    apart: dict[str, Any] = {"placement": Placement.DISAGGREGATED, "trainer_workers": Workers(gpus_per_pod=2)}
    pipeline = elastic(rollout=Rollout(strategy=Strategy.GROUP_PIPELINE), **apart)
    assert (pipeline.trainer.training, pipeline.num_gpus) == (Training.PIPELINED, 10)
    assert elastic(**apart).trainer.training is Training.AFTER_ROUND
    assert simulate(pipeline, 2).steps[0].num_trained_samples == 64


def test_trainers_with_gpus_of_their_own_cost_what_was_measured() -> None:
    profile = Profile(train_tokens_per_s=5.0, optimizer_s=77.0)
    apart: dict[str, Any] = {"placement": Placement.DISAGGREGATED, "trainer_workers": Workers(gpus_per_pod=2)}
    costs = elastic(profile=profile, **apart).trainer_costs
    assert (costs.train_s(100, 2, 0), costs.optimizer_s(1, 2)) == (10.0, 77.0)


@pytest.mark.parametrize(
    ("model", "gpus_per_pod", "sizes"),
    [
        (MODELS["Qwen2.5-7B"], 8, (1, 2, 4)),  # of 28 heads
        (MODELS["Qwen2.5-14B"], 8, (1, 2, 4, 8)),
        (MODELS["Qwen2.5-32B"], 16, (1, 2, 4, 8)),  # of 40 heads
        (MODELS["Qwen3-1.7B"], 16, (1, 2, 4, 8, 16)),
        (MODELS["Qwen2.5-7B"], 6, (1, 2)),
        (model_named("7B"), 8, (1, 2, 4, 8)),  # heads unknown
    ],
)
def test_engines_have_sizes_that_divide_the_heads_of_the_model(
    model: ModelShape, gpus_per_pod: int, sizes: tuple[int, ...]
) -> None:
    pool = GpuPool(GPUS["H100"], gpus_per_pod, gpus_per_pod)
    assert replace(job(pool=pool, trainer=TrainerLayout()), model=model).possible_tp_sizes == sizes


def test_a_size_that_the_model_cannot_have_is_refused_with_those_that_it_can() -> None:
    chosen = rollout(Strategy.SYNCHRONOUS).model_copy(update={"engine": EngineSettings(tensor_parallel_size=8)})
    with pytest.raises(ValueError, match=r"tensorParallelSize: .* of 8 GPUs .* Qwen2.5-7B \(28\); set 1, 2 or 4$"):
        job(chosen=chosen, pool=GpuPool(GPUS["H100"], 8, 8))
