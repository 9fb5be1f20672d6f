"""Episodes in environments that an OpenEnv server runs: what the model may do, and what a server may do to them."""

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final

import pytest
from aiohttp import web
from benchmarks.measured_process import free_port

from longshore.api.environment import Environment
from longshore_runtime.environments.pod_protocol import Acted, Broken, Finished, Open, Opened
from tests.contract.environments.environment_pods import Client, connected, serving, texts
from tests.contract.environments.openenv_server import CALL_TOOL, GUESS, MESSAGE, TOOL, Server, error, running

SHORT_S: Final = 2.0
PATIENT_S: Final = 60.0


def openenv(url: str, name: str = "game", **fields: Any) -> Environment:
    """An environment at a server."""
    limits = {"callTimeoutSeconds": PATIENT_S, **fields}
    return Environment.model_validate({"name": name, "kind": "OpenEnv", "url": url, **limits})


@dataclass(frozen=True)
class Pod:
    """A pod with environments at one server, and at one that is not there."""

    port: int
    server: Server
    absent_port: int


@pytest.fixture(scope="module")
def pod() -> Iterator[Pod]:
    absent_port = free_port()
    absent = f"http://127.0.0.1:{absent_port}"
    with (
        running(Server()) as server,
        serving(
            openenv(server.url),
            openenv(server.url, "short", callTimeoutSeconds=SHORT_S),
            openenv(absent, "absent"),
            openenv(absent, "short-absent", callTimeoutSeconds=SHORT_S),
        ) as port,
    ):
        yield Pod(port, server, absent_port)


@pytest.fixture
def server(pod: Pod) -> Server:
    """The server of the pod, as new, but for sessions that are about to end."""
    vars(pod.server).update(vars(Server(url=pod.server.url, num_sessions=pod.server.num_sessions)))
    return pod.server


def played(pod: Pod, play: Callable[[Client], Awaitable[None]]) -> None:
    """Play with a connection to the pod."""

    async def connect() -> None:
        async with connected(pod.port) as client:
            await play(client)

    asyncio.run(connect())


async def begun(client: Client, episode: int = 1, environment: str = "game", **row: Any) -> Opened:
    opened = await client.open(episode, environment, 7, **row)
    assert isinstance(opened, Opened), opened
    return opened


def test_action_with_fields_is_the_tool_step_until_the_server_is_done(pod: Pod, server: Server) -> None:
    async def play(client: Client) -> None:
        opened = await begun(client, prompt="p", secret=42)
        (tool,) = opened.tools
        assert tool["function"] == {
            "name": "step",
            "description": "Guess a number.",
            "parameters": {
                "type": "object",
                "properties": {
                    "number": {"description": "The guess.", "type": "integer"},
                    "tone": {"enum": ["kind", "rude"], "type": "string", "default": "kind"},
                },
                "required": ["number"],
            },
        }
        assert texts(await client.call(1, ("step", {"number": 7}), ("step", {"number": 50}))) == ["higher", "lower"]
        answer = await client.call(1, ("step", {"number": 42}), ("step", {"number": 42}))
        assert answer == Acted(1, [], 1), "the second call comes too late"
        assert await client.finish(1) == Finished(1, pytest.approx(0.8))

    played(pod, play)
    assert server.closed.get(timeout=PATIENT_S) == "message"


def test_single_text_is_the_turn_of_the_model_without_its_thoughts(pod: Pod, server: Server) -> None:
    server.action = MESSAGE

    async def play(client: Client) -> None:
        assert (await begun(client, secret=42)).tools == []
        assert texts(await client.say(1, "<think>\n42?\n</think>\n\n7 ")) == ["higher"]
        assert texts(await client.say(1, "what?")) == ["invalid literal for int() with base 10: 'what?'"]
        assert texts(await client.say(1, "42")) == []
        assert await client.finish(1) == Finished(1, pytest.approx(0.9))

    played(pod, play)


def test_state_of_the_server_is_read_at_the_end_if_somebody_wants_it(pod: Pod, server: Server) -> None:
    async def play(client: Client) -> None:
        await begun(client, secret=42)
        assert await client.finish(1, wants_state=True) == Finished(1, None, '{"step_count":0,"secret":42}')

    played(pod, play)
    assert server.closed.get(timeout=PATIENT_S) == "message"


@pytest.mark.parametrize(
    ("answer", "problem"),
    [
        ({"type": "error", "data": {"message": "none here"}}, "get_state was refused by http://"),
        ({"type": "state", "data": {"x": "x" * (1 << 20)}}, "get_state returned a state of 1,024 KiB; at most"),
        ({"type": "states", "data": {}}, "get_state got {'type': 'states'"),
        (None, "get_state lost the connection to http://"),
    ],
    ids=["error", "large", "unknown", "gone"],
)
def test_state_that_a_server_does_not_tell_fails_the_episode(
    pod: Pod, server: Server, answer: dict[str, Any] | None, problem: str
) -> None:
    async def ill(socket: web.WebSocketResponse, question: dict[str, Any]) -> bool:
        if question["type"] != "state":
            return False
        await (socket.close() if answer is None else socket.send_json(answer))
        return True

    async def play(client: Client) -> None:
        await begun(client, secret=42)
        broken = await client.finish(1, wants_state=True)
        assert isinstance(broken, Broken) and broken.error.startswith(f"environment game: {problem}"), broken

    server.ill = ill
    played(pod, play)


def test_tools_of_an_mcp_server_are_offered_as_they_are(pod: Pod, server: Server) -> None:
    server.action = CALL_TOOL

    async def play(client: Client) -> None:
        (tool,) = (await begun(client, secret=40)).tools
        assert tool["function"] == {
            "name": "add",
            "description": TOOL["description"],
            "parameters": TOOL["input_schema"],
        }
        assert texts(await client.call(1, ("add", {"number": 2}))) == ["42"]
        failed = await client.call(1, ("add", {}), ("reset", {}))
        assert texts(failed) == ["{'error': 'number is missing'}", "{'error': 'Tool reset not found.'}"]
        assert isinstance(failed, Acted)
        assert failed.num_failed_calls == 2
        assert texts(await client.say(1, "I am done.")) == []
        assert await client.finish(1) == Finished(1, 0.5)

    played(pod, play)


def test_seed_is_of_the_episode_unless_the_row_has_one(pod: Pod, server: Server) -> None:
    async def play(client: Client) -> None:
        for episode in (1, 2):
            opened = await begun(client, episode, level=3)
        assert opened.observation == f"\n\nseed {server.resets[0]['seed']}"
        assert isinstance(await client._ask(Open(3, "game", {"seed": 5}, seed=7)), Opened)

    played(pod, play)
    first, second, third = server.resets
    assert first == second == {"seed": first["seed"], "level": 3}
    assert 0 <= first["seed"] < 1 << 31
    assert third == {"seed": 5}


def test_action_that_does_not_fit_is_told_with_the_field(pod: Pod, server: Server) -> None:
    async def play(client: Client) -> None:
        await begun(client)
        answer = await client.call(1, ("step", {"figure": 3}))
        assert texts(answer) == ["{'error': 'Invalid message: number: Field required'}"]
        assert isinstance(answer, Acted)
        assert answer.num_failed_calls == 1
        assert await client.finish(1) == Finished(1, None), "no step had a reward"

    played(pod, play)


def test_episode_waits_until_a_full_server_has_room(pod: Pod, server: Server) -> None:
    server.max_sessions = 1

    async def play(client: Client) -> None:
        await begun(client, 1)
        waiting = asyncio.create_task(client.open(2, "game"))
        assert await asyncio.to_thread(server.refused.wait, PATIENT_S)
        assert not waiting.done()
        await client.close(1)
        assert isinstance(await waiting, Opened)

    played(pod, play)
    assert server.closed.get(timeout=PATIENT_S) == "connection"


def test_server_that_stays_full_fails_the_episode_with_what_to_change(pod: Pod, server: Server) -> None:
    server.max_sessions = 0

    async def play(client: Client) -> None:
        assert await client.open(1, "short") == Broken(
            1,
            f"environment short: reset could not begin within 1.8 s: {server.url} has no session left (Server at "
            "capacity: 0/0 sessions active); let it run more at a time, lower episodesPerPod or pods.count, or raise "
            "callTimeoutSeconds",
            cause="server_full",
        )

    played(pod, play)


def test_episode_begins_once_the_server_is_there(pod: Pod) -> None:
    async def play(client: Client) -> None:
        opening = asyncio.create_task(client.open(1, "absent"))
        with running(Server(), pod.absent_port):
            assert isinstance(await opening, Opened)

    played(pod, play)


def test_server_that_is_not_there_is_named(pod: Pod) -> None:
    async def play(client: Client) -> None:
        answer = await client.open(1, "short-absent")
        assert isinstance(answer, Broken)
        begins = "environment short-absent: reset could not begin within 1.8 s: http://127.0.0.1:"
        assert answer.error.startswith(f"{begins}{pod.absent_port} cannot be reached (Client")

    played(pod, play)


def test_pings_are_answered_while_the_model_speaks(pod: Pod, server: Server) -> None:
    """Servers hang up on clients that do not answer them."""
    server.pings = True

    async def play(client: Client) -> None:
        await begun(client)
        assert await asyncio.to_thread(server.ponged.wait, PATIENT_S)

    played(pod, play)


async def hang(_ws: web.WebSocketResponse, _question: Any) -> bool:
    await asyncio.Event().wait()
    return True


def answering(text: str) -> Callable[[web.WebSocketResponse, Any], Awaitable[bool]]:
    async def answer(ws: web.WebSocketResponse, _question: Any) -> bool:
        await ws.send_str(text)
        return True

    return answer


async def say_bytes(ws: web.WebSocketResponse, _question: Any) -> bool:
    await ws.send_bytes(b"{}")
    return True


async def hang_up(ws: web.WebSocketResponse, _question: Any) -> bool:
    await ws.close(code=1011)
    return True


def observed(**fields: Any) -> str:
    return json.dumps({"type": "observation", "data": {"observation": {}, "reward": 0.0, "done": False} | fields})


ILL: Final = {
    "no JSON": (answering("<html>"), "got what is not JSON ("),
    "empty": (answering(""), "got what is not JSON ("),
    "not a number": (answering('{"type": "observation", "data": NaN}'), "got what is not JSON ("),
    "deep": (answering(100_000 * "[" + 100_000 * "]"), "got what is not JSON ("),
    "rather deep": (answering(100 * "[" + 100 * "]"), "got JSON with more than 64 levels"),
    "large": (answering(f'"{"x" * (17 << 20)}"'), "Message size 17825794 exceeds limit 16777216"),
    "list": (answering("[]"), "got [], which is no observation"),
    "null": (answering("null"), "got None, which is no observation"),
    "another type": (answering('{"type": "state", "data": {}}'), "got {'type': 'state', 'data': {}}, which is no obs"),
    "no data": (answering('{"type": "observation"}'), "got {'type': 'observation'}, which is no observation"),
    "data of a wrong type": (answering('{"type": "observation", "data": 3}'), "got 3, which is no observation with"),
    "observation of a wrong type": (answering(observed(observation="x")), "which is no observation with its reward"),
    "reward of a wrong type": (answering(observed(reward="1")), "which is no observation with its reward"),
    "done of a wrong type": (answering(observed(done="yes")), "which is no observation with its reward"),
    "error without text": (answering('{"type": "error", "data": {"code": "X"}}'), "which is no observation"),
    "error of the session": (answering(json.dumps(error("SESSION_ERROR", "x\ny"))), "was refused by http://"),
    "error without code": (answering(json.dumps({"type": "error", "data": {"message": "no"}})), "was refused by htt"),
    "binary": (say_bytes, "binary data"),
    "hang-up": (hang_up, "it hung up with code 1011"),
}


@pytest.mark.parametrize(("ill", "seen"), ILL.values(), ids=ILL)
@pytest.mark.parametrize("at", ["reset", "step"])
def test_answer_that_is_none_fails_the_episode_with_a_sentence(
    pod: Pod, server: Server, ill: Callable[[web.WebSocketResponse, Any], Awaitable[bool]], seen: str, at: str
) -> None:
    async def ill_at(ws: web.WebSocketResponse, question: Any) -> bool:
        return question["type"] == at and await ill(ws, question)

    server.ill = ill_at

    async def play(client: Client) -> None:
        if at == "step":
            await begun(client)
            answer: Any = await client.call(1, ("step", {"number": 7}))
        else:
            answer = await client.open(1, "short")
        assert isinstance(answer, Broken)
        begins = "environment short: reset " if at == "reset" else "environment game: a tool "
        assert answer.error.startswith(begins)
        assert seen in answer.error

    played(pod, play)


def test_infinite_rewards_fail_the_episode(pod: Pod, server: Server) -> None:
    async def infinite(ws: web.WebSocketResponse, question: Any) -> bool:
        if question["type"] == "step":
            await ws.send_str(observed(reward=1e308))
            return True
        return False

    server.ill = infinite

    async def play(client: Client) -> None:
        await begun(client)
        for _ in range(2):
            await client.call(1, ("step", {"number": 7}))
        answer = await client.finish(1)
        assert isinstance(answer, Broken)
        assert answer.error.startswith("environment game: get_reward ")

    played(pod, play)


@pytest.mark.parametrize("at", ["reset", "step"])
def test_server_that_hangs_is_cut_off(pod: Pod, server: Server, at: str) -> None:
    async def hang_at(ws: web.WebSocketResponse, question: Any) -> bool:
        return question["type"] == at and await hang(ws, question)

    server.ill = hang_at

    async def play(client: Client) -> None:
        if at == "step":
            await begun(client, environment="short")
            answer: Any = await client.call(1, ("step", {"number": 7}))
            cause = "environments[short].callTimeoutSeconds: tool step did not end within 2 s"
        else:
            answer = await client.open(1, "short")
            cause = f"environment short: reset could not begin within 1.8 s: {server.url} does not answer"
        assert isinstance(answer, Broken)
        assert answer.error.startswith(cause)

    played(pod, play)


def bomb(levels: int) -> Any:
    """Definitions of which each contains the next one ten times."""
    names = [f"a{number}" for number in range(levels)]
    definitions = {
        name: {"properties": {str(number): {"$ref": f"#/$defs/{below}"} for number in range(10)}}
        for name, below in zip(names, [*names[1:], "end"], strict=True)
    }
    return {"$defs": definitions, "properties": {"a": {"$ref": "#/$defs/a0"}, "b": {}}}


@pytest.mark.parametrize(
    ("action", "seen"),
    [
        (None, "has no schema of actions"),
        ([], "has no schema of actions"),
        ({}, "which is no schema of an action with fields"),
        ({"properties": []}, "which is no schema of an action with fields"),
        ({"properties": {"a": 3}}, "which is no schema of an action with fields"),
        (bomb(20), "got a schema of more than 10,000 values"),
        ({"properties": {str(number): {} for number in range(20_000)}}, "got a schema of more than 10,000 values"),
        ({"properties": {"a": {"default": "x" * (17 << 20)}}}, "got a schema of more than 16 MiB"),
        ({"properties": {"a": {"default": "x" * 300_000}, "b": {}}}, "the schemas of its tools have more than 256 KiB"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_schema_that_is_none_fails_the_episode_with_a_sentence(
    pod: Pod, server: Server, action: Any, seen: str
) -> None:
    server.action = action

    async def play(client: Client) -> None:
        answer = await client.open(1, "game")
        assert isinstance(answer, Broken)
        assert seen in answer.error

    played(pod, play)


def test_schema_that_contains_itself_is_cut_off(pod: Pod, server: Server) -> None:
    node = {"properties": {"next": {"$ref": "#/$defs/Node"}}, "required": 3, "type": "object"}
    server.action = {"$defs": {"Node": node}, "properties": {"first": {"$ref": "#/$defs/Node"}, "other": {}}}

    async def play(client: Client) -> None:
        (tool,) = (await begun(client)).tools
        assert len(json.dumps(tool)) < 2_000

    played(pod, play)


@pytest.mark.parametrize(
    "tools",
    [None, [], [TOOL] * 300, [3], [{"name": "x"}], [TOOL | {"name": ""}], [TOOL | {"input_schema": []}]],
    ids=lambda value: str(value)[:30],
)
def test_list_of_tools_that_is_none_fails_the_episode(pod: Pod, server: Server, tools: Any) -> None:
    server.action = CALL_TOOL

    async def listed(ws: web.WebSocketResponse, question: Any) -> bool:
        if question["type"] == "step":
            await ws.send_str(observed(observation={"tools": tools}))
        return bool(question["type"] == "step")

    server.ill = listed

    async def play(client: Client) -> None:
        answer = await client.open(1, "game")
        assert isinstance(answer, Broken)
        assert answer.error.startswith("environment game: reset got ")

    played(pod, play)


@pytest.mark.parametrize("status", [302, 404, 500])
def test_address_of_something_else_is_named_with_its_status(pod: Pod, server: Server, status: int) -> None:
    server.action = lambda: web.Response(status=status, text="<html>", headers={"Location": "/elsewhere"})

    async def play(client: Client) -> None:
        answer = await client.open(1, "short")
        assert isinstance(answer, Broken)
        assert answer.error.endswith(f"{server.url} cannot be used (/schema answers with status {status})")

    played(pod, play)


def test_lost_connection_in_the_middle_fails_the_episode_and_no_other(pod: Pod, server: Server) -> None:
    async def lost(ws: web.WebSocketResponse, question: Any) -> bool:
        if question.get("data", {}).get("number") == 13:
            assert ws._req is not None
            assert ws._req.transport is not None
            ws._req.transport.abort()
            return True
        return False

    server.ill = lost

    async def play(client: Client) -> None:
        await begun(client, 1)
        await begun(client, 2, secret=42)
        answer = await client.call(1, ("step", {"number": 13}))
        assert isinstance(answer, Broken)
        assert answer.error.startswith(f"environment game: a tool lost the connection to {server.url} (it hung up")
        assert answer.cause == "server"
        assert texts(await client.call(2, ("step", {"number": 7}))) == ["higher"]

    played(pod, play)


def test_observation_with_several_fields_is_json(pod: Pod, server: Server) -> None:
    async def board(ws: web.WebSocketResponse, question: Any) -> bool:
        if question["type"] == "step":
            await ws.send_str(observed(observation={"board": [[0, 1]], "note": "é", "metadata": {"hidden": 1}}))
        return bool(question["type"] == "step")

    server.ill = board

    async def play(client: Client) -> None:
        await begun(client)
        assert texts(await client.call(1, ("step", {"number": 7}))) == ['{"board":[[0,1]],"note":"é"}']

    played(pod, play)


def test_schema_of_actions_is_read_anew_by_each_episode(pod: Pod, server: Server) -> None:
    async def play(client: Client) -> None:
        assert len((await begun(client, 1)).tools) == 1
        server.action = MESSAGE
        assert (await begun(client, 2)).tools == []
        server.action = GUESS

    played(pod, play)
