"""Results of a round that training uses."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Final

from longshore.policy.draws import Draw
from longshore.policy.round import AcceptedGroup, ResponseId
from longshore.policy.round_policy import RoundEnd
from longshore.policy.selection_bias import StartedGroup
from longshore.record.history import TimedMessage
from longshore.rounds.protocol import RoundTotals
from longshore_runtime.backends.engine_protocol import Completion, EngineStats, FinishReason
from longshore_runtime.environments.pod_protocol import FailureCause
from longshore_runtime.rewards.events import GroupScored
from longshore_runtime.rewards.pool import RewardStats
from longshore_runtime.trajectories.trajectory import LogProbs

_COUNTERS: Final = attrgetter(
    "num_steps", "num_tokens", "num_preemptions", "num_prompt_tokens", "num_cached_tokens", "busy_s"
)
"""Counters that only grow while an engine lives."""
NO_FAILURES: Final[Mapping[FailureCause, int]] = {}


@dataclass(frozen=True)
class ScoredResponse:
    """An accepted response with its reward."""

    response: ResponseId
    completion: Completion
    reward: float
    timed_out: bool
    parts: Mapping[str, float] = field(default_factory=dict)
    """Unweighted reward of each function."""
    teacher_log_probs: Sequence[LogProbs] = ()
    """Log-probabilities of its tokens under a teacher behind an endpoint, by branch; empty: there is none."""


@dataclass(frozen=True)
class ScoredGroup:
    """An accepted group: R0 scored responses of one draw, in the order in which they finished."""

    draw: Draw
    responses: tuple[ScoredResponse, ...]
    domain: str = ""
    """Domain of the prompt."""


@dataclass(frozen=True)
class EngineUse:
    """Counters of the engines around a round."""

    before: Mapping[int, EngineStats]
    after: Mapping[int, EngineStats]
    last: Mapping[int, EngineStats]
    """Counters with the last responses of each engine, which are all that is known of one that has retired."""

    def deltas(self, to: Mapping[int, EngineStats]) -> list[tuple[EngineStats, EngineStats]]:
        """Return the counters at the beginning and later; those of a replaced engine began at 0 again."""
        return [(self._begun(engine, stats), stats) for engine, stats in to.items()]

    def _begun(self, engine: int, stats: EngineStats) -> EngineStats:
        before = self.before.get(engine, EngineStats())
        grew = all(new >= old for old, new in zip(_COUNTERS(before), _COUNTERS(stats), strict=True))
        return before if grew else EngineStats()

    def busy_share(self, rollout_s: float) -> float:
        """Return the share of their time that engines which stayed spent in steps."""
        spent_s = [min(new.busy_s - old.busy_s, rollout_s) for old, new in self.deltas(self.after)]
        return sum(spent_s) / (rollout_s * len(spent_s)) if rollout_s > 0 and spent_s else 0.0


@dataclass(frozen=True)
class RoundResult(RoundTotals):
    """A finished round, with what was sampled."""

    groups: tuple[ScoredGroup, ...]
    """Accepted groups, one per draw and ordered by draw, so that arrival order does not reach the trainer."""
    kept: Mapping[ResponseId, Completion]
    """Tokens that later rounds continue from."""
    dropped: tuple[ScoredGroup, ...]
    """Groups that dynamic sampling left out because all their rewards are equal."""
    started: tuple[StartedGroup, ...]
    """The accepted groups with all that was started for them."""
    cut_tokens: Mapping[ResponseId, int]
    """Tokens of responses that were cut off and begin again when their draws are sampled again."""
    num_used_tokens: int
    """Number of tokens sampled in this round that were accepted or kept."""
    rewards: RewardStats
    rollout_s: float
    busy_share: float
    """Share of engine time spent in steps during the rollout."""
    num_preemptions: int
    num_steps: int
    """Number of decode steps of the engine that took most.

    This is the length of the rollout where a step's time is constant.
    """
    num_sampled_tokens: int
    """Number of tokens that engines sampled in this round, those that were dropped included."""
    num_prompt_tokens: int
    """Number of tokens that requests came with; 0 if the engines do not count them."""
    num_cached_tokens: int
    """Number of them that KV caches had already."""
    messages: Sequence[TimedMessage] = ()
    """Messages between the round and its driver, in their order."""
    episode_failures: Mapping[FailureCause, int] = field(default_factory=dict)
    """Number of attempts at episodes that failed, by cause, those of groups that were not accepted included."""

    @property
    def dropped_token_share(self) -> float:
        """Share of the sampled tokens that nothing is trained on, now or later."""
        if not self.num_sampled_tokens:
            return 0.0
        return max(0.0, 1.0 - self.num_used_tokens / self.num_sampled_tokens)  # Counts of a lost engine are lost.


def scored_group(
    group: AcceptedGroup, completions: Mapping[ResponseId, Completion], scored: GroupScored
) -> ScoredGroup:
    """Return a group with the rewards that it was given."""
    responses = [ResponseId(group.draw, index) for index in group.responses]
    return ScoredGroup(
        group.draw,
        tuple(
            ScoredResponse(response, completions[response], score.reward, score.timed_out, score.parts)
            for response, score in zip(responses, scored.scores, strict=True)
        ),
        scored.domain,
    )


def round_result(
    totals: RoundTotals,
    rollout_s: float,
    completions: Mapping[ResponseId, Completion],
    kept_before: Mapping[ResponseId, Completion],
    scored: Mapping[Draw, ScoredGroup],
    rewards: RewardStats,
    use: EngineUse,
    messages: Sequence[TimedMessage] = (),
    episode_failures: Mapping[FailureCause, int] = NO_FAILURES,
) -> RoundResult:
    """Return what a round has led to; `kept_before`: tokens from which it continued."""
    end = totals.end
    groups = tuple(scored[group.draw] for group in sorted(end.accepted, key=lambda group: group.draw))
    kept = {response: completions[response] for response in end.kept if response in completions}
    deltas = use.deltas({**use.last, **use.after})
    used = {one.response: one.completion for group in groups for one in group.responses} | kept
    return RoundResult(
        **vars(totals),
        groups=groups,
        kept=kept,
        dropped=tuple(scored[draw] for draw in end.zero_variance),
        started=_started(groups, completions),
        cut_tokens=_cut_tokens(end, completions, kept),
        num_used_tokens=sum(one.num_sampled_tokens for one in used.values())
        - sum(kept_before[response].num_sampled_tokens for response in used if response in kept_before),
        rewards=rewards,
        rollout_s=rollout_s,
        busy_share=use.busy_share(rollout_s),
        num_preemptions=sum(new.num_preemptions - old.num_preemptions for old, new in deltas),
        num_steps=max((new.num_steps - old.num_steps for old, new in deltas), default=0),
        num_sampled_tokens=sum(new.num_tokens - old.num_tokens for old, new in deltas),
        num_prompt_tokens=sum(new.num_prompt_tokens - old.num_prompt_tokens for old, new in deltas),
        num_cached_tokens=sum(new.num_cached_tokens - old.num_cached_tokens for old, new in deltas),
        messages=messages,
        episode_failures=episode_failures,
    )


def _started(groups: Sequence[ScoredGroup], completions: Mapping[ResponseId, Completion]) -> tuple[StartedGroup, ...]:
    started: dict[Draw, dict[ResponseId, int]] = {group.draw: {} for group in groups}
    for response, completion in completions.items():
        if response.draw in started:
            started[response.draw][response] = completion.num_total_tokens
    compared = []
    for group in groups:
        lengths = started[group.draw]
        accepted = [lengths.pop(one.response) for one in group.responses]
        compared.append(StartedGroup([one.reward for one in group.responses], accepted, list(lengths.values())))
    return tuple(compared)


def _cut_tokens(
    end: RoundEnd, completions: Mapping[ResponseId, Completion], kept: Mapping[ResponseId, Completion]
) -> dict[ResponseId, int]:
    waiting = set(end.deferred)
    cut = {
        response: completion.num_tokens
        for response, completion in completions.items()
        if completion.finish_reason is FinishReason.ABORT and response.draw in waiting and response not in kept
    }
    return {response: num_tokens for response, num_tokens in cut.items() if num_tokens}
