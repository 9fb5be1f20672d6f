"""Whole jobs on the virtual clock."""

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from longshore.api.rollout import AdmissionSettings, EngineSettings, Strategy
from longshore.api.round_status import RoundKind
from longshore.policy.engine_load import ConcurrencyLimit, EngineLoad
from longshore.policy.round_policy import BatchShape
from longshore.sim.hardware import GPUS
from longshore.sim.job import GpuPool, Rewards, SimJob, TrainerLayout, Training
from longshore.sim.lengths import Accuracy, TraceLengths
from longshore.sim.profile import DecodePoint, Profile
from longshore.sim.result import GpuSpan, SimResult, Work
from longshore.sim.rewards import CodeRewards, MathsRewards, Scoring
from longshore.sim.simulate import simulate
from tests.properties import examples
from tests.unit.sim.jobs import IN_TURNS, LENGTHS, SHAPE, job, rollout

STREAMED = TrainerLayout(Training.STREAMED, gpus_per_replica=2)
PIPELINED = TrainerLayout(Training.PIPELINED, GpuPool(GPUS["RTX4090"], 8), gpus_per_replica=4, groups_per_update=2)
AFTERWARDS = replace(PIPELINED, training=Training.AFTER_ROUND)

jobs = st.builds(
    job,
    st.sampled_from(Strategy),
    shape=st.builds(BatchShape, st.sampled_from([2, 4, 6]), st.integers(2, 4)),
    trainer=st.sampled_from([TrainerLayout(gpus_per_replica=2), STREAMED, PIPELINED, AFTERWARDS]),
    accuracy=st.builds(Accuracy, st.just(0.5), st.sampled_from([0.1, 1.0])),
    rewards=st.sampled_from([Rewards(), Rewards(CodeRewards(), num_workers=4)]),
    dynamic_sampling=st.booleans(),
)


def spans_by_gpu(result: SimResult) -> dict[int, list[GpuSpan]]:
    gpus: dict[int, list[GpuSpan]] = {gpu: [] for gpu in range(result.num_gpus)}
    for span in sorted(result.spans, key=lambda span: span.start_s):
        gpus[span.gpu].append(span)
    return gpus


@settings(max_examples=examples(40), deadline=None)
@given(jobs)
def test_batches_are_exact_and_no_gpu_does_two_things_at_once(sim_job: SimJob) -> None:
    result = simulate(sim_job, 3)
    for step in result.steps:
        assert step.num_trained_samples == sim_job.shape.num_prompts * sim_job.shape.num_responses
        assert 0 <= step.bubble_share <= 1
        assert 0 <= step.first_dispatch_s <= step.rollout_to_train_end_s
    for spans in spans_by_gpu(result).values():
        assert all(before.end_s <= after.start_s + 1e-9 for before, after in pairwise(spans))
    busy_s = sum(span.end_s - span.start_s for span in result.spans)
    assert busy_s == pytest.approx((1 - result.bubble_share) * result.num_gpus * result.total_s)
    assert [step.start_s for step in result.steps[1:]] == pytest.approx(
        [step.start_s + step.step_s for step in result.steps[:-1]]
    )


@settings(max_examples=examples(30), deadline=None)
@given(jobs)
def test_no_token_appears_or_disappears(sim_job: SimJob) -> None:
    result = simulate(sim_job, 3)
    trained_here = sum(step.num_trained_tokens for step in result.steps)
    sampled, dropped = (
        sum(getattr(step, name) for step in result.steps) for name in ("num_sampled_tokens", "num_dropped_tokens")
    )
    if sim_job.rollout.keeps_tokens:
        assert sampled >= trained_here + dropped
    else:
        assert sampled == trained_here + dropped
        assert all(step.num_stale_tokens == 0 for step in result.steps)


@settings(max_examples=examples(20), deadline=None)
@given(jobs)
def test_a_round_lasts_at_least_as_long_as_its_longest_response_alone(sim_job: SimJob) -> None:
    if sim_job.rollout.keeps_tokens:
        return
    base_s = sim_job.engine_costs.decode_step(1, 1).base_s
    for step in simulate(sim_job, 2).steps:
        assert step.rollout_s >= step.max_response_tokens * base_s


def test_eta_one_is_the_synchronous_baseline() -> None:
    plain = simulate(job(Strategy.SYNCHRONOUS), 4)
    eta_one = simulate(job(chosen=rollout(Strategy.TAIL_BATCHING, eta=1.0)), 4)
    assert [replace(step, kind=RoundKind.FULL) for step in eta_one.steps] == list(plain.steps)


def test_tail_batching_shortens_steps_and_trains_on_what_the_baseline_trains_on() -> None:
    plain = simulate(job(Strategy.SYNCHRONOUS), 10)
    packed = simulate(job(Strategy.TAIL_BATCHING), 10)
    assert [step.kind for step in packed.steps[:5]] == [RoundKind.SHORT] * 4 + [RoundKind.LONG]
    assert packed.mean_step_s < plain.mean_step_s
    assert packed.bubble_share < plain.bubble_share
    assert plain.selection_bias == 0
    assert plain.length_bias == 0
    assert abs(packed.selection_bias) < 0.15


def test_partial_rollout_trains_on_tokens_of_older_weights_and_drops_none() -> None:
    result = simulate(job(Strategy.PARTIAL_ROLLOUT), 6)
    assert result.steps[0].num_stale_tokens == 0
    assert 0 < result.off_policy_share < 1
    assert sum(step.num_dropped_tokens for step in result.steps) == 0


def test_pipelining_starts_the_trainer_early_and_changes_none_of_its_work() -> None:
    serial = simulate(job(trainer=AFTERWARDS), 2).steps[0]
    pipelined = simulate(job(trainer=PIPELINED), 2).steps[0]
    assert pipelined.first_dispatch_s < serial.first_dispatch_s / 2
    assert pipelined.trainer_waiting_ratio < serial.trainer_waiting_ratio
    assert pipelined.rollout_to_train_end_s < serial.rollout_to_train_end_s
    assert pipelined.trainer_compute_s == pytest.approx(serial.trainer_compute_s, rel=0.01)


def test_a_frontier_delivers_the_first_update_earlier() -> None:
    crowded = GpuPool(GPUS["A100-40"], 1, 1)
    engine = {"engine": EngineSettings(max_num_seqs=64)}
    narrow, unordered = (
        rollout(Strategy.GROUP_PIPELINE).model_copy(
            update=engine | {"admission": AdmissionSettings(frontier_width=width)}
        )
        for width in (2, SHAPE.num_prompts)
    )
    similar = TraceLengths([[200 + row % 7] * 4 for row in range(64)])
    frontier, everything = (
        simulate(job(chosen=chosen, trainer=PIPELINED, pool=crowded, lengths=similar), 1).steps[0]
        for chosen in (narrow, unordered)
    )
    assert frontier.first_dispatch_s < everything.first_dispatch_s
    assert frontier.num_launched == everything.num_launched


def test_repurposed_gpus_stream_gradients_while_the_rest_goes_on_sampling() -> None:
    long_rounds = replace(LENGTHS, tail_share=0.2)
    streamed = simulate(job(trainer=STREAMED, lengths=long_rounds), 4)
    plain = simulate(job(lengths=long_rounds), 4)
    step = streamed.steps[-1]
    assert len(step.scale_downs) == 1
    assert "4 of 8 GPUs to training" in step.scale_downs[0]
    early = [
        span
        for span in streamed.spans
        if span.work is Work.TRAINING and step.start_s < span.end_s < step.start_s + step.rollout_s
    ]
    assert len({span.gpu for span in early}) == 4
    assert [step.num_trained_tokens for step in streamed.steps] == [step.num_trained_tokens for step in plain.steps]
    assert step.train_s < plain.steps[-1].train_s


def cpu(per_request_s: float, train_tokens_per_s: float) -> Profile:
    """Decode steps take longer for every request."""
    points = [
        DecodePoint(tp_size=1, num_running=count, context_tokens=tokens, step_s=1e-3 + per_request_s * count)
        for count in (1, 64)
        for tokens in (100 * count, 1_000 * count)
    ]
    return Profile(decode=points, train_tokens_per_s=train_tokens_per_s, kv_capacity_tokens={1: 60_000})


@pytest.mark.parametrize(
    ("profile", "pays"),
    [
        (Profile(), True),
        (Profile(train_tokens_per_s=2_000), True),
        (Profile(to_training_s=30.0), True),
        (cpu(1e-3, 2_000), None),
        (cpu(1e-3, 20_000), False),
        (cpu(1e-2, 20_000), False),
    ],
    ids=["H800", "slow training", "slow repurposing", "it hardly matters", "slow batches", "slower batches"],
)
@pytest.mark.parametrize(
    "strategy", [pytest.param(Strategy.SYNCHRONOUS, marks=pytest.mark.soak), Strategy.TAIL_BATCHING]
)
def test_the_benefit_gate_repurposes_where_that_pays_and_loses_little_elsewhere(
    strategy: Strategy, profile: Profile, pays: bool | None
) -> None:
    streamed, plain = (
        simulate(job(strategy, trainer=trainer, profile=profile), 15, keeps_spans=False)
        for trainer in (STREAMED, IN_TURNS)
    )
    num_repurposed = sum(bool(step.scale_downs) for step in streamed.steps)
    assert streamed.mean_step_s <= 1.03 * plain.mean_step_s
    if pays:
        assert streamed.mean_step_s < plain.mean_step_s
        assert num_repurposed >= 12
    elif pays is False:
        assert num_repurposed <= 5


def test_migrated_requests_lose_no_token_and_finish_elsewhere() -> None:
    streamed = simulate(job(trainer=STREAMED), 4)
    assert any(step.scale_downs for step in streamed.steps)
    for step in streamed.steps:
        assert step.num_sampled_tokens == step.num_trained_tokens
        assert step.num_launched == step.num_trained_samples


def test_what_was_being_stopped_when_its_engine_left_does_not_go_on_elsewhere() -> None:
    """Every fifth response is one that the race drops, at the very moment at which GPUs go to the trainer."""
    raced = TraceLengths([[100 + row] * 4 + [3_000] for row in range(64)])
    trainer = replace(STREAMED, scale_down_at=0.25)
    step = simulate(job(Strategy.TAIL_BATCHING, lengths=raced, trainer=trainer), 1).steps[0]
    assert step.scale_downs
    assert step.reward_wait_s < 1


@pytest.mark.parametrize("admission", [AdmissionSettings(max_active_per_engine=2), AdmissionSettings(frontier_width=4)])
def test_a_gated_round_is_not_made_longer_by_scaling_down(admission: AdmissionSettings) -> None:
    gated = rollout(Strategy.SYNCHRONOUS).model_copy(update={"admission": admission})
    plain, streamed = (simulate(job(chosen=gated, trainer=trainer), 6) for trainer in (IN_TURNS, STREAMED))
    assert streamed.steps[-1].scale_downs
    assert streamed.mean_step_s <= plain.mean_step_s


def test_a_fixed_trigger_frees_gpus_once_per_round_when_its_share_is_served() -> None:
    for share in (0.25, 0.75):
        result = simulate(job(trainer=replace(STREAMED, scale_down_at=share)), 3)
        assert all(len(step.scale_downs) == 1 for step in result.steps)
        assert all("4 of 8 GPUs to training" in step.scale_downs[0] for step in result.steps)
    early, late = (
        simulate(job(trainer=replace(STREAMED, scale_down_at=share)), 3).steps[0].first_dispatch_s
        for share in (0.25, 0.75)
    )
    assert early < late


def test_rounds_of_several_updates_train_afterwards_with_all_gpus() -> None:
    divided = frozenset({Training.STREAMED, Training.AFTER_ROUND})
    trainer = replace(STREAMED, scale_down_at=0.25, divided_in=divided)
    streamed, plain = (
        simulate(job(Strategy.TAIL_BATCHING, trainer=one), 10)
        for one in (trainer, replace(IN_TURNS, divided_in=divided))
    )
    is_short = [step.kind is RoundKind.SHORT for step in plain.steps]
    assert [bool(step.scale_downs) for step in streamed.steps] == is_short
    long, other = ([step for step in run.steps if step.kind is RoundKind.LONG] for run in (streamed, plain))
    assert long
    assert [step.train_s for step in long] == pytest.approx([step.train_s for step in other])


def test_responses_are_scored_as_they_finish_and_not_when_their_group_is_served() -> None:
    slow_verifier = Rewards(MathsRewards(5.0), num_workers=64)
    spread = TraceLengths([[100, 500, 900, 1300]] * 16)
    step = simulate(job(rewards=slow_verifier, lengths=spread), 1).steps[0]
    assert step.reward_wait_s == pytest.approx(5.0)


def test_rewards_that_wait_for_the_round_make_the_step_longer() -> None:
    code = Rewards(CodeRewards(), num_workers=8)
    at_once = simulate(job(rewards=code), 2)
    afterwards = simulate(job(rewards=replace(code, while_rolling_out=False)), 2)
    assert [step.rollout_s for step in at_once.steps] == pytest.approx([step.rollout_s for step in afterwards.steps])
    assert at_once.mean_step_s < afterwards.mean_step_s


class _ShortestHangs:
    """A verifier that hangs over the response of each prompt that ends first."""

    def reward_s(self, scoring: Scoring, limit_s: float | None) -> float:
        return 300.0 if scoring.num_tokens < 100 else 0.001


@pytest.mark.parametrize("trainer", [IN_TURNS, STREAMED])
def test_a_response_whose_verifier_hangs_loses_a_race_that_scores_decide(trainer: TrainerLayout) -> None:
    lengths = TraceLengths([[60, 200, 200, 200, 200]])
    racing = job(Strategy.TAIL_BATCHING, lengths=lengths, trainer=trainer, rewards=Rewards(_ShortestHangs()))
    decided = replace(racing, rewards=replace(racing.rewards, decide_races=True))
    by_end, by_score = (simulate(one, 1).steps[0] for one in (racing, decided))
    assert by_end.reward_wait_s > 200
    assert by_score.step_s < 100
    assert by_score.num_trained_samples == by_end.num_trained_samples == SHAPE.num_prompts * SHAPE.num_responses


@settings(max_examples=examples(20), deadline=None)
@given(jobs)
def test_scores_that_come_at_once_decide_races_as_ends_do(sim_job: SimJob) -> None:
    at_once = replace(sim_job, rewards=Rewards(MathsRewards(0.0)))
    decided = replace(at_once, rewards=replace(at_once.rewards, decide_races=True))
    ends, scores = (simulate(one, 3).steps for one in (at_once, decided))
    assert [step.rollout_s for step in scores] == pytest.approx([step.rollout_s for step in ends], rel=0.05)
    assert [step.num_trained_samples for step in scores] == [step.num_trained_samples for step in ends]


def test_dynamic_sampling_leaves_no_group_without_variance_in_a_batch() -> None:
    accuracy = Accuracy(0.5, spread=2.0)
    result = simulate(job(accuracy=accuracy, dynamic_sampling=True), 3)
    for step in result.steps:
        assert step.num_zero_variance > 0
        assert step.num_launched == (SHAPE.num_prompts + step.num_zero_variance) * SHAPE.num_responses
        assert 0 < step.num_correct < step.num_trained_samples


def test_the_planner_doubles_the_engines_of_rounds_that_preempt_more_and_more() -> None:
    growing = TraceLengths([[100 * (1 + row // 100)] * 4 for row in range(400)])
    profile = Profile(kv_capacity_tokens={1: 3_000, 2: 14_000}, regroup_s=33)
    sim_job = job(lengths=growing, profile=profile, plans_parallelism=True, pool=GpuPool(GPUS["H800"], 2, 2))
    sim_job = replace(sim_job, shape=BatchShape(25, 4), num_prompts=400)
    steps = simulate(replace(sim_job, trainer=TrainerLayout()), 16).steps
    changed = next((index for index, step in enumerate(steps) if step.tp_size == 2), None)
    assert changed is not None and changed > 0
    assert steps[changed - 1].num_preemptions > steps[changed].num_preemptions
    assert steps[changed].rollout_s > 33


def test_no_gpu_leaves_a_round_that_has_its_batch() -> None:
    """The gate holds requests back until the cut-off, and a job refuses to hand pods over after it."""
    gated = rollout(Strategy.TAIL_BATCHING).model_copy(update={"admission": AdmissionSettings(max_active_per_engine=4)})
    steps = simulate(job(chosen=gated, shape=BatchShape(16, 8), trainer=STREAMED), 2).steps
    assert [step.scale_downs for step in steps] == [(), ()]


def test_adaptive_admission_ends_preemption() -> None:
    profile = Profile(kv_capacity_tokens={1: 6_000})
    chosen = rollout(Strategy.SYNCHRONOUS).model_copy(update={"engine": EngineSettings(max_num_seqs=64)})
    adaptive = chosen.model_copy(update={"admission": AdmissionSettings(adaptive=True)})
    pool, shape = GpuPool(GPUS["H800"], 2, 2), BatchShape(32, 4)
    plain = simulate(job(chosen=chosen, profile=profile, pool=pool, shape=shape), 2)
    limited = simulate(job(chosen=adaptive, profile=profile, pool=pool, shape=shape), 2)
    assert sum(step.num_preemptions for step in limited.steps) < sum(step.num_preemptions for step in plain.steps)


def test_engines_report_their_load_with_the_responses_that_leave_them_as_in_a_job(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    reported_s: list[float] = []
    observed = ConcurrencyLimit.observed

    def listening(self: ConcurrencyLimit, engine: int, load: EngineLoad) -> int:
        reported_s.append(load.at_s)
        return observed(self, engine, load)

    monkeypatch.setattr(ConcurrencyLimit, "observed", listening)
    adaptive = rollout(Strategy.SYNCHRONOUS).model_copy(update={"admission": AdmissionSettings(adaptive=True)})
    step = simulate(job(chosen=adaptive, lengths=TraceLengths([[2_000] * 4] * 16)), 1).steps[0]
    assert min(reported_s) > step.rollout_s / 4, "nothing leaves before it has all of its 2,000 tokens"


def test_measured_costs_make_up_the_step() -> None:
    profile = Profile(optimizer_s=0, publish_s=7, to_training_s=11, to_rollout_s=13, train_tokens_per_s=1e12)
    step = simulate(job(profile=profile), 1).steps[0]
    assert step.train_s == pytest.approx(11, abs=1e-3)
    assert step.publish_s == pytest.approx(7 + 13)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"trainer": TrainerLayout(Training.PIPELINED)}, "needs GPUs of its own"),
        ({"trainer": replace(PIPELINED, training=Training.STREAMED)}, "cannot have its own"),
        ({"trainer": replace(STREAMED, groups_per_update=2)}, "promptsPerUpdate"),
        ({"trainer": TrainerLayout(gpus_per_replica=3)}, "do not fill 8 GPUs"),
        ({"dynamic_sampling": True, "rewards": Rewards(while_rolling_out=False)}, "dynamicSampling"),
        ({"pool": GpuPool(GPUS["H800"], 8, 4), "tp_size": 3}, "must divide the 4 GPUs of a pod"),
    ],
)
def test_jobs_that_cannot_be_are_refused(changes: dict[str, object], message: str) -> None:
    tp_size = changes.pop("tp_size", 1)
    chosen = rollout(Strategy.SYNCHRONOUS).model_copy(update={"engine": EngineSettings(tensor_parallel_size=tp_size)})
    with pytest.raises(ValueError, match=message):
        job(chosen=chosen, **changes)  # type: ignore[arg-type]
