"""How many requests an engine is given at once."""

from itertools import count

from hypothesis import given, settings
from hypothesis import strategies as st

from longshore.policy.engine_load import SHRINK_ABOVE_KV_USAGE, ConcurrencyLimit, EngineLoad

seconds = count()
loads = st.builds(
    EngineLoad,
    st.integers(0, 300),
    st.integers(0, 300),
    st.floats(0, 1),
    st.integers(0, 5) | st.integers(0, 10_000),
    st.floats(0, 60),
)


def busy(
    num_running: int, kv_usage: float, num_preemptions: int = 0, num_waiting: int = 0, at_s: float | None = None
) -> EngineLoad:
    """A second after the one before, unless stated otherwise."""
    return EngineLoad(num_running, num_waiting, kv_usage, num_preemptions, next(seconds) if at_s is None else at_s)


def test_an_engine_starts_with_a_quarter_and_grows_by_a_sixteenth_if_cache_is_free() -> None:
    limit = ConcurrencyLimit(max_num_seqs=32)
    assert limit.total([0]) == 8
    assert [limit.observed(0, busy(running, 0.1)) for running in (8, 10, 12)] == [10, 12, 14]


def test_a_limit_grows_once_a_second_however_often_an_engine_reports_its_load() -> None:
    limit = ConcurrencyLimit(max_num_seqs=32)
    times = (5.0, 5.0, 5.4, 5.9, 6.0, 6.5, 7.0)
    assert [limit.observed(0, busy(32, 0.1, at_s=at_s)) for at_s in times] == [10, 10, 10, 10, 12, 12, 14]
    assert limit.observed(0, busy(32, 0.1, at_s=0.3)) == 16, "the clock of an engine that was restarted"
    assert limit.observed(1, busy(32, 0.1, at_s=0.3)) == 10, "another engine"


def test_a_limit_falls_at_once() -> None:
    limit = ConcurrencyLimit(max_num_seqs=32)
    assert limit.observed(0, busy(8, 0.1, at_s=5.0)) == 10
    assert limit.observed(0, busy(10, 0.99, at_s=5.1)) == 7


def test_a_limit_that_is_not_used_does_not_grow() -> None:
    limit = ConcurrencyLimit(max_num_seqs=32)
    assert limit.observed(0, busy(num_running=7, kv_usage=0.1)) == 8
    assert limit.observed(0, busy(num_running=5, kv_usage=0.1, num_waiting=3)) == 10


def test_a_step_that_would_not_fit_the_cache_is_cut() -> None:
    limit = ConcurrencyLimit(max_num_seqs=64)
    assert limit.observed(0, busy(num_running=16, kv_usage=0.75)) == 17
    assert limit.observed(0, busy(num_running=17, kv_usage=0.79)) == 17


def test_preemptions_and_a_full_cache_take_a_quarter_of_what_runs() -> None:
    limit = ConcurrencyLimit(max_num_seqs=64)
    assert limit.observed(0, busy(16, 0.9, num_preemptions=3)) == 12
    assert limit.observed(0, busy(12, 0.96, num_preemptions=3)) == 9


def test_the_same_overload_seen_twice_shrinks_once() -> None:
    limit = ConcurrencyLimit(max_num_seqs=64)
    assert [limit.observed(0, busy(16, 1.0, num_preemptions=number)) for number in (1, 2, 3)] == [12, 12, 12]


def test_an_engine_that_preempted_all_it_ran_gives_up_a_quarter_of_its_limit() -> None:
    assert ConcurrencyLimit(max_num_seqs=64).observed(0, busy(0, 0.0, num_preemptions=1, num_waiting=9)) == 12


def test_engines_have_limits_of_their_own() -> None:
    limit = ConcurrencyLimit(max_num_seqs=64)
    limit.observed(0, busy(16, 1.0, num_preemptions=1))
    limit.observed(1, busy(16, 0.2))
    assert limit.total([0, 1]) == 12 + 20
    assert limit.total([0, 1, 2]) == 12 + 20 + 16
    assert limit.total([]) == 0


def test_a_restored_limit_is_not_larger_than_engines_take_by_now() -> None:
    before, after = ConcurrencyLimit(max_num_seqs=64), ConcurrencyLimit(max_num_seqs=8)
    before.observed(0, busy(16, 0.2))
    before.observed(1, busy(4, 1.0))
    after.load_state(before.export_state())
    assert (after.of(0), after.of(1)) == (8, 3)


def test_an_engine_that_was_lost_starts_from_the_beginning() -> None:
    limit = ConcurrencyLimit(max_num_seqs=64)
    limit.observed(0, busy(16, 1.0, num_preemptions=7))
    limit.lost(0)
    assert limit.total([0]) == 16
    assert limit.observed(0, busy(16, 0.9)) == 16


@settings(deadline=None)
@given(st.integers(1, 100), st.lists(st.tuples(st.integers(0, 2), loads), max_size=60))
def test_limits_stay_within_bounds_and_follow_from_the_events_alone(
    max_num_seqs: int, events: list[tuple[int, EngineLoad]]
) -> None:
    one, other = ConcurrencyLimit(max_num_seqs), ConcurrencyLimit(max_num_seqs)
    for engine, load in events:
        limit = one.observed(engine, load)
        assert 1 <= limit <= max_num_seqs
        assert other.observed(engine, load) == limit


@settings(deadline=None)
@given(st.integers(1, 200), st.floats(1, 300), st.lists(loads, max_size=20))
def test_under_steady_requests_the_limit_comes_to_rest_without_preemptions(
    max_num_seqs: int, fitting: float, before: list[EngineLoad]
) -> None:
    """The cache holds `fitting` requests; an engine that is given more preempts some of them at every step."""
    limit = ConcurrencyLimit(max_num_seqs)
    current = limit.total([0])
    num_preemptions = 0
    for load in before:
        current = limit.observed(0, load)
        num_preemptions = load.num_preemptions
    seen = []
    for number in range(80):
        running = min(current, int(fitting))
        num_preemptions += current - running
        load = EngineLoad(running, current - running, running / fitting, num_preemptions, at_s=100.0 + number)
        current = limit.observed(0, load)
        seen.append(current)
    assert len(set(seen[-40:])) == 1
    assert current <= fitting
    if current > 1:
        assert current / fitting <= SHRINK_ABOVE_KV_USAGE
    assert current >= min(max_num_seqs, int(0.6 * fitting) // 2)
