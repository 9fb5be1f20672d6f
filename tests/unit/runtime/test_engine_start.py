"""How long the start of an engine may take."""

from collections.abc import Mapping
from typing import Any

import pytest

from longshore_runtime.errors import EngineDied
from longshore_runtime.rollout.engine_replies import EngineLate, Loaded, Reply, wait_while_reading

LIMIT_S = 900.0


class Engine:
    """It starts, or is lost, at a time, and has read so many bytes from the times on that a test says."""

    def __init__(
        self,
        read: Mapping[float, int],
        ends_s: float = float("inf"),
        error: Exception | None = None,
        silent_s: float = 0,
    ) -> None:
        self.read, self.ends_s, self.error, self.silent_s = read, ends_s, error, silent_s
        self.now_s = 1000.0
        self._begun_s = self.now_s

    def wait(self) -> float:
        wait_while_reading(_Started(self), lambda: _Answer(self), LIMIT_S, lambda: self.now_s)
        return self.elapsed_s

    @property
    def elapsed_s(self) -> float:
        return self.now_s - self._begun_s

    def loaded(self) -> Loaded:
        return Loaded(max((size for since_s, size in self.read.items() if since_s <= self.elapsed_s), default=0), 100)


class _Answer(Reply[Loaded]):
    def __init__(self, engine: Engine) -> None:
        self.engine = engine

    def get(self, timeout_s: float | None = None, check: Any = None) -> Loaded:
        assert timeout_s is not None
        if self.engine.elapsed_s < self.engine.silent_s:
            self.engine.now_s += timeout_s
            raise EngineLate("the engine does not answer in time")
        return self.engine.loaded()


class _Started(Reply[None]):
    def __init__(self, engine: Engine) -> None:
        self.engine = engine

    def get(self, timeout_s: float | None = None, check: Any = None) -> None:
        assert timeout_s is not None
        left_s = self.engine.ends_s - self.engine.elapsed_s
        self.engine.now_s += min(timeout_s, left_s)
        if left_s > timeout_s:
            raise EngineLate("the engine does not answer in time")
        if self.engine.error is not None:
            raise self.engine.error


@pytest.mark.parametrize(
    ("read", "ends_s"),
    [({}, 5.0), ({}, 890.0), ({800: 1}, 1600.0), ({800: 10, 1600: 50, 2400: 100}, 3200.0)],
)
def test_an_engine_has_as_long_as_it_goes_on_reading(read: Mapping[float, int], ends_s: float) -> None:
    assert Engine(read, ends_s).wait() == ends_s


@pytest.mark.parametrize(("read", "gives_up_s"), [({}, 900.0), ({100: 100}, 1000.0), ({100: 10, 900: 100}, 1800.0)])
def test_one_that_reads_nothing_more_is_late(read: Mapping[float, int], gives_up_s: float) -> None:
    engine = Engine(read, ends_s=10_000.0)
    with pytest.raises(EngineLate):
        engine.wait()
    assert gives_up_s <= engine.elapsed_s <= gives_up_s + 60.0


def test_one_that_says_nothing_while_it_reads_has_as_long_as_any() -> None:
    assert Engine({500: 10}, 1400.0, silent_s=600.0).wait() >= 1400.0
    engine = Engine({}, silent_s=5000.0)
    with pytest.raises(EngineLate):
        engine.wait()
    assert LIMIT_S <= engine.elapsed_s <= LIMIT_S + 120.0


def test_one_that_is_lost_meanwhile_is_lost() -> None:
    with pytest.raises(EngineDied, match="process is gone"):
        Engine({800: 1}, 1000.0, EngineDied("its process is gone")).wait()
