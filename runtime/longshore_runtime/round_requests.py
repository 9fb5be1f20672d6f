"""What a round asks of the engines, response by response."""

from collections.abc import Callable, Sequence

from longshore.api.algorithm import Algorithm
from longshore.policy.round import ResponseId
from longshore_runtime.data.prompt_record import PromptRecord
from longshore_runtime.engine_protocol import Completion, Request
from longshore_runtime.rollout.seeds import request_seed

RequestOf = Callable[[ResponseId, Completion | None], Request]
"""The request for a response, and what is kept of it from an earlier round."""


class RoundRequests:
    """The requests of one round: a round that is sampled again asks for the same."""

    def __init__(self, records: Sequence[PromptRecord], algorithm: Algorithm, purpose: str, temperature: float) -> None:
        """`records` by index of the draw; `purpose` tells the seeds of one round from those of others."""
        self._records = records
        self._algorithm = algorithm
        self._purpose = purpose
        self._temperature = temperature

    def of(self, response: ResponseId, kept: Completion | None) -> Request:
        """Return the request for a response, which continues what was `kept` of it."""
        return Request(
            request_id=str(response),
            prompt_tokens=self._records[response.draw.index].prompt_tokens,
            max_tokens=self._algorithm.max_response_tokens,
            temperature=self._temperature,
            seed=request_seed(self._algorithm.seed, self._purpose, response),
            partial=kept.runs if kept else (),
        )
