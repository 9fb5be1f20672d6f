"""Time limits that follow what correct responses need."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from longshore.policy.adaptive_timeout import MAX_CONTENTION, AdaptiveTimeout, CaseRun


def run(case: int, seconds: float, contention: float = 1.0) -> CaseRun:
    """A run that only computes."""
    return CaseRun(case, wall_s=seconds * contention, cpu_s=seconds)


def sleeping(case: int, seconds: float) -> CaseRun:
    """A run that only waits."""
    return CaseRun(case, wall_s=seconds, cpu_s=0.01)


cut_off = CaseRun(0, wall_s=30.0, cpu_s=30.0, timed_out=True)
runs = st.builds(CaseRun, st.integers(0, 3), st.floats(0.01, 60), st.floats(0, 60))
tested = st.lists(st.tuples(st.integers(0, 6), st.lists(runs, min_size=1, max_size=4), st.booleans()), max_size=30)


@pytest.mark.parametrize(
    ("anchor_s", "limit_s"),
    [(0.1, 2.0), (1.0, 2.0), (4 / 3, 2.0), (2.0, 3.0), (10.0, 15.0), (20.0, 30.0), (25.0, 30.0)],
)
def test_the_limit_is_lambda_times_the_anchor_between_its_bounds(anchor_s: float, limit_s: float) -> None:
    timeout = AdaptiveTimeout()
    timeout.response_tested(7, [run(0, anchor_s)], passed_all=True)
    assert timeout.limit(7, 0).idle_s == pytest.approx(limit_s)
    assert timeout.limit(7, 0).wall_s == pytest.approx(limit_s)


def test_a_prompt_that_nobody_has_solved_keeps_the_longest_limit() -> None:
    timeout = AdaptiveTimeout()
    timeout.response_tested(7, [run(0, 0.1), run(1, 0.1)], passed_all=False)
    assert timeout.limit(7, 0).idle_s == 30.0
    timeout.response_tested(7, [run(0, 0.1), run(1, 4.0)], passed_all=True)
    assert [timeout.limit(7, case).idle_s for case in (0, 1, 2)] == [2.0, 6.0, 30.0]
    assert timeout.limit(8, 0).idle_s == 30.0


def test_the_anchor_is_the_slowest_correct_response() -> None:
    timeout = AdaptiveTimeout()
    for seconds in (4.0, 8.0, 6.0):
        timeout.response_tested(7, [run(0, seconds)], passed_all=True)
    timeout.response_tested(7, [run(0, 11.9)], passed_all=False)
    assert timeout.anchor_s(7, 0) == 8.0


def test_a_run_that_was_cut_off_never_moves_an_anchor() -> None:
    timeout = AdaptiveTimeout()
    timeout.response_tested(7, [cut_off], passed_all=False)
    assert timeout.anchor_s(7, 0) is None
    with pytest.raises(AssertionError, match="a run that was cut off did not pass"):
        timeout.response_tested(7, [cut_off], passed_all=True)


def test_wall_limits_stretch_with_the_contention_and_anchors_do_not() -> None:
    timeout = AdaptiveTimeout()
    timeout.response_tested(7, [run(0, 4.0)], passed_all=True)
    for number in range(100):
        timeout.response_tested(number % 3, [run(0, 1.0, contention=2.5)], passed_all=False)
    assert timeout.contention == 2.5
    timeout.response_tested(7, [run(0, 4.0, contention=2.5)], passed_all=True)
    assert timeout.anchor_s(7, 0) == 4.0
    assert (timeout.limit(7, 0).idle_s, timeout.limit(7, 0).wall_s) == (6.0, 15.0)


SLEEPS = CaseRun(0, wall_s=20.0, cpu_s=0.2)


@pytest.mark.parametrize("first", [0, 500])
def test_five_programs_that_sleep_through_many_test_cases_are_outvoted(first: int) -> None:
    """Whenever they come, and whether or not their prompts are different ones."""
    timeout = AdaptiveTimeout()
    for number in range(1_005):
        sleeps = first <= number < first + 5
        timeout.response_tested(number % 50, [SLEEPS] * 100 if sleeps else [run(0, 1.0)], passed_all=False)
        assert timeout.contention == 1.0


def test_prompts_whose_programs_all_sleep_are_outvoted_by_the_others() -> None:
    timeout = AdaptiveTimeout()
    for number in range(1_000):
        prompt = number % 5
        timeout.response_tested(prompt, [SLEEPS if prompt < 2 else run(0, 1.0)], passed_all=False)
        assert timeout.contention == 1.0


def test_contention_is_that_of_the_test_case_and_the_response_that_waited_least() -> None:
    """A response is judged by such a test case, and a prompt by such a response."""
    timeout = AdaptiveTimeout()
    for number in range(100):
        runs = [run(0, 1.0, contention=2.0), SLEEPS] if number < 50 else [SLEEPS]
        timeout.response_tested(number % 3, runs, passed_all=False)
    assert timeout.contention == 2.0


@pytest.mark.parametrize("seconds", [0.2, 5.0])
def test_contention_is_wall_time_per_cpu_time(seconds: float) -> None:
    timeout = AdaptiveTimeout()
    for number in range(100):
        timeout.response_tested(number % 3, [run(0, seconds, contention=2.0)], passed_all=False)
    assert timeout.contention == 2.0


def test_contention_is_bounded_and_forgotten_when_it_is_over() -> None:
    timeout = AdaptiveTimeout()
    for number in range(32):
        assert timeout.contention == 1.0
        timeout.response_tested(number % 3, [run(0, 1.0, contention=50.0)], passed_all=False)
    assert timeout.contention == MAX_CONTENTION
    for number in range(32):
        timeout.response_tested(number % 3, [run(0, 1.0)], passed_all=False)
    assert timeout.contention == 1.0


def test_a_correct_program_that_waits_is_given_its_time() -> None:
    timeout = AdaptiveTimeout()
    timeout.response_tested(7, [sleeping(0, 6.0)], passed_all=True)
    assert timeout.limit(7, 0).idle_s == 9.0


def test_the_prompt_that_was_longest_without_a_correct_response_is_forgotten() -> None:
    timeout = AdaptiveTimeout(capacity=2)
    for prompt in (1, 2, 1, 3):
        timeout.response_tested(prompt, [run(0, 4.0)], passed_all=True)
    assert [timeout.anchor_s(prompt, 0) for prompt in (1, 2, 3)] == [4.0, None, 4.0]


@settings(deadline=None)
@given(tested)
def test_limits_keep_to_their_bounds_and_anchors_never_fall(
    events: list[tuple[int, list[CaseRun], bool]],
) -> None:
    timeout, before = AdaptiveTimeout(), {}
    for prompt, case_runs, passed in events:
        timeout.response_tested(prompt, case_runs, passed_all=passed)
        for key in [(prompt, case) for prompt in range(7) for case in range(4)]:
            limit, anchor = timeout.limit(*key), timeout.anchor_s(*key)
            assert 2.0 <= limit.idle_s <= 30.0
            assert limit.idle_s <= limit.wall_s <= MAX_CONTENTION * limit.idle_s
            assert (anchor or 0.0) >= before.get(key, 0.0)
            before[key] = anchor or 0.0


@settings(deadline=None)
@given(st.floats(0.1, 20.0), st.floats(1.0, MAX_CONTENTION), st.floats(1.0, MAX_CONTENTION))
def test_a_program_that_was_correct_once_is_not_cut_off_however_busy_the_machine_is(
    seconds: float, when_learned: float, when_run: float
) -> None:
    timeout = AdaptiveTimeout()
    timeout.response_tested(7, [run(0, seconds, when_learned)], passed_all=True)
    for number in range(100):
        timeout.response_tested(number % 3, [run(0, 1.0, when_run)], passed_all=False)
    assert run(0, seconds, when_run).wall_s < timeout.limit(7, 0).wall_s


@settings(deadline=None)
@given(tested, tested, st.integers(1, 4))
def test_a_restored_policy_continues_as_if_never_stopped(
    before: list[tuple[int, list[CaseRun], bool]], after: list[tuple[int, list[CaseRun], bool]], capacity: int
) -> None:
    def test(timeout: AdaptiveTimeout, events: list[tuple[int, list[CaseRun], bool]]) -> None:
        for prompt, case_runs, passed in events:
            timeout.response_tested(prompt, case_runs, passed_all=passed)

    whole, restored = AdaptiveTimeout(capacity=capacity), AdaptiveTimeout(capacity=capacity)
    test(whole, before)
    state = json.loads(json.dumps(whole.export_state()))
    assert len(state["anchors"]) <= capacity
    restored.load_state(state)
    test(whole, after)
    test(restored, after)
    assert restored.export_state() == whole.export_state()
