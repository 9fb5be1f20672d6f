"""Call a reward function of TRL's signature with a second response beside the first.

Functions such as `len_reward` of open-r1 compare the responses of a group. Longshore scores every response alone, where
such a function gives all of them the same reward. It shows by giving a response another reward in company.
"""

import copy
import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

BESIDE: Final = "beside"
"""Field of a request to the scoring process: the key of `COMPANY` that says what stands beside the response."""
COMPANY: Final[Mapping[str, Callable[[str], str]]] = {
    "a response of twice its length": lambda response: f"{response}\n{response}",
    "an empty response": lambda response: "",
}

_Function = Callable[..., Any]
_Call = Callable[[Mapping[str, Any]], Any]


def with_company(function: _Function, prepare: Callable[[_Function], _Call]) -> _Call:
    """Return a function as one of a sample, which may ask for company by its field `beside`.

    Args:
        function: the reward function of the user.
        prepare: makes a function one of a sample.

    Raises:
        ValueError: `prepare` raises it.
    """
    alone = prepare(function)

    def call(sample: Mapping[str, Any]) -> Any:
        if BESIDE not in sample:
            return alone(sample)
        return prepare(_in_company(function, COMPANY[sample[BESIDE]]))(sample)

    return call


def _in_company(function: _Function, other: Callable[[str], str]) -> _Function:
    """Return a function of one completion that calls `function` with two, and keeps the reward of the first."""

    @functools.wraps(function)
    def called_with_two(**arguments: Any) -> Any:
        both = {name: [*values, *copy.deepcopy(values)] for name, values in arguments.items()}
        if "completions" in both:
            first, second = both["completions"]
            both["completions"] = [first, _changed(second, other)]
        rewards = function(**both)
        return _first_later(rewards) if inspect.isawaitable(rewards) else rewards[:1]

    return called_with_two


def _changed(completion: str | Sequence[Mapping[str, Any]], other: Callable[[str], str]) -> Any:
    if isinstance(completion, str):
        return other(completion)
    return [{**message, "content": other(message["content"])} for message in completion]


async def _first_later(rewards: Any) -> Any:
    return (await rewards)[:1]
