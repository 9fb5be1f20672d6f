"""Messages between coordinator and environments in their pods, as JSON: one connection for all episodes of a pod.

    coordinator ── Open ──► pod ── Opened ──► coordinator      `reset`, and what the model may call
                   Act  ──►     ── Acted  ──►                  a turn, and what the environment says to it
                                ── Asked  ──►                  in place of both: what an agent asks the model
                   Finish ─►    ── Finished ─►                 reward and final state; the episode is over
                   Close ──►                                   nobody wants the episode any more
                                ── Broken ──►                  in place of any answer: the episode is over

An episode has at most one question open. These pods run code that models steer, so whatever comes from one is read as
if an attacker had written it, as `rewards.transports.pod_protocol` says.
"""

from dataclasses import asdict, dataclass, field, replace
from typing import Annotated, Any, Final, Literal

from pydantic import Field, TypeAdapter, ValidationError

from longshore.api.mistakes import sentence
from longshore_runtime.environments.final_state import MAX_STATE, read_state
from longshore_runtime.rewards.numbers import MAX_REWARD
from longshore_runtime.rewards.row_json import to_json
from longshore_runtime.rewards.scoring import Sentence
from longshore_runtime.rewards.transports.pod_protocol import BadMessage, StrictMessage, printable

PATH: Final = "/v1/environments"
"""Path of the WebSocket. Its episodes are there as long as this connection."""
MAX_MESSAGE_BYTES: Final = 16 << 20
MAX_CONTENT: Final = 1 << 20
"""Largest number of characters of what an environment says at once."""
MAX_MESSAGES: Final = 256
"""Largest number of messages with which an environment answers a turn: one for each call."""
MAX_ASKED: Final = 4096
"""Largest number of messages of a conversation that an agent sends."""
MAX_TURNS: Final = 1_000
"""Largest number of turns of an episode, as `maxTurns` has it."""
MAX_TOOLS: Final = 256
MAX_TOOLS_BYTES: Final = 1 << 18
"""Largest size of the schemas of all tools: they are part of every prompt."""

FailureCause = Literal[
    "exception", "result", "timeout", "process", "start", "pod", "server", "server_full", "conversation"
]
"""Why an attempt at an episode failed: code of users raised, or returned what is none; a limit of time; its process
ended, or could not start; its pod or server is lost; its server has no session left; the model cannot read it."""
Number = Annotated[int, Field(ge=0, lt=1 << 63)]
Content = Annotated[str, Field(max_length=MAX_CONTENT)]
Name = Annotated[str, Field(max_length=256)]


@dataclass(frozen=True)
class ToolCall(StrictMessage):
    """A call that the model wrote."""

    name: Name
    """Name of the tool; empty for a call that cannot be read."""
    arguments: dict[str, Any]
    error: str = ""
    """What is wrong with a call that cannot be read: the model is told that in place of a result."""


@dataclass(frozen=True)
class Open(StrictMessage):
    """Begin an episode: `reset(**row)` of a new instance of the environment, by its name in the job."""

    episode: Number
    environment: Name
    row: dict[str, Any]
    seed: Number
    """Seed of the episode: another attempt at it, and the same draw in a later round, has the same."""
    kind: Literal["Open"] = "Open"


@dataclass(frozen=True)
class Act(StrictMessage):
    """A turn of the model."""

    episode: Number
    content: str
    calls: list[ToolCall]
    is_cut: bool = False
    """Whether a limit of tokens has cut the turn off."""
    num_prompt_tokens: Number = 0
    """Tokens that the turn was sampled from."""
    num_tokens: Number = 0
    """Tokens of the turn."""
    kind: Literal["Act"] = "Act"


@dataclass(frozen=True)
class Finish(StrictMessage):
    """The episode is over, whatever the environment thinks of it: answer with its reward and state, and end it."""

    episode: Number
    wants_state: bool = False
    """Whether a reward function may read the final state of the environment."""
    kind: Literal["Finish"] = "Finish"


@dataclass(frozen=True)
class Close(StrictMessage):
    """End the episode at once, without an answer."""

    episode: Number
    kind: Literal["Close"] = "Close"


@dataclass(frozen=True)
class Opened(StrictMessage):
    """The episode has begun."""

    episode: Number
    observation: Content | None
    """What `reset` returned: it is added to the last message of the user."""
    tools: Annotated[list[dict[str, Any]], Field(max_length=MAX_TOOLS)]
    """Schemas of the tools, as chat templates take them."""
    num_cut: Annotated[int, Field(ge=0, le=1)] = 0
    """1 if the observation was cut to its largest length."""
    kind: Literal["Opened"] = "Opened"


@dataclass(frozen=True)
class Observation(StrictMessage):
    """A message that the model reads next."""

    role: Annotated[str, Field(pattern="^(tool|user)$")]
    content: Content
    name: Name | None = None
    """Name of the tool that was called."""

    @property
    def message(self) -> dict[str, Any]:
        """The same as a message of a conversation."""
        named = {} if self.name is None else {"name": self.name}
        return {"role": self.role, **named, "content": self.content}


@dataclass(frozen=True)
class Acted(StrictMessage):
    """What the environment says to a turn; nothing: the episode is over."""

    episode: Number
    observations: Annotated[list[Observation], Field(max_length=MAX_MESSAGES)]
    num_failed_calls: Annotated[int, Field(ge=0, le=MAX_MESSAGES)]
    """Calls of tools that do not exist, do not take these arguments, or raised."""
    num_cut: Annotated[int, Field(ge=0, le=MAX_MESSAGES)] = 0
    """Observations that were cut to their largest length."""
    kind: Literal["Acted"] = "Acted"


@dataclass(frozen=True)
class AskedMessage(StrictMessage):
    """A message of a conversation that an agent has sent."""

    role: Annotated[str, Field(pattern="^(system|user|assistant|tool)$")]
    content: Content
    name: Name | None = None
    """Name of the tool that was called."""
    calls: Annotated[list[ToolCall], Field(max_length=MAX_MESSAGES)] = field(default_factory=list)
    """Calls of an assistant that the agent has made up: not of a turn that was sampled here."""

    @property
    def message(self) -> dict[str, Any]:
        """The same as a message of a conversation."""
        calls = [{"type": "function", "function": {"name": one.name, "arguments": one.arguments}} for one in self.calls]
        named = {} if self.name is None else {"name": self.name}
        return {"role": self.role, **named, "content": self.content, **({"tool_calls": calls} if calls else {})}


@dataclass(frozen=True)
class Asked(StrictMessage):
    """An agent asks the model for a turn."""

    episode: Number
    after: Number | None
    """Number of the turn that the conversation goes on from, by the order of the turns; None: it is another one."""
    messages: Annotated[list[AskedMessage], Field(max_length=MAX_ASKED)]
    """Messages since that turn, or the whole conversation."""
    tools: Annotated[list[dict[str, Any]], Field(max_length=MAX_TOOLS)]
    """Schemas of the tools of a conversation that begins."""
    max_tokens: Annotated[int, Field(ge=1)] | None = None
    """Largest number of tokens of the turn."""
    stop: Annotated[list[Annotated[str, Field(min_length=1, max_length=256)]], Field(max_length=16)] = field(
        default_factory=list
    )
    """Texts with which the turn ends, besides its end token."""
    kind: Literal["Asked"] = "Asked"


@dataclass(frozen=True)
class Finished(StrictMessage):
    """The episode is over."""

    episode: Number
    reward: Annotated[float, Field(ge=-MAX_REWARD, le=MAX_REWARD, allow_inf_nan=False)] | None
    """Reward by `get_reward`; None: the environment gives none."""
    state: Annotated[str, Field(max_length=MAX_STATE)] | None = None
    """Final state by `get_state`, as JSON; None: the environment tells none, or nobody wants it."""
    unread: Annotated[list[Number], Field(max_length=MAX_TURNS)] = field(default_factory=list)
    """Numbers of turns that an agent never read, since its client had hung up: nothing that it did follows from them.
    """
    kind: Literal["Finished"] = "Finished"


@dataclass(frozen=True)
class Broken(StrictMessage):
    """The episode has failed: an exception, a limit of time, a dead process."""

    episode: Number
    error: Sentence
    is_users_mistake: bool = False
    """Whether every other episode of the environment would fail alike, such as without its module."""
    cause: FailureCause = "exception"
    kind: Literal["Broken"] = "Broken"


Question = Annotated[Open | Act | Finish | Close, Field(discriminator="kind")]
Answer = Annotated[Opened | Acted | Asked | Finished | Broken, Field(discriminator="kind")]
_QUESTIONS: Final[TypeAdapter[Question]] = TypeAdapter(Question)
_ANSWERS: Final[TypeAdapter[Answer]] = TypeAdapter(Answer)


def encode(message: Question | Answer) -> bytes:
    """Write a message; raises TypeError for a row that is nested too deeply."""
    return to_json(asdict(message))


def decode_question(data: bytes) -> Question:
    """Read a message of the coordinator; raises BadMessage."""
    return _decoded(_QUESTIONS, data)


def decode_answer(data: bytes) -> Answer:
    """Read a message of a pod; raises BadMessage."""
    answer: Answer = _decoded(_ANSWERS, data)
    if isinstance(answer, Opened | Asked) and len(to_json(answer.tools)) > MAX_TOOLS_BYTES:
        raise BadMessage(f"the schemas of its tools have more than {MAX_TOOLS_BYTES >> 10} KiB")
    if isinstance(answer, Finished) and answer.state is not None:
        try:
            return replace(answer, state=read_state(answer.state))
        except ValueError as error:
            raise BadMessage(f"it {error}") from error
    return answer


def _decoded(reader: "TypeAdapter[Any]", data: bytes) -> Any:
    try:
        return reader.validate_json(data)
    except ValidationError as error:
        raise BadMessage(printable(sentence(error))) from error
