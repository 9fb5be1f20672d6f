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

    def leave(request: _Request, *, finished: bool) -> None:
        outcomes[request.request.response] = Outcome(now_s, request.num_tokens, finished)

    while pending or waiting or running:
        if not waiting and not running:
            now_s = max(now_s, pending[0].at_s)
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
            waiting.insert(0, running.pop())
            num_preemptions, preempted = num_preemptions + 1, True
        prefill_tokens = 0
        while not preempted and waiting and len(running) < shape.max_num_seqs:
            candidate = waiting[0]
            used = sum(request.context + 1 for request in running)
            if used + candidate.context + 1 > shape.kv_capacity_tokens:
                break
            running.append(waiting.pop(0))
            draw = candidate.request.response.draw
            prefill_tokens += candidate.num_tokens if draw in computed_prompts else candidate.context
            computed_prompts.add(draw)
        if running:
            context = sum(request.context for request in running)
            now_s += shape.prefill_s(prefill_tokens) + shape.step_cost(len(running)).step_s(context)
            for request in running:
                request.num_tokens += 1
    return outcomes, num_preemptions
