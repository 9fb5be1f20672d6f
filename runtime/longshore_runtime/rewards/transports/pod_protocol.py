"""Messages between coordinator and reward pods, as JSON: requests one way, numbers and sentences the other.

Reward pods run code that models wrote, so whatever comes from one is read as if an attacker had written it: of bounded
size, finite, in the shape that was asked for, and nothing but data.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar, Final, TypeVar

import orjson
from pydantic import ConfigDict, Field, TypeAdapter, ValidationError

from longshore.api.mistakes import sentence
from longshore.api.reward import RewardFunction
from longshore_runtime.rewards.failure_text import error_text, one_line
from longshore_runtime.rewards.numbers import MAX_REWARD as MAX_REWARD
from longshore_runtime.rewards.row_json import to_json
from longshore_runtime.rewards.scoring import MAX_CASES as MAX_CASES
from longshore_runtime.rewards.scoring import (
    MAX_SENTENCE,
    ErrorKind,
    RewardError,
    RewardFault,
    RewardSetupError,
    ScoreItem,
    ScoreOutcome,
    ScoreResult,
    Sentence,
    WorkerBroken,
    reads_state,
    wants_row,
)
from longshore_runtime.rewards.surroundings import Surroundings
from longshore_runtime.sandbox.layers import Layer, LayerReport

PATH: Final = "/v1/worker"
"""Path of a worker's WebSocket. The worker is there as long as this connection."""
LOG_PATH: Final = "/v1/log"
"""Path whose GET returns what the pod has written to its log since the last one."""
HEARTBEAT_S: Final = 30.0
"""Seconds between two checks whether the other side is still there; an answer may take half as long. A process that
ends closes its connections at once: this is for nodes that are lost, and pods may stand still for a while."""
MAX_REQUEST_BYTES: Final = 64 << 20
"""Largest size of a request: the responses of one call, with the test cases of their rows."""
MAX_ANSWER_BYTES: Final = 4 << 20
MAX_RESPONSES: Final = 256
"""Largest number of responses of one call."""
_ERRORS: Final[Mapping[ErrorKind, type[RewardError | RewardFault]]] = {
    one.kind: one for one in (RewardError, RewardSetupError, RewardFault, WorkerBroken)
}


class BadMessage(Exception):
    """Raised for an invalid message from the other side; the message is one sentence."""


@dataclass(frozen=True)
class StrictMessage:
    """Base of messages, with settings so strict that pydantic also reads what they carry as strictly."""

    __pydantic_config__: ClassVar = ConfigDict(strict=True, extra="forbid")


@dataclass(frozen=True)
class Hello(StrictMessage):
    """First message of a pod, which says which one it is: its successor at the same address is another."""

    pod: Annotated[str, Field(max_length=64, pattern=r"^[0-9a-f-]+$")]


@dataclass(frozen=True)
class Failed(StrictMessage):
    """Reason why there is no reward."""

    kind: ErrorKind
    error: Sentence


@dataclass(frozen=True)
class Ready(StrictMessage):
    """Layers of the sandbox of a worker that can score, by name, with the reason where one is missing."""

    sandbox: Annotated[dict[str, Sentence | None], Field(max_length=len(Layer))] | None = None


@dataclass(frozen=True)
class Started(StrictMessage):
    """Answer that says whether the worker can score."""

    outcome: Ready | Failed


@dataclass(frozen=True)
class Begin(StrictMessage):
    """First message of the coordinator: what the worker is for."""

    functions: Annotated[list[str], Field(min_length=1)]
    """Names of the functions that the worker makes ready: those of its group, and no others."""
    rehearsals: dict[str, list[ScoreItem]]
    """Rows that the user's functions have to be able to score, by function."""


@dataclass(frozen=True)
class ScoreRequest(StrictMessage):
    """A call; answers name its number."""

    number: int
    function: str
    items: list[ScoreItem]


@dataclass(frozen=True)
class Answer(StrictMessage):
    """The outcomes of a call, in the order of its responses."""

    number: Annotated[int, Field(ge=0, lt=1 << 63)]
    outcomes: Annotated[list[ScoreResult | Failed], Field(max_length=MAX_RESPONSES, fail_fast=True)]


M = TypeVar("M", bound=StrictMessage)
_READERS: Final[Mapping[type, TypeAdapter[Any]]] = {
    kind: TypeAdapter(kind) for kind in (Hello, Begin, Started, ScoreRequest, Answer)
}


def decode(kind: type[M], data: bytes) -> M:
    """Read a message; raises BadMessage."""
    try:
        return _READERS[kind].validate_json(data)
    except ValidationError as error:
        is_json = error.errors(include_url=False)[0]["type"] != "json_invalid"
        raise BadMessage(printable(sentence(error)) if is_json else "it is not JSON") from error


def encode(message: StrictMessage) -> bytes:
    """Write a message."""
    return orjson.dumps(message)


def encode_begin(functions: Sequence[RewardFunction], rehearsals: Mapping[str, Sequence[ScoreItem]]) -> bytes:
    """Write the first message."""
    of_users = [function for function in functions if function.import_path is not None]
    rows = {one.name: [_item(one, item) for item in rehearsals.get(one.name, ())] for one in of_users}
    return to_json({"functions": [one.name for one in functions], "rehearsals": rows})


def functions_of(begin: Begin, functions: Sequence[RewardFunction]) -> list[RewardFunction]:
    """Return those of the job's `functions` that a worker is for; raises BadMessage for names that do not fit them."""
    known, named = {function.name: function for function in functions}, set(begin.functions)
    if unknown := named - known.keys():
        raise BadMessage(printable(f"reward pods have no function {min(unknown)!r}"))
    if len(named) < len(begin.functions):
        raise BadMessage("it names a function twice")
    if not named >= begin.rehearsals.keys():
        raise BadMessage("it has rows for a function that it does not name")
    return [known[name] for name in begin.functions]


def encode_request(number: int, function: RewardFunction, items: Sequence[ScoreItem]) -> bytes:
    """Write a call, with what the function reads of a row; raises RewardError for one that cannot be sent."""
    body = {
        "number": number,
        "function": function.name,
        "items": [_item(function, item) for item in items],
    }
    where = f"reward {function.name}: {items[0].sample}"
    try:
        data = to_json(body)
    except TypeError as error:
        raise RewardError(f"{where}: the row cannot be sent to a reward pod: {error}") from error
    if len(data) > MAX_REQUEST_BYTES:
        raise RewardError(
            f"{where}: the row is {len(data) >> 20} MiB large; at most {MAX_REQUEST_BYTES >> 20} can be sent"
        )
    return data


def encode_outcomes(number: int, outcomes: Sequence[ScoreResult | BaseException]) -> bytes:
    """Write the answer to a call."""
    return encode(Answer(number, [_written(outcome) for outcome in outcomes]))


def outcomes_of(answer: Answer, items: Sequence[ScoreItem]) -> list[ScoreOutcome]:
    """Return the outcomes of these responses; raises BadMessage for an answer that does not fit them."""
    if len(answer.outcomes) != len(items):
        raise BadMessage(f"it answers {len(answer.outcomes)} of {len(items)} responses")
    return [_checked(outcome, item) for outcome, item in zip(answer.outcomes, items, strict=True)]


def failed(error: BaseException) -> Failed:
    """Return an error in words."""
    if isinstance(error, RewardError | RewardFault):
        return Failed(error.kind, one_line(str(error))[:MAX_SENTENCE])
    return Failed("fault", f"the reward worker failed ({error_text(error)})"[:MAX_SENTENCE])


def error_of(failure: Failed) -> RewardError | RewardFault:
    """Return the error that a pod reports."""
    return _ERRORS[failure.kind](printable(failure.error))


def started(outcome: Surroundings | BaseException) -> Started:
    """Return in words how a start ended."""
    if isinstance(outcome, BaseException):
        return Started(failed(outcome))
    report = outcome.sandbox
    return Started(Ready(None if report is None else {layer.value: why for layer, why in report.reasons.items()}))


def surroundings_of(ready: Ready) -> Surroundings:
    """Return what a worker found; a layer that it does not name does not hold."""
    if ready.sandbox is None:
        return Surroundings()
    reported: Mapping[str, str | None] = ready.sandbox
    return Surroundings(
        LayerReport({layer: _reason(reported.get(layer.value, "the reward pod does not name it")) for layer in Layer})
    )


def _reason(words: str | None) -> str | None:
    return None if words is None else printable(words)


def _item(function: RewardFunction, item: ScoreItem) -> dict[str, Any]:
    more = {"reference": item.reference, "messages": list(item.messages), "turns": list(item.turns)}
    return {
        "sample": item.sample,
        "prompt": item.prompt,
        "response": item.response,
        "answer": item.answer,
        "row": _row(function, item.row),
        "limits_s": None if item.limits_s is None else list(map(float, item.limits_s)),
        "is_cut": item.is_cut,
        "episode_reward": item.episode_reward,
        "state": item.state if reads_state(function) else None,
        **(more if wants_row(function) else {}),
    }


def _row(function: RewardFunction, row: Mapping[str, Any]) -> Mapping[str, Any]:
    return row if function.row_fields is None else {name: row[name] for name in function.row_fields}


def _written(outcome: ScoreResult | BaseException) -> ScoreResult | Failed:
    if not isinstance(outcome, ScoreResult):
        return failed(outcome)
    return outcome if outcome.broken is None else replace(outcome, broken=outcome.broken[:MAX_SENTENCE])


def _checked(outcome: ScoreResult | Failed, item: ScoreItem) -> ScoreOutcome:
    if isinstance(outcome, Failed):
        return error_of(outcome)
    cases = [run.case for run in outcome.runs]
    if len(set(cases)) < len(cases) or any(case >= len(item.limits_s or ()) for case in cases):
        raise BadMessage("it tells of test cases that the row does not have")
    if outcome.passed_all and any(run.timed_out for run in outcome.runs):
        raise BadMessage("it tells of a program that passed all its tests and was cut off in one")
    if outcome.broken is None:
        return outcome
    # Whatever else the pod says of such a program, it is worth nothing.
    return ScoreResult(0.0, outcome.seconds, outcome.timed_out, broken=printable(outcome.broken))


def printable(words: str) -> str:
    """Remove control characters, because terminals and logs show the text."""
    return "".join(character if character.isprintable() else " " for character in words)[:MAX_SENTENCE]
