"""What tells the systems of the papers apart."""

from longshore.policy.draws import Draw
from longshore.policy.round import ResponseFinished, ResponseId
from longshore.policy.round_policy import BatchShape, RoundPolicy
from longshore.sim.job import SimJob
from longshore.sim.paper import rollpacker
from longshore.sim.paper.rollpacker import (
    ROLLPACKER,
    SETTINGS,
    TAIL_BATCHING,
    VERL,
    ExperimentVariant,
    RollPackerConstants,
    Task,
)
from longshore.sim.paper.tasks import divided, mixed_policy

SMALL = BatchShape(num_prompts=16, num_responses=8)
CONSTANTS = RollPackerConstants()


def of_rollpacker(variant: ExperimentVariant, constants: RollPackerConstants = CONSTANTS) -> SimJob:
    return rollpacker.job(constants, SETTINGS["7B"], variant, Task.MIXED, 0, shape=SMALL)


def launched(policy: RoundPolicy) -> list[ResponseId]:
    """Begins a round."""
    return list(policy.start_round().decision.launch)


def tasks(draws: set[Draw]) -> list[int]:
    return [sum(draw.index % 3 == task for draw in draws) for task in range(3)]


def test_a_short_round_of_rollpacker_takes_its_share_of_every_task() -> None:
    policy = mixed_policy(of_rollpacker(ROLLPACKER))
    started = launched(policy)
    num_started = tasks({response.draw for response in started})
    assert sum(num_started) == 20
    # All of the first task end, then all of the second, then all of the third.
    in_order = sorted(started, key=lambda response: (response.draw.index % 3, response))
    ended: set[ResponseId] = set()
    aborted: set[ResponseId] = set()
    for step, response in enumerate(in_order):
        if response not in aborted:
            decision = policy.responses_finished([ResponseFinished(response, step)])
            ended.add(response)
            assert not ended.intersection(decision.abort)
            aborted.update(decision.abort)
    end = policy.end_round()
    assert tasks({group.draw for group in end.accepted}) == list(divided(16, dict(enumerate(num_started))).values())
    assert {group.draw for group in end.accepted} | set(end.deferred) == {response.draw for response in started}


def test_a_long_round_of_rollpacker_takes_all_that_it_starts() -> None:
    policy = mixed_policy(of_rollpacker(ROLLPACKER))
    for number in range(5):
        started = launched(policy)
        policy.responses_finished([ResponseFinished(response, 1) for response in started])
        end = policy.end_round()
        assert len(end.accepted) == 16
        assert len(end.deferred) == (4 if number < 4 else 0)


def test_responses_that_end_together_give_no_task_more_than_its_share() -> None:
    policy = mixed_policy(of_rollpacker(TAIL_BATCHING))
    started = launched(policy)
    decision = policy.responses_finished([ResponseFinished(response, 1) for response in started])
    assert decision.has_batch
    assert not set(decision.abort).intersection(started)
    shares = divided(16, dict(enumerate(tasks({response.draw for response in started}))))
    assert tasks({group.draw for group in decision.accepted}) == [shares[task] for task in range(3)]


def test_rollpackers_batch_has_the_configured_share_of_every_task() -> None:
    policy = mixed_policy(rollpacker.job(CONSTANTS, SETTINGS["7B"], ROLLPACKER, Task.MIXED, 0))
    started = {response.draw for response in launched(policy)}
    assert tasks(started) == [55, 50, 55]
    assert divided(128, {0: 55, 1: 50, 2: 55}) == {0: 44, 1: 40, 2: 44}


def test_the_baseline_samples_the_same_prompts() -> None:
    ours, baseline = (mixed_policy(of_rollpacker(variant)) for variant in (ROLLPACKER, VERL))
    first = {response.draw for response in launched(baseline)}
    assert first < {response.draw for response in launched(ours)}
