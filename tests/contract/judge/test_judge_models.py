"""What every judge model does, in this process and behind HTTP."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from longshore_runtime.backends.streamed_lm.judge import StreamedJudge
from longshore_runtime.judge.errors import JudgeError, JudgeSetupError, NoReply
from longshore_runtime.judge.models import JudgeModel, create_judge_model
from longshore_runtime.judge.options import JudgeOptions, RemoteJudgeOptions, StreamedJudgeOptions
from longshore_runtime.judge.reward import JudgeReward
from longshore_runtime.rewards.scoring import ScoreItem
from tests.contract.judge.conftest import Checkpoints
from tests.contract.judge.models import reservation
from tests.contract.judge.server import JudgeServer

PROMPTS = ["Is 2 + 2 = 4?", "Name a prime.", "Why?", "A rather long question, to which nobody knows an answer."]


@pytest.fixture(scope="module")
def streamed(checkpoints: Checkpoints) -> StreamedJudge:
    """With memory for one resident layer of seven while the four questions run together."""
    directory = checkpoints("qwen3")
    shape = StreamedJudge(StreamedJudgeOptions(directory, accelerator=False)).shape
    options = StreamedJudgeOptions(directory, accelerator=False, reserved_bytes=reservation(shape, 80, 4, 1))
    judge = create_judge_model(options)
    assert isinstance(judge, StreamedJudge)
    return judge


@pytest.fixture(scope="module")
def server(streamed: StreamedJudge) -> Iterator[JudgeServer]:
    """With the same model behind it."""
    server = JudgeServer(streamed.complete)
    yield server
    server.close()


@pytest.fixture(params=["streamed", "remote, chat", "remote, plain"])
def model(request: pytest.FixtureRequest, streamed: StreamedJudge, server: JudgeServer) -> JudgeModel:
    """Every kind of judge model."""
    match request.param:
        case "streamed":
            return streamed
        case "remote, chat":
            return create_judge_model(RemoteJudgeOptions(server.url, model="judge"))
    return create_judge_model(RemoteJudgeOptions(f"{server.url}/completions", model="judge"))


def test_there_is_one_reply_per_prompt_in_order(model: JudgeModel) -> None:
    replies = model.complete(PROMPTS, 8)
    assert replies == [model.complete([prompt], 8)[0] for prompt in PROMPTS]
    assert len(set(replies)) > 1, "the order would not show"


def test_no_prompts_no_replies(model: JudgeModel) -> None:
    assert model.complete([], 8) == []


def test_equal_prompts_get_equal_replies(model: JudgeModel) -> None:
    first, second = model.complete(["Why?", "Why?"], 12)
    assert first == second == model.complete(["Why?"], 12)[0]


def test_a_reply_ends_at_the_limit(model: JudgeModel) -> None:
    short, long = model.complete(PROMPTS, 3), model.complete(PROMPTS, 9)
    for few, many in zip(short, long, strict=True):  # One character is one token, special ones none.
        assert many.startswith(few) and len(few) <= 3 and len(many) <= 9
    assert any(len(many) > 3 for many in long)


def test_a_judge_that_talks_nonsense_is_an_error_that_names_reward_and_sample(model: JudgeModel) -> None:
    options = JudgeOptions("taste", RemoteJudgeOptions("", ""), "{response}", r"Score: (\d+)", 0, 10, 8)
    items = [ScoreItem(f"row {number}", "p", "r" * number, "a", row={}) for number in (1, 2)]
    with pytest.raises(JudgeError, match=r"^reward taste: row 1: the judge gave no score"):
        JudgeReward(options, model).score_many(items)


def test_a_question_longer_than_the_context_has_no_reply(streamed: StreamedJudge) -> None:
    with pytest.raises(NoReply, match=r"a question of 2100 tokens and a reply of 8 exceed the 2048 of the judge's"):
        streamed.complete(["x" * 2_100], 8)


def test_a_question_too_long_for_the_reserved_memory_has_no_reply(streamed: StreamedJudge) -> None:
    with pytest.raises(NoReply, match=r"^1 x 1908 tokens need .* are reserved: raise judge.gpuMemory$"):
        streamed.complete(["x" * 1_900], 8)


def test_a_closed_judge_gives_its_weights_up(checkpoints: Checkpoints) -> None:
    judge = StreamedJudge(StreamedJudgeOptions(checkpoints("llama"), accelerator=False))
    judge.close()
    with pytest.raises(AssertionError, match="it was closed"):
        judge.complete(["x"], 1)


def test_a_directory_without_a_model_is_told_by_its_field(tmp_path: Path) -> None:
    with pytest.raises(JudgeSetupError, match=r"^judge.modelPath: '.*' is no usable model \(") as refusal:
        create_judge_model(StreamedJudgeOptions(tmp_path, accelerator=False))
    assert "\n" not in str(refusal.value)
