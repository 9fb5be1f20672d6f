"""A judge scores, is asked once more when it talks nonsense, and then it is an error and never a silent zero."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from longshore_runtime.judge.errors import JudgeError, JudgeFault, JudgeSetupError, NoReply, NoReplyYet
from longshore_runtime.judge.options import JudgeOptions, RemoteJudgeOptions
from longshore_runtime.judge.reward import JudgeReward
from longshore_runtime.rewards.scoring import RewardError, RewardFault, RewardSetupError, ScoreItem

OPTIONS = JudgeOptions(
    name="taste",
    model=RemoteJudgeOptions(url="http://127.0.0.1:9/v1", model="judge"),
    template="{prompt}?{response}!{answer}",
    score_pattern=r"Score: (\d+)",
    score_min=0.0,
    score_max=10.0,
    max_reply_tokens=16,
)


class Replies:
    """A judge that replies from a list, question by question, and keeps the questions."""

    def __init__(self, *replies: str | Exception) -> None:
        self._replies = list(replies)
        self.asked: list[list[str]] = []

    def complete(self, prompts: Sequence[str], max_tokens: int) -> list[str]:
        assert max_tokens == OPTIONS.max_reply_tokens
        self.asked.append(list(prompts))
        given = [self._replies.pop(0) for _ in prompts]
        for reply in given:
            if isinstance(reply, Exception):
                raise reply
        return [str(reply) for reply in given]

    def close(self) -> None:
        self._replies = []


def item(number: int) -> ScoreItem:
    return ScoreItem(f"row {number}, response 0-{number}-0", f"p{number}", f"r{number}", f"a{number}", row={})


def test_responses_are_asked_about_together_and_scored_in_order() -> None:
    model = Replies("Score: 10", "Score: 0", "well ... Score: 5")
    results = JudgeReward(OPTIONS, model).score_many([item(1), item(2), item(3)])
    assert [result.reward for result in results] == [1.0, 0.0, 0.5]
    assert not any(result.timed_out for result in results)
    assert model.asked == [["p1?r1!a1", "p2?r2!a2", "p3?r3!a3"]]


def test_one_response_alone_is_scored_as_well() -> None:
    assert JudgeReward(OPTIONS, Replies("Score: 7")).score(item(1)).reward == 0.7


def test_only_what_could_not_be_read_is_asked_again_with_a_reminder() -> None:
    model = Replies("Score: 1", "I like it", "Score: 3", "Score: 2")
    results = JudgeReward(OPTIONS, model).score_many([item(1), item(2), item(3)])
    assert [result.reward for result in results] == [0.1, 0.2, 0.3]
    (question,) = model.asked[1]
    assert question.startswith("p2?r2!a2")
    assert r"Score: (\d+)" in question and "between 0 and 10" in question


def test_nonsense_twice_is_an_error_that_names_reward_and_sample() -> None:
    with pytest.raises(
        JudgeError, match=r"^reward taste: row 2, response 0-2-0: the judge gave no score .* ends with 'still nice'$"
    ) as failure:
        JudgeReward(OPTIONS, Replies("Score: 4", "nice", "still nice")).score_many([item(1), item(2)])
    assert isinstance(failure.value, RewardError)


def test_no_reply_is_an_error_and_no_reply_yet_a_fault_that_may_be_tried_again() -> None:
    with pytest.raises(JudgeError, match=r"^reward taste: row 1, response 0-1-0 and 1 more: too long$"):
        JudgeReward(OPTIONS, Replies(NoReply("too long"), "")).score_many([item(1), item(2)])
    with pytest.raises(JudgeFault, match=r"^reward taste: row 1, response 0-1-0: it is silent$") as fault:
        JudgeReward(OPTIONS, Replies(NoReplyYet("it is silent"))).score_many([item(1)])
    assert isinstance(fault.value, RewardFault)


def test_a_fault_when_asked_again_names_the_samples_that_were_asked_about() -> None:
    model = Replies("Score: 4", "nice", NoReplyYet("it is silent"))
    with pytest.raises(JudgeFault, match=r"^reward taste: row 2, response 0-2-0: it is silent$"):
        JudgeReward(OPTIONS, model).score_many([item(1), item(2)])


def test_a_template_without_words_of_its_own_has_nothing_to_ask_about_an_empty_response() -> None:
    judge = JudgeReward(replace(OPTIONS, template="{response} "), Replies())
    empty = ScoreItem("row 1, response 0-1-0", "p", "\n", "a", row={})
    with pytest.raises(JudgeError, match=r"^reward taste: row 1, response 0-1-0: nothing to ask: judge.promptTemplate"):
        judge.score(empty)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (replace(OPTIONS, template="{reply}"), r"^reward.functions\[taste\].judge.promptTemplate: \{reply\} is no"),
        (replace(OPTIONS, score_pattern="x"), r"^reward.functions\[taste\].judge.scorePattern: 'x' has 0 groups"),
        (replace(OPTIONS, score_max=-1.0), r"^reward.functions\[taste\].judge.maxScore: "),
    ],
)
def test_a_judge_that_cannot_score_anything_is_told_by_its_field(options: JudgeOptions, sentence: str) -> None:
    with pytest.raises(JudgeSetupError, match=sentence) as refusal:
        JudgeReward(options)
    assert isinstance(refusal.value, RewardSetupError)
    assert "\n" not in str(refusal.value)


def test_a_setup_error_of_the_model_is_told_by_its_field() -> None:
    model = Replies(JudgeSetupError("tokenSecret: refused"))
    with pytest.raises(JudgeSetupError, match=r"^reward.functions\[taste\].tokenSecret: refused$"):
        JudgeReward(OPTIONS, model).score_many([item(1)])
