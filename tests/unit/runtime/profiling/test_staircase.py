"""One batch that shrinks tells the steps of all batch sizes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longshore_runtime.backends.engine_protocol import EngineStats, load_weights
from longshore_runtime.backends.fake_engine import FakeEngine, FakeEngineOptions
from longshore_runtime.profiling.staircase import Ended, EngineLimits, Staircase, staircase, windows
from longshore_runtime.profiling.synthetic import Synthetic

LIMITS = st.builds(EngineLimits, st.integers(1, 512), st.integers(32, 32_768), st.integers(256, 1 << 21))
SPACIOUS = EngineLimits(max_num_seqs=64, max_context_tokens=4096, kv_capacity_tokens=1 << 20)


class CountingClock:
    """A second later at each look."""

    def __init__(self) -> None:
        self.reading_s = 0.0

    def now_s(self) -> float:
        self.reading_s += 1.0
        return self.reading_s


def ends_on(engine: FakeEngine, stairs: Staircase) -> list[Ended]:
    """What the engine tells while it runs the batch."""
    load_weights(engine, [], policy_version=0)
    engine.add(Synthetic(100, seed=0).requests(stairs.lengths, stairs.prompt_tokens))
    ends = []
    while engine.has_work():
        if ended := engine.step():
            ends.append(Ended(len(ended), max(one.num_tokens for one in ended), engine.stats()))
    return ends


@given(LIMITS, st.integers(1, 4096))
def test_a_staircase_fits_into_its_engine(limits: EngineLimits, prompt_tokens: int) -> None:
    stairs = staircase(limits, prompt_tokens)
    assert stairs.prompt_tokens <= prompt_tokens
    assert stairs.prompt_tokens + max(stairs.lengths) <= limits.max_context_tokens
    assert len(stairs.lengths) <= max(2, limits.max_num_seqs)
    if len(stairs.sizes) > 1:
        for level, size in enumerate(stairs.sizes, start=2):
            assert size * (stairs.prompt_tokens + level * stairs.level_steps) <= limits.kv_capacity_tokens


@given(LIMITS)
def test_it_is_halved_down_to_one_request(limits: EngineLimits) -> None:
    sizes = staircase(limits, 16).sizes
    assert sizes[-1] == 1
    assert list(sizes) == sorted(set(sizes), reverse=True)


def test_every_size_is_measured_at_the_time_of_its_steps() -> None:
    stairs = staircase(SPACIOUS, prompt_tokens=16)
    assert stairs.sizes == (63, 32, 16, 8, 4, 2, 1)
    found = windows(stairs, ends_on(FakeEngine(FakeEngineOptions(), clock=CountingClock()), stairs))
    assert [window.num_running for window in found] == list(stairs.sizes)
    # The clock is looked at twice in a step, and when it gets what ended.
    assert all(window.step_s == pytest.approx(2.0, rel=0.05) for window in found)
    contexts = [window.context_tokens / window.num_running for window in found]
    assert contexts == sorted(contexts)
    assert contexts[0] == pytest.approx(16 + 1.5 * stairs.level_steps)


def test_steps_in_which_requests_wait_or_are_preempted_are_left_out() -> None:
    stairs = staircase(SPACIOUS, prompt_tokens=16)
    crowded = FakeEngine(FakeEngineOptions(num_kv_blocks=60), clock=CountingClock())
    found = windows(stairs, ends_on(crowded, stairs))
    assert max(window.num_running for window in found) < 32, "two blocks for each"


def stats(num_steps: int, num_tokens: int) -> EngineStats:
    return EngineStats(num_steps=num_steps, num_tokens=num_tokens, read_s=0.1 * num_steps)
