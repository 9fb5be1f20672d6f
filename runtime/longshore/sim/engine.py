"""A simulated inference engine: continuous batching, a bounded KV cache, preemption by recomputation.

All running requests gain one token per step. Between two changes of the batch the time of k steps has a closed form,
so that the engine jumps from change to change; it takes the very steps that a token-by-token engine would. A request
finishes when the engine's step counter reaches (counter at its start + its remaining tokens), which keeps
completions in one heap whatever the step times are.
"""

import heapq
from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from longshore.policy.draws import Draw
from longshore.policy.round import ResponseId
from longshore.rounds.messages import EndedRequest
from longshore.sim.costs import StepCost
from longshore.sim.sglang import CHUNK_TOKENS, Reserve


class SimRequest(NamedTuple):
    """A response to sample, or to continue; of an episode, a turn."""

    response: ResponseId
    prompt_tokens: int
    total_tokens: int
    """Length of the whole response, or of an episode at the end of the turn."""
    kept_tokens: int = 0
    """Tokens that it has already. Their KV cache is computed again, but for those of an earlier turn on this engine."""


class _Running(NamedTuple):
    request: SimRequest
    finish_step: int
    tokens_at_0: int
    """Tokens that it would have had at step 0: with every step there is one more."""

    def num_tokens(self, step: int) -> int:
        return self.tokens_at_0 + step

    def context_tokens(self, step: int) -> int:
        return self.request.prompt_tokens + self.num_tokens(step)


@dataclass(frozen=True)
class EngineShape:
    """What an engine costs and holds."""

    step_cost: Callable[[int], StepCost]
    """Cost of a decode step by running requests."""
    prefill_s: Callable[[int], float]
    """Time to compute so many tokens."""
    kv_capacity_tokens: int
    max_num_seqs: int
    reserves_up_to: int | None = None
    """Response tokens of a request for which SGLang keeps room; None: whatever fits now starts, as with vLLM."""
    kv_fields: str = "gpuMemoryUtilization or tensorParallelSize"
    """What to raise for a larger KV cache."""


class SimEngine:
    """One engine on the virtual clock.

    Requests join and leave at step boundaries, in order of arrival, as memory and `max_num_seqs` permit; a request
    that joins lengthens its first step by its prefill. A prompt is computed once per engine (prefix cache), as are the
    earlier turns of an episode. When the next step does not fit into the KV cache, the youngest requests are preempted:
    they wait at the head of the queue and compute their cache again. Cache blocks count as single tokens, and prompts
    of a group are stored apart.

    SGLang's engines start requests as memory permits beside its reserve (`sglang.Reserve`). They preempt those with the
    fewest tokens, which then wait behind all others.
    """

    def __init__(self, shape: EngineShape) -> None:
        self._shape = shape
        self._reserve = None if shape.reserves_up_to is None else Reserve(shape.reserves_up_to)
        self._at_s = 0.0
        self._step = 0
        self._running: dict[ResponseId, _Running] = {}
        self._finishes: list[tuple[int, ResponseId]] = []
        self._fewest: list[tuple[int, int, int, ResponseId]] = []
        """A heap of running requests in the order in which SGLang preempts; those that do not run are passed over."""
        self._num_started = 0
        self._context_tokens = 0
        self._tokens_at_0 = 0
        """Sum over all running requests; `_Running` says of what."""
        self._waiting: deque[SimRequest] = deque()
        self._leaving: set[ResponseId] = set()
        self._cached: set[Draw] = set()
        """Draws whose prompt is in the prefix cache."""
        self._cached_tokens: dict[ResponseId, int] = {}
        """Tokens of responses that finished, of which there may be another turn."""
        self._prefill_s = 0.0
        self._cost = StepCost(0.0, 0.0)
        self._wake_steps: int | None = None
        self.num_preemptions = 0
        self.num_sampled_tokens = 0

    @property
    def is_idle(self) -> bool:
        """Whether nothing runs or waits."""
        return not self._running and not self._waiting

    @property
    def step(self) -> int:
        """Steps that it has made."""
        return self._step

    @property
    def num_running(self) -> int:
        return len(self._running)

    @property
    def num_waiting(self) -> int:
        return len(self._waiting)

    @property
    def kv_capacity_tokens(self) -> int:
        return self._shape.kv_capacity_tokens

    def wake_s(self) -> float | None:
        """Return the time at which `advance` must be called, or None while nothing is to do."""
        return None if self._wake_steps is None else self._time_after_s(self._wake_steps)

    def add(self, requests: Iterable[SimRequest], now_s: float) -> None:
        """Start requests; ValueError for one that could never fit."""
        for request in requests:
            reserved = self._shape.reserves_up_to
            needed = request.prompt_tokens + (request.total_tokens if reserved is None else reserved + 1)
            if needed > self._shape.kv_capacity_tokens:
                raise ValueError(
                    f"rollout.engine: a KV cache of {self._shape.kv_capacity_tokens} tokens cannot hold a response "
                    f"of {needed} tokens with its prompt; raise {self._shape.kv_fields}"
                )
            assert request.kept_tokens < request.total_tokens, "the response is complete"
            self._waiting.append(request)
        self._change_at(now_s)

    def abort(self, responses: Iterable[ResponseId], now_s: float) -> None:
        """Stop requests; they come back at the next step boundary, unless that very step finishes them."""
        self._leaving.update(responses)
        self._change_at(now_s)

    def advance(self) -> list[EndedRequest]:
        """Jump to `wake_s`; returns what left there."""
        assert self._wake_steps is not None, "nothing to wait for"
        self._jump(self._wake_steps)
        ended = self._pop_finished() + self._pop_leaving()
        if self._reserve is not None:
            self._advance_with(self._reserve, has_ended=bool(ended))
        elif not self._preempt():
            self._admit()
        self._arrange()
        return ended

    def forget_prefixes(self) -> None:
        """Forget cached prompts and turns, because the weights changed."""
        self._cached.clear()
        self._cached_tokens.clear()

    def tokens_at(self, now_s: float) -> Iterator[tuple[SimRequest, int]]:
        """Yield every request with its response tokens so far; waiting ones too."""
        step = self._step + self._whole_steps(now_s)
        for running in self._running.values():
            yield running.request, running.num_tokens(step)
        for request in self._waiting:
            yield request, request.kept_tokens

    def kv_tokens_at(self, now_s: float) -> int:
        """Return the tokens in the KV cache."""
        return self._context_tokens + len(self._running) * self._whole_steps(now_s)

    # Time -----------------------------------------------------------------------------------------------------------

    def _time_after_s(self, num_steps: int) -> float:
        """Return when `num_steps` more steps of the batch are done: step j reads context + j * running tokens."""
        if num_steps == 0:
            return self._at_s
        read = num_steps * self._context_tokens + len(self._running) * num_steps * (num_steps - 1) / 2
        return self._at_s + self._prefill_s + num_steps * self._cost.base_s + self._cost.per_context_token_s * read

    def _whole_steps(self, now_s: float) -> int:
        if self._wake_steps is None:
            return 0
        return max(0, bisect_right(range(self._wake_steps + 1), now_s, key=self._time_after_s) - 1)

    def _change_at(self, now_s: float) -> None:
        """Wake at the first step boundary from `now_s` on."""
        if self._wake_steps is None:
            self._at_s = now_s
            self._wake_steps = 0
        else:
            self._wake_steps = bisect_left(range(self._wake_steps), now_s, key=self._time_after_s)

    def _jump(self, num_steps: int) -> None:
        self._at_s = self._time_after_s(num_steps)
        if num_steps:
            self._prefill_s = 0.0
        if self._reserve is not None:
            self._reserve.stepped(num_steps)
        self._step += num_steps
        self._context_tokens += num_steps * len(self._running)
        self.num_sampled_tokens += num_steps * len(self._running)

    def _arrange(self) -> None:
        if not self._running:
            assert not self._waiting, "an empty engine admits"
            self._wake_steps = None
            return
        self._cost = self._shape.step_cost(len(self._running))
        until_full = (self._shape.kv_capacity_tokens - self._context_tokens) // len(self._running)
        self._wake_steps = min(self._next_finish() - self._step, until_full)
        assert self._wake_steps > 0, "an engine takes a step between changes"

    # Batch ----------------------------------------------------------------------------------------------------------

    def _next_finish(self) -> int:
        while True:
            step, response = self._finishes[0]
            running = self._running.get(response)
            if running is not None and running.finish_step == step:
                return step
            heapq.heappop(self._finishes)

    def _pop_finished(self) -> list[EndedRequest]:
        ended = []
        while self._running and self._next_finish() <= self._step:
            _, response = heapq.heappop(self._finishes)
            ended.append(self._remove(response, finished=True))
        return ended

    def _pop_leaving(self) -> list[EndedRequest]:
        if not self._leaving:
            return []
        ended = [self._remove(response, finished=False) for response in sorted(self._leaving & self._running.keys())]
        removed = [request for request in self._waiting if request.response in self._leaving]
        ended += [EndedRequest(request.response, request.kept_tokens, False, self._step) for request in removed]
        if removed:
            self._waiting = deque(request for request in self._waiting if request.response not in self._leaving)
        self._leaving.clear()
        return ended

    def _remove(self, response: ResponseId, *, finished: bool) -> EndedRequest:
        running = self._running.pop(response)
        self._leave(running)
        if finished:
            self._cached_tokens[response] = running.request.total_tokens
        return EndedRequest(response, running.num_tokens(self._step), finished, self._step)

    def _preempt(self) -> bool:
        """Make room for the next step; the youngest go first, back to the head of the queue."""
        preempted = False
        while self._is_over_full:
            _, running = self._running.popitem()
            self._waiting.appendleft(self._stopped(running))
            preempted = True
        return preempted

    def _admit(self) -> None:
        """Let the head of the queue join while its context, and a step of everyone, fit."""
        prefill_tokens = 0
        while self._waiting and len(self._running) < self._shape.max_num_seqs:
            context = _context(self._waiting[0])
            if self._context_tokens + context + len(self._running) + 1 > self._shape.kv_capacity_tokens:
                break
            prefill_tokens += self._start(self._waiting.popleft())
        self._compute(prefill_tokens)

    def _start(self, request: SimRequest) -> int:
        """Run it from the next step on; returns the tokens to compute before."""
        finish = self._step + request.total_tokens - request.kept_tokens
        running = self._running[request.response] = _Running(request, finish, request.total_tokens - finish)
        if self._reserve is not None:
            # Of requests with as many tokens, the one with the longest prompt goes first, then the youngest.
            self._num_started += 1
            place = (running.tokens_at_0, -request.prompt_tokens, -self._num_started, request.response)
            heapq.heappush(self._fewest, place)
        heapq.heappush(self._finishes, (finish, request.response))
        self._context_tokens += _context(request)
        self._tokens_at_0 += running.tokens_at_0
        draw = request.response.draw
        num_computed = max(0, request.kept_tokens - self._cached_tokens.pop(request.response, 0))
        if draw not in self._cached:
            self._cached.add(draw)
            num_computed += request.prompt_tokens
        return num_computed

    def _leave(self, running: _Running) -> None:
        self._context_tokens -= running.context_tokens(self._step)
        self._tokens_at_0 -= running.tokens_at_0

    def _compute(self, prefill_tokens: int) -> None:
        if prefill_tokens:
            self._prefill_s += self._shape.prefill_s(prefill_tokens)

    @property
    def _is_over_full(self) -> bool:
        return self._context_tokens + len(self._running) > self._shape.kv_capacity_tokens

    def _stopped(self, running: _Running) -> SimRequest:
        """Note that it does not run any more; returns what waits."""
        self._leave(running)
        self.num_preemptions += 1
        return running.request._replace(kept_tokens=running.num_tokens(self._step))

    # Batch, as SGLang fills it --------------------------------------------------------------------------------------

    def _advance_with(self, reserve: Reserve, *, has_ended: bool) -> None:
        if self.is_idle:
            reserve.emptied()
            self._fewest.clear()
            return
        reserve.is_open |= has_ended
        if not self._is_over_full:
            self._admit_with(reserve)
            return
        while self._is_over_full:
            self._waiting.append(self._stopped(self._pop_fewest()))
        reserve.preempted(len(self._running), self._response_tokens)

    def _admit_with(self, reserve: Reserve) -> None:
        """Let requests join prefill by prefill, each of a chunk; what one has started runs in the next."""
        while reserve.is_open and self._waiting:
            kept = reserve.kept_for(len(self._running), self._response_tokens, self._running_tokens())
            free = self._shape.kv_capacity_tokens - self._context_tokens - kept
            chunk_tokens = CHUNK_TOKENS
            while self._waiting and chunk_tokens > 0:
                request = self._waiting[0]
                needed = _context(request) + reserve.growth(request.kept_tokens)
                if needed >= free or len(self._running) == self._shape.max_num_seqs:
                    reserve.is_open = False
                    break
                num_computed = self._start(self._waiting.popleft())
                self._compute(num_computed)
                free -= _context(request) + reserve.growth(0)
                chunk_tokens -= num_computed

    @property
    def _response_tokens(self) -> int:
        return self._tokens_at_0 + len(self._running) * self._step

    def _running_tokens(self) -> Iterator[int]:
        step = self._step
        return (running.tokens_at_0 + step for running in self._running.values())

    def _pop_fewest(self) -> _Running:
        while True:
            tokens_at_0, _, _, response = heapq.heappop(self._fewest)
            running = self._running.get(response)
            if running is not None and running.tokens_at_0 == tokens_at_0:
                return self._running.pop(response)


def _context(request: SimRequest) -> int:
    return request.prompt_tokens + request.kept_tokens
