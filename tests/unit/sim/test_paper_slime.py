"""How slime samples, by which APRIL is compared: groups in lots, and tokens that go on in the next step."""

from itertools import pairwise

from longshore.policy.draws import Draw, DrawCursor
from longshore.policy.round import ResponseFinished, ResponseId
from longshore.policy.round_policy import BatchShape, RoundPolicy
from longshore.sim.paper.slime import slime_policy
from longshore.sim.result import SimResult
from longshore.sim.simulate import simulate
from tests.unit.sim import jobs

SHAPE = BatchShape(num_prompts=4, num_responses=2)


def policy(lot: int | None, *, dynamic_sampling: bool = True) -> RoundPolicy:
    return slime_policy(SHAPE, DrawCursor(64, seed=1), lot, dynamic_sampling=dynamic_sampling)


def drop(sampling: RoundPolicy, draw: Draw) -> int:
    """A group of equal rewards; returns how many groups are started for it."""
    sampling.responses_finished([ResponseFinished(ResponseId(draw, index), 1) for index in range(2)])
    return len(sampling.group_rewarded(draw, zero_variance=True).launch) // SHAPE.num_responses


def test_the_baseline_starts_another_lot_whenever_a_batch_is_not_left() -> None:
    sampling = policy(None)
    draws = dict.fromkeys(response.draw for response in sampling.start_round().decision.launch)
    assert len(draws) == 4
    assert [drop(sampling, draw) for draw in draws] == [4, 0, 0, 0]


def test_april_starts_twice_a_batch_and_another_lot_when_less_than_a_batch_is_left() -> None:
    sampling = policy(8)
    draws = dict.fromkeys(response.draw for response in sampling.start_round().decision.launch)
    assert len(draws) == 8
    assert [drop(sampling, draw) for draw in draws] == [0, 0, 0, 0, 8, 0, 0, 0]


def simulated(lot: int | None, *, dynamic_sampling: bool) -> SimResult:
    job = jobs.job(shape=SHAPE, dynamic_sampling=dynamic_sampling)
    return simulate(job, 8, keeps_spans=False, policy=policy(lot, dynamic_sampling=dynamic_sampling))


def test_a_step_counts_what_it_resumes_of_the_step_before_and_no_ended_response() -> None:
    steps = simulated(8, dynamic_sampling=False).steps
    assert steps[0].num_resumed_tokens == 0
    assert all(step.num_resumed_tokens > 0 for step in steps[1:])
    for before, step in pairwise(steps):
        assert step.num_resumed_tokens <= before.num_sampled_tokens


def test_the_baseline_resumes_nothing() -> None:
    for dynamic_sampling in (False, True):
        assert not any(step.num_resumed_tokens for step in simulated(None, dynamic_sampling=dynamic_sampling).steps)
