"""Values that cross the seams of the runtime: requests and completions, samples, and the two backend protocols."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from longshore.api.algorithm import ImportanceSampling, LearningRateSchedule
from longshore.api.correction import RolloutCorrection
from longshore.api.objective import Objective
from longshore.policy.draws import Draw
from longshore.policy.learning_rate import ScheduleOptions
from longshore.policy.round import ResponseId
from longshore.record.facts import UpdatePasses
from longshore_runtime.sums import GradientSums
from longshore_runtime.weights.shared import BroadcastGroup, SharedBucket
from longshore_runtime.weights.slices import Bucket

Weights = Mapping[str, npt.NDArray[np.float32]]
"""Hugging Face parameter name -> values."""


class FinishReason(StrEnum):
    """Why a response ended."""

    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"


@dataclass(frozen=True)
class TokenRun:
    """Consecutive response tokens that one policy version sampled.

    `log_probs` are of the real sampling distribution (temperature applied), one per token.
    """

    policy_version: int
    tokens: tuple[int, ...]
    log_probs: tuple[float, ...]


@dataclass(frozen=True)
class Request:
    """One response to sample; `partial` holds tokens kept from earlier, to be continued."""

    request_id: str
    prompt_tokens: tuple[int, ...]
    max_tokens: int
    """Limit of the whole response, partial tokens included."""
    temperature: float
    seed: int
    partial: tuple[TokenRun, ...] = ()
    ignores_end: bool = False
    """Whether the response continues past end tokens, up to `max_tokens`: for measurements at a given length."""


@dataclass(frozen=True)
class Completion:
    """A response that ended or was aborted, with everything sampled so far (partial runs included)."""

    request_id: str
    runs: tuple[TokenRun, ...]
    finish_reason: FinishReason
    engine_step: int
    """Step of the engine at which it ended: breaks ties, so that a replay makes the same decisions."""

    @property
    def num_tokens(self) -> int:
        """Number of response tokens."""
        return sum(len(run.tokens) for run in self.runs)

    @property
    def tokens(self) -> tuple[int, ...]:
        """All response tokens."""
        return tuple(token for run in self.runs for token in run.tokens)

    @property
    def log_probs(self) -> tuple[float, ...]:
        """One log-probability per response token."""
        return tuple(value for run in self.runs for value in run.log_probs)


@dataclass(frozen=True)
class LiveResponse:
    """Length of a response that an engine runs, or holds back."""

    prompt_tokens: int
    generated_tokens: int
    """Response tokens, including those of its partial response."""


@dataclass(frozen=True)
class EngineStats:
    """State of one engine; counters grow from its start."""

    num_running: int = 0
    num_waiting: int = 0
    kv_usage: float = 0.0
    """Share of KV-cache blocks in use, 0 to 1."""
    kv_capacity_tokens: int = 0
    """Tokens that the KV cache holds."""
    num_preemptions: int = 0
    num_steps: int = 0
    num_tokens: int = 0
    """Tokens sampled."""
    busy_s: float = 0.0
    """Seconds spent in steps."""
    read_s: float = 0.0
    """Time of this reading, by the engine's own clock: gives the time between two readings."""
    policy_version: int = -1


class Engine(Protocol):
    """An in-process inference engine, used by one thread only.

    `step` runs one batch iteration. Weights may change only while nothing runs.
    """

    def add(self, requests: Sequence[Request]) -> None:
        """Take requests into the running batch (or its waiting queue)."""

    def abort(self, request_ids: Sequence[str]) -> list[Completion]:
        """Stop requests; tokens so far come back with reason ABORT; unknown ids are ignored."""

    def step(self) -> list[Completion]:
        """Advance every running request by one token; returns the responses that ended."""

    def has_work(self) -> bool:
        """Return whether a step would do anything."""

    def begin_weights(self, channel: BroadcastGroup | None = None) -> None:
        """Prepare for new weights; until `serve`, the policy version is -1 and no request is taken.

        `channel`: where to meet the trainer that broadcasts them. Weights that had begun to come are given up.
        """

    def load_bucket(self, bucket: Bucket | SharedBucket) -> None:
        """Put some parameters in place; raises ValueError for one of another model, or one that came before."""

    def finish_weights(self) -> str:
        """Drop every cached prefix, and let go of what the weights came in; raises ValueError if a parameter did not.

        Returns `combined_checksum` of the buckets.
        """

    def serve(self, policy_version: int) -> None:
        """Take requests for the loaded weights; if `sleep` freed the KV cache, allocate it again."""

    def live(self) -> list[LiveResponse]:
        """Return the lengths of all unfinished responses, running or waiting."""

    def stats(self) -> EngineStats:
        """Return state and counters."""

    def sleep(self) -> None:
        """Free the accelerator's memory for the trainer, if the hardware supports it."""

    def wake(self) -> None:
        """Take back the memory of the weights; where `sleep` freed it, requests are taken after the next load."""


@dataclass(frozen=True)
class Sample:
    """One accepted response with its advantage, as the trainer gets it."""

    draw: Draw
    index: int
    """Number of the response within its group."""
    prompt_tokens: tuple[int, ...]
    response_tokens: tuple[int, ...]
    rollout_log_probs: tuple[float, ...]
    """Log-probabilities under the sampling distribution, one per response token."""
    advantage: float
    reward: float
    penalty: float = 0.0
    """Added to the reward before the advantages: 0, or below for a response that is too long."""
    loss_mask: tuple[bool, ...] | None = None
    """Whether each response token is in the loss; None: all are."""
    num_stale_tokens: int = 0
    """Response tokens that older weights than the round's sampled, in the loss or not: the first ones."""
    old_log_probs: tuple[float, ...] | None = None
    """Log-probabilities under the trainer's weights at the start of the step; None: under its present weights."""

    @property
    def response(self) -> ResponseId:
        """Which response it is."""
        return ResponseId(self.draw, self.index)

    @property
    def num_loss_tokens(self) -> int:
        """Response tokens that are in the loss."""
        return len(self.response_tokens) if self.loss_mask is None else sum(self.loss_mask)

    @property
    def num_compared_tokens(self) -> int:
        """Of these, tokens that the round's own weights sampled."""
        mask = self.loss_mask or (True,) * len(self.response_tokens)
        return sum(mask[self.num_stale_tokens :])


@dataclass(frozen=True)
class UpdateReport:
    """Outcome of one optimizer step, equal on every replica."""

    grad_norm: float
    learning_rate: float
    policy_version: int
    """Optimizer steps done."""


@dataclass(frozen=True)
class TrainResult:
    """One optimizer step over all replicas."""

    sums: GradientSums
    update: UpdateReport
    denominator: float
    """Denominator of the sums of losses."""
    compute_s: float = 0.0
    """Time in which the busiest replica worked."""
    gradients_s: float = 0.0
    """Time in which replicas computed gradients, of all replicas together."""
    gradient_difference: float | None = None
    """Largest `Trainer.compare` of all ranks, if the update was verified."""
    work: UpdatePasses | None = None
    """What each replica computed, and when it got the work."""


@dataclass(frozen=True)
class TrainerOptions:
    """The slice of a job's spec that a trainer needs."""

    learning_rate: float
    learning_rate_schedule: LearningRateSchedule
    warmup_steps: int
    min_learning_rate_ratio: float
    num_updates: int
    """Optimizer updates of the job, over which the learning rate falls."""
    adam_beta1: float
    adam_beta2: float
    adam_epsilon: float
    weight_decay: float
    max_grad_norm: float
    clip_low: float
    clip_high: float
    objective: Objective
    importance_sampling: ImportanceSampling
    importance_cap: float
    rollout_correction: RolloutCorrection | None
    max_response_tokens: int
    kl_coefficient: float
    temperature: float
    max_tokens_per_micro_batch: int
    seed: int
    offload_gradients: bool = False
    """Whether accumulated gradients are kept on the host until the update."""
    offload_reference: bool = False
    """Whether the reference is kept on the host, and replaces the model while it computes."""

    @property
    def schedule(self) -> ScheduleOptions:
        """What determines the learning rate."""
        return ScheduleOptions(
            self.learning_rate,
            self.learning_rate_schedule,
            self.warmup_steps,
            self.num_updates,
            self.min_learning_rate_ratio,
        )


class Trainer(Protocol):
    """One data-parallel replica, or one rank of a replica that several hold together: all of them get the same calls.

    Replicas hold equal weights; gradients are unreduced fp32 sums until `update`. A rank that sleeps wakes when it is
    given work, and nothing but `update`, `compare`, `save` and `load` needs the other replicas.
    """

    def accumulate(self, samples: Sequence[Sample]) -> GradientSums:
        """Add the gradients of the *sum* of weighted token losses of these samples (no normalisation).

        A sample without loss-mask tokens adds zeros. Every rank returns the sums of its replica.
        """

    def log_probs(self, samples: Sequence[Sample]) -> Mapping[int, tuple[float, ...]]:
        """Of the response tokens, by place in `samples`, under the weights as they are; gradients stay as they are.

        Every rank of the replica is called with the same samples, and returns what it has computed of them.
        """

    def compare(self, samples: Sequence[Sample], denominator: float) -> float:
        """All replicas together: how far what they accumulated is from one plain pass over the samples of all calls.

        The largest norm of the difference of a parameter's gradients, relative to that of the plain pass, or where that
        is zero divided by `denominator`, on this rank; infinite where a gradient is not finite. What was accumulated
        stays as it is, bit by bit.
        """

    def update(self, denominator: float) -> UpdateReport:
        """All replicas together: add up, divide by `denominator` (`policy.aggregation`, whole step), clip, step.

        A replica that accumulated nothing takes part with zeros.
        """

    @property
    def policy_version(self) -> int:
        """Number of optimizer steps so far."""

    def weights(self) -> Iterator[tuple[str, npt.NDArray[np.float32]]]:
        """Current weights by Hugging Face name, one after the other, copied to the host.

        All ranks of a replica iterate to the end together; the first alone gets anything.
        """

    def tensors(self, *, in_pieces: bool = False) -> Iterator[tuple[str, Any, int | None]]:
        """Likewise as torch tensors, on the accelerator or the host, for every rank of the replica.

        `in_pieces`, with tensor parallelism: a rank gets its equal part of most of them, and the dimension of the cut.
        """

    def save(self, directory: Path) -> None:
        """Write weights (Hugging Face format), optimizer and random state.

        Called on the first rank of the world, or on all of them where the optimizer is spread: then the first writes.
        """

    def load(self, directory: Path) -> None:
        """Restore what `save` wrote; called on every rank."""

    def discard(self) -> None:
        """Drop accumulated gradients."""

    def sleep(self) -> None:
        """Leave the accelerator's memory to the engine: weights, optimizer and gradients so far wait on the host."""

    def wake(self) -> None:
        """Take the accelerator's memory back, for weights and gradients; optimizer state follows for the update."""


@dataclass(frozen=True)
class PromptRecord:
    """One row of the data: what is sampled from and scored against."""

    index: int
    prompt: str
    prompt_tokens: tuple[int, ...]
    answer: str
    fields: Mapping[str, object] = field(default_factory=dict)
    """The whole row."""
    source: str = ""
    """Where the row came from, for messages."""
    domain: str = ""
    rewards: tuple[str, ...] = ()
    """Reward functions that score its responses."""
    reference: object = None
    """The unconverted answer of the row, which may be other than a text."""
    messages: tuple[Mapping[str, object], ...] = ()
    """The prompt as a conversation; empty if it is plain text."""
    data_set: str = ""
    """Name of its data set, if several are mixed."""
