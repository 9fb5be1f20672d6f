"""Episodes in a pod: each has a process and a state of its own."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import psutil
import pytest

from longshore.api.environment import Environment, EnvironmentKind
from longshore_runtime.environments.pod_protocol import Acted, Finished, Observation, Opened
from tests.contract.environments.environment_pods import PATIENT_S, USERS, Client, connected, python, serving, texts

NUM_MANY = 300
ENVIRONMENTS = (
    python("counter"),
    python("dice"),
    python("increment", "tests.contract.environments.trl_documentation:IncrementEnv"),
    python("asynchronous"),
    python("functions", tools=[f"{USERS}:double", f"{USERS}:halve"]),
    python("few", f"{USERS}:Counter", episodesPerPod=2),
    Environment(name="guessing", kind=EnvironmentKind.TASK, call_timeout_s=PATIENT_S),
)


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    """One pod for all tests."""
    with serving(*ENVIRONMENTS) as port:
        yield port


@pytest.fixture
def play(port: int) -> Callable[[Callable[[Client], Awaitable[Any]]], Any]:
    """Run with a connection."""

    def run(work: Callable[[Client], Awaitable[Any]]) -> Any:
        async def connect() -> Any:
            async with connected(port) as client:
                return await work(client)

        return asyncio.run(connect())

    return run


def test_an_episode_is_reset_calls_and_a_reward(play: Any) -> None:
    async def episode(client: Client) -> list[Any]:
        return [
            await client.open(7, "counter", goal=5, other=[1.5, None]),
            await client.call(7, ("add", {"number": 2}), ("add", {"number": 3})),
            await client.say(7, "I am done."),
            await client.finish(7),
        ]

    opened, acted, said, finished = play(episode)
    assert opened.observation == "Reach 5. ['other']"
    assert [tool["function"]["name"] for tool in opened.tools] == ["add", "state", "where"]
    assert acted == Acted(7, [Observation("tool", "2", "add"), Observation("tool", "5", "add")], 0)
    assert said == Acted(7, [], 0)
    assert finished == Finished(7, 1.0)


@pytest.mark.parametrize("is_solved", [True, False])
def test_example_class_of_trls_documentation_runs_unchanged(play: Any, is_solved: bool) -> None:
    async def episode(client: Client) -> list[Any]:
        opened = await client.open(1, "increment", seed=3, prompt=[{"role": "user", "content": ""}])
        assert isinstance(opened, Opened) and opened.observation is not None
        target = int(opened.observation.removeprefix("Increment the counter by ").removesuffix("."))
        steps = [1] * (target - (not is_solved))
        acted = await client.call(1, *[("increment", {"step": step}) for step in steps], ("increment", {"size": 1}))
        return [opened, acted, await client.say(1, "Done."), await client.finish(1)]

    opened, acted, said, finished = play(episode)
    (tool,) = opened.tools
    assert tool["function"]["name"] == "increment"
    assert tool["function"]["parameters"]["required"] == ["step"]
    *counts, failed = texts(acted)
    assert counts == [str(number) for number in range(1, len(counts) + 1)]
    assert "unexpected keyword argument 'size'" in failed
    assert acted.num_failed_calls == 1
    assert said.observations == []
    assert finished == Finished(1, float(is_solved))


def test_integers_of_any_size_reach_an_environment(play: Any) -> None:
    async def episode(client: Client) -> str | None:
        await client.socket.send_bytes(
            b'{"kind":"Open","episode":1,"environment":"counter",\n"row":{"goal":123456789012345678901234567890},"seed":1}'
        )
        opened = await client._answers[1].get()
        assert isinstance(opened, Opened)
        return opened.observation

    assert play(episode) == "Reach 123456789012345678901234567890. []"


def test_episodes_share_neither_instance_nor_module_nor_process(play: Any) -> None:
    async def episodes(client: Client) -> list[list[str]]:
        await asyncio.gather(*(client.open(number, "counter", goal=1) for number in (1, 2)))
        added = await asyncio.gather(*(client.call(number, ("add", {"number": number})) for number in (1, 2)))
        states = await asyncio.gather(*(client.call(number, ("state", {}), ("where", {})) for number in (1, 2)))
        return [*map(texts, added), *map(texts, states)]

    first, second, (state_1, where_1), (state_2, where_2) = play(episodes)
    assert (first, second) == (["1"], ["2"])
    assert (state_1, state_2) == ("[1]", "[2]")
    (process_1, template_1), (process_2, template_2) = where_1.split(), where_2.split()
    assert process_1 != process_2
    assert template_1 == template_2, "the module is imported once"


def test_same_seed_gives_the_same_episode(play: Any) -> None:
    async def episode(client: Client, number: int, seed: int) -> list[Any]:
        opened = await client.open(number, "dice", seed)
        assert isinstance(opened, Opened)
        return [opened.observation, *[texts(await client.say(number, "go on")) for _ in range(3)]]

    async def episodes(client: Client) -> list[list[Any]]:
        return [await episode(client, number, seed) for number, seed in enumerate((5, 5, 6))]

    (first, again, other), (later, *_) = play(episodes), play(episodes)
    assert first == again == later, "also in another process of the pod"
    assert first[0] != other[0]
    assert first[1:] != other[1:]


def test_built_in_task_is_played_turn_by_turn(play: Any) -> None:
    async def episode(client: Client) -> list[Any]:
        return [
            await client.open(1, "guessing", low="d", high="t", secret="i", prompt="d-t?"),
            *[await client.say(1, guess) for guess in "lgi"],
            await client.finish(1),
        ]

    opened, *turns, finished = play(episode)
    assert opened == Opened(1, None, [])
    assert [texts(one) for one in turns] == [["<"], [">"], []]
    assert finished.reward == 1.0


def test_reply_of_none_ends_an_episode(play: Any) -> None:
    async def episode(client: Client) -> list[Any]:
        await client.open(1, "dice")
        return [await client.say(1, "stop"), await client.finish(1)]

    assert play(episode) == [Acted(1, [], 0), Finished(1, None)]


def test_asynchronous_tools_of_a_turn_wait_for_each_other(play: Any) -> None:
    async def episode(client: Client) -> list[Any]:
        await client.open(1, "asynchronous")
        return [await client.call(1, ("wait", {}), ("notify", {})), await client.finish(1)]

    acted, finished = play(episode)
    assert texts(acted) == ["waited", "notified"]
    assert finished.reward == 1.0


def test_functions_are_an_environment_without_a_class(play: Any) -> None:
    async def episode(client: Client) -> list[Any]:
        return [
            await client.open(1, "functions", answer=3),
            await client.call(1, ("double", {"number": 4}), ("halve", {"number": 3})),
            await client.say(1, "8 and 1.5"),
            await client.finish(1),
        ]

    opened, acted, said, finished = play(episode)
    assert opened.observation is None
    assert [tool["function"]["name"] for tool in opened.tools] == ["double", "halve"]
    assert texts(acted) == ["8", "1.5"]
    assert (said.observations, finished.reward) == ([], None)


def test_many_episodes_run_at_once(play: Any) -> None:
    async def episode(client: Client, number: int) -> tuple[Any, list[str], Any]:
        opened = await client.open(number, "counter", goal=number)
        said = texts(await client.call(number, ("add", {"number": number}), ("where", {})))
        await everybody.wait()
        return opened, said, await client.finish(number)

    async def episodes(client: Client) -> list[tuple[Any, list[str], Any]]:
        return await asyncio.gather(*(episode(client, number) for number in range(NUM_MANY)))

    everybody = asyncio.Barrier(NUM_MANY)
    played = play(episodes)
    assert [opened.observation for opened, *_ in played] == [f"Reach {number}. []" for number in range(NUM_MANY)]
    assert [value for _, (value, _), _ in played] == [str(number) for number in range(NUM_MANY)]
    assert len({where for _, (_, where), _ in played}) == NUM_MANY
    assert {finished.reward for *_, finished in played} == {1.0}


def test_an_episode_beyond_those_of_a_pod_waits_until_another_ends(play: Any) -> None:
    async def episodes(client: Client) -> list[Any]:
        begun = [await client.open(number, "few", goal=1) for number in range(2)]
        waiting = asyncio.create_task(client.open(2, "few", goal=1))
        await asyncio.sleep(0)  # It has asked, and the pod has read that when it answers the next question.
        said = await client.say(1, "Is there room?")
        assert not waiting.done()
        await client.close(0)
        return [*begun, said, await waiting]

    first, second, said, third = play(episodes)
    assert all(isinstance(one, Opened) for one in (first, second, third))
    assert said == Acted(1, [], 0)


def test_episodes_that_are_closed_before_they_begin_leave_their_places_to_others() -> None:
    async def episodes() -> list[Any]:
        async with connected(port) as client:
            unwanted = [asyncio.create_task(client.open(number, "few", goal=1)) for number in range(2)]
            await asyncio.sleep(0)  # They have asked.
            for number in range(2):
                await client.close(number)
            opened = [await client.open(number, "few", goal=1) for number in (2, 3)]
            for one in unwanted:
                assert one.cancel(), "nobody answers"
            return opened

    # The pod is new: nothing begins before its template has imported the module.
    with serving(python("few", f"{USERS}:Counter", episodesPerPod=2)) as port:
        opened = asyncio.run(episodes())
    assert all(isinstance(one, Opened) for one in opened)


def test_number_of_an_episode_that_ended_may_be_used_again(play: Any) -> None:
    async def episodes(client: Client) -> list[Any]:
        await client.open(1, "counter", goal=1)
        await client.finish(1)
        gone = await client.say(1, "Are you there?")
        await client.open(1, "counter", goal=1)
        await client.close(1)
        return [gone, await client.open(1, "counter", goal=2)]

    gone, opened = play(episodes)
    assert gone.error == "the pod has no such episode, or not any more"
    assert opened.observation == "Reach 2. []"


def test_episodes_end_with_the_connection_and_their_template_with_the_pod() -> None:
    async def episodes() -> psutil.Process:
        async with connected(port) as client:
            await asyncio.gather(*(client.open(number, "counter", goal=1) for number in range(5)))
            where = texts(await client.call(0, ("where", {})))[0]
            template = psutil.Process(int(where.split()[1]))
            processes.extend(template.children())
            return template

    processes: list[psutil.Process] = []
    with serving(python("counter")) as port:
        template = asyncio.run(episodes())
        assert len(processes) == 5
        _, left = psutil.wait_procs(processes, timeout=60)
        assert not left
        assert template.is_running(), "the next connection need not import again"
    assert not template.is_running()
