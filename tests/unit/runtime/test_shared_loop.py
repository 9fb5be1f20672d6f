"""A job that shares its GPUs learns what it learns alone, whenever others use them, and touches none meanwhile."""

import random
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from longshore.api.rollout import Strategy
from longshore.policy.draws import Draw
from longshore_runtime.data.prompt_record import PromptRecord
from tests.properties import examples
from tests.unit.runtime.scripted import by_place
from tests.unit.runtime.scripted_loop import Engines, Outcome, Scorer, Trainers, run

HELD_OUT = (PromptRecord(0, "held out", (1, 2, 3), "answer"),)


class RecalledGpus:
    """Implements `Gpus`: others want them whenever the test says so, and find them free."""

    def __init__(self, engines: Engines, trainers: Trainers, recalls: Callable[[], bool]) -> None:
        self._engines = engines
        self._trainers = trainers
        self._recalls = recalls
        self.are_away = False
        self.num_returned = 0
        self.num_steps = 0

    def need(self) -> None:
        if self.are_away:
            self._assert_free()
        self.are_away = False

    def idle(self, sleep: Callable[[], None]) -> None:
        if self.are_away:
            self._assert_free()
        elif self._recalls():
            sleep()
            self.are_away = True
            self.num_returned += 1
            self._assert_free()

    def step_done(self) -> None:
        self.num_steps += 1

    def _assert_free(self) -> None:
        assert not self._engines.has_gpu and not self._trainers.has_gpu, "the GPUs are used while others have them"


def scorer(engines: Engines, failing: frozenset[Draw] = frozenset()) -> Scorer:
    """Rewards come long after everything is sampled; those of some draws never do."""
    late = {Draw(0, index): 40 + index % 5 for index in range(50)}
    return Scorer(engines, reward=by_place, delay_steps=late, failing=set(failing))


def shared(recalls: Callable[[], bool], failing: frozenset[Draw], strategy: Strategy) -> tuple[Outcome, RecalledGpus]:
    made: list[RecalledGpus] = []

    def gpus(engines: Engines, trainers: Trainers) -> RecalledGpus:
        made.append(RecalledGpus(engines, trainers, recalls))
        return made[0]

    outcome = run(gpus=gpus, scorer=lambda engines: scorer(engines, failing), held_out=HELD_OUT, strategy=strategy)
    return outcome, made[0]


def alone(failing: frozenset[Draw], strategy: Strategy) -> Outcome:
    return run(scorer=lambda engines: scorer(engines, failing), held_out=HELD_OUT, strategy=strategy)


@pytest.mark.parametrize("strategy", [Strategy.SYNCHRONOUS, Strategy.TAIL_BATCHING])
def test_gpus_that_are_always_wanted_go_away_once_in_a_step(strategy: Strategy) -> None:
    outcome, gpus = shared(lambda: True, frozenset(), strategy)
    same = alone(frozenset(), strategy)
    assert (outcome.model, outcome.ledger, outcome.sampled) == (same.model, same.ledger, same.sampled)
    assert gpus.num_steps == len(outcome.ledger) > 3
    assert gpus.num_returned == gpus.num_steps + 1, "once more at the end, before the pods end"


def test_a_draw_in_place_of_one_without_rewards_brings_the_gpus_back_within_the_round() -> None:
    failing = frozenset({Draw(0, 1), Draw(0, 6)})
    outcome, gpus = shared(lambda: True, failing, Strategy.SYNCHRONOUS)
    same = alone(failing, Strategy.SYNCHRONOUS)
    assert (outcome.model, outcome.ledger) == (same.model, same.ledger)
    assert gpus.num_returned > gpus.num_steps + 1, "it had to sample again after it had returned the GPUs"


@settings(max_examples=examples(25), deadline=None)
@given(seed=st.integers(0, 2**16), failing=st.frozensets(st.builds(Draw, st.just(0), st.integers(0, 15)), max_size=3))
def test_whenever_the_gpus_are_wanted_the_job_learns_the_same(seed: int, failing: frozenset[Draw]) -> None:
    choices = random.Random(seed)
    outcome, _ = shared(lambda: choices.random() < 0.5, failing, Strategy.SYNCHRONOUS)
    same = alone(failing, Strategy.SYNCHRONOUS)
    assert (outcome.model, outcome.ledger, outcome.error) == (same.model, same.ledger, same.error)
