"""The reward stage: how long verifiers take, and the workers that score samples, first come, first served."""

import heapq
import random
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, linear_regression
from typing import Final, Protocol

from longshore.policy.adaptive_timeout import AdaptiveTimeout, CaseRun, TimeoutSettings
from longshore.policy.draws import Draw
from longshore.policy.round import ResponseId
from longshore.sim.profile import JudgePoint

_BEFORE_TRAINING: Final = -1
"""Epoch of the reference solutions."""
_ONLY_CASE: Final = 0
"""Simulated programs run through one test case, which stands for all of a prompt."""


@dataclass(frozen=True)
class Scoring:
    """A response to score, with the outcome that the verifier will find."""

    response: ResponseId
    num_tokens: int
    correct: bool


class RewardTimes(Protocol):
    """How long the verifier takes over a response."""

    def reward_s(self, scoring: Scoring, limit_s: float | None) -> float:
        """Return the seconds of one worker; `limit_s`: a learned limit, which never cuts off a correct response."""


@dataclass(frozen=True)
class MathsRewards:
    """Comparing answers: the same time for every response."""

    per_sample_s: float = 0.02

    def reward_s(self, scoring: Scoring, limit_s: float | None) -> float:
        return self.per_sample_s


@dataclass(frozen=True)
class CodeRewards:
    """Running programs: most take moments; of the wrong ones some hang until the timeout.

    RollPacker, section 4.3: about 5 % of the prompts reach a timeout of 30 s.
    """

    mean_run_s: float = 0.6
    hanging_share: float = 0.1
    """Share of the wrong responses that hang."""
    timeout_s: float = 30.0
    seed: int = 0

    def reward_s(self, scoring: Scoring, limit_s: float | None) -> float:
        rng = random.Random(f"{self.seed}/run/{scoring.response}")
        hangs = rng.random() < self.hanging_share
        run_s = min(self.timeout_s, rng.expovariate(1 / self.mean_run_s))
        if scoring.correct:
            return run_s
        limit_s = self.timeout_s if limit_s is None else limit_s
        return limit_s if hangs else min(run_s, limit_s)


@dataclass(frozen=True)
class JudgeRewards:
    """A language model reads the response and writes its verdict."""

    per_sample_s: float = 0.5
    """Decoding the verdict."""
    per_token_s: float = 2e-5
    """Reading."""

    @classmethod
    def measured(cls, points: Sequence[JudgePoint]) -> "JudgeRewards":
        """Return the line through measurements at several lengths, or what a single one took."""
        assert points, "somebody measured"
        tokens, seconds = [point.question_tokens for point in points], [point.seconds for point in points]
        if len(set(tokens)) == 1:
            return cls(fmean(seconds), 0.0)
        per_token_s, per_sample_s = linear_regression(tokens, seconds)
        return cls(max(0.0, per_sample_s), max(0.0, per_token_s))

    def reward_s(self, scoring: Scoring, limit_s: float | None) -> float:
        return self.per_sample_s + self.per_token_s * scoring.num_tokens


@dataclass(frozen=True)
class EndpointRewards:
    """The verifier is an endpoint, which takes `times`: a worker that only waits asks it."""

    times: RewardTimes

    def reward_s(self, scoring: Scoring, limit_s: float | None) -> float:
        return self.times.reward_s(scoring, limit_s)


@dataclass(frozen=True)
class MixedRewards:
    """Prompts of several tasks: prompt i belongs to task i modulo their number."""

    tasks: tuple[RewardTimes, ...]

    def task(self, scoring: Scoring) -> RewardTimes:
        """Return the verifier of a response."""
        return self.tasks[scoring.response.draw.index % len(self.tasks)]

    def reward_s(self, scoring: Scoring, limit_s: float | None) -> float:
        return self.task(scoring).reward_s(scoring, limit_s)


class RewardStage:
    """Workers of the reward stage, which compute or wait. Times and ends of samples are known at submission."""

    def __init__(
        self,
        times: RewardTimes,
        num_workers: int,
        adaptive_timeout: TimeoutSettings | None = None,
        *,
        num_requests: int = 1,
        knows_reference_times: bool = False,
    ) -> None:
        """Begin time limits with what the solution in the data takes if `knows_reference_times`."""
        assert num_workers > 0 and num_requests > 0
        self._times = times
        self._computing_s = [0.0] * num_workers
        """When each worker that computes is free, a heap."""
        self._waiting_s = [0.0] * num_requests
        """The same of those that wait."""
        self._timeout = None if adaptive_timeout is None else AdaptiveTimeout(adaptive_timeout)
        self._tested: list[tuple[float, ResponseId, float, bool]] = []
        """Samples whose times the timeout policy does not know yet: (end, response, seconds, correct), a heap."""
        self._knows_reference_times = knows_reference_times
        self._referenced: set[int] = set()
        """Prompts whose reference solution has been counted."""

    def submit(self, group: Sequence[Scoring], now_s: float) -> float:
        """Queue the samples of a group; returns when the last of them is scored."""
        self._learn(now_s)
        done_s = now_s
        for scoring in group:
            duration_s = self._times.reward_s(scoring, self._limit_s(scoring.response))
            free_s = self._waiting_s if self._waits(scoring) else self._computing_s
            end_s = max(now_s, free_s[0]) + duration_s
            heapq.heapreplace(free_s, end_s)
            heapq.heappush(self._tested, (end_s, scoring.response, duration_s, scoring.correct))
            done_s = max(done_s, end_s)
        return done_s

    def _waits(self, scoring: Scoring) -> bool:
        verifier = self._times.task(scoring) if isinstance(self._times, MixedRewards) else self._times
        return isinstance(verifier, EndpointRewards)

    def _limit_s(self, response: ResponseId) -> float | None:
        if self._timeout is None:
            return None
        prompt = response.draw.index
        if self._knows_reference_times and prompt not in self._referenced:
            self._referenced.add(prompt)
            reference = Scoring(ResponseId(Draw(_BEFORE_TRAINING, prompt), 0), 0, correct=True)
            self._observe(prompt, self._times.reward_s(reference, None), correct=True)
        return self._timeout.limit(prompt, _ONLY_CASE).idle_s

    def _learn(self, now_s: float) -> None:
        """Tell the timeout policy how long every sample took that is scored by now."""
        while self._tested and self._tested[0][0] <= now_s:
            _, response, duration_s, correct = heapq.heappop(self._tested)
            self._observe(response.draw.index, duration_s, correct=correct)

    def _observe(self, prompt: int, duration_s: float, *, correct: bool) -> None:
        if self._timeout is not None:
            run = CaseRun(_ONLY_CASE, wall_s=duration_s, cpu_s=duration_s)
            self._timeout.response_tested(prompt, [run], passed_all=correct)
