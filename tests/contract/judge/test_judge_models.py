"""What every judge model does, in this process and behind HTTP."""

import itertools
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from longshore_runtime.backends.streamed_lm import device_memory
from longshore_runtime.backends.streamed_lm.judge import StreamedJudge
from longshore_runtime.backends.streamed_lm.model import StreamedLM
from longshore_runtime.backends.tiny_model import EOS_ID, build_tokenizer
from longshore_runtime.judge.errors import DeviceBroken, JudgeError, JudgeFault, JudgeSetupError, NoReply, NoReplyYet
from longshore_runtime.judge.models import JudgeModel, create_judge_model
from longshore_runtime.judge.options import JudgeOptions, RemoteJudgeOptions, StreamedJudgeOptions
from longshore_runtime.judge.reward import JudgeReward
from longshore_runtime.rewards.scoring import ScoreItem
from tests.contract.judge.conftest import Checkpoints
from tests.contract.judge.models import reservation
from tests.contract.judge.server import JudgeServer

PROMPTS = ["Is 2 + 2 = 4?", "Name a prime.", "Why?", "A rather long question, to which nobody knows an answer."]
LITTLE_MEMORY = "the GPU has less memory left than judge.gpuMemory reserves"


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
    for few, many in zip(
        map(str, short), map(str, long), strict=True
    ):  # One character is one token, special ones none.
        assert many.startswith(few) and len(few) <= 3 and len(many) <= 9
    assert any(len(str(many)) > 3 for many in long)


def test_a_reply_ends_with_the_turn_of_the_chat_template(tmp_path: Path, checkpoints: Checkpoints) -> None:
    """Base models often have another end token."""
    directory = shutil.copytree(checkpoints("qwen3"), tmp_path / "judge")
    tokenizer = build_tokenizer()
    tokenizer.add_special_tokens({"additional_special_tokens": ["<|im_end|>"]})
    tokenizer.chat_template = "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}<|im_end|>{% endfor %}"
    tokenizer.save_pretrained(directory)
    judge = StreamedJudge(StreamedJudgeOptions(directory, accelerator=False))
    assert judge._stop == {EOS_ID, tokenizer.convert_tokens_to_ids("<|im_end|>")}


def test_a_judge_that_talks_nonsense_is_an_error_that_names_reward_and_sample(model: JudgeModel) -> None:
    options = JudgeOptions("taste", RemoteJudgeOptions("", ""), "{response}", r"Score: (\d+)", 0, 10, 8)
    items = [item("r" * number, number) for number in (1, 2)]
    for number, outcome in enumerate(JudgeReward(options, model).score_many(items), start=1):
        assert isinstance(outcome, JudgeError)
        assert str(outcome).startswith(f"reward taste: row {number}: the judge gave no score")


def test_a_question_longer_than_the_context_has_no_reply_and_the_others_have_theirs(streamed: StreamedJudge) -> None:
    reply, failure = streamed.complete(["Why?", "x" * 2_100], 8)
    assert reply == streamed.complete(["Why?"], 8)[0]
    assert isinstance(failure, NoReply) and not isinstance(failure, NoReplyYet)
    assert str(failure).startswith("a question of 2100 tokens and a reply of 8 exceed the 2048 of the judge's")


def test_a_question_too_long_for_reserved_memory_has_no_reply_but_the_others_have(
    streamed: StreamedJudge,
) -> None:
    failure, reply = streamed.complete(["x" * 1_900, "Why?"], 8)
    assert reply == streamed.complete(["Why?"], 8)[0]
    assert isinstance(failure, NoReply) and not isinstance(failure, NoReplyYet)
    assert re.match(r"^1 x 1908 tokens need .* are reserved: raise judge.gpuMemory$", str(failure))


def test_a_question_that_fits_its_reservation_but_not_free_memory_is_a_fault(
    streamed: StreamedJudge, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A fault is asked again, when others may have freed memory."""
    options = JudgeOptions("taste", RemoteJudgeOptions("", ""), "{response}", r"(.)", 0, 9, 8)
    with monkeypatch.context() as patch:
        patch.setattr(device_memory, "free_bytes", lambda device: 0)
        outcomes = JudgeReward(options, streamed).score_many([item("Why?", 1), item("What?", 2)])
        for number, outcome in enumerate(outcomes, start=1):
            assert isinstance(outcome, JudgeFault)
            assert str(outcome) == f"reward taste: row {number}: {LITTLE_MEMORY}"
    assert len(streamed.complete(["Why?"], 8)) == 1


def test_a_question_that_never_fits_is_refused_also_while_others_leave_little(
    streamed: StreamedJudge, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(device_memory, "free_bytes", lambda device: 0)
    (failure,) = streamed.complete(["x" * 1_900], 8)
    assert isinstance(failure, NoReply) and not isinstance(failure, NoReplyYet)
    assert str(failure).endswith("are reserved: raise judge.gpuMemory")


@pytest.mark.parametrize(
    ("question_tokens", "free_bytes", "kind", "sentence"),
    [
        (1_900, 1 << 40, NoReply, r"are reserved: raise judge.gpuMemory$"),
        (2_100, 1 << 40, NoReply, r"exceed the 2048 of the judge's model$"),
        (10, 0, NoReplyYet, f"^{LITTLE_MEMORY}$"),
    ],
)
def test_what_cannot_be_measured_fails_as_it_would_in_the_job(
    streamed: StreamedJudge,
    monkeypatch: pytest.MonkeyPatch,
    question_tokens: int,
    free_bytes: int,
    kind: type[NoReply],
    sentence: str,
) -> None:
    monkeypatch.setattr(device_memory, "free_bytes", lambda device: free_bytes)
    with pytest.raises(NoReply, match=sentence) as failure:
        streamed.measure(question_tokens, 8)
    assert type(failure.value) is kind


def item(response: str, number: int) -> ScoreItem:
    return ScoreItem(f"row {number}", "p", response, "a", row={})


def test_the_limit_of_a_call_grows_with_its_questions(
    checkpoints: Checkpoints, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every token takes a second here, and a question has five."""
    seconds = itertools.count()
    monkeypatch.setattr("longshore_runtime.backends.streamed_lm.model.time.monotonic", lambda: float(next(seconds)))
    options = StreamedJudgeOptions(checkpoints("llama"), accelerator=False, timeout_s=5.0)
    judge = StreamedJudge(options)
    with pytest.raises(NoReplyYet, match=r"^the judge did not answer within 5 s$"):
        judge.complete(["Why?"], 9)
    assert len(judge.complete(["Why?", "What?"], 9)) == 2


@pytest.mark.parametrize("call", ["require_room", "generate"])
@pytest.mark.parametrize(
    ("error", "kind", "sentence"),
    [
        (torch.AcceleratorError("CUDA error: unspecified launch failure\nDetails"), DeviceBroken, "launch failure)"),
        (RuntimeError("CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when calling ..."), DeviceBroken, "calling ...)"),
        (torch.OutOfMemoryError("CUDA out of memory"), NoReplyYet, "than judge.gpuMemory reserves"),
        (RuntimeError("shapes do not fit"), RuntimeError, "shapes do not fit"),
    ],
)
def test_an_error_of_the_gpu_says_whether_this_process_can_go_on(
    streamed: StreamedJudge,
    monkeypatch: pytest.MonkeyPatch,
    call: str,
    error: Exception,
    kind: type[Exception],
    sentence: str,
) -> None:
    """Errors as CUDA reports them, at any of its calls: also at the first one after another process broke the GPU."""

    def fails(*arguments: object) -> None:
        raise error

    monkeypatch.setattr(StreamedLM, call, fails)
    with pytest.raises(kind) as failure:
        streamed.complete(["Why?"], 8)
    assert type(failure.value) is kind
    assert str(failure.value).endswith(sentence) and "\n" not in str(failure.value)


def test_a_closed_judge_gives_its_weights_up(checkpoints: Checkpoints) -> None:
    judge = StreamedJudge(StreamedJudgeOptions(checkpoints("llama"), accelerator=False))
    judge.close()
    with pytest.raises(AssertionError, match="it was closed"):
        judge.complete(["x"], 1)


def test_a_directory_without_a_model_is_reported_by_its_field(tmp_path: Path) -> None:
    with pytest.raises(JudgeSetupError, match=r"^judge.modelPath: '.*' is no usable model \(") as refusal:
        create_judge_model(StreamedJudgeOptions(tmp_path, accelerator=False))
    assert "\n" not in str(refusal.value)
