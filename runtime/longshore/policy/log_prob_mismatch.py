"""How far engines and trainers may disagree about the log-probabilities of the same tokens under the same weights.

Rounding makes them differ a little. A large difference means that the engines sampled with other weights than those
that are trained, or another distribution: a stale layer, a cache, a sampling option. A ratio or a gradient that is
computed from such tokens is wrong, and nothing else shows it.
"""

import math
from typing import Final

from longshore.api.rollout import EngineBackend, Rollout
from longshore.api.training import TrainerDtype
from longshore.policy.data_types import trainer_dtype

FLOAT32_LIMIT: Final = 1e-3
"""Limit where everything computes in float32: rounding gives about 1e-6, a stale output layer more than 1."""
SIXTEEN_BIT_LIMIT: Final = 0.1
"""Limit where bfloat16, float16 or FP8 computes: dense models show 0.005 to 0.03 in 16 bits, and NeMo RL's guide to new
models calls a mean of exp(|difference|) above 1.05 a fault; twice that leaves room for long responses and experts."""


def mismatch_limit(
    rollout: Rollout,
    dtype: TrainerDtype | None,
    *,
    engines_have_accelerators: bool,
    trainers_have_accelerators: bool,
) -> float:
    """Return the limit of the mean mismatch; infinite for engines without a model, which make log-probabilities up."""
    if rollout.max_log_prob_mismatch is not None:
        return rollout.max_log_prob_mismatch
    if rollout.engine.backend is EngineBackend.FAKE:
        return math.inf
    if rollout.engine.quantization is not None:
        return SIXTEEN_BIT_LIMIT
    return default_limit(
        engine_dtype=rollout.engine.dtype,
        engines_have_accelerators=engines_have_accelerators,
        dtype=trainer_dtype(dtype, has_accelerators=trainers_have_accelerators),
    )


def default_limit(*, engine_dtype: str, engines_have_accelerators: bool, dtype: TrainerDtype) -> float:
    """Return the limit of a job that sets none.

    Args:
        engine_dtype: as in `rollout.engine.dtype`.
        engines_have_accelerators: see `engines_are_exact`.
        dtype: type in which trainers compute.
    """
    is_exact = engines_are_exact(engine_dtype, have_accelerators=engines_have_accelerators)
    return FLOAT32_LIMIT if is_exact and dtype is TrainerDtype.FLOAT32 else SIXTEEN_BIT_LIMIT


def engines_are_exact(engine_dtype: str, *, have_accelerators: bool) -> bool:
    """Return whether engines compute in float32, with the weights of the trainers as they are.

    With `auto` they do on the CPU. On accelerators they take the type of the checkpoint, which is a 16-bit one as a
    rule.
    """
    return engine_dtype == "float32" or (engine_dtype == "auto" and not have_accelerators)


def exceeds(mean: float, limit: float) -> bool:
    """Return whether the mean difference is past the limit; one that is not a number is."""
    return not mean <= limit
