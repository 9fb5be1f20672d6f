"""Choose the types in which engines and trainers compute, by a measurement in one pod of each kind."""

from collections.abc import Mapping, Sequence
from typing import Final

import ray
import structlog

from longshore.api.rollout import EngineBackend
from longshore.api.runtime_status import DataTypes
from longshore.api.spec import RLJobSpec
from longshore.api.training import TrainerBackend
from longshore.checks.memory import ModelSize
from longshore.policy.data_types import SMALLEST_RACED_SIZE, chosen_data_types
from longshore.policy.log_prob_mismatch import mismatch_limit
from longshore_runtime.cluster.actors import Check, checked_get
from longshore_runtime.cluster.placement import placement, set_environment
from longshore_runtime.places import Place

log = structlog.get_logger()

_LIMIT_S: Final = 24 * 3600.0
"""Seconds to wait for the pods, which may wait for nodes."""


@ray.remote(num_cpus=0)
def _speedup(environment: Mapping[str, str], hidden_size: int, intermediate_size: int) -> float:
    set_environment(environment)
    from longshore_runtime.backends.precision import bfloat16_speedup

    return bfloat16_speedup(hidden_size, intermediate_size)


def with_data_types(
    spec: RLJobSpec, model: ModelSize | None, places: Sequence[Place], check: Check
) -> tuple[RLJobSpec, DataTypes | None]:
    """Return the job with types for what it leaves open, and what is reported; None where nothing has a model.

    Args:
        spec: the job.
        model: its sizes, if its configuration has them.
        places: a pod of each kind that computes on the CPU. Where they differ, the slowest one decides.
        check: function that may end the wait for them.
    """
    engine = spec.rollout.engine
    if engine.backend is EngineBackend.FAKE or spec.trainer.backend is TrainerBackend.FAKE:
        return spec, None
    measured: list[float] = []

    def race() -> float:
        if model is None or model.hidden_size < SMALLEST_RACED_SIZE:
            return 1.0
        pods = [placement(place.worker, component=place.component) for place in places]
        calls = [pod.remote(_speedup, model.hidden_size, model.intermediate_size) for pod in pods]
        measured.append(min(checked_get(calls, _LIMIT_S, check)))
        return measured[0]

    engines, trainers = chosen_data_types(
        engine.dtype,
        spec.trainer.dtype,
        race,
        engines_have_accelerators=spec.workers.has_accelerator,
        trainers_have_accelerators=spec.training_pods.has_accelerator,
    )
    rollout = spec.rollout.model_copy(update={"engine": engine.model_copy(update={"dtype": engines})})
    chosen = spec.model_copy(update={"rollout": rollout}).with_trainer(dtype=trainers)
    speedup = round(measured[0], 2) if measured else None
    log.info("data types", engines=engines.value, trainers=trainers.value, bfloat16_speedup=speedup)
    limit = mismatch_limit(
        rollout,
        trainers,
        engines_have_accelerators=spec.workers.has_accelerator,
        trainers_have_accelerators=spec.training_pods.has_accelerator,
    )
    return chosen, DataTypes(engines=engines, trainers=trainers, speedup=speedup, max_log_prob_mismatch=limit)
