"""On-policy distillation."""

from collections.abc import Sequence
from typing import Final, Literal

from pydantic import Field

from longshore.api.addresses import HttpAddress
from longshore.api.base import ApiModel, RelativePath
from longshore.api.hub import Repository, Revision
from longshore.api.objectives.advantages import Advantages, RewardedGroup
from longshore.api.objectives.objective import ClippedObjective, LossTokens, TokenLosses
from longshore.api.rules import Rule
from longshore.api.secrets import SecretKey

AT: Final = "algorithm.objective.teacher"
"""Place in the spec that names the teacher."""
_TOP_TOKENS: Final = 64
_RULES: Final = (
    Rule(
        "",
        "[has(self.path), has(self.hub), has(self.endpoint)].exists_one(one, one)",
        "set exactly one of path, hub and endpoint",
    ),
    Rule(
        "revision",
        "!has(self.revision) || has(self.hub)",
        "revision belongs to hub: set hub, or remove revision",
    ),
)


class TeacherEndpoint(ApiModel):
    """Server that answers `/completions` with `prompt_logprobs`, as the OpenAI-compatible one of vLLM does."""

    url: HttpAddress
    """Address of the server up to and including /v1."""
    model_name: str = Field(min_length=1, max_length=256)
    """Name of the model at the server."""
    token_secret: SecretKey | None = None
    """Secret with the bearer token for the server. Only the coordinator pod mounts it."""
    timeout_s: float = Field(default=120.0, gt=0, le=3_600, alias="timeoutSeconds")
    """Seconds in which the server must answer a request, which holds one response."""
    retries: int = Field(default=20, ge=0, le=1_000)
    """Number of further attempts when the server cannot be reached, is too slow or answers 429 or 5xx, with pauses that
    grow to 10 seconds."""
    max_concurrency: int = Field(default=32, ge=1, le=1_024)
    """Largest number of requests at a time."""


class Teacher(ApiModel, rules=_RULES):
    """Model whose distribution is learned, with the tokenizer of the model to train."""

    path: RelativePath | None = None
    """Directory of the teacher, as a path inside the storage of the job."""
    hub: Repository | None = None
    """Repository of the Hub with the teacher, downloaded once into the storage of the job."""
    endpoint: TeacherEndpoint | None = None
    """Server that computes the log-probabilities of the teacher, in place of the trainers."""
    revision: Revision | None = None
    """Branch, tag or commit of `hub`. The commit is chosen once: restarts use the same one. Unset: main."""


class Distillation(ClippedObjective):
    """Learn at every sampled token what a teacher would rather, or would not, have said.

    On-policy distillation (GKD, Agarwal et al., arXiv 2306.13649): the model samples, and the teacher says of every
    token how likely each other one would have been. It needs no reward that varies, and learns from single responses.
    The loss is the forward KL divergence from the teacher (p_T) over its `topTokens` most likely tokens v, so that also
    a model which never samples what the teacher would say learns it. `rewardWeight` adds the loss of GRPO.

    With `topTokens: 0`, the teacher judges sampled tokens alone, and the reverse KL divergence falls by a policy
    gradient, with B = A + teacher's log-probability - old log-probability. It suits models that already write much as
    the teacher does.
    """

    name: Literal["Distillation"] = "Distillation"
    teacher: Teacher
    """Model whose distribution is learned."""
    top_tokens: int | None = Field(default=None, ge=0, le=1_024)
    """Number of the teacher's most likely tokens over which the loss of a token is the KL divergence: exact if it is
    that of the vocabulary. 0: the policy gradient of the sampled token. Unset: 64, and 0 with `teacher.endpoint`."""
    reward_weight: float = Field(default=0.0, ge=0, le=1_000)
    """Weight of the advantages of rewards beside those of the teacher. 0: rewards are only reported."""

    @property
    def needs_reference(self) -> bool:
        """Return whether trainers hold the teacher, as their reference."""
        return self.teacher.endpoint is None

    @property
    def num_top_tokens(self) -> int:
        """Return `topTokens`, or its default."""
        default = 0 if self.teacher.endpoint is not None else _TOP_TOKENS
        return default if self.top_tokens is None else self.top_tokens

    @property
    def trains_without_advantage(self) -> bool:
        """Return True: the teacher judges every token."""
        return True

    def advantages(self, groups: Sequence[RewardedGroup]) -> list[Advantages]:
        """Return the advantages of rewards times `rewardWeight`."""
        found = super().advantages(groups)
        return [tuple(self.reward_weight * one for one in of_group) for of_group in found]

    def token_losses(self, tokens: LossTokens) -> TokenLosses:
        """Compute sum_v p_T(v) * (log p_T(v) - log p(v)), or -min(ratio * B, clip(ratio) * B) with `topTokens: 0`."""
        if self.num_top_tokens:
            assert tokens.top is not None, "trainers ask the teacher for its most likely tokens"
            rewarded = self.clipped(tokens.ratio, tokens.advantages)
            return TokenLosses(tokens.top.divergence + rewarded.loss, rewarded.is_clipped)
        assert tokens.reference_log_probs is not None, "trainers or an endpoint know the teacher's log-probabilities"
        better = tokens.advantages + (tokens.reference_log_probs - tokens.old_log_probs).detach()
        return self.clipped(tokens.ratio, better)
