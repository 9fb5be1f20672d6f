"""Whether handing pods over pays: what it costs is bounded, and what it gains is not missed."""

import json
import random
from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from longshore.api.round_status import RoundKind
from longshore.policy.benefit_gate import EARNED_SHARE, MAX_BALANCE, BenefitGate, GatePrior
from longshore.policy.decode_rate import DecodeRate, DecodeSteps
from tests.properties import examples
from tests.unit.policy.gated_rounds import LEAVING, LOAD, NUM_ENGINES, REPLICAS, Played, World, never_s, play

GPU = World(base_s=0.01, per_request_s=1e-5, tokens_per_s=500.0)
"""A decode step takes as long for twice the requests, and training is worth overlapping."""
CPU = World(base_s=1e-4, per_request_s=0.01, tokens_per_s=20_000.0)
"""It takes twice as long, and training takes no time."""


def rounds(num_rounds: int, seed: int = 0) -> list[list[int]]:
    """Lengths of long-tailed rounds."""
    draw = random.Random(seed)
    return [[max(2, round(draw.lognormvariate(3.5, 1.0))) for _ in range(32)] for _ in range(num_rounds)]


def played(world: World, lengths: list[list[int]], gate: BenefitGate | None = None) -> list[Played]:
    gate = gate or BenefitGate()
    return [play(world, gate, of) for of in lengths]


def test_all_pods_sample_in_the_first_step_and_each_further_kind_tries_a_repurposing() -> None:
    gate = BenefitGate()
    gate.begin_round(1)
    assert gate.expect(RoundKind.LONG, LOAD, REPLICAS) is None
    kinds = (RoundKind.SHORT, RoundKind.LONG)
    first, second = (play(GPU, gate, of, kind) for of, kind in zip(rounds(2), kinds, strict=True))
    assert not first.has_repurposed
    assert second.has_repurposed
    assert second.benefit is not None and second.benefit.is_trial and second.benefit.rollout_longer_s is None


def prior(world: World) -> GatePrior:
    """A profile of it."""
    rate = DecodeRate()
    for num_running in (1, 4, 32):
        rate.add(DecodeSteps(1, num_running, 0.0), world.step_s(num_running))
    return GatePrior({1: rate}, world.tokens_per_s)


@pytest.mark.parametrize(("world", "pays"), [(GPU, True), (CPU, False)])
def test_with_a_profile_the_first_step_decides_too(world: World, pays: bool) -> None:
    steps = played(world, rounds(5), BenefitGate(prior(world)))
    assert [step.has_repurposed for step in steps] == [pays] * 5
    assert steps[0].benefit is not None and steps[0].benefit.is_wanted is pays


def pays_by_profile(picked: set[int], tokens_per_request: int = 0) -> bool | None:
    """Whether it pays on engines whose decode steps get a hundred times longer as the KV cache fills."""
    rate = DecodeRate()
    for num_running, usage in ((1, 0.0), (4, 0.0), (1, 1.0), (4, 1.0)):
        rate.add(DecodeSteps(1, num_running, usage), 0.01 * (1 + 99 * usage))
    pods = tuple(replace(pod, num_tokens=tokens_per_request) for pod in LOAD.pods)
    running = Counter(dict.fromkeys(range(NUM_ENGINES), 1))
    return GatePrior({1: rate}, 100.0).pays(1, replace(LOAD, pods=pods), picked, len(picked), NUM_ENGINES, running)


def test_by_a_profile_contexts_of_requests_that_move_slow_the_engines_that_stay() -> None:
    assert pays_by_profile({0, 1}, tokens_per_request=0)
    assert not pays_by_profile({0, 1}, tokens_per_request=400)


def test_by_a_profile_nothing_pays_where_no_engine_stays() -> None:
    assert pays_by_profile(set(range(NUM_ENGINES))) is None


def test_a_profile_that_says_nothing_of_engines_of_this_size_is_as_none() -> None:
    gate = BenefitGate(GatePrior({2: prior(GPU).rates[1]}, GPU.tokens_per_s))
    assert [step.has_repurposed for step in played(GPU, rounds(3), gate)] == [False, True, True]


def test_what_was_measured_prevails_over_a_profile_that_is_wrong() -> None:
    steps = played(CPU, rounds(10), BenefitGate(prior(GPU)))
    assert steps[0].has_repurposed
    assert not any(step.has_repurposed for step in steps[1:])


def test_where_every_gradient_is_done_in_time_more_replicas_gain_nothing() -> None:
    """A step that takes a tenth longer costs more than gradients gain that take a hundredth of it."""
    quick = World(base_s=0.01, per_request_s=1e-4, tokens_per_s=100_000.0)
    slow = World(base_s=0.01, per_request_s=1e-4, tokens_per_s=500.0)
    for world, pays in ((quick, False), (slow, True)):
        first, *_ = played(world, rounds(1), BenefitGate(prior(world)))
        assert first.has_repurposed is pays


def test_where_it_pays_every_later_round_repurposes() -> None:
    lengths = rounds(20)
    steps = played(GPU, lengths)
    assert [step.has_repurposed for step in steps] == [False, *[True] * 19]
    assert all(step.step_s < never_s(GPU, of) for step, of in zip(steps[1:], lengths[1:], strict=True))


@settings(max_examples=examples(15), deadline=None)
@given(st.builds(World, st.floats(1e-3, 0.05), st.floats(0.0, 0.01), st.just(1_000.0)), st.integers(0, 1_000))
def test_what_a_repurposing_saved_follows_from_a_replay_without_it(world: World, seed: int) -> None:
    """The truth is the same step played with all engines."""
    lengths = rounds(2, seed)
    _, step = played(world, lengths)
    assert step.has_repurposed or (step.benefit is not None and not step.benefit.is_wanted)
    if step.has_repurposed:
        truth_s = never_s(world, lengths[1]) - step.step_s
        assert step.saved_s == pytest.approx(truth_s, abs=0.03 * step.step_s)


def test_where_it_costs_the_forecast_says_so_after_one_step_and_is_right() -> None:
    steps = played(CPU, rounds(10))
    assert not any(step.has_repurposed for step in steps)
    benefit = steps[-1].benefit
    assert benefit is not None and benefit.rollout_longer_s is not None and benefit.training_shorter_s is not None
    assert benefit.rollout_longer_s > 5 * benefit.training_shorter_s > 0


def test_a_price_that_only_a_repurposing_shows_is_learned_from_one() -> None:
    """Trainers that slow the engines beside them down cannot be foreseen."""
    steps = played(World(0.01, 1e-5, 1_000.0, contention=1.5), rounds(12))
    assert [step.has_repurposed for step in steps[:3]] == [False, True, False]
    benefit = steps[2].benefit
    assert benefit is not None and benefit.rollout_longer_s is not None and benefit.rollout_longer_s > 0.1


def test_engines_that_become_slower_are_noticed_although_every_round_repurposes() -> None:
    gate, lengths = BenefitGate(), rounds(10)
    played(GPU, lengths[:6], gate)
    slower = World(2 * GPU.base_s, 2 * GPU.per_request_s, GPU.tokens_per_s)
    for of, step in zip(lengths[6:], played(slower, lengths[6:], gate), strict=True):
        assert step.has_repurposed
        assert step.saved_s == pytest.approx(never_s(slower, of) - step.step_s, abs=0.03 * step.step_s)


def test_engines_in_pods_that_would_leave_are_replayed_as_leaving() -> None:
    gate = BenefitGate()
    pace = gate.begin_round(tp_size=1)
    gate.expect(RoundKind.LONG, LOAD, REPLICAS)
    assert pace.leaving == frozenset(LEAVING)


def test_it_is_tried_again_now_and_then_and_returns_when_it_pays() -> None:
    slowed, lengths = World(0.01, 1e-5, 500.0, contention=1.5), rounds(120)
    gate = BenefitGate()
    before = played(slowed, lengths[:60], gate)
    assert 1 <= sum(step.has_repurposed for step in before[2:]) <= 6
    after = played(GPU, lengths[60:], gate)
    assert sum(step.has_repurposed for step in after[-20:]) == 20


def test_a_repurposing_that_shows_nothing_is_not_tried_over_and_over() -> None:
    """Rounds that lose an engine cannot be compared with anything."""
    gate, lengths = BenefitGate(), rounds(6)
    play(GPU, gate, lengths[0], RoundKind.SHORT)
    disturbed = [play(GPU, gate, of, loses_engine=True) for of in lengths[1:4]]
    assert [step.has_repurposed for step in disturbed] == [True, False, False]
    assert [step.has_repurposed for step in played(GPU, lengths[4:], gate)] == [False, True]


WORLDS = st.builds(
    World,
    base_s=st.floats(1e-4, 0.05),
    per_request_s=st.floats(0.0, 0.02),
    tokens_per_s=st.floats(100.0, 20_000.0),
    wake_s=st.floats(0.0, 5.0),
    contention=st.floats(1.0, 3.0),
)


@settings(max_examples=examples(25), deadline=None)
@given(WORLDS, st.integers(0, 1_000))
def test_what_repurposing_costs_is_bounded_whatever_the_hardware(world: World, seed: int) -> None:
    """They cost a share of the job's time at most, and one repurposing; earlier gains pay for a part of a step."""
    lengths = rounds(40, seed)
    never = [never_s(world, of) for of in lengths]
    steps = [step.step_s for step in played(world, lengths)]
    lost = [with_gate - without for with_gate, without in zip(steps, never, strict=True)]
    tolerance = 0.02 * sum(steps)  # Of what the gate measures, by replaying rounds.
    assert sum(lost) <= EARNED_SHARE * sum(steps) + max(lost) + tolerance
    worst = max(sum(lost[begin:]) for begin in range(len(lost)))
    assert worst <= EARNED_SHARE * sum(steps) + (MAX_BALANCE + 1) * max(steps) + tolerance


@pytest.mark.parametrize("world", [GPU, CPU, World(0.01, 1e-3, 1_000.0, contention=1.3)])
def test_a_restored_gate_goes_on_as_if_nothing_had_happened(world: World) -> None:
    lengths = rounds(16)
    gate, restored = BenefitGate(), BenefitGate()
    played(world, lengths[:8], gate)
    restored.load_state(json.loads(json.dumps(gate.export_state())))
    assert played(world, lengths[8:], restored) == played(world, lengths[8:], gate)
