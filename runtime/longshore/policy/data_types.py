"""Types in which engines and trainers compute, where the job leaves them open. One decision for the whole job.

Where both are on the CPU, they compute in the same type: otherwise their log-probabilities differ by rounding alone.
"""

from collections.abc import Callable
from typing import Final

from longshore.api.rollout import EngineDtype
from longshore.api.training import TrainerDtype

SMALLEST_RACED_SIZE: Final = 256
"""Hidden size of the smallest models whose type is measured: less of the time of others goes into products."""
LEAST_SPEEDUP: Final = 1.5
"""How many times as fast as in float32 products in bfloat16 must be, to be worth their rounding."""

Race = Callable[[], float]
"""Measurement of how many times as fast as in float32 the pods compute in bfloat16."""


def trainer_dtype(dtype: TrainerDtype | None, *, has_accelerators: bool) -> TrainerDtype:
    """Return the type of trainers whose job sets `dtype`, where nothing was measured."""
    return dtype or (TrainerDtype.BFLOAT16 if has_accelerators else TrainerDtype.FLOAT32)


def chosen_data_types(
    engines: EngineDtype,
    trainers: TrainerDtype | None,
    race: Race,
    *,
    engines_have_accelerators: bool,
    trainers_have_accelerators: bool,
) -> tuple[EngineDtype, TrainerDtype]:
    """Return the types of engines and trainers, given what the job says; `race` is called only where it decides.

    On accelerators, engines keep `auto`: the type of the checkpoint.
    """
    is_set = not engines_have_accelerators and engines is not EngineDtype.AUTO
    if trainers is None and not trainers_have_accelerators:
        is_narrow = engines is EngineDtype.BFLOAT16 if is_set else race() >= LEAST_SPEEDUP
        trainers = TrainerDtype.BFLOAT16 if is_narrow else TrainerDtype.FLOAT32
    found = trainer_dtype(trainers, has_accelerators=trainers_have_accelerators)
    if engines is EngineDtype.AUTO and not engines_have_accelerators:
        engines = EngineDtype.FLOAT32 if trainers_have_accelerators else EngineDtype(found.value)
    return engines, found
