"""Scores responses on the reward pods, each as soon as it has finished, in parallel with the rollout.

    driver ── `finished`, `score`, `forget` ──► RewardPool ──► RewardWorkers of a lane ──► pods, actors, threads
    workers, in threads of their own ── ResponseScored, WorkerReady, WorkerLost ──► driver's queue
    threads of `Pulse` and `Delayed` ── RewardPulse, RetryDue ──► driver's queue
    driver's queue ──► driver ── `handle` ──► RewardPool ──► GroupScored

What is scored next is decided by `policy.reward_queue`. Everything here runs in the driver's thread: workers answer
through the event queue.
"""

import queue
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import structlog

from longshore.api.reward import OnRewardError, RewardKind
from longshore.policy.draws import Draw
from longshore.policy.reward_pods import RewardPressure
from longshore.policy.reward_queue import RewardQueue, ScoreTask
from longshore.policy.round import ResponseId
from longshore_runtime.backends.engine_protocol import Completion, FinishReason
from longshore_runtime.clock import Clock
from longshore_runtime.data.prompt_record import PromptRecord
from longshore_runtime.errors import UserError
from longshore_runtime.rewards.scorers import ScorerFactory
from longshore_runtime.rewards.scoring import (
    RewardError,
    RewardFault,
    RewardSetupError,
    ScoreItem,
    ScoreResult,
    WorkerBroken,
    with_sample,
)
from longshore_runtime.rewards.surroundings import Surroundings
from longshore_runtime.rollout.batch import RewardStats
from longshore_runtime.rollout.case_limits import CaseLimits
from longshore_runtime.rollout.delayed import Delayed
from longshore_runtime.rollout.events import (
    Event,
    GroupScored,
    ResponseScored,
    RetryDue,
    RewardEvent,
    RewardPulse,
    Score,
    WorkerLost,
    WorkerReady,
)
from longshore_runtime.rollout.pulse import Pulse
from longshore_runtime.rollout.reward_workers import RewardLane, RewardWorkers
from longshore_runtime.rollout.worker_hosts import WorkerDied

log = structlog.get_logger()

_BUILT_IN: Final = frozenset({RewardKind.TASK, RewardKind.MATHS})
"""Kinds of functions that do not depend on anything from the user."""
PULSE_S: Final = 2.0
"""Seconds between two checks of how rewards keep up."""


@dataclass
class _ScoredGroup:
    responses: tuple[ResponseId, ...]
    missing: set[ScoreTask]


class RewardPool:
    """Implements `round_runner.Scorer`."""

    def __init__(
        self,
        lanes: Sequence[RewardLane],
        factory: ScorerFactory,
        events: "queue.SimpleQueue[Event]",
        clock: Clock,
        on_pressure: Callable[[RewardPressure], None] | None = None,
        on_worker: Callable[[Surroundings], None] | None = None,
    ) -> None:
        """Ask for all workers.

        `on_pressure` is called every PULSE_S during a round and at its end, `on_worker` for every new worker.
        """
        self._functions = {function.name: function for lane in lanes for function in lane.functions}
        self._lane_of = {function.name: number for number, lane in enumerate(lanes) for function in lane.functions}
        self._events, self._delayed = events, Delayed(events)
        self._clock = clock
        self._on_pressure = on_pressure
        self._on_worker = on_worker
        self._pulse = None if on_pressure is None else Pulse(events, RewardPulse(), PULSE_S)
        self._sized = [number for number, lane in enumerate(lanes) if lane.is_sized]
        assert len(self._sized) == (on_pressure is not None), "pressure is reported if and only if one lane is sized"
        self._lanes = [RewardWorkers(number, lane, factory, events) for number, lane in enumerate(lanes)]
        self._case_limits = CaseLimits(self._functions.values())
        self._uncertain = [number for number, lane in enumerate(lanes) if _is_uncertain(lane)]
        self._prompts: Sequence[PromptRecord] = ()
        self._round = 0
        self._completions: dict[ResponseId, Completion] = {}
        self._results: dict[ScoreTask, ScoreResult] = {}
        self._groups: dict[Draw, _ScoredGroup] = {}
        self._stopped = False
        self.stats = RewardStats()

    def wait_ready(self, limit_s: float) -> None:
        """Wait for a worker of every lane that may prove unable to score; raises UserError when one does.

        What else happens meanwhile stays in the event queue.
        """
        waiting = {lane for lane in self._uncertain if not self._lanes[lane].num_ready}
        deadline_s = self._clock.now_s() + limit_s
        others: list[Event] = []
        try:
            while waiting:
                event = self._events.get(timeout=max(0.0, deadline_s - self._clock.now_s()))
                if isinstance(event, WorkerReady | WorkerLost):
                    self.handle(event)
                    waiting = {lane for lane in waiting if not self._lanes[lane].num_ready}
                else:
                    others.append(event)
        except queue.Empty as error:
            raise UserError(f"reward.pods: no reward worker has started within {limit_s:g} s") from error
        finally:
            for other in others:
                self._events.put(other)

    @property
    def is_complete(self) -> bool:
        """Whether every worker that there may be can take work."""
        return all(lane.is_complete for lane in self._lanes)

    def use(self, prompts: Sequence[PromptRecord]) -> None:
        """Begin a round; draws refer to `prompts` by index."""
        self._prompts = prompts
        self._round += 1
        self._completions, self._results, self._groups = {}, {}, {}
        self.stats = RewardStats()
        self.rest()

    def rest(self) -> None:
        """End a round: drop responses that are queued for scoring."""
        for lane in self._lanes:
            lane.queue.clear()
        self._report_pressure()

    def finished(self, response: ResponseId, completion: Completion) -> None:
        """Offer a response for scoring, before it is known whether its group is served."""
        self._completions[response] = completion
        now_s = self._clock.now_s()
        for task in self._tasks(response):
            self._queue_of(task).submit([task], now_s)
        self._dispatch()

    def score(self, draw: Draw, responses: Mapping[ResponseId, Completion]) -> None:
        """Score a served group."""
        self._completions.update(responses)
        tasks = [task for response in responses for task in self._tasks(response)]
        missing = {task for task in tasks if task not in self._results}
        self._groups[draw] = _ScoredGroup(tuple(responses), missing)
        now_s = self._clock.now_s()
        for task in tasks:
            if task in missing:
                self._queue_of(task).need([task], now_s)
        self._dispatch()
        if not missing:
            self._events.put(self._group_scored(draw))

    def forget(self, draws: Sequence[Draw]) -> None:
        """Forget these draws, whose rewards are not needed in this round any more."""
        for lane in self._lanes:
            lane.queue.drop(draws)
        for draw in draws:
            self._groups.pop(draw, None)

    def handle(self, event: RewardEvent) -> GroupScored | None:
        """Process the answer of a worker; return the group that it completes or fails."""
        match event:
            case WorkerReady(lane=lane, worker=worker, error=None, found=found):
                self._lanes[lane].joined(worker, found)
                if self._on_worker is not None:
                    self._on_worker(found)
                self._dispatch()
                return None
            case WorkerReady(error=str() as error, is_fatal=True):
                raise UserError(error)
            case WorkerReady(lane=lane, worker=worker, error=error):
                self._lanes[lane].failed(worker, str(error))
                return None
            case WorkerLost(lane=lane, worker=worker, reason=reason):
                self._lanes[lane].lost(worker, reason)
                return None
            case RewardPulse():
                assert self._pulse is not None, "it put the event there"
                self._pulse.answered()
                self._report_pressure()
                return None
            case RetryDue(task=task):
                if task.round == self._round and task not in self._results:
                    self._queue_of(task).submit([task], self._clock.now_s())
                    self._dispatch()
                return None
            case ResponseScored():
                outcome = self._scored(event)
                self._dispatch()
                return outcome

    def pressure(self, now_s: float) -> RewardPressure:
        """Return how the workers of the lane with a variable size keep up."""
        (sized,) = self._sized
        return self._lanes[sized].pressure(now_s)

    def export_state(self) -> dict[str, Any]:
        """Return what was learned about time limits, as JSON values."""
        return self._case_limits.export_state()

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Restore what `export_state` returned."""
        self._case_limits.load_state(state)

    def stop(self) -> None:
        """End the workers; once they have ended, nothing is left to do."""
        if self._stopped:
            return
        self._stopped = True
        self._delayed.stop()
        if self._pulse is not None:
            self._pulse.stop()
        for lane in self._lanes:
            lane.stop()

    def _report_pressure(self) -> None:
        if self._on_pressure is not None:
            self._on_pressure(self.pressure(self._clock.now_s()))

    def _tasks(self, response: ResponseId) -> list[ScoreTask]:
        record = self._prompts[response.draw.index]
        return [ScoreTask(self._round, response, name) for name in record.rewards]

    def _dispatch(self) -> None:
        now_s = self._clock.now_s()
        # Before anything starts: what starts now has waited until now.
        self.stats.max_wait_s = max(self.stats.max_wait_s, *(lane.queue.oldest_wait_s(now_s) for lane in self._lanes))
        for lane in self._lanes:
            lane.start(self._item)
        depth = sum(lane.queue.depth for lane in self._lanes)
        self.stats.max_depth = max(self.stats.max_depth, depth)

    def _item(self, task: ScoreTask) -> ScoreItem:
        record, completion = self._prompts[task.response.draw.index], self._completions[task.response]
        return ScoreItem(
            sample=f"{record.source or f'row {record.index}'}, response {task.response}",
            prompt=record.prompt,
            response=completion.text,
            answer=record.answer,
            row=record.fields,
            limits_s=self._case_limits.of(self._functions[task.function], record),
            reference=record.reference,
            messages=record.messages,
            is_cut=completion.finish_reason is FinishReason.LENGTH,
        )

    def _scored(self, event: ResponseScored) -> GroupScored | None:
        task, outcome, is_late = event.task, event.outcome, event.task.round != self._round
        lane = self._lanes[self._lane_of[task.function]]
        if isinstance(outcome, WorkerDied | WorkerBroken):
            lane.lost(event.worker, str(outcome))
        elif event.is_last_of_call:
            lane.freed(event.worker)
        if is_late:
            lane.queue.finished(task)
            return None
        retries_errors = self._functions[task.function].on_error is OnRewardError.RETRY
        is_error = isinstance(outcome, RewardError) and not isinstance(outcome, RewardSetupError)
        if isinstance(outcome, RewardFault) or (is_error and retries_errors):
            fault = lane.queue.faulted(task)
            self.stats.num_faults += 1
            if fault.retries:
                self._delayed.put(RetryDue(task), fault.wait_s)
                return None
            why = f"{outcome} ({fault.num_faults} times)"
            if isinstance(outcome, WorkerDied) and self._functions[task.function].kind is RewardKind.CODE:
                # A program that ends every worker which runs it must not end the job. (Where the sandbox is broken for
                # every program, no program is to blame: that is WorkerBroken.)
                return self._known(task, ScoreResult(0.0, 0.0, broken=f"{task.response} broke the sandbox: {why}"))
            # A response that nobody waits for must not end the job, nor one that a function cannot stand with Replace.
            is_wanted = task.response.draw in self._groups
            replaces = self._functions[task.function].on_error is OnRewardError.REPLACE
            may_pass = replaces and not isinstance(outcome, WorkerBroken)
            of_sample = not isinstance(outcome, WorkerBroken)
            return self._failed(task, why, of_sample=of_sample, is_fatal=is_wanted and not may_pass)
        lane.queue.finished(task)
        if isinstance(outcome, ScoreResult):
            return self._known(task, outcome)
        of_setup = isinstance(outcome, RewardSetupError)
        return self._failed(task, str(outcome), of_sample=not of_setup, is_fatal=of_setup)

    def _known(self, task: ScoreTask, result: ScoreResult) -> GroupScored | None:
        """Set the reward of a response; return its group if that completes it."""
        self._learn(task, result)
        self._results[task] = result
        group = self._groups.get(task.response.draw)
        if group is None:
            return None
        group.missing.discard(task)
        return None if group.missing else self._group_scored(task.response.draw)

    def _failed(self, task: ScoreTask, error: str, *, of_sample: bool, is_fatal: bool) -> GroupScored | None:
        """Report that a response cannot be scored; return its group if that waits for it or the error `is_fatal`.

        Args:
            of_sample: whether the response and the row may be the reason, so that the report shows them.
        """
        draw = task.response.draw
        if draw not in self._groups and not is_fatal:
            return None
        error = with_sample(error, self._item(task)) if of_sample else error
        self.forget([draw])
        is_fatal = is_fatal or self._functions[task.function].on_error is not OnRewardError.REPLACE
        if not is_fatal:
            log.warning("a group is replaced because it has no reward", reason=error)
        return GroupScored(draw, error=error, is_fatal=is_fatal)

    def _group_scored(self, draw: Draw) -> GroupScored:
        group = self._groups[draw]
        self.forget([draw])
        scores = [self._score(response) for response in group.responses]
        return GroupScored(draw, scores, self._prompts[draw.index].domain)

    def _score(self, response: ResponseId) -> Score:
        results = {task.function: self._results[task] for task in self._tasks(response)}
        parts = {name: result.reward for name, result in results.items()}
        return Score(
            reward=sum(self._functions[name].weight * reward for name, reward in parts.items()),
            timed_out=any(result.timed_out for result in results.values()),
            parts=parts,
        )

    def _learn(self, task: ScoreTask, result: ScoreResult) -> None:
        self.stats.seconds[task.function] = self.stats.seconds.get(task.function, 0.0) + result.seconds
        self.stats.num_scored[task.function] = self.stats.num_scored.get(task.function, 0) + 1
        if result.broken is not None:
            self.stats.num_broken += 1
            log.warning("program broke the sandbox", reward=task.function, reason=result.broken)
        self._case_limits.learn(task.function, self._prompts[task.response.draw.index], result)

    def _queue_of(self, task: ScoreTask) -> RewardQueue:
        return self._lanes[self._lane_of[task.function]].queue


def _is_uncertain(lane: RewardLane) -> bool:
    """Return whether a function of the lane may turn out not to work. A colocated judge starts with them."""
    return any(one.kind not in _BUILT_IN and not one.is_colocated for one in lane.functions)
