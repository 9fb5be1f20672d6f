"""Measure what a turn of an agent costs: the API of its episode, its pod, and the coordinator's side.

Agents ask over and over, and an engine that needs no time answers. In one run alternate a client that asks a bare
server, which is what any agent pays, and agents of one pod: one, or many at once. All have begun when the first is
answered, and none has ended when the last turn is asked for: what is in between is measured.

`p50_ms` and `p99_ms` are times from an answer of the engine to the next request of the same agent. With many agents,
which all want a core, they are times in a queue. CPU time is in microseconds per turn: of the coordinator's thread for
environments, of the pod, of the API in the processes of the episodes, and of the agents. Ratios are over the bare
server and its client: `cpu` of all CPU time per turn, `p50` of the times of one agent.
"""

import argparse
import asyncio
import multiprocessing
import queue
import signal
import threading
import time
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import fmean, median
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Final

import psutil
from aiohttp import web

from benchmarks.asking_agent import CLIENTS
from benchmarks.report import report
from longshore.api.environment import Environment
from longshore.api.model import Chat
from longshore.api.names import Component
from longshore.policy.draws import Draw
from longshore.policy.round import ResponseId
from longshore_runtime.backends.engine_protocol import Completion, FinishReason
from longshore_runtime.backends.tiny_model import EOS_ID, build_tokenizer
from longshore_runtime.data.prompt_record import PromptRecord
from longshore_runtime.environments import openai_chat
from longshore_runtime.environments.attempt import EpisodeLimits
from longshore_runtime.environments.conversation import Conversations
from longshore_runtime.environments.events import EpisodeNews, EpisodeOver, TurnWanted
from longshore_runtime.environments.openai_chat import ModelTurn
from longshore_runtime.environments.pod_server import EnvironmentServer
from longshore_runtime.environments.pool import EnvironmentPool
from longshore_runtime.rewards.fork_server import allow_many_files
from longshore_runtime.rewards.transports.pod import PodConnections, ServingPods
from longshore_runtime.trajectories.trajectory import Trajectory, token_ids

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

NUM_TURNS: Final = 10
CASES: Final = (("openai", 1), ("openai", 64), ("openai", 256), ("http", 1), ("http", 1000))
"""Client of the agents, and how many there are: a thousand with the package openai would need about 21 GiB."""
_NUM_CONVERSATIONS: Final = 5
_NUM_WEIGHED: Final = 16
"""Number of episodes whose memory is measured."""
_TOKEN: Final = "of the benchmark"
_SAYS: Final = "x" * 32
_TEMPLATE: Final = (
    "{% for m in messages %}{{ m.role }}: {{ m.content }}<eos>{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)
_FORKING: Final = multiprocessing.get_context("fork")
_COLUMNS: Final = (
    "p50_ms", "p99_ms", "turns_per_s", "agent_us", "api_us", "pod_us", "coordinator_us", "cpu_us", "begin_cpu_ms",
    "begun_per_s", "mib_per_episode",
)  # fmt: skip
_NAME_WIDTH: Final = 11

Run = dict[str, float]


def bare_turns(client: str, num_turns: int) -> Run:
    """Return what a turn takes where a server answers at once with a constant."""
    with _process(_serve_constant) as (server, port):
        ask, seconds = CLIENTS[client](f"http://127.0.0.1:{port}/v1", "none"), list[float]()
        ask([])  # The first time takes longer.
        client_ns, server_ns = time.thread_time_ns(), sum(_cpu_ns(server).values())
        for _ in range(_NUM_CONVERSATIONS):
            messages = [{"role": "user", "content": "Begin."}]
            for _ in range(num_turns):
                started_s = time.perf_counter()
                reply = ask(messages)
                seconds.append(time.perf_counter() - started_s)
                messages += [{"role": "assistant", "content": reply}, {"role": "user", "content": "Go on."}]
        cpu_us = {
            "agent_us": (time.thread_time_ns() - client_ns) / 1000 / len(seconds),
            "api_us": (sum(_cpu_ns(server).values()) - server_ns) / 1000 / len(seconds),
        }
        return {**_latency(seconds), **cpu_us, "cpu_us": sum(cpu_us.values())}


def agent_turns(client: str, num_agents: int, num_turns: int) -> Run:
    """Return what a turn takes of so many agents at once, and what it takes to begin them."""
    environment = Environment.model_validate(
        {
            "name": "agent", "kind": "Agent", "importPath": "benchmarks.asking_agent:converse", "retries": 0,
            "maxTurns": num_turns, "callTimeoutSeconds": 3600, "episodesPerPod": num_agents,
        }
    )  # fmt: skip
    events: queue.SimpleQueue[EpisodeNews] = queue.SimpleQueue()
    with (
        _process(_serve_pod, environment.model_dump_json(by_alias=True)) as (pod, port),
        _pool(environment, port, events) as pool,
    ):
        messages = ({"role": "user", "content": "Begin."},)
        record = PromptRecord(
            0, "Begin.", token_ids([1]), "", fields={"client": client, "turns": num_turns}, messages=messages
        )
        engine, started_s = _Engine(pool, events), time.perf_counter()
        for number in range(num_agents):
            pool.start(ResponseId(Draw(0, number), 0), record, seed=number)
        engine.hear(num_agents)
        begun_s, begun = time.perf_counter() - started_s, _Processes(pod)
        spent = begun.cpu_us()
        engine.answer(num_turns - 1)
        turns_s = time.perf_counter() - started_s - begun_s
        cpu_us = {key: (now - spent[key]) / len(engine.seconds) for key, now in begun.cpu_us().items()}
        memory = begun.memory_mib()
        engine.answer(num_turns)
        return {
            **_latency(engine.seconds),
            "turns_per_s": len(engine.seconds) / turns_s,
            **cpu_us,
            "cpu_us": sum(cpu_us.values()),
            "begin_cpu_ms": sum(spent.values()) / 1000 / num_agents,
            "begun_per_s": num_agents / begun_s,
            "mib_per_episode": memory,
        }


class _Engine:
    """Answers turns as soon as they are wanted."""

    def __init__(self, pool: EnvironmentPool, events: "queue.SimpleQueue[EpisodeNews]") -> None:
        self.seconds: list[float] = []
        """Times from an answer to the next request of the same agent."""
        self._pool = pool
        self._events = events
        self._wanted: list[TurnWanted] = []
        tokens = [*build_tokenizer().encode(_SAYS, add_special_tokens=False), EOS_ID]
        self._turn = Trajectory.sampled(0, tokens, [-1.0] * len(tokens))

    def hear(self, num_agents: int) -> None:
        """Wait for the first turns that are wanted, and answer none."""
        while len(self._wanted) < num_agents:
            news = self._events.get()
            assert isinstance(news, TurnWanted), news
            self._wanted.append(news)

    def answer(self, num_turns: int) -> None:
        """Answer so many turns of every agent, and leave the next ones open."""
        answered_s = {one.number: self._answer(one) for one in self._wanted}
        self._wanted, num_left = [], len(self._wanted)
        while num_left:
            news, now_s = self._events.get(), time.perf_counter()
            if isinstance(news, TurnWanted) and news.turn < num_turns:
                self.seconds.append(now_s - answered_s[news.number])
                answered_s[news.number] = self._answer(news)
                continue
            num_left -= 1
            if isinstance(news, TurnWanted):
                self.seconds.append(now_s - answered_s[news.number])
                self._wanted.append(news)
            else:
                assert isinstance(news, EpisodeOver), news

    def _answer(self, wanted: TurnWanted) -> float:
        self._pool.give_turn(wanted.number, Completion("one", wanted.trajectory + self._turn, FinishReason.STOP, 1))
        return time.perf_counter()


class _Processes:
    """The coordinator's thread for environments, a pod, and its episodes."""

    def __init__(self, pod: psutil.Process) -> None:
        (self._coordinator,) = [
            one.native_id for one in threading.enumerate() if one.name == f"{Component.ENVIRONMENT}-pods"
        ]
        (template,) = pod.children()
        self._pod = [pod, template]
        self._episodes = template.children()

    def cpu_us(self) -> dict[str, float]:
        """Return CPU time so far, in microseconds."""
        episodes = [(_cpu_ns(one), one.pid) for one in self._episodes]
        agents_ns = sum(threads[pid] for threads, pid in episodes)
        spent_ns = {
            "coordinator_us": _cpu_ns(psutil.Process())[self._coordinator or 0],
            "pod_us": sum(sum(_cpu_ns(one).values()) for one in self._pod),
            "api_us": sum(sum(threads.values()) for threads, _ in episodes) - agents_ns,
            "agent_us": agents_ns,
        }
        return {key: value / 1000 for key, value in spent_ns.items()}

    def memory_mib(self) -> float:
        """Return the proportional memory of an episode, in MiB; of some of them, since the kernel takes its time."""
        some = self._episodes[:: -(-len(self._episodes) // _NUM_WEIGHED)]
        return fmean(one.memory_full_info().pss for one in some) / (1 << 20)


def _cpu_ns(process: psutil.Process) -> dict[int, int]:
    """Return the CPU time of each thread of a process so far, by its number."""
    tasks = Path(f"/proc/{process.pid}/task").iterdir()
    return {int(one.name): int((one / "schedstat").read_text().split()[0]) for one in tasks}


def _latency(seconds: Sequence[float]) -> Run:
    in_order = sorted(seconds)
    return {"p50_ms": 1000 * median(in_order), "p99_ms": 1000 * in_order[99 * (len(in_order) - 1) // 100]}


@contextmanager
def _pool(environment: Environment, port: int, events: "queue.SimpleQueue[EpisodeNews]") -> Iterator[EnvironmentPool]:
    with TemporaryDirectory() as directory:
        token = Path(directory, "token")
        token.write_text(_TOKEN)
        pods = ServingPods(Component.ENVIRONMENT, 1, lambda index: "127.0.0.1", lambda index: token, port)
        connections = PodConnections(pods)
        try:
            conversations = Conversations(Chat(template=_TEMPLATE), build_tokenizer())
            yield EnvironmentPool([environment], connections, conversations, EpisodeLimits(8192, 16384), events.put)
        finally:
            connections.close()


@contextmanager
def _process(serve: Callable[..., Coroutine[Any, Any, None]], *arguments: Any) -> Iterator[tuple[psutil.Process, int]]:
    """Serve from a process of its own while the block runs; yields it with its port."""
    ours, theirs = _FORKING.Pipe()
    process = _FORKING.Process(target=lambda: asyncio.run(serve(theirs, *arguments)))
    process.start()
    try:
        yield psutil.Process(process.pid), ours.recv()
    finally:
        process.terminate()
        process.join()


async def _serve_pod(pipe: "Connection", environment: str) -> None:
    allow_many_files()
    server = EnvironmentServer([Environment.model_validate_json(environment)], _TOKEN)
    async with server.listening("127.0.0.1", 0) as port:
        await _until_terminated(pipe, port)


async def _serve_constant(pipe: "Connection") -> None:
    answer = openai_chat.chat_completion(ModelTurn(0, _SAYS, (), is_cut=False, num_prompt_tokens=1, num_tokens=1))

    async def handle(request: web.Request) -> web.Response:
        await request.read()
        return web.json_response(answer)

    application = web.Application()
    application.router.add_post("/v1/chat/completions", handle)
    runner = web.AppRunner(application, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    await _until_terminated(pipe, int(runner.addresses[0][1]))
    await runner.cleanup()


async def _until_terminated(pipe: "Connection", port: int) -> None:
    terminated = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, terminated.set)
    pipe.send(port)
    await terminated.wait()


def _print_line(name: str, run: Run) -> None:
    figures = (f"{run[key]:{len(key)}.1f}" if key in run else " " * len(key) for key in _COLUMNS)
    print(f"{name:>{_NAME_WIDTH}}", *figures, flush=True)


def _measure(cases: Sequence[tuple[str, int]], num_turns: int) -> dict[str, Run]:
    """Return what was measured, by client and number of agents; prints a line for each."""
    runs: dict[str, Run] = {}
    print(" " * _NAME_WIDTH, *_COLUMNS)
    for client, number in cases:
        if (bare := f"{client}/bare") not in runs:
            runs[bare] = bare_turns(client, num_turns)
            _print_line(bare, runs[bare])
        name = f"{client}/{number}"
        runs[name] = agent_turns(client, number, num_turns)
        _print_line(name, runs[name])
    return runs


def _case(text: str) -> tuple[str, int]:
    client, _, number = text.partition("/")
    return client, int(number)


def main() -> None:
    """Measure, and report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--alternations", type=int, default=3)
    parser.add_argument("--turns", type=int, default=NUM_TURNS)
    parser.add_argument("--cases", type=_case, nargs="+", default=CASES, help="such as openai/64")
    options = parser.parse_args()
    allow_many_files()
    raw = [_measure(options.cases, options.turns) for _ in range(options.alternations)]
    ratios = {
        f"{key.removesuffix('_us').removesuffix('_ms')}/{client}/{number}": [
            run[f"{client}/{number}"][key] / run[f"{client}/bare"][key] for run in raw
        ]
        for client, number in options.cases
        for key in ("cpu_us", *(("p50_ms",) if number == 1 else ()))
    }
    report("gateway", ratios, {"turns": options.turns}, raw)


if __name__ == "__main__":
    main()
