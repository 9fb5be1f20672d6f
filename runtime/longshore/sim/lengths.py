"""Lengths of responses, those of episodes in turns and time as well.

A length belongs to a response: every strategy, and every retry after tokens were dropped, meets the same length for the
same (prompt, epoch, response), so that strategies differ only by what they schedule.
"""

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from statistics import NormalDist, fmean
from typing import Final, Protocol

from longshore.policy.draws import Draw
from longshore.policy.round import ResponseId
from longshore.rounds.messages import EpisodeLength, ResponseLength

_STANDARD: Final = NormalDist()
_NUM_REMEMBERED: Final = 1 << 17
"""Random numbers of each kind: strategies that are compared meet the same ones, and drawing one takes a hash."""
_FIT_ROUNDS: Final = 50
"""Fixed-point rounds of the quantile fit, far more than it needs at any skew of practice."""


@lru_cache(_NUM_REMEMBERED)
def _deviate(*key: int | str) -> float:
    """Return a standard normal deviate, a different one for every key."""
    return random.Random("/".join(map(str, key))).gauss(0.0, 1.0)


@lru_cache(_NUM_REMEMBERED)
def _share(*key: int | str) -> float:
    """Return a number that is uniform in [0, 1)."""
    return random.Random("/".join(map(str, key))).random()


@lru_cache(_NUM_REMEMBERED)
def _share_and_deviate(seed: int, prompt: int) -> tuple[float, float]:
    rng = random.Random(f"{seed}/prompt/{prompt}")
    return rng.random(), rng.gauss(0.0, 1.0)


class LengthModel(Protocol):
    """Lengths in tokens; the same question has the same answer."""

    def response_tokens(self, response: ResponseId) -> int:
        """Return the tokens of the whole response, at least 1."""

    def episode(self, response: ResponseId) -> EpisodeLength | None:
        """Return the length of an episode; None: neither this response nor another to its prompt is one."""

    def prompt_tokens(self, draw: Draw) -> int:
        """Return the tokens of the prompt."""

    def hardness(self, draw: Draw) -> float:
        """Place of the prompt among all prompts by expected length, as a standard normal deviate."""

    @property
    def max_tokens(self) -> int:
        """Most tokens that a response has."""


@dataclass(frozen=True)
class LognormalEpisodes:
    """Environments whose answers take a lognormal time, mostly by prompt: some environments are slow.

    Every number of turns is as likely as any other. The spread is that of `make bench NAME=agents`; nobody has
    published one.
    """

    max_turns: int
    median_s: float
    """Median time of an answer, and of the beginning of an episode."""
    max_s: float
    prompt_sigma: float = 1.5
    """Standard deviation of the logarithm of these times, between prompts."""
    own_sigma: float = 0.5
    """Standard deviation of the logarithm of these times, between responses to a prompt."""
    seed: int = 0

    def of(self, response: ResponseId, num_tokens: int) -> EpisodeLength:
        """Return the length of an episode with so many tokens, none of which the environment says."""
        draw = response.draw
        deviate = self.prompt_sigma * _deviate(self.seed, "environment", draw.index)
        deviate += self.own_sigma * _deviate(self.seed, "answers", draw.epoch, draw.index, response.index)
        answer_s = min(self.max_s, self.median_s * math.exp(deviate))
        share = _share(self.seed, "turns", draw.epoch, draw.index, response.index)
        num_turns = 1 + int(share * self.max_turns)
        return EpisodeLength(num_tokens, num_turns, (num_turns + 1) * answer_s)


@dataclass(frozen=True)
class LognormalLengths:
    """A lognormal body and a lognormal tail; a prompt belongs to one of them, and its responses vary around it.

    The variance of the logarithm splits into a share of the prompt and the rest of the single response: responses of
    one prompt resemble each other (APRIL, section 3.2.3: standard deviation 1,500 within and 4,250 across prompts).
    """

    body_median: float
    sigma: float
    """Standard deviation of the logarithm, prompts and responses together, in body and tail alike."""
    max_tokens: int
    tail_share: float = 0.0
    """Share of prompts in the tail."""
    tail_median: float = 1.0
    prompt_share: float = 0.8
    """Share of the variance that belongs to the prompt."""
    mean_prompt_tokens: int = 256
    seed: int = 0
    episodes: LognormalEpisodes | None = None
    """What responses do in environments; None: there are none."""

    @classmethod
    def from_quantiles(
        cls,
        p50: float,
        p75: float,
        max_tokens: int,
        *,
        capped_share: float = 0.004,
        tail_share: float = 0.06,
        prompt_share: float = 0.8,
        mean_prompt_tokens: int = 256,
        seed: int = 0,
    ) -> "LognormalLengths":
        """Fit to what papers publish: two quantiles, the cap, and the share of responses that reach it.

        Raises:
            ValueError: not 0 < p50 < p75 < max_tokens, or not capped_share < tail_share < 1/4.
        """
        if not 0 < p50 < p75 < max_tokens:
            raise ValueError(f"lengths: quantiles must rise, 0 < p50 ({p50:g}) < p75 ({p75:g}) < max ({max_tokens})")
        if not 0 < capped_share < tail_share < 0.25:
            raise ValueError(
                f"lengths: 0 < capped_share ({capped_share:g}) < tail_share ({tail_share:g}) < 0.25 needed"
            )
        mu, sigma, tail_mu = math.log(p50), math.log(p75 / p50) / _STANDARD.inv_cdf(0.75), 0.0
        for _ in range(_FIT_ROUNDS):
            tail_mu = math.log(max_tokens) - sigma * _STANDARD.inv_cdf(1 - capped_share / tail_share)
            tail = NormalDist(tail_mu, sigma)
            # What is left of each quantile for the body, once the tail's part below it is taken away.
            below = [(q - tail_share * tail.cdf(math.log(x))) / (1 - tail_share) for q, x in ((0.5, p50), (0.75, p75))]
            z50, z75 = (_STANDARD.inv_cdf(min(max(share, 0.01), 0.99)) for share in below)
            sigma = math.log(p75 / p50) / (z75 - z50)
            mu = math.log(p50) - sigma * z50
        return cls(
            body_median=math.exp(mu),
            sigma=sigma,
            max_tokens=max_tokens,
            tail_share=tail_share,
            tail_median=math.exp(tail_mu),
            prompt_share=prompt_share,
            mean_prompt_tokens=mean_prompt_tokens,
            seed=seed,
        )

    def response_tokens(self, response: ResponseId) -> int:
        draw = response.draw
        tail, deviate = self._prompt(draw)
        median = self.tail_median if tail else self.body_median
        own = _deviate(self.seed, "response", draw.epoch, draw.index, response.index)
        noise = math.sqrt(1 - self.prompt_share) * own
        tokens = median * math.exp(self.sigma * (math.sqrt(self.prompt_share) * deviate + noise))
        return max(1, min(self.max_tokens, round(tokens)))

    def episode(self, response: ResponseId) -> EpisodeLength | None:
        return None if self.episodes is None else self.episodes.of(response, self.response_tokens(response))

    def prompt_tokens(self, draw: Draw) -> int:
        return self.mean_prompt_tokens

    def hardness(self, draw: Draw) -> float:
        tail, deviate = self._prompt(draw)
        share = _STANDARD.cdf(deviate)
        rank = 1 - self.tail_share + share * self.tail_share if tail else share * (1 - self.tail_share)
        return _STANDARD.inv_cdf(min(max(rank, 1e-9), 1 - 1e-9))

    def _prompt(self, draw: Draw) -> tuple[bool, float]:
        share, deviate = _share_and_deviate(self.seed, draw.index)
        return share < self.tail_share, deviate


@dataclass(frozen=True)
class TraceLengths:
    """Recorded lengths: prompt i of the data has the i-th prompt of the trace, again and again.

    Responses beyond those recorded repeat them; every epoch begins one response later.
    """

    responses: Sequence[Sequence[ResponseLength]]
    """For each prompt, the lengths of its responses."""
    prompts: Sequence[int] = field(default=())
    """Prompt lengths; empty: 256 each."""

    def __post_init__(self) -> None:
        if not self.responses or not all(self.responses):
            raise ValueError("lengths: a trace needs at least one prompt, and each prompt at least one response")
        if min(min(map(tokens_of, lengths)) for lengths in self.responses) < 1:
            raise ValueError("lengths: every response of a trace has at least one token")

    @property
    def episodes(self) -> tuple[EpisodeLength, ...]:
        """All recorded episodes."""
        return tuple(one for lengths in self.responses for one in lengths if isinstance(one, EpisodeLength))

    def without_episodes(self) -> "TraceLengths":
        """Return the same tokens as if nothing acted in an environment."""
        return replace(self, responses=tuple(tuple(map(tokens_of, lengths)) for lengths in self.responses))

    @property
    def max_tokens(self) -> int:
        return max(max(map(tokens_of, lengths)) for lengths in self.responses)

    def response_tokens(self, response: ResponseId) -> int:
        return tokens_of(self._length(response))

    def episode(self, response: ResponseId) -> EpisodeLength | None:
        length = self._length(response)
        return length if isinstance(length, EpisodeLength) else None

    def prompt_tokens(self, draw: Draw) -> int:
        return self.prompts[draw.index % len(self.prompts)] if self.prompts else 256

    def hardness(self, draw: Draw) -> float:
        return self._hardness[draw.index % len(self.responses)]

    @cached_property
    def _hardness(self) -> tuple[float, ...]:
        order = sorted(range(len(self.responses)), key=lambda index: fmean(map(tokens_of, self.responses[index])))
        deviates = [0.0] * len(order)
        for rank, index in enumerate(order):
            deviates[index] = _STANDARD.inv_cdf((rank + 0.5) / len(order))
        return tuple(deviates)

    def _length(self, response: ResponseId) -> ResponseLength:
        lengths = self.responses[response.draw.index % len(self.responses)]
        return lengths[(response.index + response.draw.epoch) % len(lengths)]


def tokens_of(length: ResponseLength) -> int:
    """Return the tokens of a response."""
    return length.num_tokens if isinstance(length, EpisodeLength) else length


@dataclass(frozen=True)
class Accuracy:
    """Which responses are right: every prompt has a probability, lower for prompts with long responses.

    probability = Phi(centre + spread * deviate), where the deviate correlates with -hardness and the centre makes the
    mean over all prompts come out. A wide spread gives many groups whose rewards are all equal.
    """

    mean: float = 0.5
    spread: float = 1.0
    length_correlation: float = 0.5
    """Between difficulty and expected length: 0 none, 1 the longest prompts are the hardest."""
    seed: int = 0

    def probability(self, draw: Draw, hardness: float) -> float:
        """Return the probability that a response of this prompt is right."""
        own = _deviate(self.seed, "difficulty", draw.index)
        return _STANDARD.cdf(self._centre + self.spread * (self._rest * own - self.length_correlation * hardness))

    @cached_property
    def _centre(self) -> float:
        return _STANDARD.inv_cdf(self.mean) * math.sqrt(1 + self.spread**2)

    @cached_property
    def _rest(self) -> float:
        return math.sqrt(1 - self.length_correlation**2)

    def is_correct(self, response: ResponseId, hardness: float) -> bool:
        """Return whether the verifier gives the reward."""
        draw = response.draw
        luck = _share(self.seed, "correct", draw.epoch, draw.index, response.index)
        return luck < self.probability(draw, hardness)
