"""A teacher behind an endpoint: what it is asked, the groups that wait for it, and a sentence for every failure."""

import logging
import queue
import re
import socket
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pytest

from longshore.api import contract
from longshore.api.objectives.distillation import TeacherEndpoint
from longshore.policy.draws import Draw
from longshore.policy.round import ResponseId
from longshore_runtime.backends.engine_protocol import Completion, FinishReason
from longshore_runtime.data.prompt_record import PromptRecord
from longshore_runtime.errors import CannotContinue, Interrupted, UserError
from longshore_runtime.judge.options import RemoteJudgeOptions
from longshore_runtime.judge.teacher import RemoteTeacher
from longshore_runtime.rollout.batch import ScoredGroup, ScoredResponse
from longshore_runtime.rollout.events import Events, TeacherAnswered
from longshore_runtime.step.taught_groups import TaughtGroups
from longshore_runtime.trajectories.episode import Branch, Episode
from longshore_runtime.trajectories.trajectory import Trajectory, token_ids
from tests.contract.judge.server import Answer
from tests.contract.judge.teacher_server import TeacherServer

FIELD = "algorithm.objective.teacher.endpoint"
PROMPT, RESPONSE = token_ids([5, 6]), token_ids([7, 8, 9])
PROMPTS = [PromptRecord(0, "p", (5, 6), "answer")]
Teachers = Callable[..., RemoteTeacher]


def by_token_and_place(tokens: list[int]) -> list[float]:
    return [-token - place / 100 for place, token in enumerate(tokens)]


@pytest.fixture
def server() -> Iterator[TeacherServer]:
    server = TeacherServer(by_token_and_place)
    yield server
    server.close()


@pytest.fixture
def teachers(server: TeacherServer) -> Iterator[Teachers]:
    """Makes teachers that do not wait between two tries."""
    made = []

    def make(url: str = server.url, num_tries: int = 3, **options: Any) -> RemoteTeacher:
        given = RemoteJudgeOptions(url, model="large", num_tries=num_tries, retry_wait_s=0.0, timeout_s=30.0)
        made.append(RemoteTeacher(replace(given, **options)))
        return made[-1]

    yield make
    for one in made:
        one.close()


def test_log_probabilities_of_a_response_are_those_after_its_prompt(server: TeacherServer, teachers: Teachers) -> None:
    (found,) = teachers().ask([(PROMPT, RESPONSE)]).result()
    np.testing.assert_array_equal(found, np.array([-7.02, -8.03, -9.04], np.float32))
    (request,) = server.received
    assert request.path == "/v1/completions"
    assert request.body == {
        "model": "large",
        "prompt": [5, 6, 7, 8, 9],
        "max_tokens": 1,
        "temperature": 1.0,
        "prompt_logprobs": 0,
    }


def test_conversations_are_asked_beside_each_other_up_to_the_limit(server: TeacherServer, teachers: Teachers) -> None:
    asked = [(PROMPT, token_ids([number])) for number in range(10, 30)]
    server.meeting = threading.Barrier(2)  # Each request waits for another one beside it.
    found = teachers(max_parallel=2).ask(asked).result()
    np.testing.assert_allclose([one[0] for one in found], [-number - 0.02 for number in range(10, 30)], rtol=1e-6)
    assert server.most_at_once == 2


def test_settings_of_a_job_name_the_server_and_the_file_of_its_token(
    server: TeacherServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "token").write_text("abc\n")
    monkeypatch.setenv(contract.ENV_TEACHER_TOKEN, str(tmp_path / "token"))
    teacher = RemoteTeacher.of(TeacherEndpoint(url=f"{server.url}/", model_name="large"))
    teacher.ask([(PROMPT, RESPONSE)]).result()
    teacher.close()
    assert [(one.path, one.authorization) for one in server.received] == [("/v1/completions", "Bearer abc")]


@pytest.mark.parametrize("status", [429, 500, 503])
def test_a_busy_server_is_asked_again(server: TeacherServer, teachers: Teachers, status: int) -> None:
    server.answers = [Answer(status, b"busy")] * 2
    assert len(teachers().ask([(PROMPT, RESPONSE)]).result()) == 1
    assert len(server.received) == 3


def test_a_server_that_is_not_there_fails_the_job_with_the_field(teachers: Teachers) -> None:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    teacher = teachers(url=f"http://127.0.0.1:{port}/v1")
    with pytest.raises(UserError, match=rf"^{FIELD}: http://127.0.0.1:{port}/.* cannot be reached \(.*\); tries: 3$"):
        teacher.ask([(PROMPT, RESPONSE)]).result()


def test_a_slow_server_fails_the_job_after_its_tries(server: TeacherServer, teachers: Teachers) -> None:
    server.answers = [Answer(hangs=True)] * 2
    with pytest.raises(UserError, match=rf"^{FIELD}: .* did not answer within 0.2 s; tries: 2$"):
        teachers(timeout_s=0.2, num_tries=2).ask([(PROMPT, RESPONSE)]).result()


@pytest.mark.parametrize("status", [401, 403])
def test_a_refused_token_fails_the_job_and_reaches_no_message_and_no_log(
    server: TeacherServer, teachers: Teachers, status: int, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    (tmp_path / "token").write_text("s3cret")
    server.answers = [Answer(503, b"busy"), Answer(status)]
    with pytest.raises(UserError, match=rf"^{FIELD}.tokenSecret: .* {status}: it refuses this token$") as failure:
        teachers(token_file=tmp_path / "token").ask([(PROMPT, RESPONSE)]).result()
    assert [one.authorization for one in server.received] == ["Bearer s3cret"] * 2
    assert "s3cret" not in caplog.text + f"{failure.getrepr(style='short')}"


def answer(*entries: Any) -> bytes:
    return orjson.dumps({"choices": [{"text": "", "prompt_logprobs": entries}]})


@pytest.mark.parametrize(
    ("body", "sentence"),
    [
        (b"<html>", r"answered no completion \(<html>\)"),
        (b'{"choices": []}', r"answered no completion"),
        (b'{"choices": [null]}', r"answered no completion"),
        (b'{"choices": [{"text": ""}]}', r"answered without prompt_logprobs; use a server that has them"),
        (answer(None, {"6": {"logprob": -1.0}}), r"answered 2 log-probabilities for 3 tokens"),
        (
            answer(None, {"6": {"logprob": -1.0}}, {"8": {"logprob": -1.0}}),
            r"about other tokens than it was asked; serve",
        ),
        (answer(None, {"6": {"logprob": -1.0}}, None), r"about other tokens than it was asked; serve"),
        (answer(None, {"6": {"logprob": -1.0}}, {"7": {"logprob": None}}), r"about other tokens"),
        (answer(None, {"6": {"logprob": -1.0}}, {"7": {"logprob": "inf"}}), r"a log-probability that is not finite"),
        (b" " * (2 << 20), r"answered with more than 1 MiB"),
    ],
)
def test_an_answer_of_no_use_fails_the_job_with_the_field(
    server: TeacherServer, teachers: Teachers, body: bytes, sentence: str
) -> None:
    server.answers = [Answer(200, body)]
    with pytest.raises(UserError, match=rf"^{FIELD}: {re.escape(server.url)}/completions .*{sentence}"):
        teachers().ask([(PROMPT, token_ids([7]))]).result()


def test_an_address_with_credentials_beside_a_token_is_refused(
    server: TeacherServer, teachers: Teachers, tmp_path: Path
) -> None:
    (tmp_path / "token").write_text("s3cret")
    teacher = teachers(url=server.url.replace("//", "//user:pa55@"), token_file=tmp_path / "token")
    with pytest.raises(
        UserError, match=rf"^{FIELD}.url: .* has credentials, and tokenSecret is set: remove"
    ) as failure:
        teacher.ask([(PROMPT, RESPONSE)]).result()
    assert "pa55" not in str(failure.value)


def test_a_server_that_refuses_token_ids_is_quoted(server: TeacherServer, teachers: Teachers) -> None:
    server.answers = [Answer(400, b"Token id 9 is out of vocabulary")]
    with pytest.raises(UserError, match=rf"^{FIELD}: .* answered 400 \(Token id 9 is out of vocabulary\)$"):
        teachers().ask([(PROMPT, RESPONSE)]).result()


@pytest.mark.parametrize(
    ("theirs", "refused"),
    [("7", False), (" 7", False), ("\ufffd", False), (None, False), ("seven", True)],
)
def test_a_teacher_whose_tokens_have_other_texts_is_refused(theirs: str | None, refused: bool) -> None:
    server = TeacherServer(by_token_and_place, lambda token: theirs if token == 7 else str(token))
    teacher = RemoteTeacher(RemoteJudgeOptions(server.url, "large"))
    try:
        if refused:
            with pytest.raises(UserError, match=rf"^{FIELD}: token 7 is '7' for the model to train and 'seven' for"):
                teacher.require_same_tokens(token_ids([5, 7, 9]), str)
        else:
            teacher.require_same_tokens(token_ids([5, 7, 9]), str)
    finally:
        teacher.close()
        server.close()


def group(*completions: Completion) -> ScoredGroup:
    draw = Draw(0, 0)
    responses = [
        ScoredResponse(ResponseId(draw, index), one, 1.0, timed_out=False) for index, one in enumerate(completions)
    ]
    return ScoredGroup(draw, tuple(responses))


def completion(*tokens: int) -> Completion:
    return Completion("a", Trajectory.sampled(0, tokens, [-1.0] * len(tokens)), FinishReason.STOP, 1)


def test_a_group_is_trained_on_once_the_teacher_has_answered(teachers: Teachers) -> None:
    events, trained = Events(), list[ScoredGroup]()
    taught = TaughtGroups(teachers(), PROMPTS, events, trained.append)
    given = group(completion(7, 8), completion(9))
    taught.train_on(given)
    event = events.get(timeout=30)
    assert isinstance(event, TeacherAnswered) and trained == []
    TaughtGroups(teachers(), PROMPTS, events, trained.append).answered(event)
    assert trained == [], "it is of a round that was sampled again"
    taught.answered(event)
    taught.finish(lambda: None)
    (one,) = trained
    found = [[values.tolist() for values in scored.teacher_log_probs] for scored in one.responses]
    assert found == [[pytest.approx([-7.02, -8.03])], [pytest.approx([-9.02])]]
    assert replace(one, responses=given.responses) == given


def test_every_branch_of_an_episode_is_asked_about_with_its_own_prompt(
    server: TeacherServer, teachers: Teachers
) -> None:
    turns = Trajectory.sampled(0, [7], [-1.0]) + Trajectory.observed([11, 12]) + Trajectory.sampled(0, [8], [-1.0])
    branches = tuple(Branch(token_ids(prompt), None, [], turns) for prompt in ([1, 2], [3, 4]))
    episode = replace(completion(7), episode=Episode(branches, None, 1.0, 2, 0, 0.0, 0))
    trained = list[ScoredGroup]()
    taught = TaughtGroups(teachers(max_parallel=1), PROMPTS, Events(), trained.append)
    taught.train_on(group(episode, completion(9)))
    taught.finish(lambda: None)
    assert [one.body["prompt"] for one in server.received] == [[1, 2, 7, 11, 12, 8], [3, 4, 7, 11, 12, 8], [5, 6, 9]]
    assert [[len(one) for one in scored.teacher_log_probs] for scored in trained[0].responses] == [[4, 4], [1]]


def test_groups_are_passed_on_in_the_order_of_their_answers(server: TeacherServer, teachers: Teachers) -> None:
    server.answers = [Answer(hangs=True)]
    trained = list[ScoredGroup]()
    taught = TaughtGroups(teachers(), PROMPTS, Events(), trained.append)
    late, quick = group(completion(7)), replace(group(completion(8)), draw=Draw(1, 0))
    taught.train_on(late)
    assert server.was_asked.wait(30)
    taught.train_on(quick)

    def check() -> None:
        if trained:
            raise Interrupted("the other one hangs")

    with pytest.raises(Interrupted):
        taught.finish(check)
    assert [one.draw for one in trained] == [quick.draw]


def test_the_end_of_a_round_waits_for_answers_until_the_pod_is_stopped(
    server: TeacherServer, teachers: Teachers
) -> None:
    server.answers = [Answer(hangs=True)]
    taught = TaughtGroups(teachers(), PROMPTS, Events(), lambda group: None)
    taught.train_on(group(completion(7)))

    def check() -> None:
        raise Interrupted("stopped")

    with pytest.raises(Interrupted):
        taught.finish(check)


def test_a_job_cannot_continue_without_an_answer(server: TeacherServer, teachers: Teachers) -> None:
    server.answers = [Answer(400, b"no")]
    events: Events = queue.SimpleQueue()
    taught = TaughtGroups(teachers(), PROMPTS, events, lambda group: None)
    taught.train_on(group(completion(7)))
    event = events.get(timeout=30)
    assert isinstance(event, TeacherAnswered)
    with pytest.raises(CannotContinue, match=rf"^{FIELD}: "):
        taught.answered(event)


def test_closing_ends_requests_that_wait(server: TeacherServer) -> None:
    server.answers = [Answer(hangs=True)]
    teacher = RemoteTeacher(RemoteJudgeOptions(server.url, "large"))
    asked = threading.Event()
    pending = teacher.ask([(PROMPT, RESPONSE)])
    pending.add_done_callback(lambda _: asked.set())
    assert server.was_asked.wait(30)
    teacher.close()
    assert asked.wait(30) and pending.cancelled()
