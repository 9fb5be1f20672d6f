"""An environment that fails or misbehaves breaks its own episode, and nothing else."""

import asyncio
from collections.abc import Iterator
from contextlib import suppress

import psutil
import pytest

from longshore_runtime.environments.pod_protocol import MAX_CONTENT, Acted, Broken, Opened
from tests.contract.environments.environment_pods import USERS, Client, connected, python, serving, texts

LIMIT_S = 60.0
SHORT_S = 0.5
"""Limit of the calls that are to be cut off."""


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    """One pod for all tests."""
    hostile = f"{USERS}:Hostile"
    with serving(
        python("hostile"),
        python("short", hostile, callTimeoutSeconds=SHORT_S),
        python("brief", hostile, episodeTimeoutSeconds=SHORT_S),
    ) as port:
        yield port


async def do(client: Client, what: str, environment: str = "hostile") -> Acted | Broken:
    """An episode that does it."""
    opened = await client.open(1, environment)
    assert isinstance(opened, Opened), opened
    return await client.call(1, ("do", {"what": what}))


def outcome(port: int, what: str, environment: str = "hostile") -> Acted | Broken:
    """What becomes of an episode that does it, while another one is there and stays unharmed."""

    async def episodes() -> Acted | Broken:
        async with connected(port) as client:
            await client.open(0, environment)
            answer = await do(client, what, environment)
            assert texts(await client.call(0, ("fine", {}))) == ["fine"], "the other one goes on"
            return answer

    return asyncio.run(episodes())


@pytest.mark.parametrize(
    ("what", "error"),
    [
        ("exit", "in tool do, its process has ended with exit code 3"),
        ("be killed", "in tool do, its process was killed by signal 9 (Killed), perhaps for want of memory"),
        ("crash", "in tool do, its process was killed by signal 11 (Segmentation fault)"),
        ("sys.exit", "a tool raised SystemExit: 4 at users.py:"),
        ("close everything", "in tool do, its process has closed its pipes"),
        ("write what is no answer\n", "its process wrote what is no answer ("),
        ('write {"kind":"Acted","episode":0,"observations":[],"num_failed_calls":0}\n', "its process wrote what is no"),
        (
            'write {"kind":"Finished","episode":1,"reward":1}\n',
            "its process wrote what is no answer (a message of kind",
        ),
        ("write without end", "in tool do, its process wrote an answer of more than 16 MiB"),
        ("write " + 100_000 * "{}\n", "its process wrote what is no answer ("),
    ],
    ids=lambda value: value[:40].strip(),
)
def test_process_that_cannot_answer_breaks_its_episode(port: int, what: str, error: str) -> None:
    answer = outcome(port, what)
    assert isinstance(answer, Broken)
    assert answer.error.startswith(f"environment hostile: {error}"), answer.error
    cause = "process" if error.startswith("in tool do") else "exception" if "raised" in error else "result"
    assert (answer.cause, answer.is_users_mistake) == (cause, False)


@pytest.mark.parametrize("what", ["hang", "hang, deaf to signals"])
def test_call_that_hangs_is_cut_off(port: int, what: str) -> None:
    answer = outcome(port, what, "short")
    assert isinstance(answer, Broken)
    assert answer.error == (
        "environments[short].callTimeoutSeconds: tool do did not end within 0.5 s; make it faster, or raise the limit"
    )
    assert answer.cause == "timeout"


def test_reset_that_hangs_is_cut_off(port: int) -> None:
    async def episode() -> Opened | Broken:
        async with connected(port) as client:
            return await client.open(1, "short", at="hang")

    answer = asyncio.run(episode())
    assert isinstance(answer, Broken)
    assert "callTimeoutSeconds: reset did not end within 0.5 s" in answer.error


def test_calls_together_are_cut_off_at_the_limit_of_an_episode(port: int) -> None:
    answer = outcome(port, "hang", "brief")
    assert isinstance(answer, Broken)
    assert answer.error.startswith(
        "environments[brief].episodeTimeoutSeconds: the environment took 0.5 s for an episode, the last of them in tool"
    )


@pytest.mark.parametrize(
    ("what", "said"),
    [
        ("fork and return twice", "done"),
        ("flood", "done"),
        ("read", ""),
        ("surrogate", "?"),
        ("raise", "{'error': 'that was wrong'}"),
        ("recurse", "{'error': 'maximum recursion depth exceeded"),
    ],
)
def test_strange_behaviour_is_no_failure_of_the_episode(port: int, what: str, said: str) -> None:
    answer = outcome(port, what)
    (text,) = texts(answer)
    assert text.startswith(said)
    assert isinstance(answer, Acted)
    assert answer.num_failed_calls == int("error" in said)


def test_observation_of_100_megabytes_is_cut_and_counted(port: int) -> None:
    answer = outcome(port, "return 100 MB")
    (text,) = texts(answer)
    assert len(text) == MAX_CONTENT
    assert text.endswith("x [cut: the text has 100,000,000 characters]")
    assert isinstance(answer, Acted)
    assert answer.num_cut == 1


@pytest.mark.parametrize("what", ["start a program", "start a daemon"])
@pytest.mark.parametrize("end", ["close", "finish", "exit", "connection"])
def test_what_an_episode_has_started_ends_with_it(port: int, what: str, end: str) -> None:
    async def episode() -> psutil.Process:
        async with connected(port) as client:
            started = psutil.Process(int(texts(await do(client, what))[0]))
            match end:
                case "close":
                    await client.close(1)
                case "finish":
                    await client.finish(1)
                case "exit":
                    await client.call(1, ("do", {"what": "exit"}))
                case _:
                    return started
            await asyncio.to_thread(wait_end, started)
            return started

    wait_end(asyncio.run(episode()))


def wait_end(process: psutil.Process) -> None:
    with suppress(psutil.NoSuchProcess):
        process.wait(LIMIT_S)


def test_daemon_lives_as_long_as_its_episode(port: int) -> None:
    async def episode() -> None:
        async with connected(port) as client:
            started = psutil.Process(int(texts(await do(client, "start a daemon"))[0]))
            other = psutil.Process(int(texts(await do_in(client, 2, "start a daemon"))[0]))
            await client.finish(2)
            await asyncio.to_thread(wait_end, other)
            assert started.is_running()

    async def do_in(client: Client, number: int, what: str) -> Acted | Broken:
        await client.open(number, "hostile")
        return await client.call(number, ("do", {"what": what}))

    asyncio.run(episode())


def test_episodes_go_on_when_their_template_is_gone(port: int) -> None:
    async def episodes() -> None:
        async with connected(port) as client:
            pid = int(texts(await do(client, "start a program"))[0])
            parents = psutil.Process(pid).parents()
            parents[1].kill()
            assert texts(await client.call(1, ("fine", {}))) == ["fine"]
            assert texts(await do_later(client)) == ["fine"], "another template has started"
            await client.close(1)
            await asyncio.to_thread(wait_end, psutil.Process(pid))

    async def do_later(client: Client) -> Acted | Broken:
        await client.open(2, "hostile")
        return await client.call(2, ("fine", {}))

    asyncio.run(episodes())
