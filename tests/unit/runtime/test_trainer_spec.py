"""What a trainer gets of its job."""

from dataclasses import fields

import pytest

from longshore.api.algorithm import Algorithm, LearningRateSchedule
from longshore.api.correction import RolloutCorrection
from longshore.api.objectives.dapo import Dapo
from longshore.api.training import Recompute, TrainerBackend, TrainerSettings
from longshore.policy.learning_rate import ScheduleOptions
from longshore_runtime.backends.parallel_sizes import ParallelSizes
from longshore_runtime.backends.trainer_protocol import TrainerOptions
from longshore_runtime.backends.trainer_spec import TrainerSpec

ALGORITHM = Algorithm(
    objective=Dapo(clip_low=0.5, clip_high=0.6),
    steps=9,
    prompts_per_step=4,
    responses_per_prompt=2,
    prompts_per_update=2,
    epochs_per_step=3,
    learning_rate=0.1,
    learning_rate_schedule=LearningRateSchedule.COSINE,
    warmup_steps=2,
    min_learning_rate_ratio=0.2,
    adam_beta1=0.5,
    adam_beta2=0.6,
    adam_epsilon=0.7,
    weight_decay=0.3,
    max_grad_norm=4.0,
    max_response_tokens=8,
    kl_coefficient=0.9,
    temperature=1.1,
    seed=12,
)
NUM_UPDATES = 54


def test_every_option_is_that_of_the_job() -> None:
    trainer = TrainerSettings(
        max_tokens_per_micro_batch=13,
        recompute=Recompute.FULL,
        router_replay=True,
        offload_gradients=True,
        offload_reference=True,
    )
    needs = {Recompute.FULL: 3.0}
    spec = TrainerSpec.of(ALGORITHM, trainer, NUM_UPDATES, is_colocated=True, recompute_needs=needs)
    options, not_settings = spec.options, {"num_updates", "offload_moments", "recompute_needs", "learning_rate_field"}
    assert (options.num_updates, options.recompute_needs) == (NUM_UPDATES, needs)
    for name in {field.name for field in fields(TrainerOptions)} - not_settings:
        expected = ALGORITHM if hasattr(ALGORITHM, name) else trainer
        assert getattr(options, name) == getattr(expected, name), name


def test_the_learning_rate_falls_over_all_updates() -> None:
    schedule = TrainerSpec.of(ALGORITHM, TrainerSettings(), NUM_UPDATES, is_colocated=True).options.schedule
    assert schedule == ScheduleOptions(0.1, LearningRateSchedule.COSINE, 2, num_steps=NUM_UPDATES, min_ratio=0.2)


@pytest.mark.parametrize(
    ("groups_per_update", "is_colocated", "expected"), [(None, True, True), (2, True, False), (None, False, False)]
)
def test_moments_wait_on_the_host_where_they_do_between_two_steps(
    groups_per_update: int | None, is_colocated: bool, expected: bool
) -> None:
    algorithm = ALGORITHM.model_copy(update={"prompts_per_update": groups_per_update, "epochs_per_step": 1})
    spec = TrainerSpec.of(algorithm, TrainerSettings(), NUM_UPDATES, is_colocated=is_colocated)
    assert spec.options.offload_moments is expected


def test_the_correction_is_that_of_the_job() -> None:
    correction = RolloutCorrection(rollout_is_threshold=7)
    algorithm = ALGORITHM.model_copy(update={"rollout_correction": correction})
    spec = TrainerSpec.of(algorithm, TrainerSettings(), NUM_UPDATES, is_colocated=True)
    assert spec.options.rollout_correction == correction


def test_every_size_is_that_of_the_job() -> None:
    split = TrainerSettings(
        backend=TrainerBackend.MEGATRON, tensor_parallel_size=2, pipeline_parallel_size=3, context_parallel_size=4
    )
    spec = TrainerSpec.of(ALGORITHM, split, NUM_UPDATES, is_colocated=True)
    assert (spec.backend, spec.sizes) == (TrainerBackend.MEGATRON, ParallelSizes(tensor=2, pipeline=3, context=4))
    assert spec.sizes.ranks_per_replica == split.ranks_per_replica
    sharded = TrainerSpec.of(ALGORITHM, TrainerSettings(fsdp_size=2), NUM_UPDATES, is_colocated=True)
    assert (sharded.backend, sharded.sizes) == (TrainerBackend.TORCH, ParallelSizes(fsdp=2))


def test_ranks_that_hold_shards_save_together() -> None:
    spread = (TrainerSettings(backend=TrainerBackend.MEGATRON), TrainerSettings(fsdp_size=2))
    assert all(TrainerSpec.of(ALGORITHM, trainer, NUM_UPDATES, is_colocated=True).saves_together for trainer in spread)
    assert not TrainerSpec.of(ALGORITHM, TrainerSettings(), NUM_UPDATES, is_colocated=True).saves_together


def test_trainers_compute_at_the_temperature_at_which_vllm_samples() -> None:
    """It raises lower ones to this."""
    for asked, used in ((0.001, 0.01), (0.01, 0.01), (0.6, 0.6)):
        algorithm = ALGORITHM.model_copy(update={"temperature": asked})
        spec = TrainerSpec.of(algorithm, TrainerSettings(), 1, is_colocated=False)
        assert spec.options.temperature == used
