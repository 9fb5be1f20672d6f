"""A session serves the requests of clients that hang up, and of those that ask again."""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Final

import pytest

from longshore_runtime.environments.gateway import Session
from longshore_runtime.environments.openai_chat import ModelRequest, ModelTurn
from longshore_runtime.environments.pod_protocol import Asked, AskedMessage, ToolCall

PATIENT_S: Final = 60.0


def request(text: str) -> ModelRequest:
    return ModelRequest((AskedMessage("user", text),), (), None, (), False, False)


class Model:
    """Answers a session with what it was asked."""

    def __init__(self) -> None:
        self.session = Session(asyncio.get_running_loop())

    def ask(self, text: str, is_there: Callable[[], bool] = lambda: True) -> "asyncio.Task[ModelTurn]":
        return asyncio.create_task(self.session.turn(request(text), is_there))

    async def hear(self, text: str) -> None:
        """Wait until this is asked."""
        news = await asyncio.to_thread(self.session.news.get, timeout=PATIENT_S)
        assert isinstance(news, Asked) and news.messages[-1].content == text

    def say(self, text: str) -> None:
        """Answer what was asked."""
        self.session.deliver(ModelTurn(0, text, (), False, 1, 1))


class Client:
    """A client that may hang up."""

    def __init__(self) -> None:
        self.waits = True

    def is_there(self) -> bool:
        return self.waits

    def hang_up(self) -> None:
        self.waits = False


async def hang_up_while_asking(model: Model, text: str) -> None:
    """Ask, and hang up before the model has answered."""
    client = Client()
    asking = model.ask(text, client.is_there)
    await model.hear(text)
    client.hang_up()
    model.say("to nobody")
    await asking


async def test_a_turn_waits_for_the_client_that_asks_again_whatever_comes_in_between() -> None:
    model = Model()
    await hang_up_while_asking(model, "one")
    other = model.ask("two")
    await model.hear("two")
    model.say("to two")
    assert (await other).number == 1
    again = await asyncio.wait_for(model.ask("one"), PATIENT_S)
    assert (again.content, again.number) == ("to nobody", 0)


async def test_a_turn_that_a_client_has_asked_for_again_is_delivered_once() -> None:
    model = Model()
    await hang_up_while_asking(model, "one")
    assert (await asyncio.wait_for(model.ask("one"), PATIENT_S)).number == 0
    another = model.ask("one")
    await model.hear("one")
    model.say("another")
    assert (await another).content == "another"


async def test_nothing_is_sampled_for_a_client_that_hung_up_while_others_were_served() -> None:
    model, client = Model(), Client()
    first, gone, last = model.ask("one"), model.ask("two", client.is_there), model.ask("three")
    await model.hear("one")
    client.hang_up()
    model.say("to one")
    await model.hear("three")
    model.say("to three")
    assert [(await first).number, (await last).number] == [0, 1]
    with pytest.raises(ConnectionError):
        await gone


async def unread(model: Model) -> list[int]:
    model.session.end()
    return await asyncio.to_thread(model.session.unread)


async def test_a_turn_is_unread_until_its_client_asks_again() -> None:
    model = Model()
    await hang_up_while_asking(model, "one")
    other = model.ask("two")
    await model.hear("two")
    model.say("to two")
    await other
    assert await unread(model) == [0]

    model = Model()
    await hang_up_while_asking(model, "one")
    await asyncio.wait_for(model.ask("one"), PATIENT_S)
    assert await unread(model) == []


async def test_a_turn_that_a_later_request_shows_was_read() -> None:
    model = Model()
    await hang_up_while_asking(model, "one")
    shown = (AskedMessage("user", "one"), AskedMessage("assistant", "to nobody"), AskedMessage("user", "two"))
    later = asyncio.create_task(model.session.turn(replace(request("one"), messages=shown), lambda: True))
    await model.hear("two")
    model.say("to two")
    await later
    assert await unread(model) == []


async def test_a_turn_that_comes_after_its_client_has_ended_is_unread() -> None:
    model, client = Model(), Client()
    asking = model.ask("one", client.is_there)
    await model.hear("one")
    client.hang_up()
    model.say("to nobody")
    assert await unread(model) == [0]
    await asking


async def test_an_agent_that_wants_one_call_at_a_time_gets_the_first_and_goes_on_from_it() -> None:
    model, calls = Model(), [ToolCall("add", {"a": number}) for number in range(2)]
    one_by_one = replace(request("two calls"), calls_in_parallel=False)
    asking = asyncio.create_task(model.session.turn(one_by_one, lambda: True))
    await model.hear("two calls")
    model.session.deliver(ModelTurn(0, "", tuple(calls), False, 1, 1))
    assert (await asking).calls == (calls[0],)
    result = (*one_by_one.messages, AskedMessage("assistant", "", None, calls[:1]), AskedMessage("tool", "0", "add"))
    later = asyncio.create_task(model.session.turn(replace(one_by_one, messages=result), lambda: True))
    news = await asyncio.to_thread(model.session.news.get, timeout=PATIENT_S)
    assert (news.after, [one.content for one in news.messages]) == (0, ["0"])
    model.say("done")
    await later


async def test_messages_that_every_request_repeats_are_kept_once() -> None:
    model, messages = Model(), [AskedMessage("user", "begin")]
    for number in range(3):
        asking = asyncio.create_task(model.session.turn(replace(request(""), messages=tuple(messages)), lambda: True))
        await model.hear(messages[-1].content)
        model.say(f"turn {number}")
        await asking
        messages = [replace(one) for one in messages]  # As every request is read anew.
        messages += [AskedMessage("assistant", f"turn {number}\n"), AskedMessage("user", f"go on {number}")]
    kept = [one for asked, _ in model.session._said for one in asked.messages]
    assert len({id(one) for one in kept}) == 5, "begin, and twice what was said and added"


async def test_a_request_goes_on_from_the_last_of_turns_that_it_could_repeat() -> None:
    model = Model()
    for _ in range(2):
        asking = model.ask("begin")
        await model.hear("begin")
        model.say("the same")
        await asking
    follows = (AskedMessage("user", "begin"), AskedMessage("assistant", "the same"), AskedMessage("user", "and?"))
    asking = asyncio.create_task(model.session.turn(replace(request(""), messages=follows), lambda: True))
    news = await asyncio.to_thread(model.session.news.get, timeout=PATIENT_S)
    assert isinstance(news, Asked) and news.after == 1
    model.say("well")
    assert (await asking).number == 2


async def test_a_client_that_hangs_up_just_before_its_turn_has_not_read_it() -> None:
    model, client, loop = Model(), Client(), asyncio.get_running_loop()
    asking = model.ask("?", client.is_there)
    await model.hear("?")
    model.say("late")
    loop.call_soon(loop.call_soon, client.hang_up)  # As the loop sees the end of a connection: after the turn.
    await asking
    assert await asyncio.to_thread(model.session.unread) == [0]
