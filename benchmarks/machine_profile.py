"""What decoding, prefill, training and publishing cost on this machine: the profile that a simulation takes.

Engines and trainers are those of the job, all at work at the same time, as in its rounds. Times are differences between
two measurements that differ in one thing, so that what both have in common falls out.
"""

import itertools
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Final

from benchmarks.workload import ResponseTokens
from longshore.policy.draws import Draw
from longshore.policy.round import ResponseId
from longshore.sim.profile import DecodePoint, Profile
from longshore_runtime.rollout.events import EngineLost, Event, ResponsesEnded
from longshore_runtime.trainer.samples import shares
from longshore_runtime.training import Parts
from longshore_runtime.types import Request, Sample

_BATCHES: Final = (1, 2, 4, 8, 16, 32, 64, 128)
"""Requests per engine."""
_PROMPT_TOKENS: Final = (4, 256)
_FEW_TOKENS, _MANY_TOKENS = 8, 40
_FEW_GROUPS, _MANY_GROUPS = 8, 32
_TOKENS: Final = range(4, 96)
"""Ordinary tokens of the tiny model."""


@dataclass
class ProfiledMachine:
    """Measures again and again; `profile` has the medians."""

    parts: Parts
    lengths: ResponseTokens
    num_responses: int
    kv_capacity_tokens: int

    def __post_init__(self) -> None:
        self._numbers = itertools.count()
        self._rng = random.Random(0)
        self._decode_step_s: dict[tuple[int, int], list[float]] = {}
        """By requests per engine and context tokens of all of them."""
        self._prefill_tokens_per_s: list[float] = []
        self._train_tokens_per_s: list[float] = []
        self._optimizer_s: list[float] = []
        self._publish_s: list[float] = []
        self._to_training_s: list[float] = []

    @property
    def profile(self) -> Profile:
        """Of everything measured so far."""
        return Profile(
            decode=[
                DecodePoint(tp_size=1, num_running=num_running, context_tokens=context_tokens, step_s=median(steps_s))
                for (num_running, context_tokens), steps_s in self._decode_step_s.items()
            ],
            prefill_tokens_per_s=median(self._prefill_tokens_per_s),
            kv_capacity_tokens={1: self.kv_capacity_tokens},
            train_tokens_per_s=median(self._train_tokens_per_s),
            optimizer_s=median(self._optimizer_s),
            publish_s=median(self._publish_s),
            to_training_s=median(self._to_training_s),
            to_rollout_s=0.0,
        )

    def measure(self) -> None:
        """Once everything; leaves trainers and engines with other weights than before."""
        self._measure_training()
        for num_running in _BATCHES:
            for prompt_tokens in _PROMPT_TOKENS:
                self._measure_decode(num_running, prompt_tokens)
        self._measure_prefill()

    def _measure_decode(self, num_running: int, prompt_tokens: int) -> None:
        few_s = self._sample_s(num_running, prompt_tokens, _FEW_TOKENS)
        many_s = self._sample_s(num_running, prompt_tokens, _MANY_TOKENS)
        context = num_running * (prompt_tokens + (_FEW_TOKENS + _MANY_TOKENS) // 2)
        step_s = (many_s - few_s) / (_MANY_TOKENS - _FEW_TOKENS)
        self._decode_step_s.setdefault((num_running, context), []).append(step_s)

    def _measure_prefill(self) -> None:
        num_running, (few, many) = max(_BATCHES) // 2, _PROMPT_TOKENS
        more_s = self._sample_s(num_running, many, 1) - self._sample_s(num_running, few, 1)
        self._prefill_tokens_per_s.append(num_running * (many - few) / more_s)

    def _measure_training(self) -> None:
        few, many = self._samples(_FEW_GROUPS), self._samples(_MANY_GROUPS)
        few_s, many_s = self._train_s(few), self._train_s(many)
        tokens_per_s = (self._tokens_of_replica(many) - self._tokens_of_replica(few)) / (many_s - few_s)
        self._train_tokens_per_s.append(tokens_per_s)
        self._optimizer_s.append(max(0.0, few_s - self._tokens_of_replica(few) / tokens_per_s))

    # What is measured -----------------------------------------------------------------------------------------------

    def _sample_s(self, num_running: int, prompt_tokens: int, num_tokens: int) -> float:
        """All engines sample so many responses each, of so many tokens; no prompt is met twice."""
        engines, events = self.parts.engines, self.parts.events
        requests = {
            engine: [
                Request(
                    request_id=f"profile-{next(self._numbers)}",
                    prompt_tokens=tuple(self._rng.choices(_TOKENS, k=prompt_tokens)),
                    max_tokens=num_tokens,
                    temperature=1.0,
                    seed=1,
                )
                for _ in range(num_running)
            ]
            for engine in engines.alive()
        }

        def sample() -> None:
            for engine, of_engine in requests.items():
                engines.add(engine, of_engine)
            left = sum(map(len, requests.values()))
            while left:
                event = events.get()
                assert not isinstance(event, EngineLost), event
                if isinstance(event, ResponsesEnded):
                    left -= len(event.completions)
                else:
                    others.append(event)

        others: list[Event] = []
        elapsed_s = self._elapsed_s(sample)
        for event in others:
            events.put(event)
        return elapsed_s

    def _train_s(self, samples: Sequence[Sample]) -> float:
        """One update, and what goes before and after it."""
        engines, trainers = self.parts.engines, self.parts.trainers

        def to_training() -> None:
            engines.sleep()
            trainers.wake()

        def publish() -> None:
            weights = trainers.weights(versions[-1])
            trainers.sleep()
            engines.wake()
            engines.publish(weights)

        versions: list[int] = []
        self._to_training_s.append(self._elapsed_s(to_training))
        train_s = self._elapsed_s(lambda: versions.append(trainers.train(samples).update.policy_version))
        self._publish_s.append(self._elapsed_s(publish))
        return train_s

    def _samples(self, num_groups: int) -> list[Sample]:
        """Groups of draws that no job uses, with lengths as theirs."""
        draws = [Draw(epoch, 0) for epoch in range(1_000, 1_000 + num_groups)]
        return [self._a_sample(ResponseId(draw, index)) for draw in draws for index in range(self.num_responses)]

    def _a_sample(self, response: ResponseId) -> Sample:
        tokens = tuple(self._rng.choices(_TOKENS, k=self.lengths.of(response)))
        return Sample(
            draw=response.draw,
            index=response.index,
            prompt_tokens=tuple(self._rng.choices(_TOKENS, k=_PROMPT_TOKENS[0])),
            response_tokens=tokens,
            rollout_log_probs=(-4.5,) * len(tokens),
            advantage=(-1.0) ** response.index,
            reward=0.0,
        )

    def _tokens_of_replica(self, samples: Sequence[Sample]) -> int:
        """Tokens of the replica that has most."""
        parts = shares(samples, len(self.parts.engines.alive()))
        return max(sum(len(one.prompt_tokens) + len(one.response_tokens) for one in part) for part in parts)

    def _elapsed_s(self, work: Callable[[], None]) -> float:
        started_s = self.parts.clock.now_s()
        work()
        return self.parts.clock.now_s() - started_s
