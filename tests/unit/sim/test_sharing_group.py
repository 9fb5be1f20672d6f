"""Jobs that share GPUs on the virtual clock: what a job lends, who waits for whom, and who may share with whom."""

from dataclasses import replace
from statistics import fmean

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from longshore.policy.sharing_group import SharingGroup, refusal
from longshore.sim.job import TrainerLayout, Training
from longshore.sim.lengths import LognormalLengths
from longshore.sim.sharing_group import REPORT_S, SLEEP_S, MemberResult, SharedJob, SharedStep, run_group, shared_job
from longshore.sim.sharing_mix import packed, run_mix
from longshore.sim.simulate import simulate
from tests.properties import examples
from tests.unit.sim.jobs import job

LONG_TAIL = LognormalLengths.from_quantiles(200, 400, 8_192)
SHARING = replace(job(lengths=LONG_TAIL), num_own_gpus=2)
SWITCH_S = SLEEP_S + 4 * REPORT_S
"""From the need of GPUs that another member does not use until they are there."""


def shared(name: str, *steps: tuple[float, float], num_gpus: int = 16, host_bytes: float = 1.0) -> SharedJob:
    """Alone, its steps would take as long; it keeps a quarter of its GPUs."""
    alone_s = fmean(map(sum, steps))
    return SharedJob(name, num_gpus, num_gpus // 4, host_bytes, alone_s, tuple(SharedStep(*step) for step in steps))


def together(*jobs: SharedJob) -> dict[str, MemberResult]:
    group = SharingGroup(10**15)
    for each in jobs:
        group = group.joined(each.member(["slot"], 99.0))
    return {result.name: result for result in run_group(group, {each.name: each for each in jobs})}


# What a job lends -----------------------------------------------------------------------------------------------------


def test_a_job_needs_the_shared_gpus_for_a_part_of_its_step() -> None:
    found = shared_job("job", SHARING, num_steps=6)
    assert len(found.steps) == 6
    assert all(step.apart_s > 0.2 * (step.shared_s + step.apart_s) for step in found.steps)


def test_a_step_begins_with_the_training_of_the_step_before() -> None:
    first, *middle, last = simulate(SHARING, 7, keeps_spans=False).steps
    trained_s = sum(step.train_s + step.publish_s for step in (first, *middle))
    sampled_s = sum(step.rollout_s + step.reward_wait_s for step in (*middle, last))
    steps = shared_job("job", SHARING, num_steps=6).steps
    assert sum(step.shared_s + step.apart_s for step in steps) == pytest.approx(trained_s + sampled_s)
    assert all(step.shared_s > before.train_s for step, before in zip(steps, (first, *middle), strict=True))


def test_a_job_that_shares_trains_on_what_it_would_train_on_alone() -> None:
    alone, sharing = (simulate(each, 6, keeps_spans=False) for each in (replace(SHARING, num_own_gpus=None), SHARING))
    assert [step.num_trained_tokens for step in sharing.steps] == [step.num_trained_tokens for step in alone.steps]
    assert [step.num_correct for step in sharing.steps] == [step.num_correct for step in alone.steps]
    assert sharing.mean_step_s >= alone.mean_step_s


def test_no_engine_on_shared_gpus_works_from_the_moment_on_at_which_they_are_free() -> None:
    result = simulate(SHARING, 6)
    assert SHARING.num_own_gpus is not None
    for step in result.steps:
        assert step.until_free_s is not None
        free_s, complete_s = step.start_s + step.until_free_s, step.start_s + step.rollout_s + step.reward_wait_s
        assert complete_s > free_s
        assert not [
            span
            for span in result.spans
            if span.gpu >= SHARING.num_own_gpus and span.start_s < complete_s - 1e-6 and span.end_s > free_s + 1e-6
        ]


@pytest.mark.parametrize("num_own_gpus", [0, 8, 12])
def test_a_job_shares_some_of_its_gpus_and_keeps_some(num_own_gpus: int) -> None:
    with pytest.raises(ValueError, match="it shares some"):
        replace(SHARING, num_own_gpus=num_own_gpus)


def test_a_job_that_streams_into_its_trainer_does_not_share() -> None:
    with pytest.raises(ValueError, match="trains after the round"):
        replace(SHARING, trainer=TrainerLayout(Training.STREAMED, gpus_per_replica=2))


def test_a_job_says_how_long_its_steps_and_its_longest_turn_take_switches_included() -> None:
    member = shared("a", (10.0, 30.0), (20.0, 40.0)).member(["slot"], 1.5)
    assert (member.alone_s, member.step_s, member.turn_s) == (50.0, 50.0 + 2.0, 20.0 + 2.0)


# Who waits for whom ---------------------------------------------------------------------------------------------------


def test_a_member_whose_turn_nobody_wants_keeps_the_gpus() -> None:
    result = together(shared("a", *[(10.0, 10.0)] * 10))["a"]
    assert result.step_s * 10 == pytest.approx(10 * 20 + 2 * REPORT_S)


def test_turns_that_fit_into_each_others_tails_cost_little_more_than_the_switches() -> None:
    results = together(shared("a", *[(10.0, 30.0)] * 10), shared("b", *[(10.0, 30.0)] * 10))
    assert results["a"].longest_wait_s == pytest.approx(SWITCH_S)
    assert all(result.step_s <= 40 + 10 / 10 + SWITCH_S + 1e-9 for result in results.values())


def test_members_that_always_need_the_gpus_take_turns() -> None:
    """No two use the GPUs at once, so each step waits for a turn of each other member."""
    results = together(*(shared(name, *[(10.0, 0.5)] * 20) for name in "abc"))
    assert all(result.step_s >= 3 * 10 + SLEEP_S for result in results.values())


def test_a_wait_is_no_longer_than_one_turn_of_each_other_member() -> None:
    jobs = [shared("a", *[(10.0, 5.0)] * 20), shared("b", *[(20.0, 7.0)] * 20), shared("c", *[(40.0, 11.0)] * 20)]
    waits_s = {name: result.longest_wait_s for name, result in together(*jobs).items()}
    assert waits_s["a"] <= 20 + 40 + 3 * SWITCH_S
    assert waits_s["c"] <= 10 + 20 + 3 * SWITCH_S
    assert waits_s["a"] > 40


@given(
    durations=st.lists(
        st.lists(st.tuples(st.floats(1, 40), st.floats(0.1, 90)), min_size=1, max_size=4), min_size=2, max_size=5
    ),
    max_slowdown=st.floats(1.1, 2.5),
)
@settings(max_examples=examples(60))
def test_every_member_that_is_let_in_stays_within_its_limit(
    durations: list[list[tuple[float, float]]], max_slowdown: float
) -> None:
    """Whatever its turns and those of the others; the first of its turns has no step before it."""
    group, jobs = SharingGroup(10**15), {}
    for number, steps in enumerate(durations):
        one = shared(f"job-{number}", *steps * (40 // len(steps)))
        member = one.member(["slot"], max_slowdown)
        if refusal(group, member) is None:
            group, jobs[one.name] = group.joined(member), one
    assume(len(jobs) > 1)
    once_s = sum(member.turn_s for member in group.members)
    for result in run_group(group, jobs):
        one = jobs[result.name]
        assert result.step_s <= max_slowdown * one.alone_s + once_s / len(one.steps)


# Who may share with whom ----------------------------------------------------------------------------------------------


def test_a_job_alone_shares_nothing() -> None:
    result = run_mix([shared("a", (10.0, 30.0))], 1.5)
    assert (result.num_gpus, result.gain, result.max_slowdown) == (16, 1.0, 1.0)


def test_two_jobs_with_tails_need_fewer_gpus() -> None:
    """Of 16 GPUs each, twelve are common."""
    result = run_mix([shared(name, *[(100.0, 300.0)] * 5) for name in "ab"], 1.5)
    assert (result.num_gpus_alone, result.num_gpus, result.num_groups) == (32, 4 + 4 + 12, 1)
    assert result.gain == pytest.approx(sum(16 / member.slowdown for member in result.members) / 20)
    assert 1.4 < result.gain <= 1.6


def test_jobs_that_would_slow_each_other_down_too_much_stay_apart() -> None:
    jobs = [shared(name, *[(100.0, 300.0)] * 5) for name in "abcd"]
    assert [len(group.jobs) for group in packed(jobs, 1.3)] == [2, 2]
    assert [len(group.jobs) for group in packed(jobs, 1.01)] == [1, 1, 1, 1]


def test_a_host_holds_only_so_many_sleeping_jobs() -> None:
    jobs = [shared(name, *[(100.0, 300.0)] * 5, host_bytes=40e9) for name in "abcd"]
    assert [len(group.jobs) for group in packed(jobs, 9.0)] == [3, 1]


def test_small_jobs_share_different_gpus_of_a_large_one() -> None:
    (group,) = packed([shared("large", (50.0, 350.0), num_gpus=32),
                       *(shared(name, (50.0, 350.0)) for name in ("one", "two"))], 2.0)  # fmt: skip
    slots = {member.name: member.slots for member in group.group.members}
    assert slots["one"].isdisjoint(slots["two"]) and slots["one"] | slots["two"] == slots["large"]
