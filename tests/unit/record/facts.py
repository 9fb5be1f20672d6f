"""Rounds of random jobs on engines that are lost, return and retire, and the facts that are recorded of them."""

import random
from dataclasses import dataclass

from longshore.api.names import Component
from longshore.api.rollout import Rollout, Strategy
from longshore.policy.round_policy import BatchShape
from longshore.record.facts import LanePlace, RoundFacts, StepMarks, TrainerPass, UpdatePasses
from tests.unit.policy.rounds import FakeRollout, Job

MAX_TOKENS = 60
STARTED = 1_700_000_000.0
TAIL_BATCHING = Job(Rollout(strategy=Strategy.TAIL_BATCHING), BatchShape(4, 2))


@dataclass(frozen=True)
class Played:
    """A round as it was, and what is recorded of it."""

    fake: FakeRollout
    facts: RoundFacts


def played(job: Job, seed: int, num_rounds: int = 2, *, is_colocated: bool = True) -> list[Played]:
    """The first rounds of a job, on two engines and two trainer replicas."""
    policy = job.policy()
    fake = FakeRollout(
        policy, job, random.Random(seed), rejection=0.1, zero_variance=0.2, upheaval=0.2, episodes=seed % 2 == 1
    )
    found = []
    for step in range(1, num_rounds + 1):
        fake.round()
        found.append(Played(fake, facts(fake, step, is_colocated=is_colocated)))
    return found


def facts(fake: FakeRollout, step: int, *, is_colocated: bool = True) -> RoundFacts:
    """The round takes from second 2 on, its training 10 seconds and the publication 1."""
    begun_s, totals = -2.0, fake.totals
    scored_s = fake.messages[-1][0]
    trained_s = scored_s + 10.0
    places = tuple(LanePlace(number, (number,), Component.WORKER, (0,)) for number in range(2))
    passes = tuple(TrainerPass(replica, scored_s, 4.0 + replica) for replica in range(2))
    rewards = {
        response: 1.0
        for draw in [*(group.draw for group in totals.end.accepted), *totals.end.zero_variance]
        for response in fake.served[draw]
    }
    return RoundFacts(
        step=step,
        attempt=1,
        started=STARTED + 1_000.0 * step,
        marks=StepMarks(begun_s, -1.0, 0.0, totals.batch_complete_s, scored_s, trained_s, trained_s + 1.0),
        totals=totals,
        messages=fake.messages,
        rewards=rewards,
        prompt_of={},
        max_response_tokens=MAX_TOKENS,
        bubble_share=0.25,
        num_preemptions=3,
        queue_length=len(totals.end.deferred),
        engines=places,
        trainers=places,
        updates=(UpdatePasses(passes, 2.0),),
        repurposed_s=None,
        is_colocated=is_colocated,
    )
