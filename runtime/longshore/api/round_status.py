"""Rounds in RLJob.status.runtime: the one that runs, those that are over, and what the operator decides by."""

from enum import StrEnum
from typing import Annotated

from pydantic import Field

from longshore.api.base import ApiModel
from longshore.api.limits import MAX_COUNT

_Seconds = Annotated[float, Field(ge=0, le=MAX_COUNT)]


class RoundKind(StrEnum):
    """Kind of a round."""

    SHORT = "Short"
    LONG = "Long"
    FULL = "Full"


class PodLoad(ApiModel):
    """Load on the engines of one worker pod."""

    pod: int = Field(ge=0, le=MAX_COUNT)
    """Index of the pod."""
    gpus: int = Field(ge=0, le=MAX_COUNT)
    """GPUs of its engines (1 for a pod without GPUs)."""
    kv_capacity_tokens: int = Field(ge=0, le=MAX_COUNT)
    """Tokens that their KV caches hold."""
    running_tokens: int = Field(ge=0, le=MAX_COUNT)
    """Tokens of the requests that they run, prompts included."""


class RolloutLoad(ApiModel):
    """Present and projected load, by which the operator decides about repurposing (RollPacker, section 4.4)."""

    projected_kv_peak_tokens: int = Field(ge=0, le=MAX_COUNT)
    """Most tokens that the running requests are expected to hold at once, by the lengths of earlier rounds."""
    pods: list[PodLoad] = Field(max_length=4_096)
    """Worker pods whose engines sample."""


class RepurposingBenefit(ApiModel):
    """What repurposing pods is expected to change in a step, by the job's own rounds of that kind."""

    rollout_longer_s: float | None = Field(default=None, ge=-MAX_COUNT, le=MAX_COUNT, alias="rolloutLongerSeconds")
    """Cost: fewer engines, and requests whose tokens are computed again. Unset: no round of that kind is over."""
    training_shorter_s: float | None = Field(default=None, ge=-MAX_COUNT, le=MAX_COUNT, alias="trainingShorterSeconds")
    """Gain: gradients that are computed while the round still runs. Unset: no round of that kind is over."""
    wanted: bool
    """Whether pods should be repurposed."""
    trial: bool = False
    """Wanted although it may cost: there are no measurements of rounds of this kind, or they are out of date."""


class RoundSummary(ApiModel):
    """A round that is over."""

    number: int = Field(ge=1, le=MAX_COUNT)
    """The round of step k has number k."""
    kind: RoundKind
    """Short, Long or Full."""
    preemptions: int = Field(ge=0, le=MAX_COUNT)
    """Requests that engines preempted in this round."""
    requests: int = Field(default=0, ge=0, le=MAX_COUNT)
    """Requests that the round launched."""


class RolloutTimes(ApiModel):
    """What the job's own profile says about tensor-parallel sizes (`spec.profiling`)."""

    switch_s: float = Field(ge=0, le=MAX_COUNT, alias="switchSeconds")
    """Seconds that a regroup takes."""
    preemption_s: float = Field(ge=0, le=MAX_COUNT, alias="preemptionSeconds")
    """Seconds that a preemption adds to a round."""
    round_s: dict[RoundKind, Annotated[dict[int, _Seconds], Field(max_length=16)]] = Field(alias="roundSeconds")
    """Seconds that the rollout of a round without preemptions takes, by kind and size."""
    preemptions: dict[RoundKind, Annotated[dict[int, _Seconds], Field(max_length=16)]] = Field(default_factory=dict)
    """Preemptions in a round, by kind and size."""


class RoundStatus(ApiModel):
    """The round that runs now."""

    number: int = Field(ge=0, le=MAX_COUNT)
    """Rounds so far; the round of step k has number k."""
    kind: RoundKind
    """Short (speculative), Long (no speculation) or Full (policies without short rounds)."""
    fraction_finished: float = Field(default=0.0, ge=0, le=1)
    """Finished requests, as a share of those that the round has launched or still has to launch."""
    load: RolloutLoad | None = None
    """Load at the newest milestone, if pods may be repurposed (`spec.rollout.repurposing.trigger`)."""
