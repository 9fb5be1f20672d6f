"""How long the responses to a prompt will be, predicted from what was seen: the prompt's own history first."""

from collections.abc import Iterable, Mapping
from typing import Any

from longshore.policy.round import ResponseFinished


class LengthHistory:
    """Means of finished responses by prompt; a prompt without history is taken for an average one.

    verl's reorder recipe asks how to estimate lengths beforehand: a prompt of an earlier epoch, or one whose group
    was left over with some of its responses finished, tells by itself.
    """

    def __init__(self) -> None:
        self._by_prompt: dict[int, tuple[int, int]] = {}
        self._at_least: dict[int, int] = {}
        self._num_responses = 0
        self._num_tokens = 0

    def observe(self, events: Iterable[ResponseFinished]) -> None:
        """Note responses that ended."""
        for event in events:
            prompt = event.response.draw.index
            count, total = self._by_prompt.get(prompt, (0, 0))
            self._by_prompt[prompt] = (count + 1, total + event.num_tokens)
            self._num_responses += 1
            self._num_tokens += event.num_tokens

    def at_least(self, prompts: Iterable[int], num_tokens: int) -> None:
        """Note that responses to these prompts still ran when others of this length had ended."""
        for prompt in prompts:
            self._at_least[prompt] = max(num_tokens, self._at_least.get(prompt, 0))

    def expected_tokens(self, prompt: int) -> float:
        """Return the predicted response length."""
        if prompt in self._by_prompt:
            count, total = self._by_prompt[prompt]
            own = total / count
        else:
            own = self._num_tokens / self._num_responses if self._num_responses else 0.0
        return max(own, self._at_least.get(prompt, 0))

    def export_state(self) -> dict[str, Any]:
        """Return the state as JSON values."""
        return {
            "by_prompt": [[prompt, count, total] for prompt, (count, total) in self._by_prompt.items()],
            "at_least": [[prompt, num_tokens] for prompt, num_tokens in self._at_least.items()],
        }

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Undo `export_state`."""
        self._by_prompt = {prompt: (count, total) for prompt, count, total in state["by_prompt"]}
        self._at_least = dict(state["at_least"])
        self._num_responses = sum(count for count, _ in self._by_prompt.values())
        self._num_tokens = sum(total for _, total in self._by_prompt.values())
