"""Measure what a turn of an agent costs: the API of its episode, its pod, and the coordinator's side.

Agents ask over and over, and an engine that needs no time answers. In one run alternate a client that asks a bare
server, which is what any agent pays, and agents of one pod, one or many at once. Figures are milliseconds from one
request of an agent to its next one. `overhead` is a median of one agent over that of the bare server.
"""

import argparse
import asyncio
import json
import queue
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any, Final

from aiohttp import web
from openai import OpenAI

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

NUM_TURNS: Final = 20
CONCURRENT: Final = (1, 64, 1000)
_NUM_CONVERSATIONS: Final = 5
_TOKEN: Final = "of the benchmark"
_SAYS: Final = "x" * 32
_TEMPLATE: Final = (
    "{% for m in messages %}{{ m.role }}: {{ m.content }}<eos>{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)


def converse(row: Mapping[str, Any]) -> None:
    """Ask, and ask again, as an agent."""
    client, messages = OpenAI(), [{"role": "user", "content": "Begin."}]
    for _ in range(row["turns"]):
        reply = client.chat.completions.create(model="any", messages=messages)  # type: ignore[arg-type]
        messages.append({"role": "assistant", "content": str(reply.choices[0].message.content)})
        messages.append({"role": "user", "content": "Go on."})


def bare_turn_ms(num_turns: int) -> float:
    """Return the median time of a turn where a server answers at once with a constant."""
    answer = openai_chat.chat_completion(ModelTurn(0, _SAYS, (), is_cut=False, num_prompt_tokens=1, num_tokens=1))
    with _serving(lambda application: application.router.add_post("/v1/chat/completions", _constant(answer))) as port:
        client, seconds = OpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key="none"), list[float]()
        for _ in range(_NUM_CONVERSATIONS):
            messages = [{"role": "user", "content": "Begin."}]
            for _ in range(num_turns):
                started_s = time.perf_counter()
                client.chat.completions.create(model="any", messages=messages)  # type: ignore[arg-type]
                seconds.append(time.perf_counter() - started_s)
                messages += [{"role": "assistant", "content": _SAYS}, {"role": "user", "content": "Go on."}]
        return 1000 * median(seconds)


def agent_turns(num_agents: int, num_turns: int) -> dict[str, float]:
    """Return milliseconds of the turns of so many agents at once, and how many turns a second they take together."""
    environment = Environment.model_validate(
        {
            "name": "agent", "kind": "Agent", "importPath": "benchmarks.gateway:converse", "retries": 0,
            "maxTurns": num_turns, "callTimeoutSeconds": 600, "episodesPerPod": num_agents,
        }
    )  # fmt: skip
    events: queue.SimpleQueue[EpisodeNews] = queue.SimpleQueue()
    with _pool(environment, events) as pool:
        messages = ({"role": "user", "content": "Begin."},)
        record = PromptRecord(0, "Begin.", token_ids([1]), "", fields={"turns": num_turns}, messages=messages)
        for number in range(num_agents):
            pool.start(ResponseId(Draw(0, number), 0), record, seed=number)
        return _answered(pool, events, num_agents)


def _answered(pool: EnvironmentPool, events: "queue.SimpleQueue[EpisodeNews]", num_agents: int) -> dict[str, float]:
    """Answer every turn as soon as it is wanted, until all episodes are over."""
    tokens = [*build_tokenizer().encode(_SAYS, add_special_tokens=False), EOS_ID]
    turn = Trajectory.sampled(0, tokens, [-1.0] * len(tokens))
    answered_s: dict[int, float] = {}
    seconds, num_over, first_s = list[float](), 0, 0.0
    while num_over < num_agents:
        news = events.get()
        now_s = time.perf_counter()
        if isinstance(news, TurnWanted):
            first_s = first_s or now_s
            if news.turn:
                seconds.append(now_s - answered_s[news.number])
            completion = Completion("one", news.trajectory + turn, FinishReason.STOP, 1)
            answered_s[news.number] = time.perf_counter()
            pool.give_turn(news.number, completion)
        else:
            assert isinstance(news, EpisodeOver), news
            num_over += 1
    seconds.sort()
    return {
        "p50_ms": 1000 * median(seconds),
        "p99_ms": 1000 * seconds[99 * (len(seconds) - 1) // 100],
        "turns_per_s": len(seconds) / (time.perf_counter() - first_s),
    }


@contextmanager
def _pool(environment: Environment, events: "queue.SimpleQueue[EpisodeNews]") -> Iterator[EnvironmentPool]:
    with TemporaryDirectory() as directory, _pod(environment) as port:
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
def _pod(environment: Environment) -> Iterator[int]:
    """Serve an environment from a thread; yields the port."""
    allow_many_files()
    loop, found, listens, end = asyncio.new_event_loop(), [0], threading.Event(), asyncio.Event()

    async def serve() -> None:
        async with EnvironmentServer([environment], _TOKEN).listening("127.0.0.1", 0) as found[0]:
            listens.set()
            await end.wait()

    thread = threading.Thread(target=lambda: loop.run_until_complete(serve()))
    thread.start()
    listens.wait()
    try:
        yield found[0]
    finally:  # Or a failed measurement would wait for this thread forever.
        loop.call_soon_threadsafe(end.set)
        thread.join()


@contextmanager
def _serving(route: Any) -> Iterator[int]:
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, daemon=True).start()

    async def listen() -> int:
        application = web.Application()
        route(application)
        runner = web.AppRunner(application, access_log=None)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        return int(runner.addresses[0][1])

    yield asyncio.run_coroutine_threadsafe(listen(), loop).result()
    loop.call_soon_threadsafe(loop.stop)


def _constant(answer: Mapping[str, Any]) -> Any:
    async def handle(request: web.Request) -> web.Response:
        await request.read()
        return web.json_response(answer)

    return handle


def main() -> None:
    """Measure, and report."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--alternations", type=int, default=3)
    parser.add_argument("--turns", type=int, default=NUM_TURNS)
    options = parser.parse_args()
    raw = []
    for _ in range(options.alternations):
        run: dict[str, Any] = {"bare_ms": bare_turn_ms(options.turns)}
        run |= {str(number): agent_turns(number, options.turns) for number in CONCURRENT}
        print(json.dumps(run))
        raw.append(run)
    ratios = {"overhead": [run["1"]["p50_ms"] / run["bare_ms"] for run in raw]}
    report("gateway", ratios, {"turns": options.turns}, raw)


if __name__ == "__main__":
    main()
