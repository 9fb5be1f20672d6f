"""RLJob.spec.sharing and its part of the status: jobs that take turns on the same GPUs."""

import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Final

from pydantic import Field

from longshore.api import names
from longshore.api.base import ApiModel
from longshore.api.limits import MAX_COUNT
from longshore.api.rollout import Handover, Strategy
from longshore.api.rules import Rule

if TYPE_CHECKING:
    from longshore.api.spec import RLJobSpec

SHARES_SUFFIX: Final = ".shared"
"""NVIDIA's device plugin appends this to the name of a resource whose units are shares of GPUs (`renameByDefault`)."""
_Count = Annotated[int, Field(ge=0, le=MAX_COUNT)]
_Seconds = Annotated[float, Field(ge=0, le=MAX_COUNT)]


class Sharing(ApiModel):
    """Group of jobs that take turns on the GPUs of their workers."""

    group: str = Field(min_length=1, max_length=40, pattern="^[a-z0-9]([-a-z0-9]*[a-z0-9])?$")
    """Name of the group. Its members are the jobs of the namespace that have the same name here."""
    max_slowdown: float = Field(default=1.5, ge=1, le=100)
    """Largest mean time of a step, as a multiple of the time without waiting for other jobs. A job that would slow a
    member beyond its limit waits in the phase Queued."""
    turn_limit_s: int = Field(default=3600, ge=1, le=2**31 - 1, alias="turnLimitSeconds")
    """Seconds for which the job may keep the GPUs while another job waits for them. After that its pods are deleted,
    and its next attempt continues from the newest checkpoint."""


class SharingStatus(ApiModel):
    """Turns that the operator has given the job on the GPUs that it shares."""

    attempt: int = Field(ge=1, le=MAX_COUNT)
    """Number of the attempt that the turns belong to."""
    granted: _Count = 0
    """Number of turns that the job got. It uses the GPUs while this exceeds `runtime.sharing.returned`."""
    recalled: _Count = 0
    """Number of turns that the job has to return as soon as it does not need the GPUs."""


class RuntimeSharing(ApiModel):
    """Turns that the coordinator asked for and returned, and what it has measured of them."""

    asked: _Count = 0
    """Number of turns that the coordinator asked for."""
    returned: _Count = 0
    """Number of turns that the coordinator returned, after engines and trainers were asleep."""
    num_steps: _Count = 0
    """Number of steps that were measured. The first step of an attempt, which includes the start, is not."""
    step_s: _Seconds = Field(default=0.0, alias="stepSeconds")
    """Mean seconds of a step, without waiting for other jobs."""
    turn_s: _Seconds = Field(default=0.0, alias="turnSeconds")
    """Largest number of seconds within a step in which the job needed the GPUs."""
    wait_s: _Seconds = Field(default=0.0, alias="waitSeconds")
    """Mean seconds for which a step waits for other jobs."""
    switch_s: _Seconds = Field(default=0.0, alias="switchSeconds")
    """Largest number of seconds between the end of the need for the GPUs and the return of a recalled turn."""

    @property
    def slowdown(self) -> float:
        """How many times as long as without waits for other jobs the mean step takes; 1 before any was measured."""
        return (self.step_s + self.wait_s) / self.step_s if self.step_s > 0 else 1.0


def sharing_rules() -> "tuple[Rule[RLJobSpec], ...]":
    """What a job that shares its GPUs cannot do at the same time."""
    return (
        _rule(
            "placement",
            "self.placement == 'Colocated'",
            lambda spec: spec.trainer_workers is None,
            "sharing needs engines and trainers on the same workers: set placement to Colocated or remove sharing",
        ),
        _rule(
            "rollout.handover",
            "(has(self.rollout.handover) ? self.rollout.handover == 'AfterRound' : "
            "!(self.rollout.strategy in ['GroupPipeline', 'Auto']))",
            _trains_after_the_round,
            "sharing needs training after the round, so that one turn has all of it: set handover to AfterRound or "
            "remove sharing",
        ),
        _rule(
            "workers.minReplicas",
            "!has(self.workers.minReplicas) || self.workers.minReplicas == self.workers.replicas",
            lambda spec: not spec.workers.is_elastic,
            "sharing needs a fixed number of workers: remove minReplicas or sharing",
        ),
        _rule(
            "reward.functions",
            "self.reward.functions.all(one, !has(one.judge) || one.judge.placement != 'Colocated')",
            lambda spec: not any(one.is_colocated for one in spec.reward.functions),
            "sharing needs workers without judges, which do not sleep: set judge.placement to Pool or remove sharing",
        ),
        _rule(
            "rollout.engine.sleepLevel",
            "self.rollout.engine.sleepLevel > 0",
            lambda spec: spec.rollout.engine.sleep_level > 0,
            "sharing needs engines that free the GPUs when they sleep: set sleepLevel to 1 or 2 or remove sharing",
        ),
        _rule(
            "workers.gpuResourceName",
            f"self.workers.gpusPerPod == 0 || self.workers.gpuResourceName.endsWith('{SHARES_SUFFIX}') || "
            f"self.workers.gpuResourceName.startsWith('{names.GROUP}/')",
            lambda spec: not spec.workers.has_accelerator or spec.workers.gpu_resource_name.endswith(SHARES_SUFFIX),
            "sharing needs a resource whose units are shares of GPUs: set gpuResourceName to one such as "
            f"nvidia.com/gpu{SHARES_SUFFIX}, or remove sharing",
        ),
        _rule(
            "workers.resources",
            f"self.workers.gpusPerPod == 0 || self.workers.gpuResourceName.startsWith('{names.GROUP}/') || "
            "(has(self.workers.resources) && 'memory' in self.workers.resources && "
            "string(self.workers.resources['memory']).matches('[1-9]'))",
            lambda spec: not spec.workers.has_accelerator or _is_some(spec.workers.resources.get("memory", 0)),
            "sharing needs memory of the host for pods that sleep: set resources.memory to what such a pod holds, "
            "more than 0, or remove sharing",
        ),
    )


def _rule(field: str, cel: str, holds: Callable[["RLJobSpec"], bool], message: str) -> "Rule[RLJobSpec]":
    return Rule(field, f"!has(self.sharing) || ({cel})", lambda spec: spec.sharing is None or holds(spec), message)


def _is_some(quantity: str | int) -> bool:
    """Return whether it is more than 0: then it has a digit that is."""
    return re.search("[1-9]", str(quantity)) is not None


def _trains_after_the_round(spec: "RLJobSpec") -> bool:
    is_free = spec.rollout.strategy is Strategy.AUTO and spec.rollout.handover is None
    return spec.rollout.effective_handover is Handover.AFTER_ROUND and not is_free
