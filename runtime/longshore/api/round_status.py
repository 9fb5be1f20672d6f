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
    """Index of the worker pod."""
    gpus: int = Field(ge=0, le=MAX_COUNT)
    """Number of GPUs of the engines; 1 for a pod without GPUs."""
    kv_capacity_tokens: int = Field(ge=0, le=MAX_COUNT)
    """Number of tokens that the KV caches of the engines hold."""
    running_tokens: int = Field(ge=0, le=MAX_COUNT)
    """Number of tokens of the requests that the engines run, prompts included."""


class RolloutLoad(ApiModel):
    """Present and projected load of the engines.

    The operator decides by it whether pods leave the rollout to train (RollPacker, section 4.4).
    """

    projected_kv_peak_tokens: int = Field(ge=0, le=MAX_COUNT)
    """Largest number of tokens that the running requests are expected to hold at once, by the lengths of earlier
    rounds."""
    pods: list[PodLoad] = Field(max_length=4_096)
    """Load of each worker pod whose engines sample."""


class RepurposingBenefit(ApiModel):
    """What repurposing pods is expected to change in a step, by earlier rounds of the same kind in this job."""

    rollout_longer_s: float | None = Field(default=None, ge=-MAX_COUNT, le=MAX_COUNT, alias="rolloutLongerSeconds")
    """Seconds by which the rollout is expected to become longer: there are fewer engines, and tokens of moved requests
    are computed again. Unset: no round of this kind has ended."""
    training_shorter_s: float | None = Field(default=None, ge=-MAX_COUNT, le=MAX_COUNT, alias="trainingShorterSeconds")
    """Seconds by which the training is expected to become shorter, because gradients are computed while the round still
    runs. Unset: no round of this kind has ended."""
    wanted: bool
    """Whether pods should be repurposed."""
    trial: bool = False
    """Whether pods should be repurposed only to measure it, because rounds of this kind have no measurements or
    outdated ones."""


class RoundSummary(ApiModel):
    """A round that has ended."""

    number: int = Field(ge=1, le=MAX_COUNT)
    """Number of the round; the round of step k has number k."""
    kind: RoundKind
    """Kind of the round. Short: it ends when enough prompts have their responses. Long: it samples deferred prompts to
    their end. Full: neither."""
    preemptions: int = Field(ge=0, le=MAX_COUNT)
    """Number of times that engines preempted a request in this round."""
    requests: int = Field(default=0, ge=0, le=MAX_COUNT)
    """Number of requests that the round launched."""


class RolloutTimes(ApiModel):
    """Times of a rollout by tensor-parallel size, from the profile of the job (`spec.profiling`)."""

    switch_s: float = Field(ge=0, le=MAX_COUNT, alias="switchSeconds")
    """Seconds that engines need to change their tensor-parallel size."""
    preemption_s: float = Field(ge=0, le=MAX_COUNT, alias="preemptionSeconds")
    """Seconds that a preemption adds to a round."""
    round_s: dict[RoundKind, Annotated[dict[int, _Seconds], Field(max_length=16)]] = Field(alias="roundSeconds")
    """Seconds that the rollout of a round without preemptions takes, by kind of round and tensor-parallel size."""
    preemptions: dict[RoundKind, Annotated[dict[int, _Seconds], Field(max_length=16)]] = Field(default_factory=dict)
    """Number of preemptions in a round, by kind of round and tensor-parallel size."""


class RoundStatus(ApiModel):
    """The round that runs now."""

    number: int = Field(ge=0, le=MAX_COUNT)
    """Number of the round; the round of step k has number k."""
    kind: RoundKind
    """Kind of the round. Short: it ends when enough prompts have their responses. Long: it samples deferred prompts to
    their end. Full: neither."""
    fraction_finished: float = Field(default=0.0, ge=0, le=1)
    """Share of the requests of the round that have finished."""
    load: RolloutLoad | None = None
    """Load of the engines at the newest milestone, if pods may be repurposed (`spec.rollout.repurposing.trigger`)."""
