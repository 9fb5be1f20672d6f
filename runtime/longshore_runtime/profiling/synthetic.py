"""Synthetic requests and samples: random tokens with given lengths."""

import itertools
import math
import random
from collections.abc import Iterator, Sequence

import numpy as np

from longshore.policy.draws import Draw
from longshore.policy.round import ResponseId
from longshore.sim.lengths import LengthModel
from longshore_runtime.backends.engine_protocol import Request
from longshore_runtime.backends.trainer_protocol import Sample
from longshore_runtime.trajectories.trajectory import TokenIds, Trajectory, token_ids

_EPOCH = 1_000_000
"""Epoch of the draws, which no job reaches."""


class Synthetic:
    """Source of random tokens; equal seeds give equal tokens. No prompt comes twice, so none is cached."""

    def __init__(self, vocab_size: int, seed: int) -> None:
        self._tokens = range(min(4, vocab_size - 1), vocab_size)
        """Token ids to choose from, without low ones, which are mostly special tokens."""
        self._log_prob = -math.log(vocab_size)
        self._rng = random.Random(seed)
        self._numbers = itertools.count()

    def requests(self, lengths: Sequence[int], prompt_tokens: int) -> list[Request]:
        """Return one request for each response length, which it always reaches."""
        return [
            Request(
                request_id=f"profile-{next(self._numbers)}",
                prompt_tokens=self._some(prompt_tokens),
                max_tokens=length,
                temperature=1.0,
                seed=self._rng.randrange(1 << 30),
                ignores_end=True,
            )
            for length in lengths
        ]

    def samples(self, lengths: LengthModel, num_tokens: int) -> list[Sample]:
        """Return responses with lengths like those of a job, up to a total of tokens; at least one."""
        samples: list[Sample] = []
        for response in self._responses():
            samples.append(self._sample(response, lengths.response_tokens(response)))
            num_tokens -= samples[-1].num_response_tokens
            if num_tokens <= 0:
                break
        return samples

    def _responses(self) -> Iterator[ResponseId]:
        return (ResponseId(Draw(_EPOCH, index), 0) for index in itertools.count())

    def _sample(self, response: ResponseId, num_tokens: int) -> Sample:
        log_probs = np.full(num_tokens, self._log_prob)
        return Sample(
            draw=response.draw,
            index=response.index,
            prompt_tokens=self._some(1),
            trajectory=Trajectory.sampled(0, self._some(num_tokens), log_probs),
            advantage=(-1.0) ** response.draw.index,
            reward=0.0,
            teacher_log_probs=log_probs,  # Read if the teacher is behind an endpoint: trainers have no reference then.
        )

    def _some(self, num_tokens: int) -> TokenIds:
        return token_ids(self._rng.choices(self._tokens, k=num_tokens))
