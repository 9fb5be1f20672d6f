"""A response that an engine is sampling."""

from array import array
from dataclasses import dataclass, field

import numpy as np

from longshore_runtime.backends.engine_protocol import Completion, FinishReason, LiveResponse, Request
from longshore_runtime.trajectories.trajectory import Trajectory


@dataclass(eq=False)
class GrowingResponse:
    """Tokens that one policy version adds to a request."""

    request: Request
    policy_version: int
    tokens: "array[int]" = field(default_factory=lambda: array("i"))
    log_probs: "array[float]" = field(default_factory=lambda: array("f"))

    def __post_init__(self) -> None:
        if self.remaining_tokens < 1:
            raise ValueError(
                f"request {self.request.request_id}: its partial response already has maxTokens = "
                f"{self.request.max_tokens} tokens, so there is nothing to sample"
            )

    @property
    def num_kept(self) -> int:
        """Number of tokens of the partial response."""
        return len(self.request.partial)

    @property
    def remaining_tokens(self) -> int:
        """Number of tokens that may still be sampled."""
        return self.request.max_tokens - self.num_kept - len(self.tokens)

    @property
    def live(self) -> LiveResponse:
        """Prompt length and number of response tokens so far."""
        generated_tokens = self.request.max_tokens - self.remaining_tokens
        return LiveResponse(len(self.request.prompt_tokens), generated_tokens)

    def completion(self, reason: FinishReason, engine_step: int) -> Completion:
        """Return the response so far; partial tokens keep the policy versions that sampled them."""
        tokens, log_probs = np.frombuffer(self.tokens, np.int32), np.frombuffer(self.log_probs, np.float32)
        new = Trajectory.sampled(self.policy_version, tokens, log_probs)
        return Completion(self.request.request_id, self.request.partial + new, reason, engine_step)
