"""Measure what deciding costs: microseconds of policy, router and reward queue per event, by number of requests.

A round is driven as by a rollout: responses end one by one, and a group has its rewards as soon as it is to be scored;
with adaptive admission an engine also tells its load whenever a response of its own ends. Engines grow with requests,
64 each. A first pass records the events; what is timed (processor time) is their replay on a policy and a router that
begin again.

The reward queue is given all responses of a round before a few workers score the first: rewards that fall behind.

`growth/STRATEGY` is the time of all events at the largest size over that at the smallest, as a share of what n log n
allows for the growth in events: above 1, the benchmark fails. `exponent/STRATEGY` is the slope of log(time) over
log(events).
"""

import argparse
import gc
import heapq
import math
import random
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, Protocol

from benchmarks.report import report, spreads
from longshore.api.rollout import (
    AdmissionSettings,
    EngineSettings,
    OnPolicy,
    ReorderRolloutSettings,
    Rollout,
    Strategy,
    TailBatchingSettings,
)
from longshore.policy.draws import Draw, DrawCursor
from longshore.policy.engine_load import EngineLoad
from longshore.policy.reward_queue import RewardQueue, ScoreTask
from longshore.policy.round import Decision, ResponseFinished, ResponseId
from longshore.policy.round_policy import BatchShape
from longshore.policy.routing import Router
from longshore.policy.strategies import round_policy

NUM_REQUESTS: Final = (100, 1_000, 10_000)
NUM_ROUNDS: Final = 5
"""Number of rounds, a period of tail batching; by then every strategy has leftovers to deal with."""
NUM_RESPONSES: Final = 8
REWARDS: Final = "RewardQueue"
"""Name of the reward queue, which is measured besides the strategies."""
REQUESTS_PER_ENGINE: Final = 64

Call = Callable[["Driven"], Decision | None]


@dataclass(frozen=True)
class Case:
    """A strategy, with how many requests it starts for each that is trained on."""

    rollout: Rollout
    requests_per_sample: float = 1.0
    updates_per_step: int = 1
    dynamic_sampling: bool = False

    def shape(self, num_requests: int) -> BatchShape:
        """Return P0 and R0 with which a round has about so many requests."""
        return BatchShape(max(1, round(num_requests / NUM_RESPONSES / self.requests_per_sample)), NUM_RESPONSES)


_BOTH_RACES: Final = TailBatchingSettings(response_factor=1.25)
_TAIL_BATCHING: Final = Rollout(strategy=Strategy.TAIL_BATCHING, tail_batching=_BOTH_RACES)
_ADAPTIVE: Final = Rollout(
    strategy=Strategy.TAIL_BATCHING, tail_batching=_BOTH_RACES, admission=AdmissionSettings(adaptive=True)
)
_REORDER: Final = Rollout(
    strategy=Strategy.REORDER_ROLLOUT,
    reorder_rollout=ReorderRolloutSettings(length_grouping=True),
    engine=EngineSettings(max_num_seqs=REQUESTS_PER_ENGINE),
)

CASES: Final = {
    "Synchronous": Case(Rollout(strategy=Strategy.SYNCHRONOUS)),
    "TailBatching": Case(_TAIL_BATCHING, requests_per_sample=1.25**2),
    "TailBatching, dynamic sampling": Case(_TAIL_BATCHING, requests_per_sample=1.25**2, dynamic_sampling=True),
    "TailBatching, adaptive": Case(_ADAPTIVE, requests_per_sample=1.25**2),
    "PartialRollout": Case(
        Rollout(on_policy=OnPolicy.RELAXED, strategy=Strategy.PARTIAL_ROLLOUT), requests_per_sample=2.0
    ),
    "ReorderRollout": Case(_REORDER, requests_per_sample=2.0),
    "GroupPipeline": Case(Rollout(strategy=Strategy.GROUP_PIPELINE), updates_per_step=4),
}


class Driven:
    """A policy with its router: what the shell calls when an event arrives."""

    def __init__(self, case: Case, num_requests: int) -> None:
        shape = case.shape(num_requests)
        self._policy = round_policy(
            case.rollout,
            shape,
            DrawCursor(100 * shape.num_prompts, seed=0),
            groups_per_update=math.ceil(shape.num_prompts / case.updates_per_step),
            dynamic_sampling=case.dynamic_sampling,
        )
        self.engines = tuple(range(math.ceil(num_requests / REQUESTS_PER_ENGINE)))

    def start_round(self) -> Decision:
        self._router = Router(self.engines)
        start = self._policy.start_round(engines=self.engines)
        self._kind = start.kind
        return self._route(start.decision)

    def response_finished(self, event: ResponseFinished) -> Decision:
        self._router.ended(event.response)
        return self._route(self._policy.responses_finished([event]))

    def engine_load(self, engine: int, load: EngineLoad) -> Decision:
        return self._route(self._policy.engine_load(engine, load))

    def group_rewarded(self, draw: Draw, zero_variance: bool) -> Decision:
        return self._route(self._policy.group_rewarded(draw, zero_variance=zero_variance))

    def end_round(self) -> None:
        self._policy.end_round()

    def engine_of(self, response: ResponseId) -> int:
        engine = self._router.engine_of(response)
        assert engine is not None
        return engine

    def _route(self, decision: Decision) -> Decision:
        self._router.place(decision.launch, self._kind)
        for response in decision.abort:
            self._router.engine_of(response)
            self._router.ended(response)
        return decision


@dataclass
class Recording:
    """Rounds as a rollout would drive them, kept call by call."""

    case: Case
    num_requests: int
    calls: list[Call] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._driven = Driven(self.case, self.num_requests)
        self._rng = random.Random(0)
        for _ in range(NUM_ROUNDS):
            self._round()

    def replay(self) -> None:
        """Make the same calls on a policy and a router that begin again."""
        driven = Driven(self.case, self.num_requests)
        for call in self.calls:
            call(driven)

    def _round(self) -> None:
        self._ends: list[tuple[float, ResponseId]] = []
        self._running: set[ResponseId] = set()
        self._execute(0.0, Driven.start_round)
        while self._ends:
            now, response = heapq.heappop(self._ends)
            if response in self._running:
                self._finish(now, response)
        self._execute(0.0, Driven.end_round)

    def _finish(self, now: float, response: ResponseId) -> None:
        self._running.remove(response)
        if self.case.rollout.admission.adaptive:
            load = EngineLoad(num_running=REQUESTS_PER_ENGINE, num_waiting=0, kv_usage=0.5, num_preemptions=0, at_s=0.0)
            self._execute(now, partial(Driven.engine_load, engine=self._driven.engine_of(response), load=load))
        event = ResponseFinished(response, engine_step=int(now), num_tokens=int(now))
        self._execute(now, partial(Driven.response_finished, event=event))

    def _execute(self, now: float, call: Call) -> None:
        self.calls.append(call)
        decision = call(self._driven)
        if decision is None:
            return
        self._running.difference_update(decision.abort)
        self._running.update(decision.launch)
        for response in decision.launch:
            heapq.heappush(self._ends, (now + 100 * self._rng.lognormvariate(0.0, 1.0), response))
        for group in decision.score:
            zero_variance = self.case.dynamic_sampling and group.draw.index % 4 == 0
            self._execute(now, partial(Driven.group_rewarded, draw=group.draw, zero_variance=zero_variance))


class RewardBacklog:
    """Responses of a round that all wait to be scored, by group, while a few workers score one after the other."""

    num_workers: Final = 4
    num_calls_per_response: Final = 5

    def __init__(self, num_requests: int) -> None:
        draws = (Draw(0, index) for index in range(num_requests // NUM_RESPONSES))
        self._groups = [
            [ScoreTask(1, ResponseId(draw, sample), "maths") for sample in range(NUM_RESPONSES)] for draw in draws
        ]
        self.num_events = self.num_calls_per_response * sum(map(len, self._groups))

    def replay(self) -> None:
        """Replay as `RewardPool` does it: each event looks at what is free and how long the first has waited."""
        queue = RewardQueue(self.num_workers, {}, {})
        left = {group[0].response.draw: len(group) for group in self._groups}
        for number, group in enumerate(self._groups):
            queue.need(group, float(number))
            queue.oldest_wait_s(float(number))
        while calls := queue.start():
            for task in (task for call in calls for task in call):
                queue.finished(task)
                queue.oldest_wait_s(float(len(self._groups)))
                left[task.response.draw] -= 1
                if not left[task.response.draw]:
                    queue.drop([task.response.draw])


class Replayed(Protocol):
    """Events that can be gone through again."""

    def replay(self) -> None:
        """Replay all events from the beginning."""


def replay_s(recording: Replayed) -> float:
    """Return the seconds of one replay; what was recorded is kept from the garbage collector."""
    gc.collect()
    gc.freeze()
    started_s = time.process_time()
    recording.replay()
    elapsed_s = time.process_time() - started_s
    gc.unfreeze()
    return elapsed_s


def growth(num_events: Sequence[int], times_s: Sequence[float]) -> float:
    """Return the growth of time from the first size to the last, over that of n log n."""
    first, last = (n * math.log(n) for n in (num_events[0], num_events[-1]))
    return times_s[-1] / times_s[0] / (last / first)


def exponent(num_events: Sequence[int], times_s: Sequence[float]) -> float:
    """Return the slope of log(time) over log(events)."""
    return statistics.linear_regression(list(map(math.log, num_events)), list(map(math.log, times_s))).slope


def measure(case: Case, num_repetitions: int) -> list[dict[str, Any]]:
    """Measure every size in turn, again and again."""
    recordings = [Recording(case, num_requests) for num_requests in NUM_REQUESTS]
    return timed(recordings, [len(recording.calls) for recording in recordings], num_repetitions)


def measure_rewards(num_repetitions: int) -> list[dict[str, Any]]:
    """Measure every size in turn, again and again, for the reward queue."""
    backlogs = [RewardBacklog(num_requests) for num_requests in NUM_REQUESTS]
    return timed(backlogs, [backlog.num_events for backlog in backlogs], num_repetitions)


def timed(recordings: Sequence[Replayed], num_events: Sequence[int], num_repetitions: int) -> list[dict[str, Any]]:
    """Return the times of replays of recordings of growing size."""
    runs = []
    for repetition in range(num_repetitions):
        times_s = [replay_s(recording) for recording in recordings]
        per_event = [1e6 * elapsed_s / events for elapsed_s, events in zip(times_s, num_events, strict=True)]
        runs.append(
            {
                "repetition": repetition,
                "num_requests": list(NUM_REQUESTS),
                "num_events": list(num_events),
                "us_per_event": [round(us, 3) for us in per_event],
                "growth": growth(num_events, times_s),
                "exponent": exponent(num_events, times_s),
            }
        )
    return runs


def main() -> int:
    """Record, replay and report; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repetitions", type=int, default=7)
    num_repetitions = parser.parse_args().repetitions
    runs = {name: measure(case, num_repetitions) for name, case in CASES.items()}
    runs[REWARDS] = measure_rewards(num_repetitions)
    ratios = {f"{key}/{name}": [run[key] for run in of] for key in ("growth", "exponent") for name, of in runs.items()}
    figures = {
        f"us_per_event/{name}/{size}": [run["us_per_event"][place] for run in of]
        for name, of in runs.items()
        for place, size in enumerate(NUM_REQUESTS)
    }
    settings = {"repetitions": num_repetitions, "rounds": NUM_ROUNDS, "requests_per_engine": REQUESTS_PER_ENGINE}
    raw = [{"strategy": name, **run} for name, of in runs.items() for run in of]
    report("policy_cost", ratios, settings, raw, figures=spreads(figures))
    return 0 if all(statistics.median(ratios[f"growth/{name}"]) <= 1 for name in runs) else 1


if __name__ == "__main__":
    raise SystemExit(main())
