"""An engine that takes one step after the other: slow, and obviously right."""

from collections.abc import Sequence
from dataclasses import dataclass

from longshore.policy.round import ResponseId
from longshore.sim.engine import EngineShape, SimRequest


@dataclass(frozen=True)
class Command:
    """At a time, add a request or abort a response."""

    at_s: float
    add: SimRequest | None = None
    abort: ResponseId | None = None


@dataclass
class _Request:
    request: SimRequest
    num_tokens: int

    @property
    def context(self) -> int:
        return self.request.prompt_tokens + self.num_tokens


@dataclass
class _SGLang:
    """`PrefillAdder`, `NewTokenRatioTracker` and `retract_decode` of SGLang, as far as they matter here."""

    max_new_tokens: int
    new_token_ratio: float = 0.7
    batch_is_full: bool = False
    has_retracted: bool = False

    def clipped(self, request: _Request) -> int:
        return min(self.max_new_tokens - request.num_tokens, 4096)

    def num_to_run(self, waiting: Sequence[_Request], running: Sequence[_Request], available: int, slots: int) -> int:
        """Requests of one prefill; all of these fit into a chunk."""
        rem_total_tokens = available - sum(self.clipped(request) * self.new_token_ratio for request in running)
        for count, request in enumerate(waiting):
            if request.context + self.clipped(request) >= rem_total_tokens or count == slots:
                self.batch_is_full = True
                return count
            rem_total_tokens -= request.context + min(self.max_new_tokens, 4096)
        return len(waiting)

    def to_retract(self, running: Sequence[_Request]) -> _Request:
        in_order = sorted(running, key=lambda one: (one.num_tokens, -one.request.prompt_tokens), reverse=True)
        return in_order[-1]

    def retracted(self, running: Sequence[_Request]) -> None:
        total_decoded_tokens = sum(request.num_tokens for request in running)
        total_max_new_tokens = self.max_new_tokens * len(running)
        self.new_token_ratio = min(1.0, (total_decoded_tokens + 20 * len(running)) / (total_max_new_tokens + 1))
        self.has_retracted, self.batch_is_full = True, False

    def decoded(self) -> None:
        if not self.has_retracted:
            self.new_token_ratio = max(0.7 * 0.14, self.new_token_ratio - (0.7 - 0.7 * 0.14) / 600)
        self.has_retracted = False


@dataclass(frozen=True)
class Outcome:
    """When and with how many tokens a response left."""

    at_s: float
    num_tokens: int
    finished: bool


def run_stepwise(shape: EngineShape, commands: Sequence[Command]) -> tuple[dict[ResponseId, Outcome], int]:
    """Outcomes by response, and preemptions."""
    pending = sorted(commands, key=lambda command: command.at_s)
    waiting: list[_Request] = []
    running: list[_Request] = []
    outcomes: dict[ResponseId, Outcome] = {}
    computed_prompts = set()
    now_s, num_preemptions = 0.0, 0
    sglang = None if shape.reserves_up_to is None else _SGLang(shape.reserves_up_to)

    def leave(request: _Request, *, finished: bool) -> None:
        outcomes[request.request.response] = Outcome(now_s, request.num_tokens, finished)

    while pending or waiting or running:
        if not waiting and not running:
            now_s = max(now_s, pending[0].at_s)
            sglang = sglang and _SGLang(sglang.max_new_tokens)
        num_outcomes = len(outcomes)
        for done in [request for request in running if request.num_tokens == request.request.total_tokens]:
            running.remove(done)
            leave(done, finished=True)
        while pending and pending[0].at_s <= now_s:
            command = pending.pop(0)
            if command.add is not None:
                waiting.append(_Request(command.add, command.add.kept_tokens))
                continue
            for queue in (running, waiting):
                for request in [request for request in queue if request.request.response == command.abort]:
                    queue.remove(request)
                    leave(request, finished=False)
        preempted = False
        while sum(request.context + 1 for request in running) > shape.kv_capacity_tokens:
            if sglang is None:
                waiting.insert(0, running.pop())
            else:
                waiting.append(sglang.to_retract(running))
                running.remove(waiting[-1])
            num_preemptions, preempted = num_preemptions + 1, True
        num_to_start = 0
        if sglang is None:
            while not preempted and num_to_start < min(len(waiting), shape.max_num_seqs - len(running)):
                started = [*running, *waiting[: num_to_start + 1]]
                if sum(request.context + 1 for request in started) > shape.kv_capacity_tokens:
                    break
                num_to_start += 1
        elif preempted:
            sglang.retracted(running)
        else:
            sglang.batch_is_full &= len(outcomes) == num_outcomes
            if not sglang.batch_is_full:
                available = shape.kv_capacity_tokens - sum(request.context for request in running)
                num_to_start = sglang.num_to_run(waiting, running, available, shape.max_num_seqs - len(running))
        prefill_tokens = 0
        for _ in range(num_to_start):
            running.append(waiting.pop(0))
            draw = running[-1].request.response.draw
            prefill_tokens += running[-1].num_tokens if draw in computed_prompts else running[-1].context
            computed_prompts.add(draw)
        if running:
            context = sum(request.context for request in running)
            now_s += shape.prefill_s(prefill_tokens) + shape.step_cost(len(running)).step_s(context)
            for request in running:
                request.num_tokens += 1
            if sglang is not None:
                sglang.decoded()
    return outcomes, num_preemptions
