"""State of a run: everything that a checkpoint must restore, besides weights and optimizer."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from longshore.api.objectives.advantages import are_equal
from longshore.api.round_status import RoundKind
from longshore.policy.draws import Draw
from longshore.policy.round import ResponseId
from longshore.policy.selection_bias import UNIT_RANGE, RewardRange, share_shorter_again
from longshore_runtime.backends.engine_protocol import Completion
from longshore_runtime.backends.trainer_protocol import Sample
from longshore_runtime.data.prompt_record import PromptRecord
from longshore_runtime.rollout.batch import RoundResult, ScoredGroup


@dataclass(frozen=True)
class HeldOutScore:
    """Mean reward on held-out prompts, and on the quartile of them with the longest reference answers, in characters.

    None: no prompt has a reward; or, for the quartile, all answers are equally long, so that none is longest.
    """

    overall: float | None
    longest_quartile: float | None
    rewards: tuple[float | None, ...]
    """Mean reward of each prompt, in their order; None if its rewards failed."""

    @classmethod
    def of(cls, groups: Sequence[ScoredGroup], prompts: Sequence[PromptRecord]) -> "HeldOutScore":
        """Return the score of an evaluation, without groups that replaced others.

        Those are of a later epoch: draws of prompts that the evaluation has.
        """
        by_length = sorted(range(len(prompts)), key=lambda place: (-len(prompts[place].answer), place))
        differ = len({len(prompt.answer) for prompt in prompts}) > 1
        longest = by_length[: max(1, len(prompts) // 4)] if differ else []
        first = {group.draw.index: group for group in groups if group.draw.epoch == 0}
        rewards = [
            _mean([one.reward for one in first[place].responses]) if place in first else None
            for place in range(len(prompts))
        ]
        return cls(_mean(rewards), _mean([rewards[place] for place in longest]), tuple(rewards))

    @classmethod
    def load(cls, exported: Mapping[str, Any]) -> "HeldOutScore":
        """Build the score from JSON values."""
        return cls(**{**exported, "rewards": tuple(exported["rewards"])})


@dataclass(frozen=True)
class KindTotals:
    """Rounds of one kind so far."""

    rounds: int = 0
    rollout_s: float = 0.0
    samples: int = 0
    preemptions: int = 0


@dataclass(frozen=True)
class RunState:
    """State of a run. Immutable; every step returns the next one."""

    step: int = 0
    """Number of rounds that were trained."""
    policy_version: int = 0
    """Number of optimizer steps done: as many as rounds, or more where a round makes several updates."""
    policy: Mapping[str, Any] = field(default_factory=dict)
    """Exported state of the round policy: data cursor and long-prompt queue."""
    kept: Mapping[ResponseId, Completion] = field(default_factory=dict)
    """Tokens of partial responses."""
    cut_tokens: Mapping[ResponseId, int] = field(default_factory=dict)
    """Tokens that responses of waiting draws had when they were cut off."""
    reward_range: RewardRange = UNIT_RANGE
    rewards: Mapping[str, Any] = field(default_factory=dict)
    """Exported state of the reward pool: what it has learned of time limits."""
    trained: int = 0
    zero_variance: int = 0
    rejected: int = 0
    kinds: Mapping[RoundKind, KindTotals] = field(default_factory=dict)
    held_out_before: HeldOutScore | None = None
    held_out_latest: HeldOutScore | None = None
    evaluated_step: int | None = None
    """Step after which `held_out_latest` was scored."""

    def with_policy(self, policy: Mapping[str, Any]) -> "RunState":
        """Return the state before a round, with another state of the round policy."""
        return replace(self, policy=policy)

    def with_rewards(self, rewards: Mapping[str, Any]) -> "RunState":
        """Return the state with another state of the reward pool."""
        return replace(self, rewards=rewards)

    def after_step(
        self, result: RoundResult, samples: Sequence[Sample], policy: Mapping[str, Any], policy_version: int
    ) -> "RunState":
        """Return the state after a round whose training led to weights of this version."""
        kind = result.end.kind
        old = self.kinds.get(kind, KindTotals())
        done = {group.draw for group in (*result.groups, *result.dropped)} | set(result.rejected)
        cut = {response: num_tokens for response, num_tokens in self.cut_tokens.items() if response.draw not in done}
        totals = KindTotals(
            rounds=old.rounds + 1,
            rollout_s=old.rollout_s + result.rollout_s,
            samples=old.samples + len({sample.response for sample in samples}),
            preemptions=old.preemptions + result.num_preemptions,
        )
        return replace(
            self,
            step=self.step + 1,
            policy_version=policy_version,
            policy=policy,
            kept=result.kept,
            cut_tokens={**cut, **result.cut_tokens},
            reward_range=self.reward_range.with_rewards(_rewards(result)),
            trained=self.trained + len(result.groups),
            zero_variance=self.zero_variance + sum(map(has_zero_variance, result.groups)) + len(result.dropped),
            rejected=self.rejected + len(result.rejected),
            kinds={**self.kinds, kind: totals},
        )

    def shorter_again(self, result: RoundResult) -> float | None:
        """Return the share of responses of the next round that are shorter than they were when they were cut off."""
        now = {one.response: one.completion.num_tokens for group in result.groups for one in group.responses}
        return share_shorter_again(self.cut_tokens, now)

    def after_evaluation(self, score: HeldOutScore) -> "RunState":
        """Return the state after an evaluation."""
        return replace(
            self, held_out_before=self.held_out_before or score, held_out_latest=score, evaluated_step=self.step
        )

    def export(self) -> dict[str, Any]:
        """Return JSON values; partial responses and the state of the reward pool are stored separately."""
        exported = asdict(replace(self, kept={}, kinds={}, rewards={}, cut_tokens={}))
        del exported["rewards"]
        return exported | {
            "kinds": {kind.value: asdict(totals) for kind, totals in self.kinds.items()},
            "cut_tokens": [[*one.draw, one.index, num_tokens] for one, num_tokens in self.cut_tokens.items()],
        }

    @classmethod
    def load(cls, exported: Mapping[str, Any], kept: Mapping[ResponseId, Completion]) -> "RunState":
        """Undo `export`."""
        before, latest = exported["held_out_before"], exported["held_out_latest"]
        return cls(
            step=exported["step"],
            policy_version=exported["policy_version"],
            policy=exported["policy"],
            kept=kept,
            cut_tokens={ResponseId(Draw(*draw), index): num for *draw, index, num in exported["cut_tokens"]},
            reward_range=RewardRange(**exported["reward_range"]),
            trained=exported["trained"],
            zero_variance=exported["zero_variance"],
            rejected=exported["rejected"],
            kinds={RoundKind(kind): KindTotals(**totals) for kind, totals in exported["kinds"].items()},
            held_out_before=HeldOutScore.load(before) if before else None,
            held_out_latest=HeldOutScore.load(latest) if latest else None,
            evaluated_step=exported["evaluated_step"],
        )


def has_zero_variance(group: ScoredGroup) -> bool:
    """Return whether the rewards of several responses of a group are all equal but for rounding.

    Its advantages are then exactly 0, unless long responses are punished; it still counts in the denominator.
    """
    return len(group.responses) > 1 and are_equal([one.reward for one in group.responses])


def _rewards(result: RoundResult) -> list[float]:
    return [one.reward for group in (*result.groups, *result.dropped) for one in group.responses]


def _mean(values: Sequence[float | None]) -> float | None:
    """Return the mean of those that exist."""
    found = [value for value in values if value is not None]
    return sum(found) / len(found) if found else None
