"""Mixes of two to eight jobs of RollPacker's settings (section 6) that share GPUs, beside the same jobs that do not.

All are colocated, strictly on-policy and `Synchronous`, and their rewards are scored while the round runs; `TailBatching`
shows what is left to share where rounds have no tail. A job keeps a quarter of its GPUs. Jobs join the first group that
lets them in, the largest first.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Final

from longshore.policy.sharing_group import Member, SharingGroup, refusal
from longshore.sim.job import SimJob
from longshore.sim.paper import rollpacker
from longshore.sim.paper.rollpacker import RollPackerConstants, Task
from longshore.sim.sharing_group import MemberResult, SharedJob, run_group, shared_job
from longshore.sim.simulate import simulate

SLOT_GPUS: Final = 4
"""GPUs of a slot."""
HOST_BYTES_PER_GPU: Final = 125e9
"""Memory of the host for each GPU: 1 TB for a node of eight."""
_OWN_SHARE: Final = 1 / 4
_NUM_STEPS: Final = 20
_NUM_WARM_UP_STEPS: Final = 5
"""A period of tail batching: rounds of both kinds, so that the lengths of both are known."""
_SYNCHRONOUS: Final = replace(rollpacker.VERL, asynchronous_rewards=True)
_TAIL_BATCHING: Final = replace(rollpacker.ASYNCHRONOUS, response_factor=1.0)
_TASKS: Final = (Task.MATHS, Task.CODE, Task.JUDGE)


@dataclass(frozen=True)
class Mix:
    """Jobs that may share GPUs."""

    name: str
    models: tuple[str, ...]
    max_slowdown: float
    variant: rollpacker.ExperimentVariant = _SYNCHRONOUS


MIXES: Final = (
    *(Mix(f"{count} × {model}", (model,) * count, 1.5) for model in rollpacker.SETTINGS for count in (2, 4, 8)),
    Mix("4 × 7B, 2 × 14B, 2 × 32B", ("7B",) * 4 + ("14B",) * 2 + ("32B",) * 2, 1.5),
    Mix("4 × 7B, 2 × 14B, 2 × 32B", ("7B",) * 4 + ("14B",) * 2 + ("32B",) * 2, 1.2),
    Mix("8 × 14B", ("14B",) * 8, 2.0),
    Mix("8 × 14B", ("14B",) * 8, 1.2),
    Mix("4 × 14B, TailBatching", ("14B",) * 4, 1.5, _TAIL_BATCHING),
)
