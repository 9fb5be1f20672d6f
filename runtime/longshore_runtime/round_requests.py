"""Build the requests of a round to the engines, response by response."""

from collections.abc import Callable, Sequence

from longshore.api.algorithm import Algorithm
from longshore.policy.round import ResponseId
from longshore_runtime.data.prompt_record import PromptRecord
from longshore_runtime.engine_protocol import Completion, Request
from longshore_runtime.rollout.seeds import request_seed
from longshore_runtime.trajectories.trajectory import EMPTY

RequestOf = Callable[[ResponseId, Completion | None], Request]
"""The request for a response, and what is kept of it from an earlier round."""


def round_requests(
    records: Sequence[PromptRecord], algorithm: Algorithm, purpose: str, temperature: float
) -> RequestOf:
    """Return what makes the requests of one round: a round that is sampled again asks for the same.

    `records` by index of the draw; `purpose` tells the seeds of one round from those of others.
    """

    def request_of(response: ResponseId, kept: Completion | None) -> Request:
        return Request(
            request_id=str(response),
            prompt_tokens=records[response.draw.index].prompt_tokens,
            max_tokens=algorithm.max_response_tokens,
            temperature=temperature,
            seed=request_seed(algorithm.seed, purpose, response),
            partial=kept.trajectory if kept else EMPTY,
        )

    return request_of
