"""What a model may call in an episode: functions, or the methods of a class, collected and called as TRL does."""

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final

import orjson

from longshore_runtime.environments.pod_protocol import MAX_TOOLS, MAX_TOOLS_BYTES, FailureCause
from longshore_runtime.rewards.failure_text import error_text, shown
from longshore_runtime.rewards.signatures import EventLoop

NOT_TOOLS: Final = frozenset({"reset", "reply", "get_reward", "get_state"})
"""Public methods of an environment that the model may not call."""

Tool = Callable[..., Any]
Schema = dict[str, Any]


class BadTools(Exception):
    """Raised when the model cannot be told of a tool; the message is one sentence."""


class WrongResult(Exception):
    """Raised when code of users returned what nobody can read; the message is one sentence."""

    def __init__(self, problem: str, cause: FailureCause = "result") -> None:
        """Take the sentence, and the cause that is counted."""
        super().__init__(problem)
        self.cause = cause


def methods_of(instance: object) -> list[Tool]:
    """Return the methods of an environment that are tools."""
    return [getattr(instance, name) for name in _method_names(type(instance))]


def _method_names(environment: type) -> list[str]:
    # Of the class: the instance would evaluate properties.
    members = inspect.getmembers(environment, predicate=inspect.isfunction)
    return [name for name, _ in members if name not in NOT_TOOLS and not name.startswith("_")]


def schemas_of_class(environment: type) -> list[Schema]:
    """Return the schemas of the methods that are tools; raises BadTools."""
    stand_in = object()  # Methods are bound to it only for their signatures, which then lack `self`.
    return schemas_of(
        [
            inspect.getattr_static(environment, name).__get__(stand_in, environment)
            for name in _method_names(environment)
        ]
    )


def schemas_of(tools: Sequence[Tool]) -> list[Schema]:
    """Return the schemas of functions, by their signatures and docstrings; raises BadTools."""
    if not tools:
        return []
    from transformers.utils import get_json_schema  # Takes seconds and 200 MB.

    if len(tools) > MAX_TOOLS:
        raise BadTools(f"it has {len(tools)} tools; at most {MAX_TOOLS} are possible")
    schemas = []
    for tool in tools:
        try:
            schemas.append(get_json_schema(tool))
            orjson.dumps(schemas)
        except Exception as error:
            name = getattr(tool, "__name__", shown(tool))
            raise BadTools(f"tool {name!r} cannot be described to the model ({error_text(error)})") from error
    if len(orjson.dumps(schemas)) > MAX_TOOLS_BYTES:
        raise BadTools(f"the descriptions of its tools have more than {MAX_TOOLS_BYTES >> 10} KiB; shorten them")
    return schemas


class Toolbox:
    """The tools of one episode."""

    def __init__(self, tools: Sequence[Tool], loop: EventLoop) -> None:
        """Take the tools and the event loop in which asynchronous ones run."""
        self._tools = {tool.__name__: tool for tool in tools}
        self._loop = loop

    def call(self, calls: Sequence[Mapping[str, Any]], on_end: Callable[[], None]) -> list[str | Exception]:
        """Return what each call returns as text, or the exception that it raises.

        Asynchronous tools run at the same time, after the others.

        Args:
            calls: names of the tools with their arguments.
            on_end: is called at the end of each synchronous call.
        """
        results: list[Any] = []
        for call in calls:
            # A call that cannot be read says what is wrong with it.
            error = call.get("error")
            results.append(ValueError(error) if error else self._begin(call["name"], call["arguments"]))
            on_end()
        waiting = [index for index, result in enumerate(results) if inspect.isawaitable(result)]
        if waiting:
            awaited = self._loop.result_of(_all_of([results[index] for index in waiting]))
            for index, result in zip(waiting, awaited, strict=True):
                results[index] = result
        return [_text_or_error(result) for result in results]

    def _begin(self, name: str, arguments: Mapping[str, Any]) -> Any:
        """Return the result of a call, which may be awaitable, or the exception that it raises."""
        try:
            if name not in self._tools:
                raise ValueError(f"Tool {name} not found.")
            return self._tools[name](**arguments)
        except Exception as error:  # noqa: BLE001 - the model reads what went wrong
            return error


async def _all_of(results: Sequence[Awaitable[Any]]) -> list[Any]:
    return await asyncio.gather(*results, return_exceptions=True)


def error_content(error: BaseException) -> str:
    """Return what the model reads of an exception."""
    try:
        text = str(error)
    except BaseException:  # noqa: BLE001 - code of users may raise anything
        text = error_text(error)
    return str({"error": text})


def _text_or_error(result: Any) -> str | Exception:
    if isinstance(result, BaseException):
        return result if isinstance(result, Exception) else RuntimeError(error_text(result))
    try:
        return text_of(result) if isinstance(result, list) else str(result)
    except WrongResult:
        raise
    except Exception as error:  # noqa: BLE001 - str() of an object of the user
        return error


def text_of(result: Any) -> str:
    """Return a result that is text, or a list of blocks of text; raises WrongResult."""
    if isinstance(result, str):
        return result
    if not isinstance(result, list):
        raise WrongResult(f"returned {shown(result)} instead of text")
    blocks = [block for block in result if isinstance(block, Mapping) and "type" in block]
    if len(blocks) < len(result):
        return str(result)
    if others := {block["type"] for block in blocks} - {"text"}:
        raise WrongResult(f"returned content of type {shown(min(others))}; models of a job read text only")
    return "".join(str(block["text"]) for block in blocks)
