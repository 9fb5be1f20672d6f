"""A trainer as the training loop uses it: samples, updates, options, and the protocol of all backends."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from longshore.api.algorithm import KlEstimator, LearningRateSchedule
from longshore.api.correction import RolloutCorrection
from longshore.api.objectives.objective import Objective
from longshore.api.training import Lora, Recompute, TrainerDtype
from longshore.policy.draws import Draw
from longshore.policy.learning_rate import ScheduleOptions
from longshore.policy.round import ResponseId
from longshore.record.facts import UpdatePasses
from longshore_runtime.backends.sums import GradientSums
from longshore_runtime.trajectories.trajectory import (
    ComparedByValue,
    LogProbs,
    Mask,
    TokenAdvantages,
    TokenIds,
    Trajectory,
    log_probs,
    mask,
    token_advantages,
    token_ids,
)

SampleKey = tuple[ResponseId, int]
"""Identity of a sample: its response, and its branch."""


@dataclass(frozen=True, eq=False)
class Sample(ComparedByValue):
    """One accepted response with its advantage, as the trainer gets it."""

    draw: Draw
    index: int
    """Number of the response within its group."""
    prompt_tokens: TokenIds
    trajectory: Trajectory
    advantage: float | TokenAdvantages
    """Advantage of the response, or [num_response_tokens] of each of its tokens."""
    reward: float
    penalty: float = 0.0
    """Penalty that is added to the reward before the advantages: 0, or below for a response that is too long."""
    loss_mask: Mask | None = None
    """Mask [num_response_tokens] of the response tokens that are in the loss; None: all are."""
    num_stale_tokens: int = 0
    """Number of response tokens up to the last one that older weights than the round's sampled, in the loss or not."""
    branch: int = 0
    """Number of the conversation of an episode that it is: most have one."""
    share: float = 1.0
    """Share of the response's sampled tokens that are in this sample: less than 1 if there are several branches."""
    old_log_probs: LogProbs | None = None
    """[num_response_tokens]: log-probabilities under the trainer's weights at the start of the step, or the engine's
    where these are gone (`policy.old_log_probs`); None: under the trainer's present weights."""
    teacher_log_probs: LogProbs | None = None
    """[num_response_tokens]: log-probabilities under a teacher behind an endpoint; None: trainers hold the teacher, or
    there is none."""
    values: LogProbs | None = None
    """[num_response_tokens]: values that the critic gave each token before it was sampled; None: there is no critic."""
    returns: LogProbs | None = None
    """[num_response_tokens]: what these values should have been; None: that is not known yet, or there is no critic."""
    is_finished: bool = True
    """Whether the response has ended: one that goes on in a later round is trained on, but not in the batch."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "prompt_tokens", token_ids(self.prompt_tokens))
        if isinstance(self.advantage, np.ndarray):
            object.__setattr__(self, "advantage", token_advantages(self.advantage))
            assert len(self.advantage) == len(self.trajectory), "every token has an advantage"
        if self.loss_mask is not None:
            object.__setattr__(self, "loss_mask", mask(self.loss_mask))
        for name in ("old_log_probs", "teacher_log_probs", "values", "returns"):
            if (values := getattr(self, name)) is not None:
                object.__setattr__(self, name, log_probs(values))

    @property
    def response(self) -> ResponseId:
        """Identity of the response: its draw and its number."""
        return ResponseId(self.draw, self.index)

    @property
    def key(self) -> SampleKey:
        """Identity of the sample: its response and its branch."""
        return (self.response, self.branch)

    @property
    def num_response_tokens(self) -> int:
        """Number of response tokens, in the loss or not."""
        return len(self.trajectory)

    @property
    def num_tokens(self) -> int:
        """Number of tokens of prompt and response."""
        return len(self.prompt_tokens) + len(self.trajectory)

    @property
    def in_loss(self) -> Mask:
        """Mask [num_response_tokens] of the response tokens that are in the loss."""
        return np.ones(len(self.trajectory), np.bool_) if self.loss_mask is None else self.loss_mask

    @property
    def num_loss_tokens(self) -> int:
        """Number of response tokens that are in the loss."""
        return len(self.trajectory) if self.loss_mask is None else int(np.count_nonzero(self.loss_mask))

    @property
    def token_advantages(self) -> npt.NDArray[np.floating]:
        """Advantages of the response tokens, [num_response_tokens]."""
        return np.broadcast_to(self.advantage, len(self.trajectory))

    @property
    def mean_advantage(self) -> float:
        """Mean advantage of the loss-mask tokens; 0 if there are none but each has one of its own."""
        if not isinstance(self.advantage, np.ndarray):
            return self.advantage
        in_loss = self.advantage[self.in_loss]
        return float(in_loss.mean(dtype=np.float64)) if len(in_loss) else 0.0

    @property
    def has_advantage(self) -> bool:
        """Whether the advantage of a loss-mask token is not 0, so that there is a policy gradient."""
        if not isinstance(self.advantage, np.ndarray):
            return self.advantage != 0.0
        return bool(np.any(self.advantage[self.in_loss]))

    @property
    def has_return(self) -> Mask:
        """Mask [num_response_tokens] of the sampled tokens from which a critic learns, in the policy's loss or not."""
        return np.zeros(len(self.trajectory), np.bool_) if self.returns is None else self.trajectory.mask

    @property
    def num_compared_tokens(self) -> int:
        """Number of loss-mask tokens that the round's own weights sampled."""
        return int(np.count_nonzero(self.in_loss[self.num_stale_tokens :]))


@dataclass(frozen=True)
class UpdateReport:
    """Outcome of one optimizer step, equal on every replica."""

    grad_norm: float
    learning_rate: float
    policy_version: int
    """Number of optimizer steps done."""
    critic: "UpdateReport | None" = None
    """Outcome of the step of the critic, if there is one."""


@dataclass(frozen=True)
class TrainResult:
    """Result of one optimizer step over all replicas."""

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
    """Work of each replica, and the times at which it got it."""


@dataclass(frozen=True)
class TrainerOptions:
    """The slice of a job's spec that a trainer needs."""

    learning_rate: float
    learning_rate_schedule: LearningRateSchedule
    warmup_steps: int
    min_learning_rate_ratio: float
    num_updates: int
    """Number of optimizer updates of the job, over which the learning rate falls."""
    adam_beta1: float
    adam_beta2: float
    adam_epsilon: float
    weight_decay: float
    max_grad_norm: float
    objective: Objective
    rollout_correction: RolloutCorrection | None
    max_response_tokens: int
    kl_coefficient: float
    temperature: float
    max_tokens_per_micro_batch: int
    seed: int
    kl_estimator: KlEstimator = KlEstimator.K3
    kl_bias_correction: bool = False
    entropy_coefficient: float = 0.0
    recompute: Recompute | None = None
    """What is computed again for the gradient; None: what the memory of the GPU asks for, and nothing on the CPU."""
    recompute_needs: Mapping[Recompute, float] = field(default_factory=dict)
    """Bytes of a GPU that suffice for each way; none are known of some models."""
    torch_compile: bool = False
    """Whether layers are compiled."""
    dtype: TrainerDtype | None = None
    """Type in which layers compute; None: bfloat16 on GPUs, and float32 on the CPU."""
    lora: Lora | None = None
    """Adapter to train; None: all weights are trained."""
    learning_rate_field: str = "algorithm.learningRate"
    """Field of the spec to blame for losses and gradients that are no finite numbers."""
    router_replay: bool = False
    """Whether tokens pass through the experts that engines chose."""
    offload_gradients: bool = False
    """Whether accumulated gradients are kept on the host until the update."""
    offload_reference: bool = False
    """Whether the reference is kept on the host, and replaces the model while it computes."""
    offload_moments: bool = False
    """Whether Adam's moments leave for the host before a pass that follows an update; sleep moves them there, too."""

    @property
    def trains_without_advantage(self) -> bool:
        """Whether a sample whose advantage is 0 has a gradient: that of a penalty or a bonus."""
        is_penalised = self.kl_coefficient > 0 or self.entropy_coefficient > 0
        return is_penalised or self.objective.trains_without_advantage

    @property
    def has_reference(self) -> bool:
        """Whether the trainer holds a second, frozen model."""
        return self.kl_coefficient > 0 or self.objective.needs_reference

    @property
    def schedule(self) -> ScheduleOptions:
        """Settings that determine the learning rate."""
        return ScheduleOptions(
            self.learning_rate,
            self.learning_rate_schedule,
            self.warmup_steps,
            self.num_updates,
            self.min_learning_rate_ratio,
        )


class Trainer(Protocol):
    """One data-parallel replica, or one rank of a replica that several hold together: all of them get the same calls.

    They get the same samples too, or samples of their own (`ParallelSizes.deals_samples`), which may be none.

    Replicas hold equal weights; gradients are unreduced fp32 sums until `update`. A rank that sleeps wakes when it is
    given work, and nothing but `update`, `compare`, `begin_save` and `load` needs the other replicas.
    """

    def accumulate(self, samples: Sequence[Sample]) -> GradientSums:
        """Add the gradients of the *sum* of weighted token losses of these samples (no normalisation).

        A sample without loss-mask tokens adds zeros. Every rank returns the sums of its replica.
        """

    def log_probs(self, samples: Sequence[Sample]) -> Mapping[int, LogProbs]:
        """Return the log-probabilities of the response tokens, by place in `samples`, under the current weights.

        Gradients stay as they are. A rank returns what it has computed of these samples.
        """

    def compare(self, samples: Sequence[Sample], denominator: float) -> float:
        """Compare what all replicas accumulated with one plain pass over the samples of all calls.

        What was accumulated stays as it is, bit by bit.

        Returns:
            The largest norm of the difference of a parameter's gradients, relative to that of the plain pass, or where
            that is zero divided by `denominator`, on this rank; infinite where a gradient is not finite.
        """

    def update(self, denominator: float) -> UpdateReport:
        """Update all replicas together: add up, divide by `denominator` (of the whole step), clip, step.

        A replica that accumulated nothing takes part with zeros. If all gradients are zero, moments and weight decay
        still move the weights, as in verl and TRL.
        """

    @property
    def policy_version(self) -> int:
        """Number of optimizer steps so far."""

    def weights(self) -> Iterator[tuple[str, npt.NDArray[np.float32]]]:
        """Yield current weights by Hugging Face name, one after the other, copied to the host.

        All ranks of a replica iterate to the end together; the first alone gets anything.
        """

    def tensors(self, *, in_pieces: bool = False) -> Iterator[tuple[str, Any, int | None]]:
        """Yield current weights as torch tensors, on the accelerator or the host, for every rank of the replica.

        `in_pieces`, with tensor parallelism: a rank gets its equal part of most of them, and the dimension of the cut.
        """

    def begin_save(self, directory: Path) -> Callable[[], None]:
        """Return what writes weights (Hugging Face format), optimizer and random state as they are now.

        It is called once, in any thread, before the next `update` or `load`; all else may go on meanwhile. Both are
        called on the first rank of the world, or on all of them where the optimizer is spread.
        """

    def load(self, directory: Path) -> None:
        """Restore what `begin_save` wrote; called on every rank."""

    def discard(self) -> None:
        """Drop accumulated gradients."""

    def sleep(self) -> None:
        """Leave the accelerator's memory to the engine: weights, optimizer and gradients so far wait on the host."""

    def wake(self) -> None:
        """Take the accelerator's memory back, for weights and gradients; optimizer state follows for the update."""


class ValuingTrainer(Trainer, Protocol):
    """A trainer with a critic, which it trains on the same samples, in the same updates."""

    def values(self, samples: Sequence[Sample]) -> Mapping[int, LogProbs]:
        """Return the critic's values of the response tokens, by place in `samples`, as `log_probs` does."""
