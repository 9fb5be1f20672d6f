"""Responses of several turns on the virtual clock: environments take their time, and engines have others meanwhile."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from longshore.api.rollout import AdmissionSettings, EngineSettings, Strategy
from longshore.policy.draws import Draw
from longshore.policy.round import ResponseId
from longshore.policy.round_policy import BatchShape
from longshore.rounds.messages import EpisodeLength
from longshore.sim.choices import SearchBounds
from longshore.sim.costs import StepCost
from longshore.sim.engine import EngineShape, SimEngine, SimRequest
from longshore.sim.job import GpuPool, SimJob
from longshore.sim.lengths import LognormalEpisodes, LognormalLengths, TraceLengths
from longshore.sim.profile import DecodePoint, Profile
from longshore.sim.search import search
from longshore.sim.simulate import simulate
from tests.properties import examples
from tests.unit.sim.jobs import POOL, job, rollout

ONE = BatchShape(num_prompts=1, num_responses=1)
FOUR = BatchShape(num_prompts=1, num_responses=4)
SLOW = LognormalLengths(200, 0.3, 400, episodes=LognormalEpisodes(max_turns=8, median_s=1.0, max_s=60.0))
STEP_S = 0.01
STEPS_ONLY = Profile(
    decode=[DecodePoint(tp_size=1, num_running=1, context_tokens=tokens, step_s=STEP_S) for tokens in (0, 1_000_000)],
    prefill_tokens_per_s=1e15,
    kv_capacity_tokens={1: 1_000_000},
)
"""Decode steps take ten milliseconds, whatever runs, and prefill takes no time."""


def alike(length: EpisodeLength, shape: BatchShape, **changes: object) -> SimJob:
    """A job on one engine, whose episodes are all like this one."""
    found = job(
        lengths=TraceLengths([[length]]),
        shape=shape,
        pool=GpuPool(POOL.gpu, num_gpus=1, gpus_per_pod=1),
        trainer=replace(job().trainer, gpus_per_replica=1),
        profile=STEPS_ONLY,
    )
    return replace(found, **changes)  # type: ignore[arg-type]


def rollout_s(sim_job: SimJob) -> float:
    return simulate(sim_job, 1).steps[0].rollout_s


def test_an_episode_takes_the_time_of_its_environment_and_of_what_is_sampled() -> None:
    length = EpisodeLength(100, num_turns=4, environment_s=7.0, observed_tokens=40)
    result = simulate(alike(length, ONE), 1)
    assert result.steps[0].rollout_s == pytest.approx(7.0 + 60 * STEP_S)
    assert (result.steps[0].num_trained_tokens, result.steps[0].num_sampled_tokens) == (100, 60)
    assert result.environment_share == pytest.approx(7.0 / 7.6)


def test_environments_of_a_round_are_at_work_at_the_same_time() -> None:
    length = EpisodeLength(100, num_turns=4, environment_s=7.0)
    assert rollout_s(alike(length, FOUR)) == pytest.approx(7.0 + 100 * STEP_S)


def test_episodes_wait_for_a_place_in_a_pod() -> None:
    length = EpisodeLength(100, num_turns=4, environment_s=7.0)
    assert rollout_s(alike(length, FOUR, num_episode_places=1)) == pytest.approx(4 * (7.0 + 100 * STEP_S))


def test_an_engine_with_room_for_one_serves_others_while_an_episode_acts() -> None:
    """Three of four episodes wait for the engine at each turn, and their environments for none."""
    length = EpisodeLength(100, num_turns=4, environment_s=20.0)
    gated = rollout(Strategy.SYNCHRONOUS).model_copy(update={"admission": AdmissionSettings(max_active_per_engine=1)})
    assert rollout_s(alike(length, FOUR, rollout=gated)) == pytest.approx(20.0 + (100 + 3 * 25) * STEP_S)


def test_a_response_without_environment_takes_no_other_time_beside_episodes() -> None:
    mixed = TraceLengths([[EpisodeLength(100, 2, 30.0)], [100]])
    sim_job = alike(EpisodeLength(1, 1, 0.0), BatchShape(1, 1), lengths=mixed, num_prompts=2)
    assert sorted(step.rollout_s for step in simulate(sim_job, 2).steps) == pytest.approx([1.0, 31.0])


@st.composite
def episodes(draw: st.DrawFn) -> EpisodeLength:
    num_tokens = draw(st.integers(1, 60))
    return EpisodeLength(num_tokens, draw(st.integers(1, 9)), draw(st.floats(0, 9)), draw(st.integers(0, num_tokens)))


@settings(max_examples=examples(40), deadline=None)
@given(
    st.lists(st.lists(episodes() | st.integers(1, 60), min_size=1, max_size=3), min_size=1, max_size=6),
    st.sampled_from([Strategy.SYNCHRONOUS, Strategy.TAIL_BATCHING, Strategy.REORDER_ROLLOUT, Strategy.GROUP_PIPELINE]),
    st.none() | st.integers(1, 4),
    st.none() | st.integers(1, 3),
)
def test_whatever_episodes_are_like_batches_are_exact_and_tokens_add_up(
    responses: list[list[EpisodeLength | int]], strategy: Strategy, places: int | None, at_once: int | None
) -> None:
    chosen = rollout(strategy).model_copy(update={"admission": AdmissionSettings(max_active_per_engine=at_once)})
    sim_job = alike(EpisodeLength(1, 1, 0.0), BatchShape(3, 2), lengths=TraceLengths(responses), rollout=chosen)
    result = simulate(replace(sim_job, num_episode_places=places), 4)
    for step in result.steps:
        assert step.num_trained_samples == 6
        assert step.environments_s <= step.episodes_s + 1e-6
        assert step.num_sampled_tokens <= step.num_trained_tokens + step.num_dropped_tokens


def test_the_next_turn_computes_what_the_environment_said_and_nothing_else() -> None:
    engine = SimEngine(
        EngineShape(lambda running: StepCost(0.01, 0.0), lambda tokens: 1e-3 * tokens, 10_000, max_num_seqs=4)
    )
    response = ResponseId(Draw(0, 0), 0)

    def turn_s(total: int, kept: int) -> float:
        begin_s = ends[-1] if ends else 0.0
        engine.add([SimRequest(response, 100, total, kept)], begin_s)
        while (wake_s := engine.wake_s()) is not None:
            ends.append(wake_s)
            engine.advance()
        return ends[-1] - begin_s

    ends: list[float] = []
    assert turn_s(10, 0) == pytest.approx(0.1 + 10 * 0.01)
    assert turn_s(40, 30) == pytest.approx(0.02 + 10 * 0.01)
    engine.forget_prefixes()
    assert turn_s(60, 50) == pytest.approx(0.15 + 10 * 0.01)


def test_slow_environments_make_tail_batching_worthwhile_where_tokens_do_not() -> None:
    shape = BatchShape(num_prompts=16, num_responses=4)
    lengths, quick = SLOW, replace(SLOW, episodes=None)
    gains = []
    for chosen in (lengths, quick):
        found = search(job(lengths=chosen, shape=shape), SearchBounds(), num_rounds=90)
        gains.append(1 - found.best.cost(found.present))
    assert gains[0] > 0.2 > 0.1 > gains[1]


def test_late_episodes_begin_again_in_a_long_round_and_all_are_trained_on() -> None:
    plain, tail = (
        simulate(job(strategy, lengths=SLOW, chosen=chosen), 10)
        for strategy in (Strategy.SYNCHRONOUS, Strategy.TAIL_BATCHING)
        for chosen in [rollout(strategy).model_copy(update={"engine": EngineSettings(max_num_seqs=256)})]
    )
    assert tail.mean_step_s < 0.8 * plain.mean_step_s
    assert sum(step.num_aborted for step in tail.steps) > 0
    assert plain.environment_share is not None and plain.environment_share > 0.5
