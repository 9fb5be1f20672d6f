"""The rewards of one round: which responses have theirs, and which groups still wait. No I/O but the log."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import structlog

from longshore.api.reward import OnRewardError, RewardFunction
from longshore.policy.adaptive_timeout import AdaptiveTimeout, TimeoutSettings
from longshore.policy.draws import Draw
from longshore.policy.reward_queue import ScoreTask
from longshore.policy.round import ResponseId
from longshore_runtime.backends.engine_protocol import Completion, FinishReason
from longshore_runtime.data.prompt_record import PromptRecord
from longshore_runtime.rewards.events import GroupScored, Score
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

log = structlog.get_logger()


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
        return [learned.limit(record.index, case).wall_s for case in range(len(cases))]

    def learn(self, function: str, record: PromptRecord, result: ScoreResult) -> None:
        """Learn from the score of a response."""
        if function in self._learned:
            self._learned[function].response_tested(record.index, result.runs, passed_all=result.passed_all)

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
        record, completion = self._prompts[task.response.draw.index], self._completions[task.response]
        episode = completion.episode
        return ScoreItem(
            sample=f"{record.source or f'row {record.index}'}, response {task.response}",
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
        record = self._prompts[response.draw.index]
        return [ScoreTask(self.number, response, name) for name in record.rewards]

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
