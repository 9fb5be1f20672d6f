"""Measure what the coordinator spends on the tokens of a step: processor time, memory and bytes.

The figures are by tokens and by live responses.

A real round runner with a synchronous policy gets responses as an engine sends them, which all stay live until the end.
Its groups become samples, as they do in a job, and are pickled once for the trainers. Two arms run side by side, each
case in a process of its own: `arrays` is what Longshore does, and `tuples` is the same with a Python object for every
token. Responses have no text, and samples no log-probabilities by the trainer, as with most objectives.

`per_token_us` is the difference of two runs with equally many responses, over the difference in tokens. What is left is
`per_response_us`; `growth` is that of 100,000 live responses over that of 1,000. The benchmark fails past its budget.
"""

import argparse
import json
import pickle
import statistics
import subprocess
import sys
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np
import psutil

from benchmarks.report import report
from longshore.api.algorithm import Algorithm
from longshore.api.objectives.advantages import RewardedGroup
from longshore.api.rollout import Rollout, Strategy
from longshore.policy.draws import Draw, DrawCursor
from longshore.policy.progress import RoundProgress
from longshore.policy.round import ResponseId
from longshore.policy.round_policy import BatchShape
from longshore.policy.strategies import round_policy
from longshore_runtime.backends.engine_protocol import Completion, EngineStats, FinishReason, Request
from longshore_runtime.clock import SystemClock
from longshore_runtime.data.prompt_record import PromptRecord
from longshore_runtime.process.large_imports import collect_rarely
from longshore_runtime.rewards.events import GroupScored, RewardEvent, Score
from longshore_runtime.rewards.pool import RewardStats
from longshore_runtime.rollout.batch import ScoredGroup
from longshore_runtime.rollout.events import EngineOutput, Event
from longshore_runtime.rollout.round_runner import RoundRequests, RoundRunner
from longshore_runtime.trainer.updates import batch_samples
from longshore_runtime.trajectories.trajectory import Trajectory, token_ids

NUM_RESPONSES: Final = 8
"""Number of responses in each group."""
CASES: Final = ((1_000, 2_000), (1_000, 20_000), (10_000, 200), (10_000, 2_000), (100_000, 20), (100_000, 200))
"""Cases of (live responses, tokens of each): 2M and 20M tokens."""
PROJECTED: Final = (512 * 16, 32_000)
"""Number of responses of a large step, and tokens of each."""
MAX_LIVE_BYTES, MAX_PICKLED_BYTES, MAX_TOKEN_US, MAX_GROWTH = 12.0, 10.0, 0.05, 1.3
VOCABULARY: Final = 150_000


@dataclass(frozen=True)
class Tuples:
    """A response with a Python object for every token."""

    request_id: str
    tokens: tuple[int, ...]
    log_probs: tuple[float, ...]
    finish_reason: FinishReason
    engine_step: int

    @property
    def num_tokens(self) -> int:
        """Number of tokens."""
        return len(self.tokens)


class Wire:
    """Responses as an engine sends them: pickled, with arrays out of band, as Ray does."""

    def __init__(self, arm: str, num_tokens: int) -> None:
        rng = np.random.default_rng(0)
        tokens, log_probs = rng.integers(0, VOCABULARY, num_tokens), -rng.exponential(1.0, num_tokens)
        response: Completion | Tuples
        if arm == "arrays":
            trajectory = Trajectory.sampled(0, tokens, log_probs)
            response = Completion("", trajectory, FinishReason.STOP, 0)
        else:
            response = Tuples("", tuple(tokens.tolist()), tuple(log_probs.tolist()), FinishReason.STOP, 0)
        self._content, self._buffers = pickled(response)
        self.num_bytes = len(self._content) + sum(len(buffer) for buffer in self._buffers)

    def receive(self, request_id: str) -> Any:
        """Return a response with memory of its own."""
        response = pickle.loads(self._content, buffers=self._buffers)
        if isinstance(response, Completion):
            return replace(response, request_id=request_id, trajectory=response.trajectory.copied())
        return replace(response, request_id=request_id)


def pickled(value: object) -> tuple[bytes, list[bytes]]:
    """Return content and buffers, whose memory is copied as into Ray's store."""
    buffers: list[pickle.PickleBuffer] = []
    content = pickle.dumps(value, protocol=5, buffer_callback=buffers.append)
    return content, [bytes(buffer.raw()) for buffer in buffers]


@dataclass
class Driver:
    """Engine, rewards, observer and events of a round, which answer at once."""

    wire: Wire
    waiting: deque[str] = field(default_factory=deque)
    events: deque[Event] = field(default_factory=deque)
    groups: list[ScoredGroup] = field(default_factory=list)
    stats_of_rewards: RewardStats = field(default_factory=RewardStats)

    def serving(self) -> Sequence[int]:
        return [0]

    def add(self, engine: int, requests: Sequence[Request]) -> None:
        self.waiting.extend(request.request_id for request in requests)

    def abort(self, engine: int, request_ids: Sequence[str]) -> None:
        raise AssertionError("a synchronous round aborts nothing")

    def stats(self) -> Any:
        return {0: EngineStats()}

    def is_gone(self, engine: int) -> bool:
        return False

    def replace(self, engine: int) -> None:
        raise AssertionError("no engine is lost")

    def get(self) -> Event:
        if self.events:
            return self.events.popleft()
        return EngineOutput(0, [self.wire.receive(self.waiting.popleft())], EngineStats())

    def train_on(self, group: ScoredGroup) -> None:
        self.groups.append(group)

    def progressed(self, progress: RoundProgress) -> None:
        """Do nothing: nobody watches."""

    def milestone(self, progress: RoundProgress) -> None:
        """Do nothing: no engine retires."""

    def on_event(self, event: Event) -> None:
        raise AssertionError("nothing else happens")


class Rewards:
    """Scores every group at once."""

    def __init__(self) -> None:
        self.stats = RewardStats()

    def finished(self, response: ResponseId, completion: Completion) -> None:
        """Do nothing before the group is there."""

    def score(self, draw: Draw, responses: Mapping[ResponseId, Completion]) -> GroupScored | None:
        return GroupScored(draw, [Score(float(place % 2), False) for place in range(len(responses))])

    def forget(self, draws: Sequence[Draw]) -> None:
        """Do nothing: no response is kept."""

    def handle(self, event: RewardEvent) -> GroupScored | None:
        raise AssertionError("there are no workers")


def tuple_samples(groups: Sequence[ScoredGroup], algorithm: Algorithm) -> list[dict[str, Any]]:
    """Build samples of tuples, which are rebuilt from runs as they were until 0.1.0."""
    advantages = algorithm.objective.advantages(
        [
            RewardedGroup(
                [one.reward for one in group.responses], [one.completion.num_tokens for one in group.responses]
            )
            for group in groups
        ]
    )
    return [
        {
            "response": one.response,
            "advantage": advantage,
            "tokens": tuple(token for run in (one.completion,) for token in run.tokens),  # type: ignore[attr-defined]
            "log_probs": tuple(value for run in (one.completion,) for value in run.log_probs),  # type: ignore[attr-defined]
        }
        for group, of_group in zip(groups, advantages, strict=True)
        for one, advantage in zip(group.responses, of_group, strict=True)
    ]


def measure_case(arm: str, num_responses: int, num_tokens: int) -> dict[str, float]:
    """Run one step; return seconds of CPU time, and bytes."""
    wire, process = Wire(arm, num_tokens), psutil.Process()
    algorithm = Algorithm(
        steps=1,
        prompts_per_step=num_responses // NUM_RESPONSES,
        responses_per_prompt=NUM_RESPONSES,
        max_response_tokens=num_tokens,
    )
    shape = BatchShape(num_responses // NUM_RESPONSES, NUM_RESPONSES)
    records = [PromptRecord(index, "", token_ids([1, 2, 3]), "") for index in range(shape.num_prompts)]
    policy = round_policy(
        Rollout(strategy=Strategy.SYNCHRONOUS), shape, DrawCursor(len(records), 0), groups_per_update=shape.num_prompts
    )
    driver = Driver(wire)
    runner = RoundRunner(
        policy,
        driver,
        Rewards(),
        driver,  # type: ignore[arg-type]  # Of the queue, only `get` is used.
        RoundRequests(records, algorithm, "train", 1.0),
        SystemClock(),
        driver,
        train_on=driver.train_on,
    )
    collect_rarely()
    before_bytes, started_s = process.memory_info().rss, time.process_time()
    result = runner.run(draining=False)
    rolled_out_s = time.process_time()
    live_bytes = process.memory_info().rss - before_bytes
    num_sent = 0
    for first in range(0, len(driver.groups), 16):
        groups = driver.groups[first : first + 16]
        samples: Sequence[Any] = (
            batch_samples(groups, records, algorithm, 0) if arm == "arrays" else tuple_samples(groups, algorithm)
        )
        content, buffers = pickled(samples)
        num_sent += len(content) + sum(map(len, buffers))
    ended_s = time.process_time()
    assert len(result.groups) == shape.num_prompts, "the round has a batch"
    return {
        "receive_s": rolled_out_s - started_s,
        "send_s": ended_s - rolled_out_s,
        "live_bytes": live_bytes,
        "received_bytes": wire.num_bytes * num_responses,
        "sent_bytes": num_sent,
    }


def in_own_process(arm: str, num_responses: int, num_tokens: int) -> dict[str, Any]:
    """Measure a case in a new process."""
    command = [sys.executable, "-m", "benchmarks.data_plane", "--case", arm, str(num_responses), str(num_tokens)]
    out = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return {"arm": arm, "num_responses": num_responses, "num_tokens": num_tokens, **json.loads(out.splitlines()[-1])}


def summary(runs: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Return the figures of one arm in one repetition."""

    def cpu_s(run: Mapping[str, Any]) -> float:
        return float(run["receive_s"] + run["send_s"])

    of = {(run["num_responses"], run["num_tokens"]): run for run in runs}
    few, many = of[CASES[0]], of[CASES[1]]
    tokens = CASES[1][0] * (CASES[1][1] - CASES[0][1])
    token_s = max(0.0, cpu_s(many) - cpu_s(few)) / tokens
    per_response = {
        num: 1e6 * (cpu_s(of[num, length]) / num - token_s * length)
        for num, length in ((1_000, 2_000), (10_000, 200), (100_000, 200))
    }
    total = CASES[1][0] * CASES[1][1]
    num, length = PROJECTED
    live = many["live_bytes"] / total
    return {
        "per_token_us": 1e6 * token_s,
        "live_bytes_per_token": live,
        "received_bytes_per_token": many["received_bytes"] / total,
        "sent_bytes_per_token": many["sent_bytes"] / total,
        **{f"per_response_us/{num:,}": value for num, value in per_response.items()},
        "growth": per_response[100_000] / per_response[1_000],
        "projected_s": num * (per_response[10_000] / 1e6 + token_s * length),
        "projected_gib": num * length * live / 2**30,
    }


def main() -> int:
    """Measure both arms side by side; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--case", nargs=3, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.case:
        arm, num_responses, num_tokens = arguments.case
        print(json.dumps(measure_case(arm, int(num_responses), int(num_tokens))))
        return 0
    raw, figures = [], {"arrays": list[dict[str, float]](), "tuples": list[dict[str, float]]()}
    for _ in range(arguments.repetitions):
        for arm, of_arm in figures.items():
            runs = [in_own_process(arm, *case) for case in CASES]
            raw += runs
            of_arm.append(summary(runs))
    medians = {
        arm: {name: statistics.median(one[name] for one in of_arm) for name in of_arm[0]}
        for arm, of_arm in figures.items()
    }
    ratios = {
        name: [old[name] / new[name] for old, new in zip(figures["tuples"], figures["arrays"], strict=True)]
        for name in ("per_token_us", "live_bytes_per_token", "sent_bytes_per_token", "projected_s")
    }
    report("data_plane", ratios, {"repetitions": arguments.repetitions}, raw, figures=medians)
    found = medians["arrays"]
    budget: tuple[tuple[str, float], ...] = (
        ("per_token_us", MAX_TOKEN_US),
        ("live_bytes_per_token", MAX_LIVE_BYTES),
        ("received_bytes_per_token", MAX_PICKLED_BYTES),
        ("sent_bytes_per_token", MAX_PICKLED_BYTES),
        ("growth", MAX_GROWTH),
    )
    return 0 if all(found[name] <= limit for name, limit in budget) else 1


if __name__ == "__main__":
    raise SystemExit(main())
