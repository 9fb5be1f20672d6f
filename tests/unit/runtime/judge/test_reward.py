"""A judge scores, is asked once more when it talks nonsense, and then it is an error and never a silent zero."""

import pickle
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

import pytest

from longshore_runtime.judge.errors import (
    DeviceBroken,
    JudgeBroken,
    JudgeError,
    JudgeFault,
    JudgeSetupError,
    NoReply,
    NoReplyYet,
)
from longshore_runtime.judge.options import JudgeOptions, RemoteJudgeOptions
from longshore_runtime.judge.reward import JudgeReward
from longshore_runtime.rewards.scoring import (
    RewardError,
    RewardFault,
    RewardSetupError,
    ScoreItem,
    ScoreOutcome,
    ScoreResult,
)

OPTIONS = JudgeOptions(
    name="taste",
    model=RemoteJudgeOptions(url="http://127.0.0.1:9/v1", model="judge"),
    template="{prompt}?{response}!{answer}",
    score_pattern=r"Score: (\d+)",
    score_min=0.0,
    score_max=10.0,
    max_reply_tokens=16,
)


@dataclass
class Fails:
    """A judge, or a call, that fails as a whole."""

    failure: Exception

    def complete(self, prompts: Sequence[str], max_tokens: int) -> list[str | NoReply]:
        raise self.failure

    def close(self) -> None:
        """Nothing."""


class Replies:
    """A judge that replies from a list, question by question, and keeps the questions."""

    def __init__(self, *replies: str | NoReply | Fails) -> None:
        self._replies = list(replies)
        self.questions: list[list[str]] = []

    def complete(self, prompts: Sequence[str], max_tokens: int) -> list[str | NoReply]:
        assert max_tokens == OPTIONS.max_reply_tokens
        self.questions.append(list(prompts))
        given: list[str | NoReply] = []
        for _ in prompts:
            reply = self._replies.pop(0)
            if isinstance(reply, Fails):
                raise reply.failure
            given.append(reply)
        return given

    def close(self) -> None:
        self._replies = []


def rewards(*outcomes: ScoreOutcome) -> list[float]:
    """Rewards of the responses that have one."""
    return [outcome.reward for outcome in outcomes if isinstance(outcome, ScoreResult)]


def messages(outcomes: Sequence[ScoreOutcome], kind: type[Exception]) -> list[str]:
    """What failures of one kind say."""
    return [str(outcome) for outcome in outcomes if type(outcome) is kind]


def item(number: int) -> ScoreItem:
    return ScoreItem(f"row {number}, response 0-{number}-0", f"p{number}", f"r{number}", f"a{number}", row={})


def test_responses_are_asked_about_together_and_scored_in_order() -> None:
    model = Replies("Score: 10", "Score: 0", "well ... Score: 5")
    results = JudgeReward(OPTIONS, model).score_many([item(1), item(2), item(3)])
    assert rewards(*results) == [1.0, 0.0, 0.5]
    assert not any(isinstance(result, ScoreResult) and result.timed_out for result in results)
    assert model.questions == [["p1?r1!a1", "p2?r2!a2", "p3?r3!a3"]]


def test_one_response_alone_is_scored_as_well() -> None:
    assert JudgeReward(OPTIONS, Replies("Score: 7")).score(item(1)).reward == 0.7


def test_only_what_could_not_be_read_is_asked_again_with_a_reminder() -> None:
    model = Replies("Score: 1", "I like it", "Score: 3", "Score: 2")
    results = JudgeReward(OPTIONS, model).score_many([item(1), item(2), item(3)])
    assert rewards(*results) == [0.1, 0.2, 0.3]
    (question,) = model.questions[1]
    assert question.startswith("p2?r2!a2")
    assert r"Score: (\d+)" in question and "between 0 and 10" in question


def test_nonsense_twice_is_an_error_that_names_reward_and_sample_and_fails_no_other() -> None:
    judge = JudgeReward(OPTIONS, Replies("Score: 4", "nice", "Score: 6", "still nice"))
    first, failure, third = judge.score_many([item(1), item(2), item(3)])
    assert rewards(first, third) == [0.4, 0.6]
    assert isinstance(failure, JudgeError) and isinstance(failure, RewardError)
    assert re.fullmatch(
        r"reward taste: row 2, response 0-2-0: the judge gave no score .* ends with 'still nice'", str(failure)
    )


def test_a_response_alone_raises_its_failure() -> None:
    with pytest.raises(JudgeError, match=r"^reward taste: row 2, response 0-2-0: the judge gave no score"):
        JudgeReward(OPTIONS, Replies("nice", "still nice")).score(item(2))


def test_a_question_that_has_no_reply_is_an_error_of_its_response_alone() -> None:
    outcomes = JudgeReward(OPTIONS, Replies("Score: 1", NoReply("too long"), "Score: 3")).score_many(
        [item(1), item(2), item(3)]
    )
    assert rewards(outcomes[0], outcomes[2]) == [0.1, 0.3]
    assert messages(outcomes[1:2], JudgeError) == ["reward taste: row 2, response 0-2-0: too long"]


@pytest.mark.parametrize(
    ("failure", "kind"),
    [
        (NoReply("no such model"), JudgeError),
        (NoReplyYet("it is silent"), JudgeFault),
        (DeviceBroken("the GPU is gone"), JudgeBroken),
    ],
)
def test_a_call_that_fails_fails_each_of_its_responses_with_a_sentence_of_its_own(
    failure: NoReply, kind: type[Exception]
) -> None:
    outcomes = JudgeReward(OPTIONS, Fails(failure)).score_many([item(1), item(2)])
    assert messages(outcomes, kind) == [f"reward taste: row {row}, response 0-{row}-0: {failure}" for row in (1, 2)]
    assert isinstance(outcomes[0], RewardError if kind is JudgeError else RewardFault)


def test_a_fault_when_asked_again_is_one_of_those_that_were_asked_about() -> None:
    model = Replies("Score: 4", "nice", Fails(NoReplyYet("it is silent")))
    outcomes = JudgeReward(OPTIONS, model).score_many([item(1), item(2)])
    assert rewards(outcomes[0]) == [0.4]
    assert messages(outcomes[1:], JudgeFault) == ["reward taste: row 2, response 0-2-0: it is silent"]


def test_outcomes_travel_between_pods() -> None:
    outcomes = JudgeReward(OPTIONS, Replies("Score: 4", NoReplyYet("it is silent"))).score_many([item(1), item(2)])
    first, second = pickle.loads(pickle.dumps(outcomes))
    assert rewards(first) == [0.4]
    assert (type(second), str(second)) == (JudgeFault, str(outcomes[1]))


def test_a_template_without_own_words_has_nothing_to_ask_about_an_empty_response() -> None:
    model = Replies("Score: 5")
    judge = JudgeReward(replace(OPTIONS, template="{response} "), model)
    empty = ScoreItem("row 1, response 0-1-0", "p", "\n", "a", row={})
    with pytest.raises(JudgeError, match=r"^reward taste: row 1, response 0-1-0: nothing to ask: judge.promptTemplate"):
        judge.score(empty)
    first, second = judge.score_many([empty, item(1)])
    assert isinstance(first, JudgeError) and rewards(second) == [0.5]
    assert model.questions == [[], ["r1 "]]


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (replace(OPTIONS, template="{reply}"), r"^reward.functions\[taste\].judge.promptTemplate: \{reply\} is no"),
        (replace(OPTIONS, score_pattern="x"), r"^reward.functions\[taste\].judge.scorePattern: 'x' has 0 groups"),
        (replace(OPTIONS, score_max=-1.0), r"^reward.functions\[taste\].judge.maxScore: "),
    ],
)
def test_a_judge_that_cannot_score_anything_is_reported_by_its_field(options: JudgeOptions, sentence: str) -> None:
    with pytest.raises(JudgeSetupError, match=sentence) as refusal:
        JudgeReward(options)
    assert isinstance(refusal.value, RewardSetupError)
    assert "\n" not in str(refusal.value)


def test_a_setup_error_of_the_model_is_reported_by_its_field() -> None:
    model = Fails(JudgeSetupError("tokenSecret: refused"))
    with pytest.raises(JudgeSetupError, match=r"^reward.functions\[taste\].tokenSecret: refused$"):
        JudgeReward(OPTIONS, model).score_many([item(1)])
