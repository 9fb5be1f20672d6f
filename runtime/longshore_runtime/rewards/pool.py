"""Score responses, each as soon as it has finished, in parallel with the rollout.

    driver ── `finished`, `score`, `forget` ──► RewardPool ──► Workers ── `score` ──► the Transport of a worker
    threads of the transports ── ResponseScored, WorkerReady, WorkerLost ──► driver's queue
    thread of `Delayed` ── RetryDue, CheckDue ──► driver's queue
    driver's queue ──► driver ── `handle` ──► RewardPool ──► GroupScored

`policy.reward_queue` decides what is scored next, and `RoundScores` what an outcome means for its group. Everything
here runs in the driver's thread, but for what futures of transports call: that only puts events into the queue.
"""

import queue
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

import structlog

from longshore.api.reward import OnRewardError, RewardFunction
from longshore.checks.rows import functions_of
from longshore.policy.adaptive_timeout import AdaptiveTimeout, TimeoutSettings
from longshore.policy.draws import Draw
from longshore.policy.reward_pods import RewardPressure
from longshore.policy.reward_queue import RewardQueue, ScoreTask
from longshore.policy.round import ResponseId
from longshore_runtime.backends.engine_protocol import Completion, FinishReason
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
    Score,
    WorkerLost,
    WorkerReady,
)
from longshore_runtime.rewards.scorers import ScorerFactory
from longshore_runtime.rewards.scoring import (
    RewardError,
    RewardFault,
    RewardSetupError,
    ScoreItem,
    ScoreOutcome,
    ScoreResult,
    WorkerBroken,
    WorkerDied,
    with_sample,
)
from longshore_runtime.rewards.surroundings import Surroundings
from longshore_runtime.rewards.workers import Worker, WorkerGroup, Workers, call_limit_s

log = structlog.get_logger()

CHECK_EVERY_S: Final = 2.0
"""Seconds between two checks of how the workers keep up."""


@dataclass
class RewardStats:
    """Figures of the scoring in one round."""

    max_depth: int = 0
    """Largest number of responses that waited at once."""
    max_wait_s: float = 0.0
    """Longest wait of a response that its group waited for, in seconds."""
    num_faults: int = 0
    num_broken: int = 0
    """Number of programs that broke their sandbox."""
    seconds: dict[str, float] = field(default_factory=dict)
    """Seconds that workers spent, by function."""
    num_scored: dict[str, int] = field(default_factory=dict)
    """Number of scored responses, by function."""


class CaseLimits:
    """Time limits of the test cases of code rewards: fixed, or learned from correct responses."""

    def __init__(self, functions: Iterable[RewardFunction]) -> None:
        self._learned = {
            one.name: AdaptiveTimeout(
                TimeoutSettings(one.tests.timeout_factor, one.tests.min_timeout_s, one.tests.max_timeout_s)
            )
            for one in functions
            if one.tests is not None and one.tests.adaptive_timeout
        }

    def of(self, function: RewardFunction, record: PromptRecord) -> list[float] | None:
        """Return the present limit of each test case of a prompt, in seconds; None: the function runs no tests."""
        if function.tests is None:
            return None
        cases = record.fields[function.tests.tests_field]
        assert isinstance(cases, list), "checked when the data was read"
        learned = self._learned.get(function.name)
        if learned is None:
            return [function.tests.max_timeout_s] * len(cases)
        return [learned.limit(record.row, case).wall_s for case in range(len(cases))]

    def learn(self, function: str, record: PromptRecord, result: ScoreResult) -> None:
        """Learn from the score of a response."""
        if function in self._learned:
            self._learned[function].response_tested(record.row, result.runs, passed_all=result.passed_all)

    def export_state(self) -> dict[str, Any]:
        """Return what was learned, as JSON values."""
        return {name: timeout.export_state() for name, timeout in self._learned.items()}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Restore what `export_state` returned."""
        for name, timeout in self._learned.items():
            if name in state:
                timeout.load_state(state[name])


@dataclass
class _Group:
    responses: tuple[ResponseId, ...]
    missing: set[ScoreTask]


class RoundScores:
    """Responses, results and groups of one round."""

    def __init__(
        self,
        number: int,
        prompts: Sequence[PromptRecord],
        functions: Mapping[str, RewardFunction],
        limits: CaseLimits,
    ) -> None:
        """Begin without responses; draws refer to `prompts` by index. `limits` is shared with other rounds."""
        self.number = number
        self.stats = RewardStats()
        self._prompts = prompts
        self._functions = functions
        self._limits = limits
        self._completions: dict[ResponseId, Completion] = {}
        self._results: dict[ScoreTask, ScoreResult] = {}
        self._groups: dict[Draw, _Group] = {}

    def add(self, responses: Mapping[ResponseId, Completion]) -> list[ScoreTask]:
        """Note responses, and return their tasks."""
        self._completions.update(responses)
        return [task for response in responses for task in self._tasks(response)]

    def serve(self, draw: Draw, responses: Mapping[ResponseId, Completion]) -> list[ScoreTask]:
        """Note a group that waits for the rewards of these responses, and return the tasks that it waits for."""
        missing = [task for task in self.add(responses) if task not in self._results]
        self._groups[draw] = _Group(tuple(responses), set(missing))
        return missing

    def forget(self, draws: Iterable[Draw]) -> None:
        """Forget that these groups wait."""
        for draw in draws:
            self._groups.pop(draw, None)

    def has_result(self, task: ScoreTask) -> bool:
        """Return whether a task has been scored."""
        return task in self._results

    def item(self, task: ScoreTask) -> ScoreItem:
        """Return what a worker needs to score a task."""
        draw, number = task.response
        record, completion = self._prompts[draw.index], self._completions[task.response]
        episode = completion.episode
        return ScoreItem(
            sample=f"{record.source or f'row {record.row}'}, response {number} of draw {draw}",
            prompt=record.prompt if episode is None else record.prompt + (episode.observation or ""),
            response=completion.text,
            answer=record.answer,
            row=record.fields,
            limits_s=self._limits.of(self._functions[task.function], record),
            reference=record.reference,
            messages=record.messages if episode is None or not record.messages else episode.begun(record.messages),
            is_cut=completion.finish_reason is FinishReason.LENGTH,
            turns=episode.messages if episode is not None else (),
            episode_reward=episode.reward if episode is not None else None,
            state=episode.state if episode is not None else None,
        )

    def is_fault(self, task: ScoreTask, outcome: ScoreOutcome) -> bool:
        """Return whether another attempt may have another outcome."""
        is_error = isinstance(outcome, RewardError) and not isinstance(outcome, RewardSetupError)
        retries_errors = self._functions[task.function].on_error is OnRewardError.RETRY
        return isinstance(outcome, RewardFault) or (is_error and retries_errors)

    def receive(self, task: ScoreTask, outcome: ScoreOutcome) -> GroupScored | None:
        """Note the outcome of a task; return its group if that completes or fails it."""
        if isinstance(outcome, ScoreResult):
            return self._set_result(task, outcome)
        of_setup = isinstance(outcome, RewardSetupError)
        return self._fail(task, str(outcome), of_sample=not of_setup, is_fatal=of_setup)

    def give_up(self, task: ScoreTask, outcome: ScoreOutcome, num_faults: int) -> GroupScored | None:
        """Note that a task is not tried again after this last fault; return its group if that completes or fails it."""
        function, why = self._functions[task.function], f"{outcome} ({num_faults} times)"
        if isinstance(outcome, WorkerDied) and function.tests is not None:
            # A program that ends every worker which runs it must not end the job. (Where the sandbox is broken for
            # every program, no program is to blame: that is WorkerBroken.)
            return self._set_result(task, ScoreResult(0.0, 0.0, broken=f"{task.response} broke the sandbox: {why}"))
        # A response that nobody waits for must not end the job, nor one that a function cannot stand with Replace.
        of_sample = not isinstance(outcome, WorkerBroken)
        may_pass = of_sample and function.on_error is OnRewardError.REPLACE
        return self._fail(task, why, of_sample=of_sample, is_fatal=task.response.draw in self._groups and not may_pass)

    def complete(self, draw: Draw) -> GroupScored:
        """Return a group that waits for nothing more."""
        scores = [self._score(response) for response in self._groups.pop(draw).responses]
        return GroupScored(draw, scores, self._prompts[draw.index].domain)

    def _tasks(self, response: ResponseId) -> list[ScoreTask]:
        """Return a task for each function that scores the row."""
        functions = functions_of(self._prompts[response.draw.index].domain, tuple(self._functions.values()))
        return [ScoreTask(self.number, response, function.name) for function in functions]

    def _set_result(self, task: ScoreTask, result: ScoreResult) -> GroupScored | None:
        self._results[task] = result
        self.stats.seconds[task.function] = self.stats.seconds.get(task.function, 0.0) + result.seconds
        self.stats.num_scored[task.function] = self.stats.num_scored.get(task.function, 0) + 1
        if result.broken is not None:
            self.stats.num_broken += 1
            log.warning("program broke the sandbox", reward=task.function, reason=result.broken)
        self._limits.learn(task.function, self._prompts[task.response.draw.index], result)
        group = self._groups.get(task.response.draw)
        if group is None:
            return None
        group.missing.discard(task)
        return None if group.missing else self.complete(task.response.draw)

    def _fail(self, task: ScoreTask, error: str, *, of_sample: bool, is_fatal: bool) -> GroupScored | None:
        """Report that a response cannot be scored; return its group if that waits for it or the error `is_fatal`.

        Args:
            of_sample: whether the response and the row may be the reason, so that the report shows them.
        """
        draw = task.response.draw
        if draw not in self._groups and not is_fatal:
            return None
        error = with_sample(error, self.item(task)) if of_sample else error
        self.forget([draw])
        is_fatal = is_fatal or self._functions[task.function].on_error is not OnRewardError.REPLACE
        if not is_fatal:
            log.warning("a group is replaced because it has no reward", reason=error)
        return GroupScored(draw, error=error, is_fatal=is_fatal)

    def _score(self, response: ResponseId) -> Score:
        results = {task.function: self._results[task] for task in self._tasks(response)}
        parts = {name: result.reward for name, result in results.items()}
        return Score(
            reward=sum(self._functions[name].weight * reward for name, reward in parts.items()),
            timed_out=any(result.timed_out for result in results.values()),
            parts=parts,
        )


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
        self._groups = groups
        self._group_of = {function.name: group for group in groups for function in group.functions}
        self._functions = {function.name: function for function in factory.functions}
        self._case_limits = CaseLimits(self._functions.values())
        self._scores = RoundScores(0, (), self._functions, self._case_limits)
        self._is_stopped = False
        num_sized = sum(group.is_sized for group in groups)
        assert num_sized == (on_pressure is not None), "pressure is reported if and only if one group is sized"
        self._workers = Workers(groups, factory, self._notify, on_worker)
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

    def score(self, draw: Draw, responses: Mapping[ResponseId, Completion]) -> GroupScored | None:
        """Score a served group; return it if all of its responses are scored already."""
        missing, now_s = self._scores.serve(draw, responses), self._clock.now_s()
        for task in missing:
            self._queue_of(task).need([task], now_s)
        self._dispatch()
        if missing:
            return None
        self._drop([draw])
        return self._scores.complete(draw)

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
            case WorkerReady():
                self._workers.started(event)
                self._dispatch()
            case WorkerLost(worker=number, reason=reason):
                self._workers.lose(number, reason)
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
        self._workers.stop()

    def _report_pressure(self) -> None:
        if self._on_pressure is not None:
            self._on_pressure(self.pressure(self._clock.now_s()))

    def _queue_of(self, task: ScoreTask) -> RewardQueue:
        return self._group_of[task.function].queue

    def _drop(self, draws: Sequence[Draw]) -> None:
        for group in self._groups:
            group.queue.drop(draws)

    def _dispatch(self) -> None:
        """Give work to idle workers."""
        now_s, queues = self._clock.now_s(), [group.queue for group in self._groups]
        # Before anything starts: what starts now has waited until now.
        self.stats.max_wait_s = max(self.stats.max_wait_s, *(queue.oldest_wait_s(now_s) for queue in queues))
        for group in self._groups:
            group.queue.resize(len(group.idle) + group.queue.num_calls)
            for tasks in group.queue.start():
                self._call(*self._workers.take(group), tasks, now_s)
        self.stats.max_depth = max(self.stats.max_depth, sum(queue.depth for queue in queues))

    def _call(self, number: int, worker: Worker, tasks: Sequence[ScoreTask], now_s: float) -> None:
        function, items = self._functions[tasks[0].function], [self._scores.item(task) for task in tasks]
        worker.deadline_s = now_s + call_limit_s(function, items)
        worker.work = worker.transport.score(function.name, items)
        worker.work.add_done_callback(partial(self._report_answer, number, tasks))

    def _receive(self, event: ResponseScored) -> GroupScored | None:
        task, outcome = event.task, event.outcome
        if isinstance(outcome, WorkerDied | WorkerBroken):
            self._workers.lose(event.worker, str(outcome))
        elif event.is_last_of_call:
            self._workers.free(event.worker)
        if task.round != self._scores.number or not self._scores.is_fault(task, outcome):
            self._queue_of(task).finished(task)
            return self._scores.receive(task, outcome) if task.round == self._scores.number else None
        fault = self._queue_of(task).faulted(task)
        self.stats.num_faults += 1
        if not fault.retries:
            return self._scores.give_up(task, outcome, fault.num_faults)
        self._delayed.put(RetryDue(task), fault.wait_s)
        return None

    def _check_workers(self) -> None:
        """Replace workers that hang, and ask for the next check: only now, so that checks never pile up."""
        self._delayed.put(CheckDue(), CHECK_EVERY_S)
        self._workers.replace_hanging(self._clock.now_s())

    def _report_answer(self, number: int, tasks: Sequence[ScoreTask], answer: "Future[list[ScoreOutcome]]") -> None:
        """Report each response; a call that fails as a whole fails each of its responses."""
        error = answer.exception()
        outcomes = answer.result() if error is None else [_failure(tasks[0].function, error)] * len(tasks)
        for task, outcome in zip(tasks, outcomes, strict=True):
            self._notify(ResponseScored(task, number, outcome, is_last_of_call=task is tasks[-1]))

    def _notify(self, event: RewardEvent) -> None:
        if not self._is_stopped:
            self._events.put(event)


def _failure(function: str, error: BaseException) -> RewardError | RewardFault:
    """Return why none of the responses of a call has a reward."""
    match error:
        case WorkerDied():
            return WorkerDied(f"reward {function}: the reward worker is lost ({error})")
        case RewardError() | RewardFault():
            return error
    return RewardFault(f"reward {function}: the reward worker failed ({type(error).__name__}: {first_line(error)})")
