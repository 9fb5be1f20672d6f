"""Scores responses by asking a judge."""

import itertools
import time
from collections.abc import Sequence
from typing import Final

from longshore_runtime.judge.errors import (
    DeviceBroken,
    JudgeBroken,
    JudgeError,
    JudgeFault,
    JudgeSetupError,
    NoReply,
    NoReplyYet,
)
from longshore_runtime.judge.models import JudgeModel, WaitingModel, create_judge_model
from longshore_runtime.judge.options import JudgeOptions
from longshore_runtime.judge.score import ScorePattern
from longshore_runtime.judge.template import PromptTemplate
from longshore_runtime.rewards.scoring import ResponseScorer, ScoreItem, ScoreOutcome, ScoreResult

_SHOWN_CHARACTERS: Final = 120
_NOTHING_TO_ASK: Final = "nothing to ask: judge.promptTemplate has no text besides its placeholders"


class JudgeReward(ResponseScorer):
    """Asks about all responses at once, and once more, with a reminder, about those whose reply holds no score."""

    def __init__(self, options: JudgeOptions, model: JudgeModel | None = None) -> None:
        """Start the model of the options unless one is given; raises JudgeSetupError."""
        self._options = options
        try:
            self._template = PromptTemplate(options.template)
            self._pattern = ScorePattern(options.score_pattern, options.score_min, options.score_max)
            self._model = model or create_judge_model(options.model)
        except (ValueError, JudgeSetupError) as error:
            raise self._setup_error(error) from error

    def score(self, item: ScoreItem) -> ScoreResult:
        """Return the reward of one response.

        A streamed judge reads its weights for every call: several responses at once cost less.
        """
        (outcome,) = self.score_many([item])
        if isinstance(outcome, ScoreResult):
            return outcome
        raise outcome

    def score_many(self, items: Sequence[ScoreItem]) -> list[ScoreOutcome]:
        """Return the reward from 0 to 1, or the failure, of each response; raises JudgeSetupError."""
        started_s = time.monotonic()
        questions = [self._template.fill(item.prompt, item.response, item.answer) for item in items]
        replies = self._ask(questions)
        unread = [index for index, reply in enumerate(replies) if isinstance(reply, str) and not self._is_read(reply)]
        if unread:
            reminded = [questions[index] + self._pattern.reminder for index in unread]
            for index, reply in zip(unread, self._ask(reminded), strict=True):
                replies[index] = reply
        seconds = (time.monotonic() - started_s) / max(1, len(items))
        return [self._outcome(item, reply, seconds) for item, reply in zip(items, replies, strict=True)]

    def give_up(self) -> None:
        """End the wait for a judge that is away; see `ResponseScorer`."""
        if isinstance(self._model, WaitingModel):
            self._model.give_up()

    def close(self) -> None:
        """Give the model up."""
        self._model.close()

    def _ask(self, questions: Sequence[str]) -> list[str | NoReply]:
        possible = [question for question in questions if question.strip()]
        try:
            replies = iter(self._model.complete(possible, self._options.max_reply_tokens))
        except NoReply as error:
            # Another one, without a traceback: that would keep tensors of the call alive.
            replies = itertools.repeat(type(error)(str(error)))
        except JudgeSetupError as error:
            raise self._setup_error(error) from error
        return [next(replies) if question.strip() else NoReply(_NOTHING_TO_ASK) for question in questions]

    def _is_read(self, reply: str) -> bool:
        return self._pattern.reward(reply) is not None

    def _outcome(self, item: ScoreItem, reply: str | NoReply, seconds: float) -> ScoreOutcome:
        who = f"reward {self._options.name}: {item.sample}"
        match reply:
            case DeviceBroken():
                return JudgeBroken(f"{who}: {reply}")
            case NoReplyYet():
                return JudgeFault(f"{who}: {reply}")
            case NoReply():
                return JudgeError(f"{who}: {reply}")
        reward = self._pattern.reward(reply)
        if reward is None:
            return JudgeError(
                f"{who}: the judge gave no score that judge.scorePattern finds in its range, also when "
                f"asked again; its reply ends with {reply[-_SHOWN_CHARACTERS:]!r}"
            )
        return ScoreResult(reward, seconds)

    def _setup_error(self, error: Exception) -> JudgeSetupError:
        return JudgeSetupError(f"reward.functions[{self._options.name}].{error}")
