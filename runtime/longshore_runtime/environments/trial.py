"""Play an episode of an environment with a scripted policy, before its job is submitted."""

import asyncio
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final, TypeVar

from longshore.api.environment import Environment
from longshore_runtime.data.prompt_record import PromptRecord
from longshore_runtime.environments.attempt import (
    EpisodeLimits,
    episode_prompt,
    observed_tokens,
    require_conversation,
)
from longshore_runtime.environments.conversation import Conversations
from longshore_runtime.environments.host import EnvironmentHost
from longshore_runtime.environments.link import EpisodeError, encoded
from longshore_runtime.environments.pod_protocol import (
    Act,
    Acted,
    Answer,
    Asked,
    Broken,
    Finish,
    Finished,
    Open,
    Opened,
    Question,
    ToolCall,
    decode_answer,
)
from longshore_runtime.environments.processes import CannotStart, Template
from longshore_runtime.errors import UserError
from longshore_runtime.rewards.failure_text import shortened, shown
from longshore_runtime.rewards.transports.pod_protocol import BadMessage

_EPISODE: Final = 0
"""Number of the only episode."""
_MAX_SHOWN: Final = 120
"""Largest number of characters of a state that are shown."""
_TEXT: Final = "text"
"""What the policy says where it calls nothing, and the texts with which it calls tools."""

A = TypeVar("A", bound=Answer)


class EnvironmentMistake(Exception):
    """Raised when an environment fails; the message is one sentence that names the field."""


class ImportMistake(EnvironmentMistake):
    """Raised when an environment cannot be imported, or its tools cannot be described."""


def require_import(environment: Environment) -> None:
    """Import an environment in a process of its own and describe its tools; raises ImportMistake."""

    async def imported() -> None:
        async with _imported(environment):
            pass

    asyncio.run(imported())


def play(
    environment: Environment,
    record: PromptRecord,
    conversations: Conversations | None,
    limits: EpisodeLimits,
    *,
    needs_reward: bool,
    wants_state: bool = False,
) -> str:
    """Call each tool once, then say something, ask for the reward, and return what was seen.

    Args:
        environment: environment, with its limits of time.
        record: row with which the episode begins.
        conversations: conversations of the model; None: nothing is known of the model.
        limits: limits of every episode of the job.
        needs_reward: whether a reward function takes its reward from the environment.
        wants_state: whether a reward function may read its final state.

    Raises:
        EnvironmentMistake: the environment fails.
        UserError: the chat template, or the prompt, is not one for the environment.
    """

    async def played() -> str:
        async with _imported(environment) as template:
            episode = _Episode(template, record, conversations, limits)
            try:
                return await episode.play(needs_reward=needs_reward, wants_state=wants_state)
            finally:
                episode.close()

    return asyncio.run(played())


@asynccontextmanager
async def _imported(environment: Environment) -> AsyncIterator[Template]:
    template = Template(environment)
    try:
        try:
            (await template.fork()).close()
        except CannotStart as error:
            raise ImportMistake(str(error)) from error
        yield template
    finally:
        await template.close()


class _Episode:
    """The episode, with the part of a pod that runs it."""

    def __init__(
        self,
        template: Template,
        record: PromptRecord,
        conversations: Conversations | None,
        limits: EpisodeLimits,
    ) -> None:
        self._environment = template.environment
        self._record = record
        self._conversations = conversations
        self._limits = limits
        self._answers: asyncio.Queue[bytes] = asyncio.Queue()
        self._host = EnvironmentHost({template.environment.name: template}, self._answers.put)

    def close(self) -> None:
        """End the process of the episode."""
        self._host.close()

    async def play(self, *, needs_reward: bool, wants_state: bool) -> str:
        """See the function of that name."""
        begun = Open(_EPISODE, self._environment.name, dict(self._record.fields), seed=0)
        if self._environment.is_agent:
            seen = await self._play_agent(begun)
        else:
            seen = await self._play(begun)
        finished = await self._ask(Finish(_EPISODE, wants_state), Finished)
        seen += self._seen_reward(finished.reward, needs_reward=needs_reward)
        if finished.state is not None:
            seen.append(f"state {shortened(finished.state, _MAX_SHOWN)}")
        return f"{self._environment.name}: {', '.join(seen)}"

    async def _play(self, begun: Open) -> list[str]:
        """Call each tool once and say something; returns what was seen."""
        started_s = time.monotonic()
        opened = await self._ask(begun, Opened)
        reset_s = time.monotonic() - started_s
        num_tools = len(opened.tools)
        seen = [f"{num_tools} tool{'' if num_tools == 1 else 's'}"]
        if not self._environment.tools:
            seen.append(f"reset took {reset_s:.1f} s")
        if (num_tokens := self._num_prompt_tokens(opened)) is not None:
            seen.append(f"prompt {num_tokens:,} tokens")
        for call in _calls(opened.tools):
            acted = await self._act("", [call])
            if not acted.observations:
                break
            if acted.num_failed_calls:
                seen.append(f"{call.name} answered {shown(call.arguments)} with {shown(acted.observations[0].content)}")
        await self._act(_TEXT, [])
        return seen

    async def _play_agent(self, begun: Open) -> list[str]:
        """Answer an agent: call each tool that it offers once, then say something, as often as it asks.

        Returns what was seen.
        """
        asked, num_turns = await self._ask_agent(begun), 0
        calls = _calls(asked.tools) if asked is not None else []
        while asked is not None and num_turns < self._environment.max_turns:
            if asked.after is None:
                self._require_prompt(asked)
            turn = Act(_EPISODE, "" if calls else _TEXT, calls[:1])
            calls = calls[1:]
            asked, num_turns = await self._ask_agent(turn), num_turns + 1
        return [f"{num_turns} turn{'' if num_turns == 1 else 's'}"]

    async def _ask_agent(self, question: Open | Act) -> Asked | None:
        """Return what an agent asks next; None: it has ended."""
        answer = await self._answer(question)
        return answer if isinstance(answer, Asked) else None

    def _require_prompt(self, asked: Asked) -> None:
        """Check that the model can read a conversation."""
        try:
            require_conversation(self._record, "agents need")
        except EpisodeError as error:
            raise UserError(str(error)) from error
        if self._conversations is not None:
            self._conversations.check(asked.tools)
            self._conversations.prompt([one.message for one in asked.messages], None, asked.tools)

    def _seen_reward(self, reward: float | None, *, needs_reward: bool) -> list[str]:
        if reward is not None:
            return [f"reward {reward:g}"]
        if needs_reward:
            gives = "let its get_reward() return a number"
            if self._environment.is_agent:
                gives = "return a number from the function, or let the program post it to /finish"
            raise self._mistake(
                f"the environment gives no reward, which a reward function of kind Environment takes; {gives}, or "
                "choose another kind in reward.functions"
            )
        return []

    def _num_prompt_tokens(self, opened: Opened) -> int | None:
        """Return the number of tokens before the first turn, or None if nothing is known of the model."""
        try:
            if self._conversations is not None:
                return len(episode_prompt(self._record, opened, self._conversations, self._limits))
            if opened.tools:
                require_conversation(self._record, "the tools of an environment need")
        except EpisodeError as error:
            if error.is_users_mistake:
                raise UserError(str(error)) from error
            raise self._mistake(str(error)) from error
        return None

    async def _act(self, content: str, calls: list[ToolCall]) -> Acted:
        acted = await self._ask(Act(_EPISODE, content, calls), Acted)
        if acted.observations and self._conversations is not None:
            try:
                observed_tokens(acted.observations, self._conversations, is_chat=bool(self._record.messages))
            except EpisodeError as error:
                raise self._mistake(str(error)) from error
        return acted

    async def _ask(self, question: Question, kind: type[A]) -> A:
        answer = await self._answer(question)
        assert isinstance(answer, kind), "the host checks the kind of an answer"
        return answer

    async def _answer(self, question: Question) -> Answer:
        try:
            self._host.receive(encoded(question))
        except (EpisodeError, BadMessage) as error:
            raise self._mistake(str(error)) from error
        answer = decode_answer(await self._answers.get())
        if isinstance(answer, Broken):
            raise self._mistake(answer.error)
        return answer

    def _mistake(self, problem: str) -> EnvironmentMistake:
        if problem.startswith("environments["):  # It names a field already: that of a limit.
            return EnvironmentMistake(problem)
        what = problem.removeprefix(f"environment {self._environment.name}: ")
        return EnvironmentMistake(f"{self._environment.code_field}: {self._record.source}: {what}")


def _calls(tools: Sequence[Mapping[str, Any]]) -> list[ToolCall]:
    functions = [tool["function"] for tool in tools]
    return [ToolCall(one["name"], example_value({"type": "object", **one["parameters"]})) for one in functions]


def example_value(schema: Mapping[str, Any]) -> Any:
    """Return a value that fits the JSON schema of a parameter; of an object, only what it must have."""
    if values := schema.get("enum"):
        return values[0]
    if schemas := schema.get("anyOf"):
        return example_value(schemas[0])
    types = schema.get("type")
    match types[0] if isinstance(types, list) else types:
        case "integer":
            return 1
        case "number":
            return 1.0
        case "boolean":
            return True
        case "null":
            return None
        case "array":
            items = schema.get("prefixItems") or ([schema["items"]] if "items" in schema else [])
            return [example_value(one) for one in items]
        case "object":
            properties = schema.get("properties", {})
            return {name: example_value(properties.get(name, {})) for name in schema.get("required", ())}
        case _:
            return _TEXT
