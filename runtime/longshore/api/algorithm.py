"""What is optimised: the objective, the batch that one step trains on, and the optimizer."""

from enum import StrEnum
from typing import Final

from pydantic import Field

from longshore.api.base import ApiModel
from longshore.api.correction import RolloutCorrection
from longshore.api.objectives.advantages import WITHOUT_SIBLINGS, Estimator
from longshore.api.objectives.distillation import Distillation, Teacher, TeacherEndpoint
from longshore.api.objectives.grpo import Grpo
from longshore.api.objectives.registry import UNFINISHED, WITH_CRITIC, AnyObjective, having_advantage
from longshore.api.rules import Rule
from longshore.api.warm_start import WarmStart


class LearningRateSchedule(StrEnum):
    """How the learning rate changes after the warm-up."""

    CONSTANT = "Constant"
    LINEAR = "Linear"
    COSINE = "Cosine"


class KlEstimator(StrEnum):
    """How the KL divergence from the initial model is estimated at a token (Schulman, 2020)."""

    K1 = "K1"
    K2 = "K2"
    K3 = "K3"


class LongRoundUpdates(StrEnum):
    """How many optimizer updates a long round makes."""

    PER_ROUND = "PerRound"
    ONE = "One"


_RULES: Final = (
    Rule(
        "responsesPerPrompt",
        "self.responsesPerPrompt >= 2 || self.objective.name == 'Distillation' || "
        + having_advantage("self.objective", WITHOUT_SIBLINGS),
        "responsesPerPrompt must be at least 2, since a single response is its own mean and its advantage would always "
        "be 0: raise it, choose Distillation, PPO or TPPO, or set objective.advantage to "
        f"{' or '.join(one for one in WITHOUT_SIBLINGS if one is not Estimator.GAE)}, which compare the responses of "
        "the batch",
    ),
    Rule(
        "responsesPerPrompt",
        f"self.responsesPerPrompt == 1 || !(self.objective.name in {UNFINISHED})",
        f"responsesPerPrompt must be 1 with {' and '.join(UNFINISHED)}, since the last tokens of a response that "
        "waits for its siblings would be trained on rounds later: set it, and raise promptsPerStep",
    ),
    Rule(
        "maskStaleTokens",
        f"!self.maskStaleTokens || !(self.objective.name in {UNFINISHED})",
        f"maskStaleTokens must be false with {' and '.join(UNFINISHED)}, which would leave out the last tokens of "
        "responses that wait for their reward: remove it",
    ),
    Rule(
        "objective.advantage",
        "!has(self.objective.advantage) || "
        f"(self.objective.advantage == '{Estimator.GAE}') == (self.objective.name in {WITH_CRITIC})",
        f"advantage {Estimator.GAE} belongs to {' and '.join(WITH_CRITIC)}, which have a critic and no other "
        "advantage: remove it, or choose another name",
    ),
    Rule(
        "dynamicSampling",
        "!self.dynamicSampling || self.responsesPerPrompt >= 2",
        "dynamicSampling would replace every group, since the rewards of a single response are all equal: set it to "
        "false, or responsesPerPrompt to at least 2",
    ),
    Rule(
        "promptsPerStep",
        "self.promptsPerStep * self.responsesPerPrompt >= 2",
        "promptsPerStep must be at least 2 with responsesPerPrompt 1, since advantages compare responses: raise it",
    ),
    Rule(
        "promptsPerUpdate",
        "!has(self.promptsPerUpdate) || self.promptsPerStep % self.promptsPerUpdate == 0",
        "promptsPerUpdate must divide promptsPerStep, since every update takes as many prompts: choose a divisor",
    ),
    Rule(
        "klCoefficient",
        "self.klCoefficient == 0.0 || self.objective.name != 'Distillation'",
        "klCoefficient must be 0 with Distillation, whose only reference is the teacher: remove it",
    ),
    Rule(
        "objective.topTokens",
        "!has(self.objective.topTokens) || self.objective.topTokens == 0 || !has(self.objective.teacher) || "
        "!has(self.objective.teacher.endpoint)",
        "topTokens must be 0 with objective.teacher.endpoint, which is asked about sampled tokens alone: remove it",
    ),
    Rule(
        "temperature",
        "self.temperature == 1.0 || !has(self.objective.teacher) || !has(self.objective.teacher.endpoint)",
        "temperature must be 1 with objective.teacher.endpoint, since servers compute log-probabilities of prompts at "
        "temperature 1: remove it, or give the teacher by path or hub",
    ),
    Rule(
        "warmStart",
        "has(self.warmStart) == has(oldSelf.warmStart) && "
        "(!has(self.warmStart) || self.warmStart == oldSelf.warmStart)",
        "warmStart is immutable: create a new RLJob instead of changing it",
    ),
    Rule(
        "overlongBufferTokens",
        "self.overlongBufferTokens <= self.maxResponseTokens",
        "overlongBufferTokens, the end of the longest response, must be at most maxResponseTokens: lower it",
    ),
)


class Algorithm(ApiModel, rules=_RULES):
    """Objective of the training, number of steps, size of a batch, and settings of the optimizer."""

    objective: AnyObjective = Field(default_factory=Grpo)
    """Objective: advantages, importance ratios and aggregation of token losses (`docs/reference/objectives.md`)."""
    steps: int = Field(ge=1, le=10_000_000)
    """Number of steps to train. A step is one round of responses with its optimizer updates."""
    prompts_per_step: int = Field(ge=1, le=65_536)
    """Number of prompts that one step trains on (P0)."""
    responses_per_prompt: int = Field(ge=1, le=4_096)
    """Number of responses to each prompt that one step trains on (R0). At least 2, or 1 with Distillation, with PPO and
    TPPO, and where responses are compared within the batch, as by ReinforcePlusPlus."""
    prompts_per_update: int | None = Field(default=None, ge=1, le=65_536)
    """Number of prompts that one optimizer update takes. A smaller number than promptsPerStep gives several updates on
    one rollout. Unset: all prompts of the step."""
    long_round_updates: LongRoundUpdates = LongRoundUpdates.PER_ROUND
    """How many optimizer updates a long round makes. PerRound: one for each round that deferred its prompts and one of
    its own, where objective and handover allow several. One: a single update."""
    epochs_per_step: int = Field(default=1, ge=1, le=64)
    """Number of times that a step trains on its batch, in the same updates each time (verl's `ppo_epochs`)."""
    max_response_tokens: int = Field(ge=1, le=10_000_000)
    """Largest length of a response, in tokens; longer responses are cut."""
    temperature: float = Field(default=1.0, gt=0, le=10)
    """Sampling temperature of the responses that are trained on."""
    learning_rate: float = Field(default=1e-6, gt=0, le=1)
    """Peak learning rate of the AdamW optimizer."""
    learning_rate_schedule: LearningRateSchedule = LearningRateSchedule.CONSTANT
    """How the learning rate changes after the warm-up. Linear and Cosine: it falls until the end of the job."""
    warmup_steps: int = Field(default=0, ge=0, le=1_000_000)
    """Number of optimizer updates over which the learning rate rises linearly to its peak."""
    min_learning_rate_ratio: float = Field(default=0.0, ge=0, le=1)
    """Learning rate at the end of the job, as a share of the peak, with schedule Linear or Cosine."""
    adam_beta1: float = Field(default=0.9, ge=0, lt=1)
    """Decay rate of the first moment in AdamW."""
    adam_beta2: float = Field(default=0.95, ge=0, lt=1)
    """Decay rate of the second moment in AdamW."""
    adam_epsilon: float = Field(default=1e-8, gt=0, le=1)
    """Number that AdamW adds to its denominator."""
    weight_decay: float = Field(default=0.0, ge=0, le=1)
    """Weight decay of AdamW."""
    max_grad_norm: float = Field(default=1.0, gt=0, le=1e6)
    """Global norm to which gradients are clipped."""
    rollout_correction: RolloutCorrection | None = None
    """Correction for engines whose log-probabilities differ from those of the trainer. It costs another forward pass if
    a step makes several updates. Unset: ratios are relative to the engine, with GSPO to the trainer."""
    mask_stale_tokens: bool = False
    """Whether the loss leaves out tokens that older weights sampled, as in continued responses."""
    dynamic_sampling: bool = False
    """Whether groups whose rewards are all equal are replaced and not trained on (DAPO, section 3.2)."""
    overlong_buffer_tokens: int = Field(default=0, ge=0, le=10_000_000)
    """Number of tokens before maxResponseTokens over which the reward falls linearly (DAPO, equation 13). 0: it does
    not fall."""
    overlong_penalty: float = Field(default=1.0, ge=0, le=1_000)
    """Amount by which overlongBufferTokens reduces the reward of a response of maxResponseTokens."""
    kl_coefficient: float = Field(default=0.0, ge=0, le=100)
    """Weight of the KL penalty towards the initial model. 0: no penalty."""
    kl_estimator: KlEstimator = KlEstimator.K3
    """Estimate of the KL penalty, from the difference d of log-probabilities, trainer - initial. K1: d. K2: d² / 2,
    whose gradient alone is that of the KL divergence. K3: exp(-d) + d - 1."""
    kl_bias_correction: bool = False
    """Whether the KL penalty is multiplied by the importance ratio, which makes the gradient of K3 unbiased
    (DeepSeek-V3.2)."""
    entropy_coefficient: float = Field(default=0.0, ge=0, le=100)
    """Weight of the entropy of the token distributions, which is subtracted from the loss. 0: no bonus."""
    warm_start: WarmStart | None = None
    """Supervised steps before the first round. Unset: none."""
    seed: int = Field(default=0, ge=0, le=2**31 - 1)
    """Seed of the prompt order, of sampling and of initialisation."""

    @property
    def has_reference(self) -> bool:
        """Whether trainers hold a second, frozen model: the initial one for a KL penalty, or a teacher."""
        return self.kl_coefficient > 0 or self.objective.needs_reference

    @property
    def teacher(self) -> Teacher | None:
        """Model that is distilled, if there is one."""
        return self.objective.teacher if isinstance(self.objective, Distillation) else None

    @property
    def teacher_endpoint(self) -> TeacherEndpoint | None:
        """Server of the teacher, if one computes its log-probabilities."""
        return None if self.teacher is None else self.teacher.endpoint

    @property
    def groups_per_update(self) -> int:
        """U."""
        return self.prompts_per_update or self.prompts_per_step

    @property
    def is_undivided(self) -> bool:
        """Whether an update takes the whole batch of a step."""
        return self.groups_per_update == self.prompts_per_step

    @property
    def makes_one_update(self) -> bool:
        """Whether a step has one optimizer update."""
        return self.is_undivided and self.epochs_per_step == 1

    @property
    def updates_per_step(self) -> int:
        """Optimizer updates of a step, unless its round is long (`longRoundUpdates`)."""
        return self.epochs_per_step * (self.prompts_per_step // self.groups_per_update)
