"""How long the start of an engine may take."""

from collections.abc import Sequence
from typing import Any

import pytest

from longshore_runtime.errors import EngineDied
from longshore_runtime.rollout.engine_actor import Loaded
from longshore_runtime.rollout.engine_handle import EngineLate, Reply, wait_while_reading

LIMIT_S = 7.0


class Answers(Reply[Any]):
    """One after the other; exceptions are raised."""

    def __init__(self, *answers: Any) -> None:
        self.answers = list(answers)
        self.limits_s: list[float | None] = []

    def get(self, timeout_s: float | None = None, check: object = None) -> Any:
        self.limits_s.append(timeout_s)
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


def late() -> EngineLate:
    return EngineLate("the engine does not answer in time")


def wait(started: Answers, num_bytes: Sequence[Any]) -> None:
    loaded = Answers(*(Loaded(one, 100) if isinstance(one, int) else one for one in num_bytes))
    wait_while_reading(started, lambda: loaded, LIMIT_S)
    assert not loaded.answers, "it was asked whenever the time was up"


def test_an_engine_that_starts_in_time_is_not_asked_what_it_has_read() -> None:
    started = Answers(None)
    wait(started, [])
    assert started.limits_s == [LIMIT_S]


def test_an_engine_has_as_long_as_it_goes_on_reading() -> None:
    started = Answers(late(), late(), late(), None)
    wait(started, [10, 11, 100])
    assert started.limits_s == [LIMIT_S] * 4


@pytest.mark.parametrize("num_bytes", [[0], [10, 10], [10, 100, 100]])
def test_one_that_reads_nothing_more_is_late(num_bytes: list[int]) -> None:
    with pytest.raises(EngineLate):
        wait(Answers(*[late()] * len(num_bytes)), num_bytes)


def test_one_that_is_lost_meanwhile_is_lost() -> None:
    with pytest.raises(EngineDied, match="process is gone"):
        wait(Answers(late()), [EngineDied("its process is gone")])
    with pytest.raises(EngineDied, match="cannot be read"):
        wait(Answers(late(), EngineDied("cannot be read")), [10])
