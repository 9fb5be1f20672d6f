"""A response that an engine is sampling."""

from dataclasses import dataclass, field

from longshore_runtime.engine_protocol import Completion, FinishReason, LiveResponse, Request, TokenRun


@dataclass(eq=False)
class GrowingResponse:
    """Tokens that one policy version adds to a request."""

    request: Request
    policy_version: int
    tokens: list[int] = field(default_factory=list)
    log_probs: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        if self.remaining_tokens < 1:
            raise ValueError(
                f"request {self.request.request_id}: its partial response already has maxTokens = "
                f"{self.request.max_tokens} tokens, so there is nothing to sample"
            )

    @property
    def kept_tokens(self) -> list[int]:
        """Tokens of the partial response, in their order."""
        return [token for run in self.request.partial for token in run.tokens]

    @property
    def remaining_tokens(self) -> int:
        """Number of tokens that may still be sampled."""
        num_kept = sum(len(run.tokens) for run in self.request.partial)
        return self.request.max_tokens - num_kept - len(self.tokens)

    @property
    def live(self) -> LiveResponse:
        """Prompt length and number of response tokens so far."""
        generated_tokens = self.request.max_tokens - self.remaining_tokens
        return LiveResponse(len(self.request.prompt_tokens), generated_tokens)

    def completion(self, reason: FinishReason, engine_step: int) -> Completion:
        """Return the response so far; partial runs keep the policy versions that sampled them."""
        runs = self.request.partial
        if self.tokens:
            runs = (*runs, TokenRun(self.policy_version, tuple(self.tokens), tuple(self.log_probs)))
        return Completion(self.request.request_id, runs, reason, engine_step)
