"""A judge behind HTTP: what is sent, what is tried again, and a clear sentence for every way to fail."""

import gzip
import logging
import socket
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from longshore_runtime.judge.errors import JudgeSetupError, NoReply, NoReplyYet
from longshore_runtime.judge.options import RemoteJudgeOptions
from longshore_runtime.judge.remote import RemoteJudge
from tests.contract.judge.server import Answer, JudgeServer


def echo(prompts: Sequence[str], max_tokens: int) -> list[str]:
    return [f"{prompt}, {max_tokens}" for prompt in prompts]


@pytest.fixture
def server() -> Iterator[JudgeServer]:
    server = JudgeServer(echo)
    yield server
    server.close()


def options(server: JudgeServer) -> RemoteJudgeOptions:
    """No waiting between tries."""
    return RemoteJudgeOptions(server.url, model="qwen", timeout_s=30.0, num_tries=3, retry_wait_s=0.0)


@pytest.fixture
def judge(server: JudgeServer) -> RemoteJudge:
    return RemoteJudge(options(server))


def test_a_chat_request_is_greedy_and_names_the_model(server: JudgeServer, judge: RemoteJudge) -> None:
    assert judge.complete(["Why?"], 7) == ["Why?, 7"]
    (request,) = server.received
    assert request.path == "/v1/chat/completions"
    assert request.body == {
        "model": "qwen",
        "messages": [{"role": "user", "content": "Why?"}],
        "max_tokens": 7,
        "temperature": 0.0,
    }
    assert request.authorization is None


def test_the_plain_interface_is_taken_from_the_address(server: JudgeServer) -> None:
    judge = RemoteJudge(replace(options(server), url=f"{server.url}/completions"))
    assert judge.complete(["Why?"], 7) == ["Why?, 7"]
    (request,) = server.received
    assert request.path == "/v1/completions"
    assert request.body == {"model": "qwen", "prompt": "Why?", "max_tokens": 7, "temperature": 0.0}


def test_requests_run_beside_each_other_up_to_the_limit(server: JudgeServer) -> None:
    judge = RemoteJudge(replace(options(server), max_parallel=2))
    prompts = [str(number) for number in range(12)]
    assert judge.complete(prompts, 1) == [f"{prompt}, 1" for prompt in prompts]
    assert server.most_at_once <= 2


@pytest.mark.parametrize("status", [500, 502, 503])
def test_a_failing_server_is_tried_again(server: JudgeServer, judge: RemoteJudge, status: int) -> None:
    server.answers = [Answer(status, b"overloaded"), Answer(status, b"overloaded")]
    assert judge.complete(["Why?"], 7) == ["Why?, 7"]
    assert len(server.received) == 3


def test_a_server_that_keeps_failing_is_quoted(server: JudgeServer, judge: RemoteJudge) -> None:
    server.answers = [Answer(500, b"CUDA out of\n memory")] * 9
    with pytest.raises(NoReplyYet, match=r"/v1/chat/completions answered 500 \(CUDA out of memory\); tries: 3$"):
        judge.complete(["Why?"], 7)
    assert len(server.received) == 3


def test_a_server_that_hangs_is_given_up_after_its_time(server: JudgeServer) -> None:
    server.answers = [Answer(hangs=True), Answer(hangs=True)]
    judge = RemoteJudge(replace(options(server), timeout_s=0.2, num_tries=2))
    with pytest.raises(NoReplyYet, match=r"did not answer within 0.2 s; tries: 2$"):
        judge.complete(["Why?"], 7)


def test_one_silence_does_not_cost_the_others_their_replies(server: JudgeServer) -> None:
    server.answers = [Answer(hangs=True)]
    judge = RemoteJudge(replace(options(server), timeout_s=1.0, num_tries=9))
    assert judge.complete(["a", "b", "c"], 7) == ["a, 7", "b, 7", "c, 7"]
    assert len(server.received) >= 4, "one was asked again"


def test_a_server_that_is_not_there_is_reported() -> None:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    gone = RemoteJudge(RemoteJudgeOptions(f"http://127.0.0.1:{port}/v1", "qwen", retry_wait_s=0.0))
    with pytest.raises(NoReplyYet, match=r"cannot be reached \(.*\); tries: 3$"):
        gone.complete(["Why?"], 7)


@pytest.mark.parametrize(
    ("answer", "sentence"),
    [
        (Answer(200, b"<html>"), r"answered no completion \(<html>\)$"),
        (Answer(200, b""), r"answered no completion \(an empty body\)$"),
        (Answer(200, b"[]"), r"answered no completion \(\[\]\)$"),
        (Answer(200, b'{"choices": []}'), r"answered no completion"),
        (Answer(200, b'{"choices": [{"text": "x"}]}'), r"answered no completion"),
        (Answer(200, b'{"choices": [{"message": {"content": null}}]}'), r"answered a completion without text"),
        (Answer(200, b"\xff\xfe"), r"answered no completion"),
        (Answer(200, b'{"choices": ' + b"[" * 200_000), r"answered no completion"),
        (Answer(200, b" " * (5 << 20)), r"answered with more than 4 MiB$"),
        (Answer(200, gzip.compress(b" " * (5 << 20)), {"Content-Encoding": "gzip"}), r"with more than 4 MiB$"),
        (Answer(200, b"{}", {"Content-Encoding": "gzip"}), r"answered with a body that is not gzip$"),
        (Answer(400, b" " * (5 << 20)), r"answered 400 \(more than 4 MiB\)$"),
        (Answer(400, b"context too long"), r"answered 400 \(context too long\)$"),
        (Answer(404, b"no such model"), r"answered 404 \(no such model\)$"),
        (Answer(307, b"", {"Location": "http://127.0.0.1:9/"}), r"answered 307 \(an empty body\)$"),
    ],
)
def test_an_answer_that_is_no_completion_is_quoted_and_not_tried_again(
    server: JudgeServer, judge: RemoteJudge, answer: Answer, sentence: str
) -> None:
    server.answers = [answer]
    with pytest.raises(NoReply, match=sentence) as failure:
        judge.complete(["Why?"], 7)
    assert not isinstance(failure.value, NoReplyYet)
    assert len(server.received) == 1


@pytest.mark.parametrize("status", [401, 403])
def test_a_refused_token_is_reported_by_its_field(server: JudgeServer, tmp_path: Path, status: int) -> None:
    server.answers = [Answer(status), Answer(status)]
    with pytest.raises(JudgeSetupError, match=rf"^tokenSecret: .* answered {status}: it asks for a token, set this"):
        RemoteJudge(options(server)).complete(["Why?"], 7)
    token = tmp_path / "token"
    token.write_text("abc")
    with pytest.raises(JudgeSetupError, match=rf"^tokenSecret: .* answered {status}: it refuses this token$"):
        RemoteJudge(replace(options(server), token_file=token)).complete(["Why?"], 7)
    assert len(server.received) == 2


def test_a_token_is_read_again_for_every_call(server: JudgeServer, tmp_path: Path) -> None:
    token = tmp_path / "token"
    judge = RemoteJudge(replace(options(server), token_file=token))
    for text in ("first\n", "second\n"):
        token.write_text(text)
        judge.complete(["Why?"], 7)
    assert [request.authorization for request in server.received] == ["Bearer first", "Bearer second"]


def test_a_token_reaches_no_message_and_no_log(
    server: JudgeServer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    token = tmp_path / "token"
    token.write_text("s3cret-t0ken")
    failures = []
    for answer in (Answer(500, b"no"), Answer(401), Answer(200, b"?"), Answer(hangs=True)):
        server.answers = [answer] * 3
        judge = RemoteJudge(replace(options(server), token_file=token, timeout_s=0.2 if answer.hangs else 30.0))
        with pytest.raises((NoReply, JudgeSetupError)) as failure:
            judge.complete(["Why?"], 7)
        failures.append(failure)
    assert [request.authorization for request in server.received] == ["Bearer s3cret-t0ken"] * len(server.received)
    reported = caplog.text + "".join(f"{failure.value!r} {failure.getrepr(style='short')}" for failure in failures)
    assert "s3cret-t0ken" not in reported


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (None, "cannot be read"),
        (b"\xff", "cannot be read"),
        (b"", "holds no token on one line"),
        (b"one\ntwo", "holds no token on one line"),
    ],
)
def test_a_file_without_a_token_is_reported_by_its_field(
    server: JudgeServer, tmp_path: Path, content: bytes | None, problem: str
) -> None:
    token = tmp_path / "token"
    if content is not None:
        token.write_bytes(content)
    with pytest.raises(JudgeSetupError, match=rf"^tokenSecret: '.*' {problem}$"):
        RemoteJudge(replace(options(server), token_file=token)).complete(["Why?"], 7)
    assert server.received == []


@pytest.mark.parametrize("url", ["http://", "http://[::1/v1", "http://host:port/v1"])
def test_what_is_no_address_is_reported_by_its_field(url: str) -> None:
    with pytest.raises(JudgeSetupError, match=r"^judge.url: '.*' is no address$"):
        RemoteJudge(RemoteJudgeOptions(url, "qwen", retry_wait_s=0.0)).complete(["Why?"], 7)


@pytest.mark.parametrize("url", ["http://user:s3cret@127.0.0.1:1/v1?key=s3cret", "http://s3cret@127.0.0.1:1/v1"])
def test_the_password_of_an_address_reaches_no_message(url: str) -> None:
    judge = RemoteJudge(RemoteJudgeOptions(url, "judge", None, timeout_s=1.0, num_tries=1))
    with pytest.raises(NoReplyYet) as caught:
        judge.complete(["a"], 1)
    assert "s3cret" not in str(caught.value)
