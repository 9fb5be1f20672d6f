"""What an environment is that runs elsewhere: it says itself what the model may call, once an episode has begun."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from longshore_runtime.environments.tools import Schema
from longshore_runtime.rewards.signatures import EventLoop


class ToolFailed(Exception):
    """Raised for a call that failed by what the model asked for: the message is for the model."""


class Served(ABC):
    """The environment of one episode. Its methods raise WrongResult where the server is to blame."""

    schemas: Sequence[Schema] = ()
    """Schemas of the tools, once the episode has begun."""
    is_over: bool = False
    """Whether the environment has ended the episode."""

    @abstractmethod
    def __init__(self, url: str, call_timeout_s: float) -> None:
        """Take the address of the server and the limit of a call, without connecting."""

    @abstractmethod
    async def reset(self, **row: Any) -> str | None:
        """Begin the episode."""

    @abstractmethod
    async def call(self, name: str, arguments: Mapping[str, Any]) -> str:
        """Return what a tool answers; raises ToolFailed."""

    @abstractmethod
    async def reply(self, message: str) -> str | None:
        """Return the answer to a turn without calls; None: the episode is over."""

    @abstractmethod
    async def get_state(self) -> Any:
        """Return the final state of the environment, a JSON value; None: it tells none."""

    @abstractmethod
    async def get_reward(self) -> float | None:
        """Return the reward of the episode, or None if the environment gives none, and end it."""


class ServedTools:
    """The tools of one episode, which are called one after the other."""

    def __init__(self, environment: Served, loop: EventLoop) -> None:
        """Take the environment and the event loop in which it lives."""
        self._environment = environment
        self._loop = loop

    def call(self, calls: Sequence[Mapping[str, Any]], on_end: Callable[[], None]) -> list[str | Exception]:
        """Return what each call returns, or the exception that the model reads; `on_end` is called after each."""
        results = []
        for call in calls:
            results.append(self._result(call))
            on_end()
        return results

    def _result(self, call: Mapping[str, Any]) -> str | Exception:
        if error := call.get("error"):
            return ToolFailed(error)
        try:
            result: str = self._loop.result_of(self._environment.call(call["name"], call["arguments"]))
        except ToolFailed as error:
            return error
        return result
