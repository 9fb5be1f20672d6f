"""Scores responses by asking a judge."""

import time
from collections.abc import Sequence
from typing import Final

from longshore_runtime.judge.errors import JudgeError, JudgeFault, JudgeSetupError, NoReply, NoReplyYet
from longshore_runtime.judge.models import JudgeModel, create_judge_model
from longshore_runtime.judge.options import JudgeOptions
from longshore_runtime.judge.score import ScorePattern
from longshore_runtime.judge.template import PromptTemplate
from longshore_runtime.rewards.scoring import ScoreItem, ScoreResult

_SHOWN_CHARACTERS: Final = 120


class JudgeReward:
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
        """Reward of one response. A streamed judge reads its weights for every call: several at once cost less."""
        return self.score_many([item])[0]

    def score_many(self, items: Sequence[ScoreItem]) -> list[ScoreResult]:
        """Rewards from 0 to 1 of several responses; raises JudgeError, JudgeFault or JudgeSetupError."""
        started_s = time.monotonic()
        questions = [self._question(item) for item in items]
        replies = self._ask(items, questions)
        unread = [index for index, reply in enumerate(replies) if self._pattern.reward(reply) is None]
        if unread:
            reminded = [questions[index] + self._pattern.reminder for index in unread]
            for index, reply in zip(unread, self._ask([items[index] for index in unread], reminded), strict=True):
                replies[index] = reply
        rewards = [self._reward(item, reply) for item, reply in zip(items, replies, strict=True)]
        seconds = (time.monotonic() - started_s) / max(1, len(items))
        return [ScoreResult(reward, seconds) for reward in rewards]

    def close(self) -> None:
        """Give the model up."""
        self._model.close()

    def _question(self, item: ScoreItem) -> str:
        question = self._template.fill(item.prompt, item.response, item.answer)
        if not question.strip():
            raise JudgeError(f"{self._who([item])}: nothing to ask: judge.promptTemplate has no words of its own")
        return question

    def _ask(self, items: Sequence[ScoreItem], questions: Sequence[str]) -> list[str]:
        try:
            return self._model.complete(questions, self._options.max_reply_tokens)
        except NoReplyYet as error:
            raise JudgeFault(f"{self._who(items)}: {error}") from error
        except NoReply as error:
            raise JudgeError(f"{self._who(items)}: {error}") from error
        except JudgeSetupError as error:
            raise self._setup_error(error) from error

    def _reward(self, item: ScoreItem, reply: str) -> float:
        reward = self._pattern.reward(reply)
        if reward is None:
            raise JudgeError(
                f"{self._who([item])}: the judge gave no score that judge.scorePattern finds in its range, also when "
                f"asked again; its reply ends with {reply[-_SHOWN_CHARACTERS:]!r}"
            )
        return reward

    def _who(self, items: Sequence[ScoreItem]) -> str:
        others = f" and {len(items) - 1} more" if len(items) > 1 else ""
        return f"reward {self._options.name}: {items[0].sample}{others}"

    def _setup_error(self, error: Exception) -> JudgeSetupError:
        return JudgeSetupError(f"reward.functions[{self._options.name}].{error}")
