"""An environment that cannot be imported says so for every episode, and names the field."""

import asyncio
import os
from functools import partial
from pathlib import Path

import aiohttp
import psutil
import pytest

from longshore.api import contract
from longshore.api.environment import Environment
from longshore_runtime.environments.pod_protocol import PATH, Broken, Open, Opened, encode
from longshore_runtime.environments.pod_server import MAX_HOSTS
from longshore_runtime.environments.processes import CannotStart, Template
from tests.commands import command_of
from tests.contract.environments.environment_pods import PATIENT_S, TOKEN, USERS, connected, python, serving

HERE = "tests.contract.environments"


def openings(environment: Environment, num: int = 1) -> list[Opened | Broken]:
    """How episodes of it begin."""

    async def episodes(port: int) -> list[Opened | Broken]:
        async with connected(port) as client:
            return [await client.open(number, environment.name) for number in range(num)]

    with serving(environment) as port:
        return asyncio.run(episodes(port))


@pytest.mark.parametrize(
    ("path", "error"),
    [
        ("nowhere:Game", "'nowhere:Game' cannot be imported (ModuleNotFoundError: No module named 'nowhere'"),
        (
            f"{USERS}:Countr",
            f"'{USERS}:Countr' cannot be imported (AttributeError: module '{USERS}' has no 'Countr'; did",
        ),
        (f"{USERS}:NOTHING", f"'{USERS}:NOTHING' cannot be called; name a class or function"),
        (f"{USERS}:WithoutReset", f"'{USERS}:WithoutReset' has no method reset(**row)"),
        (f"{USERS}:Undescribed", "tool 'act' cannot be described to the model (TypeHintParsingException: "),
        (f"{HERE}.ending:Game", "its import ends the process with exit code 5"),
    ],
)
def test_environment_that_cannot_begin_is_a_mistake_of_the_user(path: str, error: str) -> None:
    first, second = openings(python("game", path), 2)
    assert isinstance(first, Broken)
    assert first.error.startswith(f"environments[game].importPath: {error}"), first.error
    assert first.is_users_mistake
    assert isinstance(second, Broken)
    assert second.error == first.error


def test_function_that_cannot_be_imported_is_named_by_tools() -> None:
    (answer,) = openings(python("game", tools=[f"{USERS}:double", "nowhere:function"]))
    assert isinstance(answer, Broken)
    assert answer.error.startswith("environments[game].tools: 'nowhere:function' cannot be imported")


def test_modules_of_the_job_can_be_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "of_the_job.py").write_text(
        "import os, sys\n\nclass Game:\n"
        "    def reset(self):\n"
        "        return ' '.join([sys.path[0], *(name for name in os.environ if name.startswith('LONGSHORE_'))])\n"
    )
    monkeypatch.setenv(contract.ENV_MODULES, str(tmp_path))
    (answer,) = openings(python("game", "of_the_job:Game"))
    assert isinstance(answer, Opened)
    assert answer.observation == str(tmp_path), "variables of the job stay with the pod"


def forks(template: Template, *are_wanted: bool) -> list[BaseException]:
    """What is raised for episodes that begin one after the other."""

    async def begin() -> list[BaseException]:
        raised = []
        async with asyncio.timeout(PATIENT_S):
            for is_wanted in are_wanted:
                try:
                    await template.fork(partial(bool, is_wanted))
                except (CannotStart, UnicodeDecodeError) as error:
                    raised.append(error)
            await template.close()
        return raised

    return asyncio.run(begin())


def test_mistake_is_not_forgotten_for_an_episode_that_nobody_wants(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    imports = tmp_path / "imports"
    (tmp_path / "mistaken.py").write_text(f"open({str(imports)!r}, 'a').write('1')\nraise ValueError\n")
    monkeypatch.setenv(contract.ENV_MODULES, str(tmp_path))
    first, _, last = forks(Template(python("game", "mistaken:Game")), True, False, True)
    assert str(first) == str(last)
    assert imports.read_text() == "1"


def test_episode_that_cannot_begin_for_any_reason_leaves_its_place_to_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writes = "import os, sys\nos.write(int(sys.argv[1]), b'\\xff')\nclass Game:\n    def reset(self): pass\n"
    (tmp_path / "meddling.py").write_text(writes)
    monkeypatch.setenv(contract.ENV_MODULES, str(tmp_path))
    first, _ = forks(Template(python("game", "meddling:Game", episodesPerPod=1)), True, True)
    assert isinstance(first, UnicodeDecodeError)


def test_pod_ends_while_a_module_is_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    os.mkfifo(tmp_path / "begun")
    (tmp_path / "endless.py").write_text(f"import time\nopen({str(tmp_path / 'begun')!r}, 'w')\ntime.sleep(3600)\n")
    monkeypatch.setenv(contract.ENV_MODULES, str(tmp_path))

    async def begin(port: int) -> psutil.Process:
        async with connected(port) as client:
            await client.socket.send_bytes(encode(Open(1, "game", {}, 1)))
            await asyncio.to_thread((tmp_path / "begun").read_bytes)  # Waits until somebody writes.
            (template,) = [one for one in psutil.Process().children() if "endless:Game" in command_of(one)]
            return template

    with serving(python("game", "endless:Game")) as port:
        template = asyncio.run(begin(port))
        assert template.is_running()
    assert not template.is_running()


def test_connection_needs_the_token_and_a_place() -> None:
    async def statuses(port: int) -> list[int]:
        url, found = f"http://127.0.0.1:{port}{PATH}", []
        async with aiohttp.ClientSession() as session:
            found.append((await session.get(url)).status)
            authorized = {"Authorization": f"Bearer {TOKEN}"}
            sockets = [await session.ws_connect(url, headers=authorized) for _ in range(MAX_HOSTS)]
            found.append((await session.get(url, headers=authorized)).status)
            for socket in sockets:
                await socket.close()
        return found

    with serving(python("counter")) as port:
        assert asyncio.run(statuses(port)) == [401, 503]


@pytest.mark.parametrize(
    "messages",
    [
        [b"{}"],
        [b'{"kind":"Open","episode":1,"environment":"unknown","row":{},"seed":1}'],
        [b'{"kind":"Open","episode":1,"environment":"counter","row":{},"seed":1}'] * 2,
    ],
    ids=["empty", "unknown-environment", "opened-twice"],
)
def test_question_that_makes_no_sense_ends_the_connection(messages: list[bytes]) -> None:
    async def close_code(port: int) -> int | None:
        async with connected(port) as client:
            for message in messages:
                await client.socket.send_bytes(message)
            await client.ended
            return client.socket.close_code

    with serving(python("counter")) as port:
        assert asyncio.run(close_code(port)) == aiohttp.WSCloseCode.POLICY_VIOLATION
