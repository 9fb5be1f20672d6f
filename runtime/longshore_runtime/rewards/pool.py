"""Score responses on reward workers, each as soon as it has finished, in parallel with the rollout.

    driver ── `finished`, `score`, `forget` ──► RewardPool ── `score` ──► the Transport of each worker
    threads of the transports ── ResponseScored, WorkerReady, WorkerLost ──► driver's queue
    thread of `Delayed` ── RetryDue, CheckDue ──► driver's queue
    driver's queue ──► driver ── `handle` ──► RewardPool ──► GroupScored

`policy.reward_queue` decides what is scored next, and `RoundScores` what an outcome means for its group. Everything
here runs in the driver's thread, but for what futures of transports call: that only puts events into the queue.

A worker is asked for at every place, at the start. One that is lost is replaced by another at the same place, which
waits for that pod, or for its successor.
"""

import bisect
import itertools
import queue
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import replace
from functools import partial
from typing import Any, Final

import structlog

from longshore.policy.draws import Draw
from longshore.policy.reward_pods import RewardPressure
from longshore.policy.reward_queue import RewardQueue, ScoreTask
from longshore.policy.round import ResponseId
from longshore_runtime.backends.engine_protocol import Completion
from longshore_runtime.clock import Clock
from longshore_runtime.data.prompt_record import PromptRecord
from longshore_runtime.errors import UserError, first_line
from longshore_runtime.rewards.delayed import Delayed
from longshore_runtime.rewards.events import (
    CheckDue,
    GroupScored,
    ResponseScored,
    RetryDue,
    RewardEvent,
    WorkerLost,
    WorkerReady,
)
from longshore_runtime.rewards.round_scores import CaseLimits, RewardStats, RoundScores
from longshore_runtime.rewards.scorers import ScorerFactory
from longshore_runtime.rewards.scoring import (
    RewardError,
    RewardFault,
    RewardSetupError,
    ScoreOutcome,
    WorkerBroken,
    WorkerDied,
)
from longshore_runtime.rewards.surroundings import Surroundings
from longshore_runtime.rewards.workers import Worker, WorkerGroup, call_limit_s

log = structlog.get_logger()

CHECK_EVERY_S: Final = 2.0
"""Seconds between two checks of how the workers keep up."""
_MAX_FAILED_STARTS: Final = 3
"""Number of failed starts in a row that one place may have: the GPU of a pod may not work until it is replaced."""


class RewardPool:
    """Implements `round_runner.Scorer`."""

    def __init__(
        self,
        groups: Sequence[WorkerGroup],
        factory: ScorerFactory,
        events: "queue.SimpleQueue[Any]",
        clock: Clock,
        on_pressure: Callable[[RewardPressure], None] | None = None,
        on_worker: Callable[[Surroundings], None] | None = None,
    ) -> None:
        """Ask for all workers.

        `on_pressure` is called every CHECK_EVERY_S during a round and at its end, `on_worker` for every new worker.
        """
        self._events, self._delayed = events, Delayed(events)
        self._clock = clock
        self._on_pressure = on_pressure
        self._on_worker = on_worker
        self._groups = groups
        self._factory = factory
        self._group_of = {function.name: group for group in groups for function in group.functions}
        self._functions = {function.name: function for group in groups for function in group.functions}
        self._numbers = itertools.count()
        self._workers: dict[int, Worker] = {}
        self._case_limits = CaseLimits(self._functions.values())
        self._scores = RoundScores(0, (), self._functions, self._case_limits)
        self._is_stopped = False
        num_sized = sum(group.is_sized for group in groups)
        assert num_sized == (on_pressure is not None), "pressure is reported if and only if one group is sized"
        for group in groups:
            for place in range(len(group.places)):
                self._start_worker(group, place)
        self._delayed.put(CheckDue(), CHECK_EVERY_S)

    @property
    def stats(self) -> RewardStats:
        """Figures of the present round."""
        return self._scores.stats

    @property
    def is_complete(self) -> bool:
        """Whether every place has a worker that can take work."""
        return all(len(group.ready) == len(group.places) for group in self._groups)

    def wait_ready(self, limit_s: float) -> None:
        """Wait for a worker of every group that may prove unable to score; raises UserError when one does.

        What else happens meanwhile stays in the event queue.
        """
        waiting = [group for group in self._groups if group.is_uncertain]
        deadline_s = self._clock.now_s() + limit_s
        others: list[Any] = []
        try:
            while waiting := [group for group in waiting if not group.ready]:
                event = self._events.get(timeout=max(0.0, deadline_s - self._clock.now_s()))
                if isinstance(event, WorkerReady | WorkerLost):
                    self.handle(event)
                elif isinstance(event, CheckDue):
                    self._check_workers()  # Nothing is scored yet, so there is no pressure to report.
                else:
                    others.append(event)
        except queue.Empty as error:
            raise UserError(f"reward.pods: no reward worker has started within {limit_s:g} s") from error
        finally:
            for other in others:
                self._events.put(other)

    def use(self, prompts: Sequence[PromptRecord]) -> None:
        """Begin a round; draws refer to `prompts` by index."""
        self._scores = RoundScores(self._scores.number + 1, prompts, self._functions, self._case_limits)
        self.rest()

    def rest(self) -> None:
        """End a round: drop responses that are queued for scoring."""
        for group in self._groups:
            group.queue.clear()
        self._report_pressure()

    def finished(self, response: ResponseId, completion: Completion) -> None:
        """Offer a response for scoring, before it is known whether its group is served."""
        now_s = self._clock.now_s()
        for task in self._scores.add({response: completion}):
            self._queue_of(task).submit([task], now_s)
        self._dispatch()

    def score(self, draw: Draw, responses: Mapping[ResponseId, Completion]) -> None:
        """Score a served group."""
        missing, now_s = self._scores.serve(draw, responses), self._clock.now_s()
        for task in missing:
            self._queue_of(task).need([task], now_s)
        self._dispatch()
        if not missing:
            self._drop([draw])
            self._events.put(self._scores.complete(draw))

    def forget(self, draws: Sequence[Draw]) -> None:
        """Forget these draws, whose rewards are not needed in this round any more."""
        self._drop(draws)
        self._scores.forget(draws)

    def handle(self, event: RewardEvent) -> GroupScored | None:
        """Process an event of the pool; return the group that it completes or fails."""
        match event:
            case ResponseScored():
                scored = self._receive(event)
                if scored is not None:
                    self._drop([scored.draw])
                self._dispatch()
                return scored
            case WorkerReady(worker=number, error=None, found=found):
                self._join(number, found)
                self._dispatch()
            case WorkerReady(error=str() as error, is_fatal=True):
                raise UserError(error)
            case WorkerReady(worker=number, error=error):
                self._fail_start(number, str(error))
            case WorkerLost(worker=number, reason=reason):
                self._lose(number, reason)
            case RetryDue(task=task):
                if task.round == self._scores.number and not self._scores.has_result(task):
                    self._queue_of(task).submit([task], self._clock.now_s())
                    self._dispatch()
            case CheckDue():
                self._check_workers()
                self._report_pressure()
        return None

    def pressure(self, now_s: float) -> RewardPressure:
        """Return how the workers of the group with a variable size keep up."""
        (group,) = (group for group in self._groups if group.is_sized)
        num_workers = len(group.ready)
        num_busy = num_workers - len(group.idle)
        return RewardPressure(group.queue.depth, group.queue.oldest_wait_s(now_s), num_workers, num_busy)

    def export_state(self) -> dict[str, Any]:
        """Return what was learned about time limits, as JSON values."""
        return self._case_limits.export_state()

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Restore what `export_state` returned."""
        self._case_limits.load_state(state)

    def stop(self) -> None:
        """End the workers, without an event."""
        if self._is_stopped:
            return
        self._is_stopped = True
        self._delayed.stop()
        for worker in self._workers.values():
            worker.transport.kill()

    def _report_pressure(self) -> None:
        if self._on_pressure is not None:
            self._on_pressure(self.pressure(self._clock.now_s()))

    def _queue_of(self, task: ScoreTask) -> RewardQueue:
        return self._group_of[task.function].queue

    def _drop(self, draws: Sequence[Draw]) -> None:
        for group in self._groups:
            group.queue.drop(draws)

    def _dispatch(self) -> None:
        """Give work to idle workers: to those of the lowest places, so that the pods that go first are idle first."""
        now_s, queues = self._clock.now_s(), [group.queue for group in self._groups]
        # Before anything starts: what starts now has waited until now.
        self.stats.max_wait_s = max(self.stats.max_wait_s, *(queue.oldest_wait_s(now_s) for queue in queues))
        for group in self._groups:
            group.queue.resize(len(group.idle) + group.queue.num_calls)
            for tasks in group.queue.start():
                _, number = group.idle.pop(0)
                self._call(number, tasks, now_s)
        self.stats.max_depth = max(self.stats.max_depth, sum(queue.depth for queue in queues))

    def _call(self, number: int, tasks: Sequence[ScoreTask], now_s: float) -> None:
        worker, function = self._workers[number], self._functions[tasks[0].function]
        items = list(map(self._scores.item, tasks))
        worker.deadline_s = now_s + call_limit_s(function, items)
        worker.work = worker.transport.score(function.name, items)
        worker.work.add_done_callback(partial(self._report_answer, number, tasks))

    def _receive(self, event: ResponseScored) -> GroupScored | None:
        task, outcome = event.task, event.outcome
        if isinstance(outcome, WorkerDied | WorkerBroken):
            self._lose(event.worker, str(outcome))
        elif event.is_last_of_call:
            self._free(event.worker)
        if task.round != self._scores.number or not self._scores.is_fault(task, outcome):
            self._queue_of(task).finished(task)
            return self._scores.receive(task, outcome) if task.round == self._scores.number else None
        fault = self._queue_of(task).faulted(task)
        self.stats.num_faults += 1
        if not fault.retries:
            return self._scores.give_up(task, outcome, fault.num_faults)
        self._delayed.put(RetryDue(task), fault.wait_s)
        return None

    def _start_worker(self, group: WorkerGroup, place: int) -> None:
        number, wait_s = next(self._numbers), group.failed_starts.wait_s(place)
        transport = group.places[place].start(replace(self._factory, functions=group.functions), wait_s)
        self._workers[number] = Worker(group, place, transport, transport.ready, wait_s + group.start_limit_s)
        transport.ready.add_done_callback(partial(self._report_ready, number))
        transport.death.add_done_callback(lambda reason: self._notify(WorkerLost(number, reason.result())))

    def _join(self, number: int, found: Surroundings) -> None:
        """Note that a worker can take work, and log what it found if that is new for its pod."""
        if self._on_worker is not None:
            self._on_worker(found)
        worker = self._workers.get(number)
        if worker is None:
            return
        group = worker.group
        if group.found.get(worker.pod) != found and found.facts():
            log.info("reward worker", pod=worker.pod, functions=_names(group), **found.facts())
        group.found[worker.pod] = found
        group.ready.add(number)
        group.failed_starts.succeeded(worker.place)
        self._free(number)

    def _free(self, number: int) -> None:
        """Free a worker that has answered, unless it was lost since."""
        worker = self._workers.get(number)
        if worker is not None and number in worker.group.ready:
            bisect.insort(worker.group.idle, (worker.place, number))

    def _fail_start(self, number: int, error: str) -> None:
        """Request another worker for one that does not start; raises UserError when that does not help."""
        worker = self._workers.get(number)
        if worker is None:
            return
        num_failures = worker.group.failed_starts.failed(worker.place, worker.node)
        if num_failures >= _MAX_FAILED_STARTS:
            names = _names(worker.group)
            raise UserError(
                f"reward.functions[{names}]: the worker did not start, {num_failures} times in a row: {error}"
            )
        log.warning("reward worker does not start", pod=worker.pod, reason=error)
        self._replace(number)

    def _lose(self, number: int, reason: str) -> None:
        """Replace a worker that is gone; what it did fails by itself. A second report does no harm."""
        worker = self._workers.get(number)
        if worker is None:
            return
        if number not in worker.group.ready:
            self._fail_start(number, f"{reason} (the log of its pod may say more)")
            return
        log.warning("reward worker lost", pod=worker.pod, reason=reason)
        self._replace(number)

    def _check_workers(self) -> None:
        """Replace workers that hang, and ask for the next check: only now, so that checks never pile up."""
        self._delayed.put(CheckDue(), CHECK_EVERY_S)
        now_s = self._clock.now_s()
        for number, worker in list(self._workers.items()):
            if worker.is_overdue(now_s):
                is_ready = number in worker.group.ready
                start = f"starts for more than {worker.group.start_limit_s:g} s"
                what = "scores for far longer than it may" if is_ready else start
                self._lose(number, f"it hangs: it {what}")

    def _replace(self, number: int) -> None:
        worker = self._workers.pop(number)
        worker.group.ready.discard(number)
        worker.group.idle = [entry for entry in worker.group.idle if entry[1] != number]
        worker.transport.kill()
        self._start_worker(worker.group, worker.place)

    def _report_ready(self, number: int, ready: "Future[Surroundings]") -> None:
        error = ready.exception()
        if error is None:
            self._notify(WorkerReady(number, found=ready.result()))
        elif not isinstance(error, WorkerDied):  # WorkerLost reports those.
            self._notify(WorkerReady(number, first_line(error), isinstance(error, RewardSetupError)))

    def _report_answer(self, number: int, tasks: Sequence[ScoreTask], answer: "Future[list[ScoreOutcome]]") -> None:
        """Report each response; a call that fails as a whole fails each of its responses."""
        error = answer.exception()
        outcomes = answer.result() if error is None else [_failure(tasks[0].function, error)] * len(tasks)
        for task, outcome in zip(tasks, outcomes, strict=True):
            self._notify(ResponseScored(task, number, outcome, is_last_of_call=task is tasks[-1]))

    def _notify(self, event: RewardEvent) -> None:
        if not self._is_stopped:
            self._events.put(event)


def _names(group: WorkerGroup) -> str:
    return ", ".join(function.name for function in group.functions)


def _failure(function: str, error: BaseException) -> RewardError | RewardFault:
    """Return why none of the responses of a call has a reward."""
    match error:
        case WorkerDied():
            return WorkerDied(f"reward {function}: the reward worker is lost ({error})")
        case RewardError() | RewardFault():
            return error
    return RewardFault(f"reward {function}: the reward worker failed ({type(error).__name__}: {first_line(error)})")
