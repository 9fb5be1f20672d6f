"""When GPUs go from sampling to training, and which."""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from longshore.api.round_status import RoundKind
from longshore.policy.length_distribution import LengthDistribution
from longshore.policy.progress import RoundProgress
from longshore.policy.scale_down import (
    NUM_HORIZONS,
    AdaptiveRule,
    Benefit,
    KeepSampling,
    MilestonePodLoad,
    Milestones,
    RolloutEngine,
    RunningRequest,
    ScaleDown,
    decide,
    pick_pods,
    pod_loads,
    projected_peak_tokens,
    rollout_load,
)


def pods(*num_gpus: int, tp_size: int = 1, capacity: int = 1_000) -> list[RolloutEngine]:
    """Pods 0, 1, ... with as many engines as their GPUs allow."""
    homes = [pod for pod, count in enumerate(num_gpus) for _ in range(count // tp_size)]
    return [RolloutEngine(number, (pod,), tp_size, capacity) for number, pod in enumerate(homes)]


def replicas(*spans: tuple[int, ...]) -> list[frozenset[int]]:
    return [frozenset(span) for span in spans]


def all_of(num_tokens: int) -> LengthDistribution:
    """Every response has this length."""
    lengths = LengthDistribution()
    lengths.add(num_tokens)
    return lengths


def on(engine: int, count: int = 1, prompt: int = 10, generated: int = 50) -> list[RunningRequest]:
    return [RunningRequest(engine, prompt, generated)] * count


PAYS = Benefit(rollout_longer_s=1.0, training_shorter_s=3.0, is_wanted=True)
FIGURES = "the step is expected to end 2 s sooner (rollout 1 s longer, training 3 s shorter)"


@dataclass(frozen=True)
class Round:
    """A round whose pods the operator may take."""

    lengths: LengthDistribution
    replicas: list[frozenset[int]]
    milestones: Milestones = field(default_factory=Milestones)
    rule: AdaptiveRule | None = field(default_factory=lambda: AdaptiveRule(PAYS))


def policy(lengths: LengthDistribution, layout: list[frozenset[int]] | None = None) -> Round:
    return Round(lengths, layout or replicas((0,), (1,)))


def at(num_finished: int, num_launched: int, *, held: int = 0, expected: int = 0) -> RoundProgress:
    return RoundProgress(RoundKind.FULL, num_launched, num_finished, num_held=held, num_expected=expected)


def look(
    this_round: Round, progress: RoundProgress, engines: list[RolloutEngine], running: list[RunningRequest]
) -> ScaleDown | KeepSampling | None:
    """What is decided at a milestone; None: it is none."""
    if not this_round.milestones.is_due(progress):
        return None
    load = rollout_load(progress, engines, running, this_round.lengths, max_response_tokens=100)
    decision = decide(progress.fraction_finished, load.pods, this_round.replicas, load.peak_tokens, this_round.rule)
    if isinstance(decision, ScaleDown):
        this_round.milestones.close()
    return decision


def checks(moments: Iterable[RoundProgress], running: list[RunningRequest]) -> list[int]:
    """Numbers of finished requests at which the policy looked."""
    scale_down, engines = policy(all_of(80)), pods(4, 4)
    return [moment.num_finished for moment in moments if look(scale_down, moment, engines, running) is not None]


def test_half_of_the_gpus_go_when_what_runs_fits_the_other_half() -> None:
    running = on(0, 12, prompt=14) + on(0, 1, prompt=12)
    decision = look(policy(all_of(80)), at(7, 20), pods(4, 4, tp_size=2), running)
    assert decision == ScaleDown((1,), f"4 of 8 GPUs to training at 35 %: projected KV peak 61 %; {FIGURES}")


def test_what_runs_must_fit_the_engines_that_stay_and_not_those_that_go() -> None:
    loads = [MilestonePodLoad(0, 4, 1_000, num_tokens=900), MilestonePodLoad(1, 4, 4_000, num_tokens=100)]
    for peak_tokens, share in ((900, 90), (1_000, 100)):
        decision = decide(0.3, loads, replicas((0,), (1,)), peak_tokens, AdaptiveRule(PAYS))
        assert isinstance(decision, ScaleDown) == (share <= 90)
        assert f"projected KV peak {share} %" in decision.reason


@pytest.mark.parametrize(
    ("benefit", "why"),
    [
        (None, "every pod samples in the first step of a job, which tells what repurposing would change"),
        (
            Benefit(2.5, 0.42, is_wanted=False),
            "the step is expected to end 2.1 s later (rollout 2.5 s longer, training 0.42 s shorter)",
        ),
        (
            Benefit(1.0, 20.0, is_wanted=False),
            "the step is expected to end 19 s sooner (rollout 1 s longer, training 20 s shorter), but earlier "
            "repurposing cost more than was expected",
        ),
    ],
    ids=["nothing is known", "it costs", "it has cost"],
)
def test_every_pod_stays_where_repurposing_is_not_wanted(benefit: Benefit | None, why: str) -> None:
    unwanted = replace(policy(all_of(80)), rule=AdaptiveRule(benefit))
    assert look(unwanted, at(7, 20), pods(4, 4), on(0, 13)) == KeepSampling(why)


def test_a_fixed_trigger_asks_for_no_benefit() -> None:
    decision = look(replace(policy(all_of(80)), rule=None), at(7, 20), pods(4, 4), on(0, 13))
    assert decision == ScaleDown((1,), "4 of 8 GPUs to training at 35 %: projected KV peak 29 %")


def test_every_pod_stays_while_what_runs_would_not_fit() -> None:
    decision = look(policy(all_of(80)), at(7, 20), pods(2, 2), on(0, 19, prompt=20))
    assert decision == KeepSampling("projected KV peak 95 % is over 90 % at 35 %")


def test_it_looks_from_20_to_50_percent_when_another_5_percent_have_finished() -> None:
    too_much = on(0, 100)
    assert checks([at(number, 20) for number in range(1, 21)], too_much) == [4, 5, 6, 7, 8, 9, 10]
    finished = [19, 20, 24, 25, 29, 31, 35, 36, 50, 51, 60]
    assert checks([at(number, 100) for number in finished], too_much) == [20, 25, 31, 36, 50]
    assert checks([at(number, 100) for number in (10, 49, 52)], too_much) == [49]
    assert checks([at(51, 100)], too_much) == []
    assert checks([at(0, 0)], []) == []


def test_it_does_not_look_while_a_gate_holds_requests_back() -> None:
    """Then it looks until half of those have finished that nothing followed."""
    gated = [at(10, 40, held=60), at(40, 70, held=30), at(60, 90, held=10), at(70, 100), at(72, 100), at(80, 100)]
    assert checks([*gated, at(81, 100)], on(0, 100)) == [70, 80]


def test_requests_that_are_expected_count_like_those_that_were_launched() -> None:
    assert checks([at(20, 80, expected=40), at(24, 100, expected=20)], on(0, 100)) == [24]
    decision = look(policy(all_of(80)), at(4, 16, expected=4), pods(2, 2), on(0, 12, prompt=20))
    assert decision == ScaleDown((1,), f"2 of 4 GPUs to training at 20 %: projected KV peak 70 %; {FIGURES}")


def test_a_fixed_share_is_one_of_the_groups_of_the_batch() -> None:
    """RollPacker, Table 3: completed prompts."""
    milestones = Milestones(fixed_share=0.5)
    moments = [
        RoundProgress(RoundKind.FULL, 40, num_finished, num_held=held, num_accepted=num_accepted, num_groups=4)
        for num_finished, held, num_accepted in [(30, 0, 1), (31, 2, 2), (32, 0, 2), (40, 0, 4)]
    ]
    assert [milestones.is_due(moment) for moment in moments] == [False, False, True, False]


def test_a_round_repurposes_once() -> None:
    assert checks([at(number, 100) for number in (20, 25, 30)], on(0)) == [20]


def test_a_trainer_that_spans_more_than_half_stays_whole() -> None:
    decision = look(policy(all_of(80), replicas((0, 1, 2, 3))), at(5, 20), pods(8, 8, 8, 8), on(0))
    assert decision == KeepSampling("no set of whole pods with a trainer replica fits in half of the GPUs")


@pytest.mark.parametrize(
    ("num_gpus", "layout", "busy_engines", "picked"),
    [
        ((1, 1, 1, 1), [(0,), (1,), (2,), (3,)], [0, 2], (1, 3)),
        ((1, 1, 1, 1), [(0,), (1,), (2,), (3,)], [], (0, 1)),
        ((1, 1, 1, 1), [(0, 1), (2, 3)], [0], (2, 3)),
        ((1, 1, 1, 1), [(0, 2), (1, 3)], [0], (1, 3)),
        ((1, 1, 1, 1), [(0, 1), (1, 2), (3,)], [3], (3,)),
        ((1, 1, 1, 1), [(0,), (1,)], [0, 1], (0, 1)),
        ((1, 1, 1, 1), [(0, 9), (3,)], [3], (3,)),
        ((1, 1, 1), [(0,), (1,), (2,)], [0, 1], (2,)),
        ((2, 2), [(0,), (0,), (1,), (1,)], [0], (1,)),
        ((4, 2, 2), [(0,), (1,), (2,)], [0], (1, 2)),
        ((2, 1, 1), [(0,), (1,), (2,)], [0, 3], (1, 2)),
        ((1, 3), [(0,), (1,)], [0], (0,)),
        ((1, 1), [], [], ()),
        ((2,), [(0,), (0,)], [], ()),
    ],
)
def test_whole_pods_and_whole_replicas_with_the_fewest_running_tokens_go(
    num_gpus: tuple[int, ...], layout: list[tuple[int, ...]], busy_engines: list[int], picked: tuple[int, ...]
) -> None:
    running = [request for engine in busy_engines for request in on(engine)]
    assert pick_pods(pod_loads(pods(*num_gpus), running), replicas(*layout)) == picked


def test_the_cheapest_migration_counts_tokens_and_not_requests() -> None:
    running = on(0, count=1, generated=90) + on(1, count=3, generated=10)
    assert pick_pods(pod_loads(pods(1, 1), running), replicas((0,), (1,))) == (1,)


def test_the_peak_is_where_most_tokens_are_held() -> None:
    """One of two lengths: at 60 tokens half of the requests end, and the other half goes on to 90."""
    lengths = LengthDistribution()
    lengths.extend([60, 90])
    assert projected_peak_tokens(on(0, 10, prompt=0), lengths, 100) == pytest.approx(10 * 60)
    assert projected_peak_tokens(on(0, 10, prompt=0, generated=60), lengths, 100) == pytest.approx(10 * 90)


def test_without_any_history_responses_may_run_to_their_limit() -> None:
    assert projected_peak_tokens(on(0, 3, prompt=10), LengthDistribution(), 100) == pytest.approx(3 * 110)


requests = st.lists(
    st.builds(RunningRequest, st.integers(0, 3), st.integers(0, 50), st.integers(0, 299)), min_size=1, max_size=12
)


@settings(deadline=None)
@given(requests, st.lists(st.integers(1, 300), max_size=30))
def test_the_projection_bounds_the_expected_peak_from_above_and_closely(
    running: list[RunningRequest], known: list[int]
) -> None:
    lengths = LengthDistribution()
    lengths.extend(known)

    def alive(request: RunningRequest, more: int) -> float:
        longer = [length for length in known if length > request.generated_tokens]
        if request.generated_tokens + more >= 300:
            return 0.0
        return sum(length > request.generated_tokens + more for length in longer) / len(longer) if longer else 1.0

    exact = max(
        sum(alive(one, more) * (one.prompt_tokens + one.generated_tokens + more) for one in running)
        for more in range(300)
    )
    projected = projected_peak_tokens(running, lengths, 300)
    assert exact <= projected + 1e-6
    assert projected <= exact + len(running) * (300 / NUM_HORIZONS + 1)


@settings(deadline=None)
@given(
    st.lists(st.integers(1, 8), min_size=1, max_size=6),
    st.lists(st.frozensets(st.integers(0, 6), min_size=1, max_size=3), max_size=6),
    st.lists(st.integers(0, 200), max_size=20),
)
def test_what_goes_is_at_most_half_and_splits_no_replica(
    num_gpus: list[int], layout: list[frozenset[int]], placed: list[int]
) -> None:
    engines = pods(*num_gpus)
    running = [RunningRequest(engines[at % len(engines)].number, at, at) for at in placed]
    picked = pick_pods(pod_loads(engines, running), layout)
    assert sum(num_gpus[pod] for pod in picked) <= sum(num_gpus) / 2
    assert all(replica <= set(picked) or not replica & set(picked) for replica in layout)
    assert all(any(pod in replica for replica in layout) for pod in picked)
    assert pick_pods(pod_loads(engines, running)[::-1], layout[::-1]) == picked
