"""Measure the engines of a pool, all of them at work at the same time as in a round of the job."""

import queue
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Final

import structlog

from longshore.rounds.messages import EngineJoined, EngineLost
from longshore_runtime.backends.engine_protocol import Completion, EngineStats, FinishReason, Request
from longshore_runtime.clock import Clock
from longshore_runtime.errors import ASKED_TO_STOP, EngineDied, Interrupted, TrainerLost
from longshore_runtime.profiling.figures import Figures
from longshore_runtime.profiling.staircase import Ended, EngineLimits, staircase, windows
from longshore_runtime.profiling.synthetic import Synthetic
from longshore_runtime.rollout.events import EngineOutput, Event, ReplicaLost, StopRequested
from longshore_runtime.rollout.round_runner import Engines

log = structlog.get_logger()

BATCH_LIMIT_S: Final = 30.0
"""Seconds after which a batch is cut off; what it has shown by then counts."""
_STOP_LIMIT_S: Final = 120.0
"""Seconds for an engine to stop requests: it may be in the middle of a step when it is asked."""
_REJOIN_LIMIT_S: Final = 900.0
_SHORT_PROMPT_TOKENS: Final = 16
_LONG_PROMPT_TOKENS: Final = 2048
_PREFILL_PROMPT_TOKENS: Final = (256, 2048)
_PREFILL_TOKENS: Final = 1 << 14
"""Tokens of all prompts of a batch."""
_LEAST_GROWTH: Final = 2
"""Smallest ratio of long prompts to short ones that says something about the effect of length."""


@dataclass
class _Batch:
    """Results of the requests of one engine."""

    num_left: int
    ends: list[tuple[Sequence[Completion], EngineStats]] = field(default_factory=list)
    stopped: list[Completion] = field(default_factory=list)


class EngineProbe:
    """Measure engines of the size that the pool has now; engines that are lost meanwhile are left out."""

    def __init__(
        self, engines: Engines, events: "queue.SimpleQueue[Event]", synthetic: Synthetic, clock: Clock
    ) -> None:
        self._engines = engines
        self._events = events
        self._synthetic = synthetic
        self._clock = clock

    def warm_up(self) -> None:
        """Run first steps, which compile and allocate, without measuring them."""
        self._run(lengths=[2] * 2, prompt_tokens=_SHORT_PROMPT_TOKENS)

    def kv_capacity(self, tp_size: int, figures: Figures) -> None:
        """Return the tokens that the KV cache of each engine holds."""
        for stats in self._engines.stats().values():
            figures.kv_capacity(tp_size, stats.kv_capacity_tokens)

    def decode(self, tp_size: int, limits: EngineLimits, figures: Figures) -> None:
        """Measure decode steps of all batch sizes, with short prompts and then with long ones."""
        short = staircase(limits, _SHORT_PROMPT_TOKENS)
        long = staircase(limits, _LONG_PROMPT_TOKENS)
        for stairs in (short, long):
            if stairs is long and long.prompt_tokens < _LEAST_GROWTH * short.prompt_tokens:
                return
            for batch in self._run(stairs.lengths, stairs.prompt_tokens).values():
                for window in windows(stairs, [_ended(*end) for end in batch.ends]):
                    figures.decode(tp_size, stairs.prompt_tokens, window)

    def prefill(self, tp_size: int, limits: EngineLimits, figures: Figures) -> None:
        """Measure long prompts minus short ones, which cancels the cost of a request besides its tokens."""
        for wanted in _PREFILL_PROMPT_TOKENS:
            num_tokens = min(wanted, limits.max_context_tokens - 1, limits.kv_capacity_tokens // 2)
            if num_tokens < _LEAST_GROWTH * _SHORT_PROMPT_TOKENS:
                return
            held = limits.kv_capacity_tokens // (2 * num_tokens)
            count = max(1, min(limits.max_num_seqs, _PREFILL_TOKENS // num_tokens, held))
            few_s, many_s = (self._prefill_s(count, tokens) for tokens in (_SHORT_PROMPT_TOKENS, num_tokens))
            more_tokens = count * (num_tokens - _SHORT_PROMPT_TOKENS)
            for engine in few_s.keys() & many_s.keys():
                if many_s[engine] > few_s[engine]:
                    figures.prefill(tp_size, num_tokens, more_tokens / (many_s[engine] - few_s[engine]))
            if num_tokens < wanted:
                return

    def migration(self, limits: EngineLimits, figures: Figures) -> None:
        """Stop a response on every engine as soon as it has begun, and continue it by a token on the next engine."""
        longest = min(limits.max_context_tokens, limits.kv_capacity_tokens) - _SHORT_PROMPT_TOKENS - 1
        engines = self._alive()
        if len(engines) < 2 or longest < 2:
            return
        # The response of a single token is a mark: when it has ended, the other one has begun.
        requests = {engine: self._synthetic.requests([1, longest], _SHORT_PROMPT_TOKENS) for engine in engines}
        batches = {engine: _Batch(2) for engine in engines}
        with self._others_kept() as others:
            for engine, of_engine in requests.items():
                self._engines.add(engine, of_engine)
            if not self._collect(batches, others, BATCH_LIMIT_S, num_left=1):
                self._cut_off(requests, batches, others)
                return
            started_s = self._clock.now_s()
            self._stop(requests, batches, others)
            moved = _moved({engine: requests[engine][-1] for engine in batches}, batches)
            if moved and self._all_end(moved, others):
                figures.scalar("migration_s", self._clock.now_s() - started_s)

    def _all_end(self, requests: Mapping[int, Sequence[Request]], others: list[Event]) -> bool:
        """Return whether every engine finishes its requests in time; requests that it does not finish are stopped."""
        batches = {engine: _Batch(len(of_engine)) for engine, of_engine in requests.items()}
        for engine, of_engine in requests.items():
            self._engines.add(engine, of_engine)
        if self._collect(batches, others, BATCH_LIMIT_S):
            return batches.keys() == requests.keys()
        self._cut_off(requests, batches, others)
        return False

    def _prefill_s(self, count: int, prompt_tokens: int) -> Mapping[int, float]:
        """Measure the seconds that each engine worked on this many prompts, without those that were cut off."""
        before = self._engines.stats()
        batches = self._run([1] * count, prompt_tokens)
        return {
            engine: batch.ends[-1][1].busy_s - before[engine].busy_s
            for engine, batch in batches.items()
            if engine in before and sum(len(completions) for completions, _ in batch.ends) == count
        }

    def _run(self, lengths: Sequence[int], prompt_tokens: int) -> Mapping[int, _Batch]:
        """Have every engine sample responses of these lengths; return the results, except those cut off."""
        requests = {engine: self._synthetic.requests(lengths, prompt_tokens) for engine in self._alive()}
        batches = {engine: _Batch(len(of_engine)) for engine, of_engine in requests.items()}
        with self._others_kept() as others:
            for engine, of_engine in requests.items():
                self._engines.add(engine, of_engine)
            if not self._collect(batches, others, BATCH_LIMIT_S):
                self._cut_off(requests, batches, others)
        return batches

    def _cut_off(
        self, requests: Mapping[int, Sequence[Request]], batches: dict[int, _Batch], others: list[Event]
    ) -> None:
        log.info("batch cut off", limit_s=BATCH_LIMIT_S)
        self._stop(requests, batches, others)

    def _stop(self, requests: Mapping[int, Sequence[Request]], batches: dict[int, _Batch], others: list[Event]) -> None:
        """Stop all requests that have not ended."""
        for engine in batches:
            self._engines.abort(engine, [request.request_id for request in requests[engine]])
        if not self._collect(batches, others, _STOP_LIMIT_S):
            raise EngineDied(f"an engine did not stop within {_STOP_LIMIT_S:.0f} s")

    def _collect(self, batches: dict[int, _Batch], others: list[Event], limit_s: float, num_left: int = 0) -> bool:
        """Wait until at most `num_left` requests of each engine still run; return False if the time is over first."""
        deadline_s = self._clock.now_s() + limit_s
        while any(batch.num_left > num_left for batch in batches.values()):
            try:
                event = self._events.get(timeout=max(0.0, deadline_s - self._clock.now_s()))
            except queue.Empty:
                return False
            match event:
                case EngineOutput(engine=engine, completions=completions, stats=stats) if engine in batches:
                    batches[engine].num_left -= len(completions)
                    batches[engine].stopped += [one for one in completions if one.finish_reason is FinishReason.ABORT]
                    finished = [one for one in completions if one.finish_reason is not FinishReason.ABORT]
                    if finished:
                        batches[engine].ends.append((finished, stats))
                case EngineLost(engine=engine, reason=reason):
                    log.warning("engine lost while it was measured", engine=engine, reason=reason)
                    batches.pop(engine, None)
                    self._engines.replace(engine)
                case _:
                    _require_no_end(event, others)
        return True

    def _alive(self) -> Sequence[int]:
        """Return the engines that take requests; wait for one if there is none."""
        deadline_s = self._clock.now_s() + _REJOIN_LIMIT_S
        with self._others_kept() as others:  # Until one is there: what is put back comes again at once.
            while not (engines := self._engines.serving()):
                try:
                    event = self._events.get(timeout=max(0.0, deadline_s - self._clock.now_s()))
                except queue.Empty:
                    raise EngineDied(f"no engine was there again within {_REJOIN_LIMIT_S:.0f} s") from None
                _require_no_end(event, others)
        return engines

    @contextmanager
    def _others_kept(self) -> Iterator[list[Event]]:
        """Collect events that are not for the probe, and put them back into the queue at the end."""
        others: list[Event] = []
        try:
            yield others
        finally:
            for event in others:
                self._events.put(event)


def _moved(requests: Mapping[int, Request], batches: Mapping[int, _Batch]) -> Mapping[int, Sequence[Request]]:
    """Return the requests that continue what was stopped, each on the next engine; none if there is only one engine."""
    engines = list(batches)
    if len(engines) < 2:
        return {}
    return {
        following: [_continued(requests[engine], one) for one in batches[engine].stopped]
        for engine, following in zip(engines, engines[1:] + engines[:1], strict=True)
        if any(one.num_tokens for one in batches[engine].stopped)
    }


def _continued(request: Request, stopped: Completion) -> Request:
    """Return the request that continues a stopped response by one token."""
    return replace(
        request,
        request_id=f"{request.request_id}-moved",
        partial=stopped.trajectory,
        max_tokens=stopped.num_tokens + 1,
    )


def _ended(completions: Sequence[Completion], stats: EngineStats) -> Ended:
    return Ended(len(completions), max(one.num_tokens for one in completions), stats)


def _require_no_end(event: Event, others: list[Event]) -> None:
    """Raise the exception of an event that ends the session; keep events that others need."""
    match event:
        case ReplicaLost(reason=reason):
            raise TrainerLost(reason)
        case StopRequested():
            raise Interrupted(ASKED_TO_STOP)
        case EngineJoined() | EngineOutput():
            return
        case _:
            others.append(event)
