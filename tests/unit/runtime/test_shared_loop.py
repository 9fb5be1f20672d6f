"""A job that shares its GPUs learns what it learns alone, whenever others use them, and touches none meanwhile."""

import json
import random
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from longshore.api.rollout import Strategy
from longshore.policy.draws import Draw
from longshore.rounds.messages import EngineLost
from longshore_runtime.data.prompt_record import PromptRecord
from longshore_runtime.engine_protocol import EngineStats
from longshore_runtime.errors import Interrupted
from tests.properties import examples
from tests.unit.runtime.scripted import by_place, first_draws
from tests.unit.runtime.scripted_loop import Engines, Outcome, Scorer, Trainers, run
from tests.unit.runtime.test_updates import TickingClock

HELD_OUT = (PromptRecord(0, "held out", (1, 2, 3), "answer"),)


class RecalledGpus:
    """Implements `Gpus`: others want them whenever the test says so, and find them free."""

    def __init__(self, engines: Engines, trainers: Trainers, recalls: Callable[[], bool]) -> None:
        self._engines = engines
        self._trainers = trainers
        self._recalls = recalls
        self.are_away = False
        self.waited_s = 0.0
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


class LostInTheRound(Engines):
    """All of them are lost after they have sampled everything, and start again when the engines wake."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.script = deque((30, EngineLost(engine, "pod killed")) for engine in range(self.num_engines))

    def wake(self) -> None:
        super().wake()
        for engine in range(self.num_engines):
            self.running.setdefault(engine, {})


def test_engines_that_were_lost_before_the_gpus_went_away_sample_what_has_to_be_drawn_afterwards() -> None:
    failing = frozenset(first_draws(1))
    job: dict[str, Any] = {"scorer": lambda engines: scorer(engines, failing), "strategy": Strategy.SYNCHRONOUS}
    outcome = run(
        gpus=lambda engines, trainers: RecalledGpus(engines, trainers, lambda: not engines.running),
        kinds=(Trainers, LostInTheRound),
        **job,
    )
    same = run(**job)
    assert (outcome.model, outcome.ledger, outcome.error) == (same.model, same.ledger, "")


class Busy(Engines):
    """With every request it has worked for another second. Engines that sleep do not answer."""

    def stats(self) -> dict[int, EngineStats]:
        busy_s = float(len(self.versions))
        return {engine: replace(one, busy_s=busy_s) for engine, one in super().stats().items() if self.has_gpu}


def test_engines_that_sleep_when_their_round_is_over_have_worked_as_long_as_others() -> None:
    shares = []
    for recalls in (False, True):
        outcome = run(
            gpus=lambda engines, trainers, wanted=recalls: RecalledGpus(engines, trainers, lambda: wanted),  # type: ignore[misc]
            scorer=scorer,
            kinds=(Trainers, Busy),
        )
        shares.append([report.bubble_share for report in outcome.reports if report.step])
    assert shares[0] == shares[1]
    assert max(share for share in shares[0] if share is not None) < 1.0


class SlowTurns(RecalledGpus):
    """Others keep the GPUs for so many seconds whenever they get them."""

    def __init__(self, engines: Engines, trainers: Trainers, clock: TickingClock, keeps_s: float) -> None:
        super().__init__(engines, trainers, lambda: True)
        self._clock = clock
        self._keeps_s = keeps_s

    def need(self) -> None:
        if self.are_away:
            self._clock.seconds += self._keeps_s
            self.waited_s += self._keeps_s
        super().need()

    def step_done(self) -> None:
        self.waited_s = 0.0
        super().step_done()


def test_waits_for_other_jobs_are_part_of_no_work(tmp_path: Path) -> None:
    def times(keeps_s: float) -> list[list[float]]:
        clock, root = TickingClock(), tmp_path / str(keeps_s)
        root.mkdir()
        run(
            root=root,
            clock=clock,
            gpus=lambda engines, trainers: SlowTurns(engines, trainers, clock, keeps_s),
            scorer=lambda engines: scorer(engines, frozenset({Draw(0, 1), Draw(0, 6)})),
            strategy=Strategy.SYNCHRONOUS,
        )
        rows = [json.loads(line) for line in (root / "output" / "metrics.jsonl").read_text().splitlines()]
        steps = [row for row in rows if "timing_s/step" in row]
        assert all(row["timing_s/step"] > keeps_s for row in steps)
        names = (
            "timing_s/gen",
            "timing_s/reward",
            "timing_s/update_actor",
            "timing_s/regroup",
            "trainer/waiting_ratio",
        )
        return [[row[name] for name in names] for row in steps]

    assert times(1e6) == times(0.0)


class StoppedWhileAway(RecalledGpus):
    """The pod has to stop while others have the GPUs."""

    def need(self) -> None:
        if self.are_away and self.num_steps:
            raise Interrupted("the pod was asked to stop")
        super().need()


class Sharded(Trainers):
    saves_on_gpus = True


class WithoutMemory(Trainers):
    def save(self, directory: str, *, timeout_s: float | None = None) -> None:
        if timeout_s is not None:
            raise RuntimeError("CUDA out of memory")
        super().save(directory, timeout_s=timeout_s)


@pytest.mark.parametrize(("kind", "step"), [(Trainers, 1), (Sharded, 0), (WithoutMemory, 0)])
def test_a_job_that_stops_while_others_have_the_gpus_saves_only_what_needs_none(
    kind: type[Trainers], step: int
) -> None:
    def gpus(engines: Engines, trainers: Trainers) -> StoppedWhileAway:
        return StoppedWhileAway(engines, trainers, lambda: True)

    outcome = run(gpus=gpus, scorer=scorer, held_out=HELD_OUT, every=100, kinds=(kind, Engines))
    assert outcome.error == "the pod was asked to stop"
    assert (len(outcome.ledger), outcome.reports[-1].checkpoint_step) == (1, step)


@settings(max_examples=examples(25), deadline=None)
@given(seed=st.integers(0, 2**16), failing=st.frozensets(st.builds(Draw, st.just(0), st.integers(0, 15)), max_size=3))
def test_whenever_the_gpus_are_wanted_the_job_learns_the_same(seed: int, failing: frozenset[Draw]) -> None:
    choices = random.Random(seed)
    outcome, _ = shared(lambda: choices.random() < 0.5, failing, Strategy.SYNCHRONOUS)
    same = alone(failing, Strategy.SYNCHRONOUS)
    assert (outcome.model, outcome.ledger, outcome.error) == (same.model, same.ledger, same.error)
