"""An episode keeps TRL's contract: reset, tools with their errors as text, and a reward."""

import asyncio
import math
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from longshore_runtime.environments.episode import Episode, ImportedEnvironment
from longshore_runtime.environments.final_state import MAX_STATE
from longshore_runtime.environments.pod_protocol import (
    MAX_CONTENT,
    MAX_MESSAGE_BYTES,
    MAX_MESSAGES,
    Acted,
    Answer,
    Broken,
    Finished,
    Observation,
    Opened,
    decode_answer,
    encode,
)
from longshore_runtime.environments.tools import methods_of
from longshore_runtime.rewards.signatures import EventLoop
from longshore_runtime.rewards.transports.pod_protocol import BadMessage

Call = tuple[str, dict[str, Any]]


class Shop:
    """An environment with everything."""

    opening_hours = property(lambda self: 1 / 0)

    def __init__(self) -> None:
        self.sold: list[str] = []

    def reset(self, greeting: str | None = None, **row: Any) -> str | None:
        return greeting

    def sell(self, what: str) -> str:
        self.sold.append(what)
        return f"sold {what}"

    async def order(self, what: str) -> str:
        await asyncio.sleep(0)
        return f"ordered {what}"

    def give(self, thing: Any) -> Any:
        return thing

    def fail(self) -> str:
        raise ValueError("sold out")

    async def fail_later(self) -> str:
        raise ValueError("sold out later")

    @staticmethod
    def price() -> float:
        return 1.5

    def get_reward(self) -> int:
        return len(self.sold)

    def _secret(self) -> str:
        return "secret"


def begun(factory: Callable[[], Any] = Shop, **row: Any) -> Episode:
    """An episode that has begun."""
    episode = Episode(ImportedEnvironment("shop", factory, [], []), EventLoop())
    opened = episode.answer({"kind": "Open", "episode": 3, "environment": "shop", "row": row, "seed": 5})
    assert isinstance(opened, Opened), opened
    return episode


def opened(factory: Callable[[], Any], seed: int = 5, **row: Any) -> Answer:
    """How an episode begins."""
    episode = Episode(ImportedEnvironment("shop", factory, [], []), EventLoop())
    return episode.answer({"kind": "Open", "episode": 3, "environment": "shop", "row": row, "seed": seed})


def turn(episode: Episode, *calls: Call, content: str = "") -> Answer:
    """The answer to a turn."""
    written = [{"name": name, "arguments": arguments} for name, arguments in calls]
    return episode.answer({"kind": "Act", "episode": 3, "content": content, "calls": written})


def finished(episode: Episode, *, wants_state: bool = False) -> Answer:
    """The answer to the end."""
    return episode.answer({"kind": "Finish", "episode": 3, "wants_state": wants_state})


def test_calls_are_answered_in_order_whether_or_not_they_are_asynchronous() -> None:
    acted = turn(begun(), ("order", {"what": "tea"}), ("sell", {"what": "milk"}), ("order", {"what": "rum"}))
    assert acted == Acted(
        3,
        [
            Observation("tool", "ordered tea", "order"),
            Observation("tool", "sold milk", "sell"),
            Observation("tool", "ordered rum", "order"),
        ],
        0,
    )


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (("fail", {}), "{'error': 'sold out'}"),
        (("fail_later", {}), "{'error': 'sold out later'}"),
        (("steal", {}), "{'error': 'Tool steal not found.'}"),
        (("reset", {}), "{'error': 'Tool reset not found.'}"),
        (("get_reward", {}), "{'error': 'Tool get_reward not found.'}"),
        (("_secret", {}), "{'error': 'Tool _secret not found.'}"),
        (("opening_hours", {}), "{'error': 'Tool opening_hours not found.'}"),
        (("sell", {}), "{'error': \"Shop.sell() missing 1 required positional argument: 'what'\"}"),
        (("sell", {"who": 1}), "{'error': \"Shop.sell() got an unexpected keyword argument 'who'\"}"),
    ],
    ids=lambda value: value[0] if isinstance(value, tuple) else "",
)
def test_failed_call_is_an_observation_and_the_others_are_carried_out(call: Call, said: str) -> None:
    episode = begun()
    acted = turn(episode, ("sell", {"what": "tea"}), call, ("sell", {"what": "rum"}))
    assert isinstance(acted, Acted)
    assert [one.content for one in acted.observations] == ["sold tea", said, "sold rum"]
    assert acted.num_failed_calls == 1
    assert finished(episode) == Finished(3, 2.0)


def test_call_that_cannot_be_read_fails_with_what_is_wrong_with_it() -> None:
    calls = [{"name": "", "arguments": {}, "error": "no JSON"}, {"name": "price", "arguments": {}, "error": ""}]
    acted = begun().answer({"kind": "Act", "episode": 3, "content": "", "calls": calls})
    said = [Observation("tool", "{'error': 'no JSON'}", ""), Observation("tool", "1.5", "price")]
    assert acted == Acted(3, said, 1)


@pytest.mark.parametrize(
    ("thing", "said"),
    [
        (None, "None"),
        (1.5, "1.5"),
        ({"a": [True]}, "{'a': [True]}"),
        ([1, 2], "[1, 2]"),
        ([{"type": "text", "text": "a"}, {"type": "text", "text": "b"}], "ab"),
        ("\udc80", "?"),
    ],
)
def test_result_of_a_tool_is_text_as_in_trl(thing: Any, said: str) -> None:
    acted = turn(begun(), ("give", {"thing": thing}))
    assert acted == Acted(3, [Observation("tool", said, "give")], 0)


def test_static_method_is_a_tool() -> None:
    assert turn(begun(), ("price", {})) == Acted(3, [Observation("tool", "1.5", "price")], 0)


def test_image_breaks_the_episode() -> None:
    answer = turn(begun(), ("give", {"thing": [{"type": "image", "image": b""}]}))
    problem = "environment shop: a tool returned content of type 'image'; models of a job read text only"
    assert answer == Broken(3, problem, cause="result")


def test_turn_without_calls_ends_an_episode_without_a_reply() -> None:
    assert turn(begun(), content="Good bye.") == Acted(3, [], 0)


@pytest.mark.parametrize("greeting", [None, "Welcome."])
def test_reset_gets_the_row_and_returns_what_is_said_first(greeting: str | None) -> None:
    assert opened(Shop, greeting=greeting, prompt="Buy.") == Opened(3, greeting, [])


class Talk:
    """A user who answers each turn."""

    async def reset(self) -> list[dict[str, str]]:
        return [{"type": "text", "text": f"{random.random()}"}]

    def reply(self, message: str) -> Any:
        match message:
            case "stop":
                return None
            case "number":
                return 5
            case "raise":
                raise KeyError(message)
        return message.upper()


def test_reply_answers_as_the_user_until_it_returns_none() -> None:
    episode = begun(Talk)
    assert turn(episode, content="hello") == Acted(3, [Observation("user", "HELLO")], 0)
    assert turn(episode, content="stop") == Acted(3, [], 0)
    assert finished(episode) == Finished(3, None), "it gives no reward"


def test_reply_is_no_tool() -> None:
    acted = turn(begun(Talk), ("reply", {"message": "hello"}))
    assert acted == Acted(3, [Observation("tool", "{'error': 'Tool reply not found.'}", "reply")], 1)


def test_reply_that_fails_breaks_the_episode_with_its_place() -> None:
    answer = turn(begun(Talk), content="raise")
    assert isinstance(answer, Broken)
    assert answer.error.startswith("environment shop: reply raised KeyError: 'raise' at test_episode.py:")
    assert turn(begun(Talk), content="number") == Broken(
        3, "environment shop: reply returned 5 instead of text", cause="result"
    )


def test_seed_decides_what_python_draws() -> None:
    assert opened(Talk, seed=1) == opened(Talk, seed=1) != opened(Talk, seed=2)


class Broke(Shop):
    """Fails where its row says."""

    def reset(self, greeting: str | None = None, **row: Any) -> str | None:
        self.reward = row.get("reward")
        return 1 / 0 if row.get("fails") else None  # type: ignore[return-value]

    def get_reward(self) -> Any:
        return self.reward


def test_constructor_and_reset_that_raise_break_the_episode() -> None:
    def refuse() -> None:
        raise OSError("no server")

    for factory, error in ((refuse, "its constructor raised OSError: no server at"), (Broke, "reset raised ZeroDiv")):
        answer = opened(factory, fails=True)
        assert isinstance(answer, Broken)
        assert answer.error.startswith(f"environment shop: {error}")


@pytest.mark.parametrize(("reward", "number"), [(None, None), (True, 1.0), (0.25, 0.25)])
def test_reward_is_a_number_or_none(reward: Any, number: float | None) -> None:
    assert finished(begun(Broke, reward=reward)) == Finished(3, number)


@pytest.mark.parametrize("reward", ["1", float("nan"), 1e10, [1, 2]])
def test_reward_that_is_no_number_breaks_the_episode(reward: Any) -> None:
    answer = finished(begun(Broke, reward=reward))
    assert isinstance(answer, Broken)
    assert answer.error.startswith("environment shop: get_reward returned ")


@pytest.mark.parametrize("num_calls", [1, 2, MAX_MESSAGES])
def test_largest_observations_fit_into_one_message(num_calls: int) -> None:
    acted = turn(begun(), *[("give", {"thing": "\0" * (2 * MAX_CONTENT)})] * num_calls)
    assert isinstance(acted, Acted)
    assert acted.num_cut == num_calls
    assert all(one.content.endswith(" [cut: the text has 2,097,152 characters]") for one in acted.observations)
    written = encode(acted)
    assert len(written) < MAX_MESSAGE_BYTES
    assert decode_answer(written) == acted


def test_end_of_each_synchronous_call_is_reported() -> None:
    ended: list[int] = []
    episode = Episode(ImportedEnvironment("shop", Shop, [], []), EventLoop(), lambda: ended.append(1))
    episode.answer({"kind": "Open", "episode": 3, "environment": "shop", "row": {}, "seed": 5})
    turn(episode, ("sell", {"what": "tea"}), ("order", {"what": "tea"}), ("fail", {}))
    assert len(ended) == 3


class Told(Shop):
    """Tells the state of its row."""

    def reset(self, state: Any = None, **row: Any) -> None:  # type: ignore[override]
        self.state = state

    def get_reward(self) -> int:
        return 1

    async def get_state(self) -> Any:
        return self.state() if callable(self.state) else self.state


def nested(num_levels: int) -> Any:
    return [nested(num_levels - 1)] if num_levels else []


@pytest.mark.parametrize(
    ("state", "told"),
    [
        ({"board": ["x", None], 7: 1.5}, '{"board":["x",null],"7":1.5}'),
        ({"position": np.array([1, 2])}, '{"position":[1,2]}'),
        (None, None),
        (nested(63), f"{'[' * 64}{']' * 64}"),
    ],
    ids=["object", "array", "none", "deep"],
)
def test_state_is_any_json_value_that_is_read_at_the_end(state: Any, told: str | None) -> None:
    answer = finished(begun(Told, state=state), wants_state=True)
    assert answer == Finished(3, 1.0, told)
    assert decode_answer(encode(answer)) == answer


def test_state_is_asked_for_only_if_a_reward_function_may_read_it() -> None:
    assert finished(begun(Told, state=lambda: 1 / 0)) == Finished(3, 1.0)
    assert finished(begun(Shop), wants_state=True) == Finished(3, 0.0), "it tells none"


@pytest.mark.parametrize(
    ("state", "problem"),
    [
        (lambda: 1 / 0, "raised ZeroDivisionError: division by zero at test_episode.py:"),
        ({1, 2}, "returned {1, 2}, which cannot be written as JSON (TypeError: Type is not JSON serializable: set); "),
        (b"x", "returned b'x', which cannot be written as JSON"),
        (1 << 70, "returned 1180591620717411303424, which cannot be written as JSON"),
        ("\udc80", "returned '\\udc80', which cannot be written as JSON"),
        ("x" * MAX_STATE, "returned a state of 1,024 KiB; at most 1,024 KiB are possible"),
        (nested(64), "returned a state with more than 64 levels"),
        ({"x": [math.nan]}, "returned {'x': [nan]}, in which a number is NaN or infinite; return finite numbers"),
        ({"x": np.array([math.inf])}, "returned {'x': array([inf])}, in which a number is NaN or infinite"),
        (nested(900), "returned [[[["),
    ],
    ids=["raises", "set", "bytes", "integer", "surrogate", "large", "deep", "nan", "infinity", "deepest"],
)
def test_state_that_is_no_json_breaks_the_episode_with_its_fix(state: Any, problem: str) -> None:
    answer = finished(begun(Told, state=state), wants_state=True)
    assert isinstance(answer, Broken)
    assert answer.error.startswith(f"environment shop: get_state {problem}")


def test_methods_of_the_contract_are_no_tools() -> None:
    names = [tool.__name__ for tool in methods_of(Told())]
    assert names == ["fail", "fail_later", "give", "order", "price", "sell"]


@pytest.mark.parametrize(
    "state", ["{", "NaN", "9" * 5000, f"{'[' * 2000}{']' * 2000}", f"{'[' * 65}{']' * 65}"], ids=lambda one: one[:5]
)
def test_state_of_a_process_that_writes_what_it_wants_is_refused(state: str) -> None:
    with pytest.raises(BadMessage, match="it returned a state "):
        decode_answer(encode(Finished(3, 1.0, state)))


def test_integer_of_a_state_that_readers_cannot_take_is_written_anew() -> None:
    answer = decode_answer(encode(Finished(3, 1.0, f'{{"a": {"9" * 30}}}')))
    assert answer == Finished(3, 1.0, '{"a":1e+30}')
