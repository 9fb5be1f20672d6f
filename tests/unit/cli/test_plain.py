"""Text of the cluster does nothing to a terminal, and tells no password."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longshore_cli.client import Kube
from longshore_cli.errors import CliError
from longshore_cli.plain import plain, plain_json
from longshore_cli.watch.model import job_view
from tests.unit.cli.samples import at_step, condition, rljob

ATTACK = "\x1b]0;owned\x07\x1b[2J\x9b31m\rhidden\u202etxt"


class Answer:
    """An answer of the API server."""

    status = 200

    def __init__(self, data: bytes) -> None:
        self.response = self
        self.data = data

    def stream(self, amt: None, decode_content: bool) -> list[bytes]:
        return [self.data]

    def close(self) -> None:
        """Nothing to let go."""


class Api:
    """As much of the Kubernetes client as one request takes."""

    class configuration:  # noqa: N801 - the client's name
        host = "https://user:s3cret@server"

    def __init__(self, data: bytes) -> None:
        self._data = data

    def param_serialize(self, *_: Any, **__: Any) -> tuple[()]:
        return ()

    def call_api(self, *_: Any, **__: Any) -> Answer:
        return Answer(self._data)


@given(st.text())
def test_nothing_that_a_terminal_obeys_is_left(text: str) -> None:
    assert not set(plain(text + ATTACK)) & set("\x1b\x9b\r\x07\x08\x7f\x85\u202e\u2066")


def test_what_was_there_is_spelled_out() -> None:
    assert plain("a\tb\n\x1b[31mred\x9b\u202e") == "a\tb\n\\x1b[31mred\\x9b\\u202e"


def test_status_conditions_logs_and_errors_are_made_plain() -> None:
    job = rljob(at_step(1), conditions=(condition("Failed", "True", message=ATTACK),))
    view = job_view(Kube(Api(json.dumps(job).encode()), "team").job("demo"))
    assert view.status.conditions[0].message == plain(ATTACK)
    (line,) = Kube(Api(ATTACK.encode()), "team").log_lines("demo-coordinator")
    assert line == plain(ATTACK)
    assert CliError(ATTACK, ATTACK).message == CliError(ATTACK, ATTACK).fix == plain(ATTACK)


def test_passwords_in_addresses_are_left_out() -> None:
    assert plain("ask http://user:s3cret@grader:80/x, or me@home") == "ask http://grader:80/x, or me@home"
    assert plain_json({"a": ["https://t0ken@x", 1, None]}) == {"a": ["https://x", 1, None]}


@pytest.mark.parametrize("data", [b"<html>login</html>", b"[1]", b"null", b"\xff\xfe", b"[" * 100_000])
def test_an_answer_of_something_else_is_a_sentence(data: bytes) -> None:
    with pytest.raises(CliError, match="server answers with what is no object of Kubernetes") as caught:
        Kube(Api(data), "team").job("demo")
    assert "s3cret" not in caught.value.message


def test_a_runtime_status_that_cannot_be_read_hides_nothing_else() -> None:
    view = job_view(rljob({"step": "many"}, phase="Failed", conditions=(condition("Failed", "True", "UserError"),)))
    assert (view.phase, view.status.conditions[0].reason, view.runtime.step) == ("Failed", "UserError", 0)
