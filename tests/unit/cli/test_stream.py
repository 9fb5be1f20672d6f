"""A watch of something that is no API server ends with a sentence, and one that broke off is resumed."""

import json
from collections.abc import Iterator
from typing import Any, cast

import pytest

from longshore_cli import stream
from longshore_cli.client import Kube
from longshore_cli.errors import CliError

JOB = {"metadata": {"uid": "a", "resourceVersion": "5"}}


class Answers:
    """As much of `Kube` as a watch takes: an empty list, then these bodies."""

    def __init__(self, *bodies: bytes) -> None:
        self._bodies = iter(bodies)

    def request(self, *_: Any, **__: Any) -> dict[str, Any]:
        return {"metadata": {"resourceVersion": "1"}, "items": []}

    def open(self, *_: Any, **__: Any) -> "Answers":
        return self

    def stream(self, amt: None, decode_content: bool) -> Iterator[bytes]:
        yield next(self._bodies)

    def close(self) -> None:
        """Nothing to let go."""


class Clock:
    """Time that passes by waiting alone."""

    def __init__(self) -> None:
        self.time_s = 0.0

    def now_s(self) -> float:
        return self.time_s

    def wait(self, seconds: float) -> None:
        self.time_s += seconds


def changes(*bodies: bytes) -> Iterator[stream.Change]:
    clock = Clock()
    kube = cast(Kube, Answers(*bodies))
    return stream.watch(kube, "/jobs", "", clock=clock.now_s, back_off=clock.wait)


@pytest.mark.parametrize(
    "body",
    [b"<html>", b"[]", b"{}", b'{"type": "ADDED", "object": {"metadata": {}}}', b'{"type": "ADDED", "object": 3}',
     b'{"type": "ADDED", "object": {"metadata": {"resourceVersion": "1"}}}', b'{"type": "ERROR", "object": null}'],
)  # fmt: skip
def test_what_is_no_watch_ends_with_a_sentence(body: bytes) -> None:
    with pytest.raises(CliError, match=r"The API server does not answer: .*no watch of Kubernetes"):
        list(changes(*[body] * 100))


def test_a_line_that_was_cut_is_asked_for_again() -> None:
    whole = json.dumps({"type": "ADDED", "object": JOB}).encode()
    assert next(changes(whole[:20], whole)) == ("ADDED", JOB)
