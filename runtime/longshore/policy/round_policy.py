"""What every round policy offers to its drivers: the runtime, the simulator and the tests.

A round policy is four choices: admission (`_plan`, and the gates), acceptance, leftovers, and the handover to the
trainer (`policy.handover`). Strategies differ in `_plan` and in what they do with leftovers; gates and acceptance
combine with each of them.
"""

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final, Self

from longshore.api.rollout import Rollout
from longshore.api.round_status import RoundKind
from longshore.policy.draws import Draw, DrawCursor
from longshore.policy.engine_load import ConcurrencyLimit, EngineLoad
from longshore.policy.progress import RoundProgress
from longshore.policy.round import AcceptedGroup, Decision, Leftover, ResponseFinished, ResponseId, Round
from longshore.policy.round_plan import Acceptance, AdmittedDraw, Gates, RoundPlan
from longshore.policy.waiting import WaitingDraws


@dataclass(frozen=True)
class BatchShape:
    """P0 prompts (`promptsPerStep`) with R0 responses (`responsesPerPrompt`) each: what one step trains on."""

    num_prompts: int
    num_responses: int


@dataclass(frozen=True)
class AdmissionRules:
    """Rules about what may run at once, whatever the preset, and by which a group counts."""

    acceptance: Acceptance = Acceptance.SERVED
    frontier_width: int | None = None
    """F_w: groups in service at once, per engine."""
    max_active_per_engine: int | None = None
    """Requests at once, per engine."""
    load_limit: ConcurrencyLimit | None = None
    """Requests at once by what the engines bear."""


NO_RULES: Final = AdmissionRules()
"""Everything at once; served groups count."""


@dataclass(frozen=True)
class RoundStart:
    """A round begins: its kind and what to launch first."""

    kind: RoundKind
    num_groups: int
    """Groups that make the batch."""
    decision: Decision


@dataclass(frozen=True)
class RoundEnd:
    """A round is over: its batch, and the responses whose tokens the next rounds continue from."""

    kind: RoundKind
    accepted: tuple[AcceptedGroup, ...]
    deferred: tuple[Draw, ...]
    """Draws that this round left over: they wait for a later one."""
    kept: tuple[ResponseId, ...]
    """Responses of waiting draws whose tokens must be kept; the tokens of all others are dropped."""
    zero_variance: tuple[Draw, ...] = ()
    """Draws that dynamic sampling consumed without training on them."""


class RoundPolicy(ABC):
    """Admission, acceptance and leftovers of a job's rounds. Pure: the same calls give the same decisions.

    Between rounds the state can be exported and loaded; the running round itself is never part of it, since a
    restart begins the round again.
    """

    round_kinds: ClassVar[tuple[RoundKind, ...]] = (RoundKind.FULL,)
    """Kinds of round that the strategy plans: one that may put draws off, and the one that takes these up."""

    @classmethod
    @abstractmethod
    def of(
        cls, rollout: Rollout, shape: BatchShape, cursor: DrawCursor, rules: AdmissionRules, groups_per_update: int
    ) -> Self:
        """Return the policy of a job with these settings; `groups_per_update` is U."""

    @classmethod
    def usual_period(cls, rollout: Rollout, num_prompts: int) -> tuple[RoundKind, ...]:
        """Return the rounds of a job in their usual order, which then begins again."""
        return cls.round_kinds

    def __init__(
        self, shape: BatchShape, cursor: DrawCursor, rules: AdmissionRules = NO_RULES, *, keeps_tokens: bool = False
    ) -> None:
        """Continue responses of left-over draws where they were if `keeps_tokens`."""
        self._shape = shape
        self._waiting = WaitingDraws(keeps_tokens=keeps_tokens)
        self._cursor = cursor
        self._rules = rules
        self._round: Round | None = None
        self._kind = RoundKind.FULL
        self._engines: frozenset[int] = frozenset({0})
        self._bearable = 0
        """Requests at once by what the engines bear, where that limits them; kept up to date engine by engine."""
        self._num_putting_off = 0
        """Rounds since the last long one that have put draws off."""

    def start_round(
        self, *, draining: bool = False, engines: Collection[int] = (0,), kv_capacity_tokens: int = 0
    ) -> RoundStart:
        """Begin a round on these engines; `draining` admits only what waits, as the last rounds of a job do.

        `kv_capacity_tokens`: what the KV cache of each engine holds; 0: unknown.
        """
        assert self._round is None, "the last round has not ended"
        self._use(engines)
        plan = self._plan_drain() if draining else self._plan()
        self._kind = plan.kind
        self._round = Round(plan, self._shape.num_responses, self._rules.acceptance, self._gates)
        return RoundStart(plan.kind, plan.num_groups, self._with_replacements(self._round.admit(plan.admissions)))

    def next_kind(self, *, draining: bool = False) -> RoundKind:
        """Return the kind of the round that `start_round` would begin."""
        return RoundKind.FULL

    def next_num_updates(self, *, draining: bool = False) -> int:
        """Return the updates that the round that `start_round` would begin makes where long rounds are divided.

        A long round trains on draws of several rounds: one update for each that has put draws off, and its own.
        """
        return 1 + self._num_putting_off if self.next_kind(draining=draining) is RoundKind.LONG else 1

    def responses_finished(self, events: Sequence[ResponseFinished]) -> Decision:
        """Decide after responses have finished by themselves; aborted ones never come here."""
        return self._with_replacements(self._running.responses_finished(events))

    def episodes_act(self, responses: Sequence[ResponseId]) -> Decision:
        """Decide after episodes went to their environments: at their launch, or after a turn."""
        return self._running.episodes_act(responses)

    def episode_answered(self, response: ResponseId) -> Decision:
        """Decide when the next turn of an episode is sampled."""
        return self._running.episode_answered(response)

    def group_rewarded(self, draw: Draw, *, zero_variance: bool) -> Decision:
        """Decide after a group got its rewards; `zero_variance`: all are equal, so that its advantages are 0."""
        return self._with_replacements(self._running.rewarded(draw, zero_variance=zero_variance))

    def group_rejected(self, draw: Draw) -> Decision:
        """Replace a group whose rewards failed by another draw, so that the batch is exact."""
        return self._with_replacements(self._running.reject(draw))

    def engine_load(self, engine: int, load: EngineLoad) -> Decision:
        """Adapt concurrency to the load that an engine reports, if the job asks for it."""
        limit = self._rules.load_limit
        if limit is None:
            return Decision(has_batch=self._running.has_batch)
        before = limit.of(engine)
        change = limit.observed(engine, load) - before
        if engine in self._engines:
            self._bearable += change
        return self._running.pass_through(self._gates)

    def engine_limit(self, engine: int) -> int | None:
        """Return requests that this engine is given at once; None: any number."""
        rules = self._rules
        limits = [] if rules.max_active_per_engine is None else [rules.max_active_per_engine]
        if rules.load_limit is not None:
            limits.append(rules.load_limit.of(engine))
        return min(limits, default=None)

    def engines_changed(self, engines: Collection[int]) -> Decision:
        """Adapt the round to engines that were lost or came back."""
        if self._rules.load_limit is not None:
            for engine in self._engines.difference(engines):
                self._rules.load_limit.lost(engine)
        self._use(engines)
        return self._running.pass_through(self._gates)

    @property
    def progress(self) -> RoundProgress:
        """Progress of the running round."""
        return self._running.progress

    def end_round(self) -> RoundEnd:
        """Close a round whose batch is complete."""
        running = self._running
        assert running.has_batch, "the batch of the round is not complete"
        self._round = None
        kept = self._take_leftovers(running.leftovers)
        deferred = tuple(leftover.draw for leftover in running.leftovers)
        self._num_putting_off = 0 if self._kind is RoundKind.LONG else self._num_putting_off + bool(deferred)
        return RoundEnd(self._kind, running.accepted, deferred, kept, running.zero_variance)

    @property
    def num_deferred(self) -> int:
        """Draws that wait for a later round."""
        return len(self._waiting)

    def export_state(self) -> dict[str, Any]:
        """Return the state between two rounds, as JSON values."""
        assert self._round is None, "state is exported between rounds"
        return {
            "strategy": type(self).__name__,
            "cursor": self._cursor.export_state(),
            "leftovers": self._waiting.export_state(),
            "history": self._export_history(),
            "num_putting_off": self._num_putting_off,
            "limits": self._rules.load_limit.export_state() if self._rules.load_limit is not None else [],
        }

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Continue where `export_state` was called; raises ValueError when the job has become another one."""
        if state["leftovers"] and state["strategy"] != type(self).__name__:
            raise ValueError(
                f"rollout.strategy: {len(state['leftovers'])} draws still wait under {state['strategy']}, which "
                f"{type(self).__name__} cannot continue; restore the strategy, or start a new job with another "
                "storage.output"
            )
        self._cursor.load_state(state["cursor"])
        self._waiting.load_state(state["leftovers"], num_responses=self._shape.num_responses)
        if state["strategy"] == type(self).__name__:
            self._load_history(state["history"])
            self._num_putting_off = state["num_putting_off"]
        if self._rules.load_limit is not None:
            self._rules.load_limit.load_state(state["limits"])

    @abstractmethod
    def _plan(self) -> RoundPlan: ...

    @abstractmethod
    def _plan_drain(self) -> RoundPlan: ...

    def _take_leftovers(self, leftovers: Sequence[Leftover]) -> tuple[ResponseId, ...]:
        """Put away what the round did not accept; return the responses whose tokens are kept."""
        self._waiting.left_over(leftovers)
        return self._waiting.kept

    def _export_history(self) -> dict[str, Any]:
        """Return what a policy has learned, besides the draws that wait."""
        return {}

    def _load_history(self, state: Mapping[str, Any]) -> None:
        assert not state

    def _fresh(self, num_draws: int, num_responses: int | None = None) -> tuple[AdmittedDraw, ...]:
        """Return admissions of the next draws of the data."""
        count = num_responses or self._shape.num_responses
        return tuple(fresh(draw, count) for draw in self._cursor.take(num_draws))

    @property
    def _running(self) -> Round:
        assert self._round is not None, "no round is running"
        return self._round

    def _use(self, engines: Collection[int]) -> None:
        self._engines = frozenset(engines)
        if self._rules.load_limit is not None:
            self._bearable = self._rules.load_limit.total(self._engines or (0,))

    @property
    def _gates(self) -> Gates:
        rules = self._rules
        limits = []
        if rules.max_active_per_engine is not None:
            limits.append(rules.max_active_per_engine * max(1, len(self._engines)))
        if rules.load_limit is not None:
            limits.append(self._bearable)
        return Gates(self._frontier_width, min(limits, default=None))

    @property
    def _frontier_width(self) -> int | None:
        """Groups in service at once, over all engines."""
        per_engine = self._rules.frontier_width
        return None if per_engine is None else per_engine * max(1, len(self._engines))

    def _with_replacements(self, decision: Decision) -> Decision:
        """Replace groups that were consumed without a gradient, or rejected, by fresh draws."""
        return self._with_lots(decision, lot=1)

    def _with_lots(self, decision: Decision, lot: int) -> Decision:
        """Replace them in lots of so many, the last of which may bring more than are missing."""
        num_fresh = -(-self._running.num_missing // lot) * lot
        return decision if num_fresh == 0 else _join(decision, self._running.admit(self._fresh(num_fresh)))


def fresh(draw: Draw, num_responses: int) -> AdmittedDraw:
    """Return the admission of a draw from its beginning."""
    return AdmittedDraw(draw, tuple(range(num_responses)))


def _join(first: Decision, then: Decision) -> Decision:
    return Decision(
        launch=first.launch + then.launch,
        resume=first.resume + then.resume,
        abort=first.abort + then.abort,
        score=first.score + then.score,
        accepted=first.accepted + then.accepted,
        has_batch=then.has_batch,
    )
