"""Tensor-parallel sizes that follow the preemptions of each kind of round."""

import json
from collections.abc import Iterable, Mapping, Sequence
from itertools import cycle, islice
from math import log2

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from longshore.api.round_status import RoundKind
from longshore.policy.parallelism_planner import ParallelismPlanner, Regroup, RolloutProfile, best_sizes

SHORT, LONG, FULL = RoundKind.SHORT, RoundKind.LONG, RoundKind.FULL
SIZES = (1, 2, 4, 8)
PERIOD = (SHORT, SHORT, SHORT, SHORT, LONG)
events = st.lists(st.tuples(st.sampled_from((SHORT, LONG)), st.just(0) | st.integers(0, 400)), max_size=120)


def planner(
    short: int = 1,
    long: int = 1,
    *,
    allowed: Sequence[int] = SIZES,
    profile: RolloutProfile | None = None,
    profiled_preemptions: Mapping[RoundKind, float] | None = None,
) -> ParallelismPlanner:
    sizes = {SHORT: short, LONG: long}
    return ParallelismPlanner(sizes, allowed, profile, profiled_preemptions, PERIOD)


def feed(plan: ParallelismPlanner, kind: RoundKind, counts: Iterable[int]) -> list[int]:
    """Sizes after each of these rounds."""
    sizes = []
    for count in counts:
        plan.round_ended(kind, count)
        sizes.append(plan.tp_size(kind))
    return sizes


def run(plan: ParallelismPlanner, load: Mapping[RoundKind, Mapping[int, int]], kinds: Iterable[RoundKind]) -> list[int]:
    """Sizes of these rounds, of which each preempts as `load` says for its kind and size."""
    sizes = []
    for kind in kinds:
        sizes.append(plan.tp_size(kind))
        plan.round_ended(kind, load[kind][sizes[-1]])
    return sizes


def test_short_rounds_that_preempt_far_more_settle_at_a_larger_size_than_long_ones() -> None:
    load = {SHORT: {1: 179, 2: 141}, LONG: {1: 100, 2: 90}}
    plan = planner(profiled_preemptions={SHORT: 100, LONG: 100})
    assert run(plan, load, PERIOD * 8) == [1, 2, 2, 2, 1] + [2, 2, 2, 2, 1] * 7


def test_a_period_of_growing_load_ends_in_a_fixed_point() -> None:
    """Preemptions by step, as responses grow for two periods and then stay as they are."""
    growth = [1.0, 1.1, 1.2, 1.3, 1.4, 1.5, 1.6, 1.7, 1.8, 1.9]
    plan = planner(allowed=(1, 2, 4))
    sizes = []
    for step, kind in enumerate(islice(cycle(PERIOD), 25)):
        sizes.append(plan.tp_size(kind))
        base = 500 if kind is SHORT else 30
        plan.round_ended(kind, int(base * growth[min(step, 9)] * 0.8 ** log2(sizes[-1])))
    assert [sizes[at : at + 5] for at in range(0, 25, 5)] == [
        [1, 1, 2, 2, 1],
        [4, 4, 4, 4, 1],
        [4, 4, 4, 4, 2],
        [4, 4, 4, 4, 2],
        [4, 4, 4, 4, 2],
    ]


@pytest.mark.parametrize(
    ("counts", "sizes"),
    [
        ([100, 105, 107, 111], [1, 1, 1, 2]),
        ([100, 100, 400], [1, 1, 2]),
        ([100, 90, 80, 120], [1, 1, 1, 2]),
        ([100, 103, 106, 109], [1, 1, 1, 2]),
        ([0, 19, 0, 19], [1, 1, 1, 1]),
        ([0, 20], [1, 2]),
        ([5_000], [1]),
    ],
)
def test_a_rise_over_the_median_of_recent_rounds_doubles(counts: list[int], sizes: list[int]) -> None:
    assert feed(planner(), SHORT, counts) == sizes


def test_the_reference_is_of_the_present_size_only() -> None:
    assert feed(planner(), SHORT, [100, 200, 1_000, 1_000, 1_051]) == [1, 2, 2, 2, 4]


def test_four_rounds_without_preemption_halve() -> None:
    assert feed(planner(short=4), SHORT, [0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0]) == [4] * 7 + [2] * 4 + [1]


def test_kinds_share_neither_zero_rounds_nor_references() -> None:
    plan = planner(short=2, long=2)
    assert run(plan, {SHORT: {2: 0}, LONG: {2: 0}}, [SHORT, SHORT, SHORT, LONG]) == [2, 2, 2, 2]
    assert (plan.tp_size(SHORT), plan.tp_size(LONG)) == (2, 2)
    plan = planner()
    feed(plan, LONG, [30, 30, 30])
    assert feed(plan, SHORT, [179, 179]) == [1, 1]


def test_a_long_round_with_preemptions_does_not_end_the_zero_rounds_of_short_ones() -> None:
    plan = planner(short=2)
    load = {SHORT: {2: 0, 1: 0}, LONG: {1: 50}}
    assert run(plan, load, [SHORT, SHORT, LONG, SHORT, SHORT, LONG, SHORT]) == [2, 2, 1, 2, 2, 1, 1]


@pytest.mark.parametrize("allowed", [SIZES, (1, 2)])
def test_engines_have_no_size_that_is_not_allowed(allowed: Sequence[int]) -> None:
    assert feed(planner(allowed=allowed), SHORT, [100 * 2**number for number in range(24)])[-1] == max(allowed)


def test_a_size_whose_engines_do_not_start_is_left_alone_for_cool_downs_that_double() -> None:
    plan = planner(short=2, long=4)
    tried_after = []
    for number in range(60):
        plan.round_ended(SHORT, 0)
        if plan.tp_size(SHORT) == 1:
            tried_after.append(number + 1)
            assert plan.refused(1, actual=2) == (SHORT,)
            plan = reloaded(plan)
        assert plan.tp_size(LONG) == 4
    assert tried_after == [4, 12, 28, 60]


def reloaded(plan: ParallelismPlanner) -> ParallelismPlanner:
    """As after a restart of the operator."""
    copy = planner()
    copy.load_state(json.loads(json.dumps(plan.export_state())))
    return copy


def test_a_halving_that_fails_is_tried_again_after_cool_downs_that_double() -> None:
    plan = planner(short=2)
    sizes = run(plan, {SHORT: {1: 200, 2: 0}}, [SHORT] * 140)
    assert [number for number, size in enumerate(sizes, start=1) if size == 1] == [5, 14, 31, 64, 129]


def test_a_size_that_was_left_by_doubling_is_not_taken_again_at_once() -> None:
    assert feed(planner(), SHORT, [50, 100] + [0] * 8) == [1] + [2] * 8 + [1]


def profile(
    switch_s: float, short: Mapping[int, float], long: Mapping[int, float], preemption_s: float = 0.0
) -> RolloutProfile:
    return RolloutProfile(switch_s, preemption_s, {SHORT: short, LONG: long})


def test_an_overload_that_lasts_doubles_the_size_although_nothing_rises() -> None:
    """Every round of 400 requests preempts 50,000 times, as the first one did."""
    plan = planner(allowed=(1, 2, 4))
    found = [plan.round_ended(SHORT, 50_000, 400) for _ in range(12)]
    doubled = {number: regroup.tp_size for number, regroup in enumerate(found, 1) if regroup}
    assert doubled == {4: 2, 8: 4}
    assert found[3] == Regroup(
        (SHORT,),
        2,
        "tensor-parallel size 1 to 2: 50000 preemptions of 400 requests in the last of 4 overloaded Short rounds",
    )
    assert plan.tp_size(LONG) == 1


@pytest.mark.parametrize(
    "rounds",
    [[(199, 400)] * 9, [(50_000, 0)] * 9, [(19, 20)] * 9, [(200, 400), (200, 400), (200, 400), (0, 400)] * 3],
    ids=["few", "requests unknown", "too few to count", "not in a row"],
)
def test_what_is_no_lasting_overload_changes_nothing(rounds: list[tuple[int, int]]) -> None:
    plan = planner()
    assert {plan.round_ended(SHORT, *counts) for counts in rounds} == {None}


def test_with_a_profile_a_lasting_overload_must_be_worth_the_change() -> None:
    figures = RolloutProfile(1.0, 0.0, {FULL: {1: 100.0, 2: 110.0}})
    plan = ParallelismPlanner({FULL: 1}, (1, 2), figures)
    assert {plan.round_ended(FULL, 50_000, 400) for _ in range(9)} == {None}


@pytest.mark.parametrize(
    ("switch_s", "preemptions", "sizes"),
    [
        (10.0, {}, (2, 1)),
        (100.0, {}, (1, 1)),
        (10.0, {LONG: {1: 900.0, 2: 0.0}}, (2, 2)),
        (10_000.0, {LONG: {1: 900.0, 2: 0.0}}, (1, 1)),
    ],
)
def test_the_sizes_to_begin_with_are_the_best_by_the_profile(
    switch_s: float, preemptions: Mapping[RoundKind, Mapping[int, float]], sizes: tuple[int, int]
) -> None:
    """Short rounds gain 40 s each and long ones lose 30 s, four to one; 900 preemptions take 90 s."""
    rounds = {SHORT: {1: 100.0, 2: 60.0}, LONG: {1: 200.0, 2: 400.0}}
    figures = RolloutProfile(switch_s, 0.5, rounds, preemptions)
    best = best_sizes(figures, {SHORT: 1, LONG: 1}, (1, 2), PERIOD)
    assert (best[SHORT], best[LONG]) == sizes


@pytest.mark.parametrize(("switch_s", "size"), [(39.0, 2), (41.0, 1)])
def test_with_a_profile_a_change_must_earn_its_cost_within_twenty_rounds(switch_s: float, size: int) -> None:
    figures = RolloutProfile(switch_s, 0.0, {FULL: {1: 100.0, 2: 98.0}})
    plan = ParallelismPlanner({FULL: 1}, (1, 2), figures)
    assert feed(plan, FULL, [50, 100]) == [1, size]


@pytest.mark.parametrize(("preemption_s", "size"), [(0.0, 1), (0.05, 1), (0.2, 2)])
def test_with_a_profile_fewer_preemptions_must_be_worth_the_slower_rounds(preemption_s: float, size: int) -> None:
    """A fifth of 500 preemptions saved each round: 5 s or 20 s, for 10 s of communication."""
    figures = RolloutProfile(1.0, preemption_s, {FULL: {1: 100.0, 2: 110.0}})
    plan = ParallelismPlanner({FULL: 1}, (1, 2), figures, {FULL: 400})
    assert feed(plan, FULL, [500, 500, 500, 500]) == [size] * 4


@pytest.mark.parametrize(
    ("switch_s", "long_at_2", "kinds"),
    [
        (5.0, 150.0, (SHORT,)),
        (15.0, 105.0, (SHORT, LONG)),
        (30.0, 105.0, (SHORT, LONG)),
        (30.0, 150.0, None),
    ],
)
def test_kinds_stay_alike_where_regrouping_in_each_period_costs_more_than_it_brings(
    switch_s: float, long_at_2: float, kinds: tuple[RoundKind, ...] | None
) -> None:
    """Short rounds gain 10 s each, sixteen times in twenty rounds; eight regroups lie between the kinds."""
    plan = planner(
        allowed=(1, 2),
        profile=profile(switch_s, short={1: 100.0, 2: 90.0}, long={1: 100.0, 2: long_at_2}),
        profiled_preemptions={SHORT: 100, LONG: 100},
    )
    regroup = plan.round_ended(SHORT, 200)
    assert (regroup.kinds if regroup else None) == kinds


def test_a_rise_in_one_kind_makes_no_other_kind_smaller() -> None:
    """Short rounds at 1, long ones at 4: two for both would be cheapest by the profile."""
    times = {1: 100.0, 2: 90.0, 4: 200.0}
    plan = planner(long=4, allowed=(1, 2, 4), profile=profile(50.0, times, times))
    feed(plan, SHORT, [100, 200])
    assert (plan.tp_size(SHORT), plan.tp_size(LONG)) == (2, 4)


def test_with_a_profile_a_failed_halving_is_undone_as_the_larger_size_is_better() -> None:
    """20 s of preemptions for 5 s of communication; that doubling takes a fifth of them away would not pay."""
    figures = RolloutProfile(10.0, 0.1, {FULL: {1: 95.0, 2: 100.0}})
    plan = ParallelismPlanner({FULL: 2}, (1, 2), figures)
    assert feed(plan, FULL, [0, 0, 0, 0, 200, 0]) == [2, 2, 2, 1, 2, 2]


@settings(deadline=None)
@given(events)
def test_a_kind_goes_its_own_way_whatever_other_kinds_do(rounds: list[tuple[RoundKind, int]]) -> None:
    both = planner(short=2, long=2)
    alone = {kind: planner(short=2, long=2) for kind in (SHORT, LONG)}
    for kind, count in rounds:
        assert both.round_ended(kind, count) == alone[kind].round_ended(kind, count)
        assert all(both.tp_size(other) == alone[other].tp_size(other) for other in alone)


@settings(deadline=None)
@given(events, st.sampled_from([0.0, 5.0, None]))
def test_the_number_of_changes_grows_with_the_logarithm_of_the_rounds(
    rounds: list[tuple[RoundKind, int]], switch_s: float | None
) -> None:
    times = {1: 100.0, 2: 90.0, 4: 95.0, 8: 110.0}
    plan = planner(short=2, long=2, profile=None if switch_s is None else profile(switch_s, times, times, 0.2))
    num_doublings = {SHORT: 0, LONG: 0}
    num_halvings = 0
    for kind, count in rounds:
        before = plan.tp_size(kind)
        if plan.round_ended(kind, count) is not None:
            grew = plan.tp_size(kind) > before
            num_doublings[kind] += grew
            num_halvings += not grew
        assert {plan.tp_size(SHORT), plan.tp_size(LONG)} <= set(SIZES)
    for kind, doublings in num_doublings.items():
        num_rounds = sum(of is kind for of, _ in rounds)
        assert doublings <= 3 * (1 + log2(1 + num_rounds / 8))
    assert num_halvings <= 6 * sum(num_doublings.values()) + 2


@settings(deadline=None)
@given(st.lists(st.integers(1, 1_000), min_size=4, max_size=4), st.lists(st.integers(1, 1_000), min_size=4, max_size=4))
def test_a_load_that_stays_the_same_has_a_fixed_point(short: list[int], long: list[int]) -> None:
    load = {
        SHORT: dict(zip(SIZES, sorted(short, reverse=True), strict=True)),
        LONG: dict(zip(SIZES, sorted(long, reverse=True), strict=True)),
    }
    sizes = run(planner(profiled_preemptions={SHORT: 100, LONG: 100}), load, PERIOD * 20)
    assert sizes[5:] == sizes[5:10] * 19


@settings(deadline=None)
@given(events, events, st.booleans())
def test_a_restored_planner_continues_as_if_never_stopped(
    before: list[tuple[RoundKind, int]], after: list[tuple[RoundKind, int]], with_profile: bool
) -> None:
    times = {1: 100.0, 2: 90.0, 4: 95.0, 8: 110.0}
    figures = profile(5.0, times, times, 0.2) if with_profile else None
    whole, restored = planner(short=4, profile=figures), planner(short=4, profile=figures)
    for kind, count in before:
        whole.round_ended(kind, count)
    restored.load_state(json.loads(json.dumps(whole.export_state())))
    for kind, count in after:
        assert whole.round_ended(kind, count) == restored.round_ended(kind, count)
    assert restored.export_state() == whole.export_state()


def test_a_size_that_is_possible_no_longer_starts_again_from_the_default() -> None:
    plan = planner(short=8, long=2)
    feed(plan, LONG, [50, 100])
    restored = planner(short=2, long=2, allowed=(1, 2, 4))
    restored.load_state(plan.export_state())
    assert (restored.tp_size(SHORT), restored.tp_size(LONG)) == (2, 4)
