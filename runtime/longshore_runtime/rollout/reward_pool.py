"""Scores accepted groups on the reward pods, in parallel with the rollout."""

import itertools
import queue
from collections.abc import Sequence
from concurrent.futures import Future
from typing import Any

import ray

from longshore.policy.draws import Draw
from longshore_runtime.data.dataset import Tokenizer
from longshore_runtime.rewards.scorer import (
    RewardError,
    RewardOptions,
    RewardSetupError,
    ScoreItem,
    Scorer,
    ScoreResult,
)
from longshore_runtime.rollout.events import Event, GroupScored, Score
from longshore_runtime.types import Completion, PromptRecord


class _RewardActor:
    """A scorer in a reward pod. It keeps nothing, so Ray may restart it anywhere and run a call again."""

    def __init__(self, options: RewardOptions) -> None:
        self._scorer = Scorer(options)

    def score(self, items: Sequence[ScoreItem]) -> list[ScoreResult]:
        return self._scorer.score_many(items)


RewardActor: Any = ray.remote(num_cpus=0, max_restarts=-1, max_task_retries=-1)(_RewardActor)


class RewardPool:
    """Spreads groups over the reward actors; outcomes arrive as GroupScored events."""

    def __init__(
        self,
        options: RewardOptions,
        placements: Sequence[dict[str, Any]],
        tokenizer: Tokenizer,
        events: "queue.SimpleQueue[Event]",
    ) -> None:
        """One actor per entry of `placements` (Ray actor options)."""
        assert placements, "somebody has to score"
        self._actors = [RewardActor.options(**placement).remote(options) for placement in placements]
        self._next = itertools.cycle(range(len(self._actors)))
        self._tokenizer = tokenizer
        self._events = events
        self._prompts: Sequence[PromptRecord] = ()

    def use(self, prompts: Sequence[PromptRecord]) -> None:
        """Draws refer to these prompts from now on."""
        self._prompts = prompts

    def score(self, draw: Draw, completions: Sequence[Completion]) -> None:
        """Start scoring the responses of a draw; does not wait."""
        record = self._prompts[draw.index]
        items = [
            ScoreItem(
                sample=f"row {record.index}, response {completion.request_id}",
                prompt=record.prompt,
                response=self._tokenizer.decode(completion.tokens, skip_special_tokens=True),
                answer=record.answer,
            )
            for completion in completions
        ]
        reference = self._actors[next(self._next)].score.remote(items)
        reference.future().add_done_callback(lambda future: self._events.put(_outcome(draw, future)))

    def stop(self) -> None:
        """End the actors."""
        for actor in self._actors:
            ray.kill(actor)


def _outcome(draw: Draw, future: "Future[list[ScoreResult]]") -> GroupScored:
    error = future.exception()
    if error is None:
        return GroupScored(draw, [Score(result.reward, result.timed_out) for result in future.result()])
    cause = getattr(error, "cause", error)
    text = str(cause) if isinstance(cause, RewardError) else f"the reward worker failed: {cause!r}"
    return GroupScored(draw, error=text, is_fatal=isinstance(cause, RewardSetupError))
