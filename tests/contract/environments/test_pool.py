"""The driver's side of episodes against real pods: what it hears, and what becomes of pods that are lost."""

import asyncio
import queue
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Final

import pytest
from aiohttp import web

from longshore.api.environment import Environment, environment_pods
from longshore.api.names import Component
from longshore.policy.draws import Draw
from longshore.policy.round import ResponseId
from longshore_runtime.backends.engine_protocol import Completion, FinishReason
from longshore_runtime.data.prompt_record import PromptRecord
from longshore_runtime.environments.conversation import Conversations
from longshore_runtime.environments.events import EpisodeGivenUp, EpisodeNews, EpisodeOver, TurnWanted
from longshore_runtime.environments.link import EpisodeError, PodLink
from longshore_runtime.environments.pod_protocol import MAX_MESSAGE_BYTES, PATH, Open, Opened
from longshore_runtime.environments.pool import EnvironmentPool
from longshore_runtime.errors import UserError
from longshore_runtime.rewards.transports.pod import PodConnections, ServingPods
from longshore_runtime.rewards.transports.pod_protocol import Hello, encode
from longshore_runtime.trajectories.trajectory import Trajectory
from tests.addresses import network
from tests.contract.environments.driver import LIMITS, ROW, TOKENIZER, Driver, driving, record
from tests.contract.environments.environment_pods import PATIENT_S, TOKEN, USERS, python, serving

GAME: Final = Environment.model_validate(
    {"name": "game", "kind": "Task", "maxTurns": 3, "callTimeoutSeconds": PATIENT_S, "retries": 1}
)


@pytest.fixture
def game(tmp_path: Path) -> Iterator[Driver]:
    """The built-in game in a pod."""
    with serving(GAME) as port, driving(tmp_path, port, GAME) as driver:
        yield driver


def text_of(news: EpisodeNews) -> str:
    """What the environment answers."""
    assert isinstance(news, TurnWanted) and news.turn, news
    trajectory = news.trajectory
    text: str = TOKENIZER.decode(trajectory.tokens[trajectory.turns[-1].stop :])
    return text


def test_an_episode_is_played_to_its_end_and_rewarded(game: Driver) -> None:
    number = game.start()
    begun = game.hear()
    assert isinstance(begun, TurnWanted) and TOKENIZER.decode(begun.prompt_tokens) == "a-h?"
    assert text_of(game.say(number, "d")) == "<"
    assert text_of(game.say(number, "b")) == ">"
    over = game.say(number, "c")
    assert isinstance(over, EpisodeOver) and not over.is_cut
    episode = over.episode
    assert (episode.reward, episode.num_turns, episode.num_restarts, episode.last_turn) == (1.0, 3, 0, "c")
    assert [one["content"] for one in episode.messages] == ["d", "<", "b", ">", "c"]
    assert episode.environment_s > 0


def test_the_last_turn_that_a_job_allows_ends_an_episode_which_is_whole(game: Driver) -> None:
    number = game.start()
    game.hear()
    for turn in ("h", "g"):
        assert text_of(game.say(number, turn)) == "<"
    over = game.say(number, "f")
    assert isinstance(over, EpisodeOver) and not over.is_cut
    assert over.episode.reward == 0.0


def test_a_turn_without_an_end_ends_the_episode_as_cut(game: Driver) -> None:
    number = game.start()
    game.hear()
    over = game.say(number, "dddddddd", FinishReason.LENGTH)
    assert isinstance(over, EpisodeOver) and over.is_cut
    assert over.episode.num_turns == 1


def test_an_episode_is_over_when_no_token_is_left_for_another_turn(tmp_path: Path) -> None:
    talker = python("talker", f"{USERS}:Talker")
    with serving(talker) as port, driving(tmp_path, port, talker) as driver:
        number = driver.start(length=40)
        driver.hear()
        over = driver.say(number, "hi")
        assert isinstance(over, EpisodeOver) and over.is_cut
        assert over.episode.messages[-1]["content"] == "x" * 40, "said, and not read"


def test_cancelled_episodes_make_room_for_others_and_are_not_heard_of(tmp_path: Path) -> None:
    narrow = GAME.model_copy(update={"episodes_per_pod": 1})
    with serving(narrow) as port, driving(tmp_path, port, narrow) as driver:
        first, second = driver.start(), driver.start()
        assert driver.hear().number == first
        driver.pool.cancel([first])
        assert driver.hear().number == second, "it has waited for the place"


def test_what_a_lost_pod_ran_begins_anew_in_its_successor(tmp_path: Path) -> None:
    with serving(GAME) as port:
        pass  # Its port is free again.
    with driving(tmp_path, port, GAME) as driver:
        with serving(GAME, port=port):
            number = driver.start()
            driver.hear()
            assert text_of(driver.say(number, "d")) == "<"
        driver.pool.give_turn(number, Completion("one", Trajectory.sampled(0, [5], [-1.0]), FinishReason.STOP, 1))
        with serving(GAME, port=port):
            assert isinstance(driver.hear(), TurnWanted)
            over = driver.say(number, "c")
            assert isinstance(over, EpisodeOver)
            assert (over.episode.num_restarts, over.episode.num_turns) == (1, 1)


def test_each_environment_has_pods_and_a_token_of_its_own(tmp_path: Path) -> None:
    """A pod of one that is lost holds up no episode of another."""
    other = python("counter", domains=["numbers"])
    for name in ("counter", "game"):
        (tmp_path / name).write_text(f"token of {name}")
    tokens = [tmp_path / one.name for one in environment_pods((other, GAME))]
    events: queue.SimpleQueue[EpisodeNews] = queue.SimpleQueue()
    host = f"{network()}.1.1"
    with serving(GAME, host=host, token="token of game") as port:
        # The address of the pod that is lost has another owner now.
        pods = ServingPods(Component.ENVIRONMENT, 2, lambda index: host, tokens.__getitem__, port)
        connections = PodConnections(pods)
        try:
            pool = EnvironmentPool((other, GAME), connections, Conversations(None, TOKENIZER), LIMITS, events.put)
            driver = Driver(pool, events)
            waiting = pool.start(ResponseId(Draw(0, 1), 0), replace(record("a", goal=3), domain="numbers"), seed=7)
            number = driver.start()
            assert driver.hear().number == number != waiting
            assert text_of(driver.say(number, "d")) == "<"
        finally:
            connections.close()


def test_an_episode_that_fails_too_often_is_given_up_with_its_row_and_cause(tmp_path: Path) -> None:
    broken = python("broken", f"{USERS}:BrokenReply", retries=1)
    with serving(broken) as port, driving(tmp_path, port, broken) as driver:
        number = driver.start(why="no luck")
        for attempt in range(2):
            wanted = driver.hear()
            assert isinstance(wanted, TurnWanted) and wanted.failures == ("exception",) * attempt
            last = driver.say(number, "hi") if attempt else driver.pool.give_turn(number, _turn())
        assert isinstance(last, EpisodeGivenUp) and not last.is_users_mistake
        assert last.failures == ("exception",), "each failure is told once"
        assert last.reason.startswith("environment broken: row 1: reply raised ValueError: no luck")


def _turn() -> Completion:
    return Completion("one", Trajectory.sampled(0, [5], [-1.0]), FinishReason.STOP, 1)


def _rehearsal_mistake(tmp_path: Path, environment: Environment, row: PromptRecord) -> str:
    with (
        serving(environment) as port,
        driving(tmp_path, port, environment) as driver,
        pytest.raises(UserError) as caught,
    ):
        driver.pool.rehearse([row], PATIENT_S)
    return str(caught.value)


def test_what_fails_for_every_row_is_found_in_the_rehearsal(tmp_path: Path) -> None:
    mistake = _rehearsal_mistake(tmp_path, python("missing", "no_such_module:Game"), record("a"))
    assert mistake.startswith(
        "environment missing: row 1: environments[missing].importPath: 'no_such_module:Game' cannot be imported"
    )


def test_rehearsal_without_a_pod_ends_at_its_limit_with_the_fix(tmp_path: Path) -> None:
    with serving(GAME) as port:
        pass  # Nobody listens at its port any more.
    with driving(tmp_path, port, GAME) as driver, pytest.raises(UserError) as caught:
        driver.pool.rehearse([record("a-h?", **ROW)], 1.0)
    assert str(caught.value) == (
        "environments: no pod has taken an episode within 1 s; make room for the pods, lower pods.count or "
        "pods.resources, or let a server listen at its server.port"
    )


def test_tools_need_prompts_that_are_conversations(tmp_path: Path) -> None:
    mistake = _rehearsal_mistake(tmp_path, python("counter"), record("a", goal=3))
    assert mistake.endswith("data.chat: the tools of an environment need prompts that are conversations; set it to {}")


def test_a_rehearsal_leaves_no_episode_behind(tmp_path: Path) -> None:
    narrow = GAME.model_copy(update={"episodes_per_pod": 1})
    with serving(narrow) as port, driving(tmp_path, port, narrow) as driver:
        driver.pool.rehearse([record("a-h?", **ROW)], PATIENT_S)
        driver.start()
        assert isinstance(driver.hear(), TurnWanted)


def test_a_cancelled_episode_gives_its_place_back_though_its_environment_hangs(tmp_path: Path) -> None:
    narrow = python("sleeper", episodesPerPod=1, retries=0)
    with serving(narrow) as port, driving(tmp_path, port, narrow) as driver:
        for _ in range(8):
            number = driver.start()
            begun = driver.hear()
            assert isinstance(begun, TurnWanted) and begun.number == number, "nobody was told that there is no room"
            driver.pool.give_turn(number, _turn())
            driver.pool.cancel([number])


def test_a_row_that_no_pod_takes_is_refused_and_ends_no_other_episode(game: Driver) -> None:
    number = game.start()
    game.hear()
    game.start(**ROW, more="x" * MAX_MESSAGE_BYTES)
    refused = game.hear()
    assert isinstance(refused, EpisodeGivenUp) and refused.is_users_mistake
    assert refused.reason.endswith("16 MiB large, and at most 16 MiB can be sent")
    assert text_of(game.say(number, "d")) == "<", "the connection is as it was"


def test_a_sentence_of_an_environment_has_no_control_characters(tmp_path: Path) -> None:
    broken = python("broken", f"{USERS}:BrokenReply", retries=0)
    with serving(broken) as port, driving(tmp_path, port, broken) as driver:
        number = driver.start(why="\x1b[2Jowned\x07")
        driver.hear()
        last = driver.say(number, "hi")
        assert isinstance(last, EpisodeGivenUp)
        assert last.reason.isprintable() and "owned" in last.reason


@asynccontextmanager
async def deaf_pod() -> AsyncIterator[int]:
    """A pod that says hello and then reads nothing; yields its port."""
    end = asyncio.Event()

    async def serve(request: web.Request) -> web.WebSocketResponse:
        socket = web.WebSocketResponse()
        await socket.prepare(request)
        assert request.transport is not None
        request.transport.pause_reading()
        await socket.send_bytes(encode(Hello("deaf")))
        await end.wait()
        return socket

    application = web.Application()
    application.router.add_get(PATH, serve)
    runner = web.AppRunner(application, shutdown_timeout=0)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        yield runner.addresses[0][1]
    finally:
        end.set()
        await runner.cleanup()


def test_a_pod_that_reads_nothing_holds_up_an_episode_no_longer_than_its_limit(tmp_path: Path) -> None:
    async def ask(connections: PodConnections) -> str:
        is_connected = asyncio.Event()

        async def connect() -> None:
            is_connected.set()

        link = PodLink(connections, 0, connect)
        await is_connected.wait()
        with pytest.raises(EpisodeError) as caught:
            await link.ask(Open(1, "game", {"more": "x" * (MAX_MESSAGE_BYTES - 1024)}, 0), (Opened,), limit_s=0.5)
        await link.close_episode(1)
        return str(caught.value)

    async def play() -> str:
        async with deaf_pod() as port:
            pods = ServingPods(
                Component.ENVIRONMENT, 1, lambda index: "127.0.0.1", lambda index: tmp_path / "token", port
            )
            connections = PodConnections(pods)
            try:
                asking = asyncio.run_coroutine_threadsafe(ask(connections), connections.loop)
                async with asyncio.timeout(20):
                    return await asyncio.wrap_future(asking)
            finally:
                await asyncio.to_thread(connections.close)

    (tmp_path / "token").write_text(TOKEN)
    assert asyncio.run(play()) == "environment pod 0 does not answer within 0.5 s"
