"""The process of one episode: reads questions as JSON lines and answers each from an instance of the environment.

`rewards.child_pipes` says how it is tied to the pod. An environment is a class as TRL wants it, or a list of functions:

    reset(**row) -> str | None      begins the episode; the text is added to the last message of the user
    other public methods            tools, by their signatures and Google docstrings
    get_reward() -> float           optional: the reward of the episode
    get_state() -> Any              optional, and not in TRL: what reward functions get of it, as a JSON value
    reply(message) -> str | None    optional, and not in TRL: answers a turn without calls as the user; None: it is over

All of them may be asynchronous. What a tool raises, the model reads; what anything else raises breaks the episode.
"""

import contextlib
import json
import random
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from longshore_runtime.environments.final_state import written_state
from longshore_runtime.environments.pod_protocol import (
    MAX_CONTENT,
    MAX_MESSAGES,
    Acted,
    Answer,
    Broken,
    FailureCause,
    Finished,
    Observation,
    Opened,
    encode,
)
from longshore_runtime.environments.served import Served, ServedTools
from longshore_runtime.environments.tools import (
    Schema,
    Tool,
    Toolbox,
    WrongResult,
    error_content,
    methods_of,
    text_of,
)
from longshore_runtime.rewards.child_pipes import take_pipes
from longshore_runtime.rewards.failure_text import error_with_place
from longshore_runtime.rewards.numbers import optional_reward
from longshore_runtime.rewards.scoring import MAX_SENTENCE
from longshore_runtime.rewards.signatures import EventLoop
from longshore_runtime.sandbox import landlock
from longshore_runtime.sandbox.layers import LayerUnavailable

CALL_ENDED: Final = b"{}\n"
"""Line that says that one of several calls has ended, before the answer: each has its own limit of time."""
_TURN_CONTENT: Final = 2 * MAX_CONTENT
"""Largest number of characters of all observations of a turn: as escapes in JSON, they still fit into one message."""


@dataclass(frozen=True)
class ImportedEnvironment:
    """What an episode is made of: a class, or functions."""

    name: str
    factory: Callable[[], Any] | None
    """Class, or None for functions."""
    tools: Sequence[Tool]
    """Functions that are tools, without a class."""
    schemas: list[Schema]
    """Schemas of the tools."""


def main(environment: ImportedEnvironment, requests: int, replies: int) -> None:
    """Serve one episode until the pipe of requests ends. The last two arguments are file descriptors."""
    if "longshore_runtime.tools" not in sys.modules:  # An episode makes a sandbox that has died anew, and must mount.
        with contextlib.suppress(LayerUnavailable):
            landlock.isolate()  # From the other episodes of the pod, whose processes have the same user.
    lines, say = take_pipes(requests, replies)
    loop = EventLoop()
    episode = Episode(environment, loop, on_call_end=lambda: say(CALL_ENDED))
    while line := loop.wait_for(lines.readline):
        # orjson would round integers that need more than 64 bits.
        say(encode(episode.answer(json.loads(line))) + b"\n")


class Episode:
    """One episode, by questions and answers of `pod_protocol`."""

    def __init__(
        self, environment: ImportedEnvironment, loop: EventLoop, on_call_end: Callable[[], None] = lambda: None
    ) -> None:
        """Prepare it; `on_call_end` is called after each of the tools of a turn that are not asynchronous."""
        self._environment = environment
        self._loop = loop
        self._on_call_end = on_call_end
        self._instance: Any = None
        self._toolbox: Toolbox | ServedTools = Toolbox((), loop)
        self._running = ""
        """What code of the user runs, for messages."""

    def answer(self, question: Mapping[str, Any]) -> Answer:
        """Return the answer to a question: Broken if code of the user fails."""
        number, name = question["episode"], self._environment.name
        cause: FailureCause = "exception"
        try:
            match question["kind"]:
                case "Open":
                    return self._open(number, question["row"], question["seed"])
                case "Act":
                    return self._act(number, question["content"], question["calls"])
                case _:
                    state = self._state() if question["wants_state"] else None
                    return Finished(number, self._reward(), state)
        except WrongResult as error:
            problem, cause = str(error), error.cause
        except BaseException as error:  # noqa: BLE001 - whatever an environment raises is reported
            problem = f"raised {error_with_place(error)}"
        return Broken(number, f"environment {name}: {self._running} {problem}"[:MAX_SENTENCE], cause=cause)

    def _open(self, number: int, row: Mapping[str, Any], seed: int) -> Opened:
        seed_generators(seed)
        if self._environment.factory is None:
            self._toolbox = Toolbox(self._environment.tools, self._loop)
            return Opened(number, None, self._environment.schemas)
        self._running = "its constructor"
        self._instance = self._environment.factory()
        is_served = isinstance(self._instance, Served)
        self._toolbox = (
            ServedTools(self._instance, self._loop) if is_served else Toolbox(methods_of(self._instance), self._loop)
        )
        observation = self._text("reset", **row)
        text, is_cut = (None, False) if observation is None else _cut(observation, MAX_CONTENT)
        schemas = list(self._instance.schemas) if is_served else self._environment.schemas
        return Opened(number, text, schemas, num_cut=int(is_cut))

    def _act(self, number: int, content: str, calls: Sequence[Mapping[str, Any]]) -> Acted:
        if calls:
            return self._call_tools(number, calls[:MAX_MESSAGES])
        if not self._has("reply") or (reply := self._text("reply", content)) is None:
            return Acted(number, [], 0)
        text, is_cut = _cut(reply, MAX_CONTENT)
        return Acted(number, [Observation("user", text)], 0, num_cut=int(is_cut))

    def _call_tools(self, number: int, calls: Sequence[Mapping[str, Any]]) -> Acted:
        self._running = "a tool"
        results = self._toolbox.call(calls, self._on_call_end)
        num_failed = sum(isinstance(one, Exception) for one in results)
        if isinstance(self._instance, Served) and self._instance.is_over:
            return Acted(number, [], num_failed)
        texts = [error_content(one) if isinstance(one, Exception) else one for one in results]
        limit = min(MAX_CONTENT, _TURN_CONTENT // len(texts))
        contents = [_cut(text, limit) for text in texts]
        return Acted(
            number,
            [Observation("tool", content, call["name"]) for call, (content, _) in zip(calls, contents, strict=True)],
            num_failed,
            num_cut=sum(is_cut for _, is_cut in contents),
        )

    def _reward(self) -> float | None:
        if not self._has("get_reward"):
            return None
        reward = self._result("get_reward")
        try:
            return optional_reward(reward)
        except ValueError as error:
            raise WrongResult(str(error)) from error

    def _state(self) -> str | None:
        if not self._has("get_state"):
            return None
        state = self._result("get_state")
        try:
            return written_state(state)
        except ValueError as error:
            raise WrongResult(str(error)) from error

    def _has(self, method: str) -> bool:
        return callable(getattr(type(self._instance), method, None))

    def _text(self, method: str, *arguments: Any, **row: Any) -> str | None:
        result = self._result(method, *arguments, **row)
        return None if result is None else text_of(result)

    def _result(self, method: str, *arguments: Any, **row: Any) -> Any:
        self._running = method
        return self._loop.result_of(getattr(self._instance, method)(*arguments, **row))


def seed_generators(seed: int) -> None:
    """Seed the global generators of Python, and of NumPy if something has imported it."""
    random.seed(seed)
    if (numpy := sys.modules.get("numpy")) is not None:
        numpy.random.seed(seed % (1 << 32))


def _cut(text: str, limit: int) -> tuple[str, bool]:
    """Return at most `limit` characters of a text that can be encoded, and whether it had more."""
    is_cut = len(text) > limit
    if is_cut:
        marker = f" [cut: the text has {len(text):,} characters]"
        text = text[: limit - len(marker)] + marker
    return text.encode("utf-8", "replace").decode(), is_cut
