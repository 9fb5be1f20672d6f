"""How RollPacker samples a mix of tasks (`multi_async_generate_scheduler.py` of its code, which ROLL calls domains).

Every task has its share of the batch. A short round takes the first prompts of each task, as many as its share, and not
the first of all: what ends later of a task that has its share is left over, and goes on until the round ends.
"""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import Final

from longshore.api.rollout import Strategy
from longshore.policy.draws import Draw, MixedDraws, Share
from longshore.policy.round import Decision, ResponseFinished, ResponseId
from longshore.policy.round_policy import RoundPolicy, RoundStart
from longshore.policy.strategies import round_policy
from longshore.policy.tail_batching import TailBatching
from longshore.sim.job import SimJob

_WEIGHTS: Final = {"math": 0.34375, "code": 0.3125, "judge": 0.34375}
"""Shares of the tasks, as the paper configures them: of 128 prompts 44, 40 and 44, and of 160 prompts 55, 50 and 55."""


class TaskDraws(MixedDraws):
    """Prompt i is of task i modulo their number, as `MixedRewards` has it."""

    def __init__(self, num_prompts: int, seed: int) -> None:
        self._rows_per_task = num_prompts // len(_WEIGHTS)
        super().__init__([Share(name, self._rows_per_task, weight) for name, weight in _WEIGHTS.items()], seed)

    def _next(self) -> Draw:
        draw = super()._next()
        task, row = divmod(draw.index, self._rows_per_task)
        return Draw(draw.epoch, row * len(_WEIGHTS) + task)


class TaskBatching(TailBatching):
    """Tail batching that takes its share of every task."""

    def start_round(
        self, *, draining: bool = False, engines: Collection[int] = (0,), kv_capacity_tokens: int = 0
    ) -> RoundStart:
        """Begin a round; what it starts says how many prompts of each task it takes."""
        start = super().start_round(draining=draining, engines=engines, kv_capacity_tokens=kv_capacity_tokens)
        draws = {response.draw for response in start.decision.launch}
        self._shares = divided(start.num_groups, Counter(map(_task, draws)))
        self._ignored: set[ResponseId] = set()
        return start

    def responses_finished(self, events: Sequence[ResponseFinished]) -> Decision:
        """Decide event by event, since each may complete the share of its task; what ends later of it is ignored."""
        decisions = [Decision(has_batch=self._running.has_batch)]
        for event in sorted(events, key=lambda event: (event.engine_step, event.response)):
            task = _task(event.response.draw)
            if sum(_task(group.draw) == task for group in self._running.accepted) < self._shares[task]:
                decisions.append(super().responses_finished([event]))
            else:
                self._ignored.add(event.response)
        ended = self._ignored.union(event.response for event in events)
        return Decision(
            launch=tuple(one for decision in decisions for one in decision.launch),
            abort=tuple(one for decision in decisions for one in decision.abort if one not in ended),
            score=tuple(one for decision in decisions for one in decision.score),
            accepted=tuple(one for decision in decisions for one in decision.accepted),
            has_batch=decisions[-1].has_batch,
        )


def mixed_policy(job: SimJob) -> RoundPolicy:
    """Return the policy of a job whose prompts are of all tasks."""
    cursor = TaskDraws(job.num_prompts, job.seed)
    if job.rollout.strategy is Strategy.TAIL_BATCHING:
        return TaskBatching(job.shape, cursor, job.rollout.tail_batching)
    return round_policy(job.rollout, job.shape, cursor)


def divided(total: int, counts: Mapping[int, int]) -> dict[int, int]:
    """Return parts of a total in proportion to counts; those furthest from a whole number are rounded up."""
    exact = {key: total * count / sum(counts.values()) for key, count in counts.items()}
    parts = {key: int(value) for key, value in exact.items()}
    by_rest = sorted(exact, key=lambda key: (parts[key] - exact[key], key))
    return parts | {key: parts[key] + 1 for key in by_rest[: total - sum(parts.values())]}


def _task(draw: Draw) -> int:
    return draw.index % len(_WEIGHTS)
