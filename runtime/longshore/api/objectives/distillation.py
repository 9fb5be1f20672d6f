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

    On-policy distillation (Agarwal et al., arXiv 2306.13649) by policy gradients: the model samples, and the reverse KL
    divergence to the teacher falls. It needs no reward that varies, and learns from single responses. Suits models that
    already write much as a better one with the same tokenizer does. `rewardWeight` adds the advantages of GRPO.
    """

    name: Literal["Distillation"] = "Distillation"
    teacher: Teacher
    """Model whose distribution is learned."""
    reward_weight: float = Field(default=0.0, ge=0, le=1_000)
    """Weight of the advantages of rewards beside those of the teacher. 0: rewards are only reported."""

    @property
    def needs_reference(self) -> bool:
        """Return True: the reference is the teacher."""
        return True

    @property
    def trains_without_advantage(self) -> bool:
        """Return True: the teacher judges every token."""
        return True

    def advantages(self, groups: Sequence[RewardedGroup]) -> list[Advantages]:
        """Return the advantages of rewards times `rewardWeight`."""
        found = super().advantages(groups)
        return [tuple(self.reward_weight * one for one in of_group) for of_group in found]

    def token_losses(self, tokens: LossTokens) -> TokenLosses:
        """Compute -min(ratio * B, clip(ratio) * B), with B = A + teacher's log-probability - old log-probability."""
        assert tokens.reference_log_probs is not None, "trainers have the teacher as their reference"
        better = tokens.advantages + (tokens.reference_log_probs - tokens.old_log_probs).detach()
        return self.clipped(tokens.ratio, better)
