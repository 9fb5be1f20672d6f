"""A real HTTP server with the interface of vLLM that gives log-probabilities of prompts."""

from collections.abc import Callable, Sequence

import orjson

from tests.contract.judge.server import JudgeServer, Received


class TeacherServer(JudgeServer):
    """Says of a token what `log_probs` does, which gets all tokens, and that its text is `text_of` of it."""

    def __init__(
        self, log_probs: Callable[[list[int]], Sequence[float]], text_of: Callable[[int], str | None] = str
    ) -> None:
        super().__init__(lambda prompts, max_tokens: [])
        self._log_probs = log_probs
        self._text_of = text_of

    def _completion(self, received: Received) -> bytes:
        tokens = received.body["prompt"]
        entries = [
            {str(token): {"logprob": value, "rank": 1, "decoded_token": self._text_of(token)}}
            for token, value in zip(tokens, self._log_probs(tokens), strict=True)
        ]
        asked = received.body.get("prompt_logprobs") is not None
        return orjson.dumps({"choices": [{"text": "", "prompt_logprobs": [None, *entries[1:]] if asked else None}]})
