"""A reward pod, as a process of its own, and what a hostile one can do to the coordinator."""

import asyncio
import itertools
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import aiohttp
import psutil
import pytest
from aiohttp import WSCloseCode, web

from longshore.api import contract
from longshore.api.contract import ExitCode
from longshore.api.names import Component
from longshore.api.reward import Http, RewardFunction, RewardKind
from longshore.api.spec import RLJobSpec
from longshore_runtime.rewards.scorers import ScorerFactory
from longshore_runtime.rewards.scoring import ScoreItem, ScoreResult, WorkerDied
from longshore_runtime.rewards.surroundings import Surroundings
from longshore_runtime.rewards.transports import pod_protocol
from longshore_runtime.rewards.transports.pod import PodConnections, ServingPods
from longshore_runtime.rewards.transports.pod_logs import PodLogs
from longshore_runtime.rewards.transports.thread import SPARE_WORKERS, PodTransport, RewardServer, pod_places
from tests.addresses import network

LIMIT_S = 120.0
TOKEN = "let-me-in"
MATHS = RewardFunction(name="maths", kind=RewardKind.MATHS, timeout_s=LIMIT_S)
SERVICE = RewardFunction(name="service", kind=RewardKind.HTTP, http=Http(url="http://127.0.0.1:9/"))
ITEM = ScoreItem("d, line 1", "6 * 7?", r"\boxed{42}", "42", {})
SPEC: dict[str, Any] = {
    "model": {"builtin": "Tiny"},
    "data": {"path": "rows.jsonl"},
    "algorithm": {"steps": 1, "promptsPerStep": 1, "responsesPerPrompt": 2, "maxResponseTokens": 64},
    "storage": {"claimName": "none"},
    "reward": {
        "functions": [
            {"name": "maths", "kind": "Maths", "timeoutSeconds": LIMIT_S},
            {"name": "service", "kind": "HTTP", "http": {"url": "http://127.0.0.1:9/"}},
        ],
        "pods": 1,
        "workersPerPod": 1,
        "requestsPerPod": 6,
    },
}


@dataclass
class Pod:
    """A reward pod."""

    process: subprocess.Popen[bytes]
    ip: str
    directory: Path

    @property
    def url(self) -> str:
        return f"http://{self.ip}:{contract.REWARD_PORT}"

    def wait_ready(self) -> None:
        """Until `/health` answers."""
        deadline_s = time.monotonic() + LIMIT_S
        while time.monotonic() < deadline_s and self.process.poll() is None:
            try:
                with urlopen(f"{self.url}/health", timeout=LIMIT_S) as answer:
                    assert answer.status == 200
                    return
            except OSError:
                continue
        raise AssertionError("the pod does not serve")


def ip_of(number: int) -> str:
    return f"{network()}.1.{number}"


@pytest.fixture
def token(tmp_path: Path) -> Path:
    path = tmp_path / "token"
    path.write_text(f"{TOKEN}\n")
    return path


@pytest.fixture
def pod(tmp_path: Path, token: Path) -> Iterator[Pod]:
    """The real program, in the environment that the operator gives it."""
    spec = RLJobSpec.model_validate(SPEC)
    (tmp_path / "spec.json").write_text(spec.model_dump_json(by_alias=True))
    environment = {
        contract.ENV_JOB_NAME: "job",
        contract.ENV_JOB_NAMESPACE: "team",
        contract.ENV_JOB_UID: "12345678",
        contract.ENV_ATTEMPT: "1",
        contract.ENV_COMPONENT: Component.REWARD,
        contract.ENV_INDEX: "0",
        contract.ENV_POD_NAME: "job-reward-0",
        contract.ENV_POD_IP: ip_of(1),
        contract.ENV_COORDINATOR_ADDRESS: ip_of(2),
        contract.ENV_CONFIG: str(tmp_path / "spec.json"),
        contract.ENV_STORAGE: str(tmp_path),
        contract.ENV_TERMINATION_LOG: str(tmp_path / "why"),
        contract.ENV_REWARD_TOKEN: str(token),
    }
    kept = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
    process = subprocess.Popen([sys.executable, "-m", "longshore_runtime", "reward"], env=kept | environment)
    made = Pod(process, ip_of(1), tmp_path)
    made.wait_ready()
    yield made
    process.kill()
    process.wait()


def one_pod(ip: str, token: Path, port: int = contract.REWARD_PORT) -> ServingPods:
    return ServingPods(Component.REWARD, 1, lambda index: ip, lambda index: token, port)


def connections_to(ip: str, token: Path, port: int = contract.REWARD_PORT) -> PodConnections:
    return PodConnections(one_pod(ip, token, port))


@pytest.fixture
def connections(token: Path) -> Iterator[PodConnections]:
    connections = connections_to(ip_of(1), token)
    yield connections
    connections.close()


def requested(connections: PodConnections) -> PodTransport:
    return PodTransport(connections, 0, ScorerFactory((MATHS,), "output"), 0.0)


def test_a_pod_scores_without_ray_and_without_torch_and_ends_when_it_is_asked_to(
    pod: Pod, connections: PodConnections
) -> None:
    worker = requested(connections)
    assert worker.ready.result(LIMIT_S).sandbox is None
    (result,) = worker.score("maths", [ITEM]).result(LIMIT_S)
    assert isinstance(result, ScoreResult) and result.reward == 1.0
    family = [psutil.Process(pod.process.pid), *psutil.Process(pod.process.pid).children(recursive=True)]
    mapped = {Path(file.path).name for process in family for file in process.memory_maps()}
    assert not {name for name in mapped if "torch" in name or "_raylet" in name or "vllm" in name}
    listening = {one.laddr.port for process in family for one in process.net_connections() if one.status == "LISTEN"}
    assert listening == {contract.REWARD_PORT}
    pod.process.send_signal(signal.SIGTERM)
    assert pod.process.wait(LIMIT_S) == ExitCode.INTERRUPTED
    assert (pod.directory / "why").read_text() == "the pod was asked to stop"
    assert worker.death.result(LIMIT_S) == "its pod closed the connection"


def test_what_a_pod_that_is_killed_was_scoring_fails_at_once(pod: Pod, connections: PodConnections) -> None:
    worker = requested(connections)
    worker.ready.result(LIMIT_S)
    os.kill(pod.process.pid, signal.SIGSTOP)
    answer = worker.score("maths", [ITEM])
    pod.process.kill()
    with pytest.raises(WorkerDied):
        answer.result(LIMIT_S)
    assert worker.death.result(LIMIT_S)


def test_a_pod_has_room_for_all_its_requests_and_starts_no_process_for_them(pod: Pod, token: Path) -> None:
    num_requests = SPARE_WORKERS + 1  # More than there is room for where one worker computes and none waits.
    connections = connections_to(pod.ip, token)
    for place in pod_places(connections, num_requests):
        worker = place.start(ScorerFactory((SERVICE,), "output"), 0.0)
        assert worker.ready.result(LIMIT_S) == Surroundings()
    assert psutil.Process(pod.process.pid).children() == []
    connections.close()


def test_a_pod_lets_nobody_in_without_its_token(pod: Pod) -> None:
    for path, header in itertools.product(
        (pod_protocol.PATH, pod_protocol.LOG_PATH), (None, "Bearer ", "Bearer wrong", "Bearer \xff", TOKEN)
    ):
        headers = {"Connection": "Upgrade", "Upgrade": "websocket", "Sec-WebSocket-Version": "13"}
        headers |= {"Sec-WebSocket-Key": "AAAAAAAAAAAAAAAAAAAAAA=="} | ({"Authorization": header} if header else {})
        with pytest.raises(HTTPError) as refused:
            urlopen(Request(pod.url + path, headers=headers), timeout=LIMIT_S)
        assert refused.value.code == 401, (path, header)


def test_log_of_a_pod_is_copied_into_the_storage(pod: Pod, token: Path) -> None:
    logs = PodLogs(one_pod(pod.ip, token), pod.directory / "logs", 1)
    logs.close(LIMIT_S)
    assert "the pod serves" in (pod.directory / "logs" / "reward-0-1.log").read_text()


CAPTURED = """
import os, subprocess, sys
from longshore_runtime.rewards.captured_log import CapturedLog
captured = CapturedLog()
with captured.capturing():
    print("printed")
    subprocess.run(["echo", "of a program"], check=True)
    left = subprocess.Popen(["sleep", "600"])
    os.write(2, b"x" * 100_000)
sys.stderr.write("later")
left.kill()
os.write(1, captured.take())
"""


def test_output_of_all_processes_is_captured_and_still_written() -> None:
    done = subprocess.run([sys.executable, "-c", CAPTURED], capture_output=True, check=True)
    taken, written = done.stdout, done.stderr
    assert sorted(taken.split(b"\n")) == sorted([b"printed", b"of a program", b"x" * 100_000])
    assert written == taken + b"later"


BEGIN = b'{"functions":["maths"],"rehearsals":{}}'


@pytest.mark.parametrize(
    "message",
    [b"\x80\x04K\x01.", b"{}", BEGIN.replace(b'"maths"', b""), BEGIN.replace(b"maths", b"judge"), b"[" * 100_000],
    ids=["pickle", "empty", "for-nothing", "for-another-function", "deep"],
)
def test_a_first_message_that_cannot_be_read_ends_the_connection(message: bytes) -> None:
    async def close_code() -> int | None:
        server = RewardServer(ScorerFactory((MATHS,), "output"), TOKEN, 1)
        async with (
            server.listening("127.0.0.1", 0) as port,
            aiohttp.ClientSession(headers={"Authorization": f"Bearer {TOKEN}"}) as session,
            session.ws_connect(f"http://127.0.0.1:{port}{pod_protocol.PATH}") as socket,
        ):
            pod_protocol.decode(pod_protocol.Hello, await socket.receive_bytes())
            await socket.send_bytes(message)
            await socket.receive()
            return socket.close_code

    assert asyncio.run(close_code()) == WSCloseCode.POLICY_VIOLATION


Behaviour = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Hostile:
    """A pod in the hands of an attacker: it does what a test says."""

    def __init__(self, behave: Behaviour) -> None:
        self.requests: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._behave = behave
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self.port = asyncio.run_coroutine_threadsafe(self._start(), self._loop).result()

    def close(self) -> None:
        asyncio.run_coroutine_threadsafe(self._runner.cleanup(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _start(self) -> int:
        application = web.Application()
        application.router.add_route("*", "/{path:.*}", self._handle)
        self._runner = web.AppRunner(application, shutdown_timeout=0.1)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        return int(self._runner.addresses[0][1])

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        self.requests.put(request.path)
        return await self._behave(request)


def saying(*messages: bytes | str) -> Behaviour:
    """After a proper start, answers the first call with these messages."""

    async def behave(request: web.Request) -> web.WebSocketResponse:
        socket = web.WebSocketResponse(max_msg_size=0)
        await socket.prepare(request)
        await socket.send_bytes(b'{"pod":"a"}')
        await socket.receive()
        await socket.send_bytes(b'{"outcome":{"sandbox":null}}')
        await socket.receive()
        for message in messages:
            await (socket.send_bytes(message) if isinstance(message, bytes) else socket.send_str(message))
        await socket.receive()
        return socket

    return behave


@pytest.fixture
def hostile(request: pytest.FixtureRequest) -> Iterator[Hostile]:
    hostile = Hostile(request.param)
    yield hostile
    hostile.close()


SCORED = b'{"reward":1.0,"seconds":0.0,"timed_out":false,"broken":null,"passed_all":true,"runs":[]}'
GOOD = b'{"number":1,"outcomes":[' + SCORED + b"]}"


@pytest.mark.parametrize(
    ("hostile", "reason"),
    [
        (saying(b"\x80\x04K\x01."), "what it says cannot be read: it is not JSON"),
        (saying("text"), "what it says cannot be read: it is text"),
        (saying(GOOD.replace(b"1.0", b"1e999")), "what it says cannot be read: "),
        (saying(GOOD.replace(b"1.0", b"1e12")), "what it says cannot be read: .*less than or equal"),
        (saying(GOOD.replace(SCORED, SCORED + b"," + SCORED)), "it answers 2 of 1 responses"),
        (saying(b" " * (pod_protocol.MAX_ANSWER_BYTES + 1)), "its connection broke"),
    ],
    indirect=["hostile"],
    ids=["pickle", "text", "infinite", "large-number", "too-many", "large-message"],
)
def test_an_answer_that_breaks_the_protocol_costs_the_pod_its_worker(
    hostile: Hostile, token: Path, reason: str
) -> None:
    connections = connections_to("127.0.0.1", token, hostile.port)
    worker = requested(connections)
    with pytest.raises(WorkerDied, match=reason):
        worker.score("maths", [ITEM]).result(LIMIT_S)
    connections.close()


@pytest.mark.parametrize("hostile", [saying(GOOD.replace(b":1,", b":99,", 1), GOOD, GOOD)], indirect=True)
def test_answers_that_nobody_asked_for_are_dropped(hostile: Hostile, token: Path) -> None:
    connections = connections_to("127.0.0.1", token, hostile.port)
    worker = requested(connections)
    (result,) = worker.score("maths", [ITEM]).result(LIMIT_S)
    assert isinstance(result, ScoreResult) and result.reward == 1.0
    connections.close()


async def _elsewhere(request: web.Request) -> web.StreamResponse:
    if request.path == "/secret":
        return web.Response(text="metadata")
    raise web.HTTPFound("/secret")


@pytest.mark.parametrize("hostile", [_elsewhere], indirect=True)
def test_the_coordinator_follows_a_pod_nowhere(hostile: Hostile, token: Path) -> None:
    connections = connections_to("127.0.0.1", token, hostile.port)
    worker = requested(connections)
    assert [hostile.requests.get(timeout=LIMIT_S) for _ in range(2)] == [pod_protocol.PATH] * 2, "it only tries again"
    worker.kill()
    assert worker.death.result(LIMIT_S)
    connections.close()


@pytest.mark.parametrize(
    "program", ["longshore_runtime.rewards.transports.thread", "longshore_runtime.environments.pod_server"]
)
def test_the_programs_of_isolated_pods_import_nothing_heavy(program: str) -> None:
    code = (
        "import sys, longshore_runtime.rewards.kinds.code, longshore_runtime.rewards.kinds.http\n"
        f"import {program}\n"
        "heavy = {'ray', 'torch', 'vllm', 'transformers', 'numpy'}\n"
        "print(sorted({name.partition('.')[0] for name in sys.modules} & heavy))"
    )
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == "[]"
