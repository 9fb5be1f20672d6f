"""Strategy Auto while a job runs: the tuner learns from every step, and a process of low priority searches between.

No round waits for a search. What it finds counts from the first round on that begins after it has ended.
"""

from collections.abc import Callable, Mapping
from statistics import fmean
from typing import Any, Protocol

import structlog

from longshore.api.rollout import Handover
from longshore.api.runtime_status import ChosenFactors
from longshore.policy.auto import Auto
from longshore.policy.rollout_pace import RolloutPace
from longshore.record.facts import StepMarks
from longshore.sim.auto import AutoTuner, Question, RoundChange, StepFacts
from longshore.sim.search import SearchResult
from longshore_runtime.elastic.spare_time import SearchFailed
from longshore_runtime.rollout.batch import RoundResult
from longshore_runtime.rollout.engine_pool import EnginePool
from longshore_runtime.trainer.updates import StepTraining

log = structlog.get_logger()


class Search(Protocol):
    """A search that has begun; nobody waits for it."""

    def done(self) -> bool:
        """Return whether the search has ended."""

    def result(self) -> SearchResult:
        """Return the result of a search that has ended; raises SearchFailed."""

    def stop(self) -> None:
        """Stop the search, whose result is not needed any longer."""


class AutoFactors:
    """Factors of strategy Auto while a job runs; the driver's thread calls it between rounds."""

    def __init__(self, policy: Auto, tuner: AutoTuner, begin: Callable[[Question], Search]) -> None:
        self._policy = policy
        self._tuner = tuner
        self._begin = begin
        self._running: Search | None = None
        self._since_step, self._why = 0, "what the job begins with"

    @property
    def chosen(self) -> ChosenFactors:
        """The present choice, and why it was made."""
        choice = self._policy.choice
        return ChosenFactors(
            prompt_factor=choice.prompt_factor,
            response_factor=choice.response_factor,
            handover=choice.handover if self._tuner.chooses_handover else None,
            frontier_width=choice.frontier_width,
            since_step=self._since_step,
            why=self._why,
        )

    @property
    def handover(self) -> Handover:
        """Handover of the next round."""
        return self._policy.choice.handover

    def before_round(self, step: int) -> RoundChange | None:
        """Give the policy a better choice before the round of this step, if a search has ended that found one."""
        if self._running is None or not self._running.done():
            return None
        running, self._running = self._running, None
        try:
            found = running.result()
        except SearchFailed as error:
            # The job is as quick as before; the next period brings another search.
            log.warning("nothing better was found: the search failed", reason=str(error))
            return None
        change = self._tuner.decide(found, self._policy.choice)
        log.info(
            "searched for a better choice",
            choices=found.num_choices,
            rounds=found.num_rounds,
            best=str(found.ranking[0].choice),
            predicted_share=round(found.ranking[0].cost(found.present), 3),
            changed=change is not None,
        )
        if change is not None:
            self._policy.choose(change.after)
            self._since_step, self._why = step, str(change)
        return change

    def step_ended(self, facts: StepFacts) -> None:
        """Learn from a step, and begin a search where a period has ended."""
        self._tuner.observe(facts)
        if self._running is None and (question := self._question()) is not None:
            self._running = self._begin(question)

    def _question(self) -> Question | None:
        try:
            return self._tuner.question(self._policy.choice)
        except ValueError as error:
            # The simulator knows fewer shapes than the runtime. Such a job keeps what it has.
            self._why = f"nothing better is searched for, because the job cannot be simulated: {error}"
            log.warning(self._why)
            return None

    def close(self) -> None:
        """Stop a search that runs."""
        if self._running is not None:
            self._running.stop()
            self._running = None

    def export_state(self) -> dict[str, Any]:
        """Return the state as JSON values."""
        return {"tuner": self._tuner.export_state(), "since_step": self._since_step, "why": self._why}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Undo `export_state`, once the policy has its state."""
        self._tuner.load_state(state["tuner"])
        if self._policy.choice != self._policy.begin:
            self._since_step, self._why = state["since_step"], state["why"]


def step_facts(
    result: RoundResult,
    trained: StepTraining,
    marks: StepMarks,
    pace: RolloutPace,
    engines: EnginePool,
    num_replicas: int,
    num_deferred: int,
) -> StepFacts:
    """Return what the tuner learns of a step, after which `num_deferred` draws wait."""
    rate = trained.tokens_per_s
    gradients_s = trained.num_epochs * trained.batch_tokens / (num_replicas * rate) if rate > 0 else 0.0
    trained_s = marks.trained_s - marks.scored_s
    worked_s = marks.published_s - marks.regrouped_s
    return StepFacts(
        kind=result.end.kind,
        groups=tuple(tuple(one.completion.length for one in group.responses) for group in result.groups),
        prompt_tokens=fmean(len(sample.prompt_tokens) for sample in trained.samples) if trained.samples else 0.0,
        num_deferred=num_deferred,
        timed=pace.timed,
        tp_size=engines.tp_size,
        kv_capacity_tokens=min((stats.kv_capacity_tokens for stats in engines.stats().values()), default=0),
        tokens_per_s=rate,
        # Gradients that were computed during the rollout took no time after it.
        other_s=worked_s - result.rollout_s - min(gradients_s, trained_s),
    )
