"""On-policy distillation."""

from collections.abc import Sequence
from typing import Final, Literal

from pydantic import Field

from longshore.api.base import ApiModel, RelativePath
from longshore.api.hub import Repository, Revision
from longshore.api.objectives.advantages import Advantages, RewardedGroup
from longshore.api.objectives.objective import ClippedObjective, LossTokens, TokenLosses
from longshore.api.rules import Rule

AT: Final = "algorithm.objective.teacher"
"""Place in the spec that names the teacher."""
_RULES: Final = (
    Rule(
        "",
        "has(self.path) != has(self.hub)",
        "set exactly one of path and hub",
    ),
    Rule(
        "revision",
        "!has(self.revision) || has(self.hub)",
        "revision belongs to hub: set hub, or remove revision",
    ),
)


class Teacher(ApiModel, rules=_RULES):
    """Model whose distribution is learned, a Hugging Face checkpoint with the tokenizer of the model to train."""

    path: RelativePath | None = None
    """Directory of the teacher, as a path inside the storage of the job."""
    hub: Repository | None = None
    """Repository of the Hub with the teacher, downloaded once into the storage of the job."""
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
    top_tokens: int = Field(default=64, ge=0, le=1_024)
    """Number of the teacher's most likely tokens over which the loss of a token is the KL divergence: exact if it is
    that of the vocabulary. 0: the policy gradient of the sampled token."""
    reward_weight: float = Field(default=0.0, ge=0, le=1_000)
    """Weight of the advantages of rewards beside those of the teacher. 0: rewards are only reported."""

    @property
    def needs_reference(self) -> bool:
        """Return True: the reference is the teacher."""
        return True

    @property
    def num_top_tokens(self) -> int:
        """Return `topTokens`."""
        return self.top_tokens

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
        if self.top_tokens:
            assert tokens.top is not None, "trainers ask the teacher for its most likely tokens"
            rewarded = self.clipped(tokens.ratio, tokens.advantages)
            return TokenLosses(tokens.top.divergence + rewarded.loss, rewarded.is_clipped)
        assert tokens.reference_log_probs is not None, "trainers have the teacher as their reference"
        better = tokens.advantages + (tokens.reference_log_probs - tokens.old_log_probs).detach()
        return self.clipped(tokens.ratio, better)
