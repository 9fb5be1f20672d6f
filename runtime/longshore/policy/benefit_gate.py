"""Whether pods that train for the rest of a round end its step sooner: what it costs against what it gains.

Price: fewer engines bear what runs, compute the moved requests again, and may be slowed by trainers alongside them.
Gain: gradients that are computed while the round still runs are not computed after it.

Both are figures of the job's own rounds. Decode steps say how a larger batch slows an engine down (`DecodeRate`), and
passes of the trainer how many tokens a replica computes in a second. So every round that is over can be replayed from
its first milestone on with all engines and with fewer (`RolloutPace`), and rounds of the same kind are forecast to be
like it. Every repurposing corrects the forecasts. Before a round of any kind is over, the profile of the job is asked,
if it has one.

What repurposing has cost is bounded. An account earns EARNED_SHARE of every step and books what each repurposing saved
or lost; there is none unless the account can bear the loss that is expected. So what all repurposing of a job has cost,
less what they gained, exceeds EARNED_SHARE of its time by one repurposing at most.
"""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from statistics import fmean
from typing import Any, Final

from longshore.api.round_status import RoundKind
from longshore.policy.decode_rate import DecodeRate, DecodeSteps
from longshore.policy.rollout_pace import RolloutPace
from longshore.policy.scale_down import Benefit, MilestoneLoad, pick_pods

EARNED_SHARE: Final = 0.01
"""Share of a step's time that trials may cost."""
MAX_BALANCE: Final = 1.0
"""Steps: earlier gains pay for no larger loss, and what is expected to cost more is not tried again."""
TRIAL_SHARE: Final = 0.05
"""Share of the rest of a step that the account must hold for a trial at least.

So trials are rare also where they cost little.
"""
HYSTERESIS: Final = 0.01
"""Share of the rest of a step that decides about the rule.

A repurposing must cost as much to stop being the rule, and save as much to become it again.
"""
NEWEST_WEIGHT: Final = 0.3
"""Weight of the newest measurement against all before it."""
_CORRECTIONS: Final = (0.25, 4.0)
"""Measured over forecast; what lies outside is a fault of the measurement."""

_LEAST_S: Final = 1e-9


@dataclass
class _Mean:
    """The plain mean of few measurements, and a mean that follows the newest of many."""

    value: float = 0.0
    count: int = 0

    def add(self, measured: float) -> None:
        self.count += 1
        self.value += (measured - self.value) * max(NEWEST_WEIGHT, 1 / self.count)


@dataclass
class _KindHistory:
    """Measurements of rounds of one kind."""

    all_s: _Mean = field(default_factory=_Mean)
    """Rest of the rollout with all engines, replayed."""
    fewer_s: _Mean = field(default_factory=_Mean)
    """The same with fewer."""
    all_factor: _Mean = field(default_factory=lambda: _Mean(1.0))
    """Measured over replayed, with all engines."""
    fewer_factor: _Mean = field(default_factory=lambda: _Mean(1.0))
    """Measured over replayed, with fewer: after repurposing."""
    streamed: _Mean = field(default_factory=lambda: _Mean(1.0))
    """Tokens that were trained on meanwhile, over those that the replicas had time for."""
    batch_tokens: _Mean = field(default_factory=_Mean)
    """Tokens that the trainer was given, prompts included."""
    pays: bool = True
    """Whether repurposing is the rule."""
    was_tried: bool = False
    """Whether any of them repurposed pods."""

    @classmethod
    def load(cls, state: Mapping[str, Any]) -> "_KindHistory":
        means = {name: _Mean(**value) for name, value in state.items() if isinstance(value, Mapping)}
        return cls(**means, pays=state["pays"], was_tried=state["was_tried"])


@dataclass(frozen=True)
class GatePrior:
    """Figures of a profile, for decisions before a step is over."""

    rates: Mapping[int, DecodeRate]
    """Decode rates of engines, by tensor-parallel size."""
    tokens_per_s: float
    """Tokens per second of which one replica computes gradients."""

    def pays(
        self,
        tp_size: int,
        load: MilestoneLoad,
        picked: Collection[int],
        num_awake: int,
        num_replicas: int,
        running: Counter[int],
    ) -> bool | None:
        """Return whether a decode step gets longer by less than what the gradients gain that are computed in it.

        In a step every request gains a token, and there are no more gradients than for these. `picked`: pods that would
        leave; `running`: requests by engine. None: engines of this size were not measured, or nothing runs.
        """
        rate, num_staying = self.rates.get(tp_size), sum(not set(engine.pods) & set(picked) for engine in load.engines)
        if rate is None or not running or not num_staying:
            return None
        held = sum(pod.num_tokens for pod in load.pods) / sum(running.values())
        capacity = fmean(engine.kv_capacity_tokens for engine in load.engines)

        def step_s(num_running: float) -> float:
            return rate.seconds(DecodeSteps(1, num_running, min(1.0, held * num_running / capacity)))

        fewer_s = step_s(running.total() / num_staying)
        gain_s = min(num_awake * fewer_s, running.total() / self.tokens_per_s) / num_replicas
        return fewer_s - step_s(max(running.values())) < gain_s


@dataclass(frozen=True)
class StepOutcome:
    """A step that is over."""

    kind: RoundKind
    step_s: float
    batch_tokens: int
    """Given to the trainer, prompts included."""
    streamed_tokens: int
    """Tokens of the batch whose gradients were computed when the rollout ended."""
    num_replicas: int
    tokens_per_s: float
    """Tokens per second of which one replica computes gradients."""
    num_awake: int = 0
    """Replicas that were woken during the round."""
    wake_s: float = 0.0
    """Seconds from the decision until the replicas were awake."""


class BenefitGate:
    """One per job. Its memory belongs to checkpoints."""

    def __init__(self, prior: GatePrior | None = None) -> None:
        """Start from the profile `prior`; None where the job has no profile."""
        self._prior = prior
        self._rates: dict[int, DecodeRate] = {}
        """Decode rates by tensor-parallel size."""
        self._kinds: dict[RoundKind, _KindHistory] = {}
        self._tokens_per_s = _Mean()
        self._wake_s = _Mean()
        self._balance_s = 0.0
        self._step_s = 0.0
        """The longest step that the account remembers: it fades."""
        self._tp_size = 1
        self._pace = RolloutPace()
        self._wanted: Benefit | None = None
        """Benefit that is wanted in the round that runs."""

    def begin_round(self, tp_size: int) -> RolloutPace:
        """Begin a round on engines of this size; what becomes of it goes to the pace."""
        self._tp_size, self._pace, self._wanted = tp_size, RolloutPace(), None
        return self._pace

    def expect(
        self, kind: RoundKind, load: MilestoneLoad, trainer_replicas: Sequence[frozenset[int]]
    ) -> Benefit | None:
        """Return the expected benefit at a milestone; None: no pod can go, or no step is over."""
        engines = {engine.number: frozenset(engine.pods) for engine in load.engines}
        picked = frozenset(pick_pods(load.pods, trainer_replicas, engines.values()))
        if not self._pace.leaving:
            self._pace.leaving = frozenset(number for number, pods in engines.items() if pods <= picked)
        if not picked:
            return None
        known, num_awake = self._kinds.get(kind), sum(replica <= picked for replica in trainer_replicas)
        if known is None or not known.all_s.count:
            pays = self._pays_in_new_kind(load, picked, num_awake, len(trainer_replicas))
            if pays is None:
                return None
            is_new = known is None or not known.was_tried
            is_wanted = is_new and self._balance_s >= 0 and pays
            self._wanted = Benefit(None, None, is_wanted, is_trial=is_wanted)
            return self._wanted
        all_s, fewer_s = known.all_factor.value * known.all_s.value, known.fewer_factor.value * known.fewer_s.value
        computable = self._tokens_per_s.value * num_awake * max(0.0, fewer_s - self._wake_s.value)
        streamed = known.streamed.value * min(known.batch_tokens.value, computable)
        all_replicas = self._tokens_per_s.value * len(trainer_replicas)
        rest_s = all_s + known.batch_tokens.value / all_replicas
        return self._decided(known, fewer_s - all_s, streamed / all_replicas, rest_s)

    def ended(self, outcome: StepOutcome) -> float | None:
        """Note that the step of the last round is over; return what its repurposing saved, if that is known."""
        known = self._kinds.setdefault(outcome.kind, _KindHistory())
        known.batch_tokens.add(outcome.batch_tokens)
        if outcome.tokens_per_s > 0:
            self._tokens_per_s.add(outcome.tokens_per_s)
        self._step_s = max(outcome.step_s, (1 - EARNED_SHARE) * self._step_s)
        saved_s = self._learn(known, outcome)
        if self._pace.has_repurposed:
            known.was_tried = True
            if self._wanted is not None and self._wanted.is_trial:
                self._balance_s = min(0.0, self._balance_s)  # The trial has used up what was there.
        earned_s = EARNED_SHARE * outcome.step_s + (saved_s or 0.0)
        self._balance_s = min(self._balance_s + earned_s, MAX_BALANCE * self._step_s)
        self._wanted = None
        return saved_s

    def export_state(self) -> dict[str, Any]:
        """Return the state as JSON values."""
        return {
            "rates": {str(size): rate.export_state() for size, rate in self._rates.items()},
            "kinds": {kind.value: asdict(known) for kind, known in self._kinds.items()},
            "tokens_per_s": asdict(self._tokens_per_s),
            "wake_s": asdict(self._wake_s),
            "balance_s": self._balance_s,
            "step_s": self._step_s,
        }

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Undo `export_state`."""
        self._rates = {int(size): DecodeRate() for size in state["rates"]}
        for size, rate in self._rates.items():
            rate.load_state(state["rates"][str(size)])
        self._kinds = {RoundKind(kind): _KindHistory.load(known) for kind, known in state["kinds"].items()}
        self._tokens_per_s, self._wake_s = _Mean(**state["tokens_per_s"]), _Mean(**state["wake_s"])
        self._balance_s, self._step_s = state["balance_s"], state["step_s"]

    def _pays_in_new_kind(
        self, load: MilestoneLoad, picked: Collection[int], num_awake: int, num_replicas: int
    ) -> bool | None:
        """Decide whether a new kind of round pays: by other kinds, else profile, else trial; None: no step is over."""
        others = [one.pays for one in self._kinds.values() if one.all_s.count]
        if others:
            return any(others)
        if self._prior is not None:
            running = self._pace.num_running()
            profiled = self._prior.pays(self._tp_size, load, picked, num_awake, num_replicas, running)
            if profiled is not None:
                return profiled
        return True if self._tokens_per_s.count else None

    def _decided(self, known: _KindHistory, longer_s: float, shorter_s: float, rest_s: float) -> Benefit:
        """Decide with hysteresis, and as far as the account allows."""
        saved_s = shorter_s - longer_s
        known.pays = saved_s >= (-HYSTERESIS if known.pays else HYSTERESIS) * rest_s
        is_trial = not known.pays and self._balance_s >= max(-saved_s, TRIAL_SHARE * rest_s)
        is_wanted = is_trial or (known.pays and self._balance_s >= 0)
        self._wanted = Benefit(longer_s, shorter_s, is_wanted, is_trial)
        return self._wanted

    def _learn(self, known: _KindHistory, outcome: StepOutcome) -> float | None:
        """Learn from a round what its repurposing saved, if it had one that could be measured."""
        rate, pace = self._rates.setdefault(self._tp_size, DecodeRate()), self._pace
        if not pace.has_repurposed or not rate.is_known:
            rate.fade()
            for timed in pace.timed:
                rate.add(timed.steps, timed.seconds)
        elif pace.timed:  # How fast engines were until trainers ran alongside them.
            now = sum(timed.seconds for timed in pace.timed) / sum(rate.seconds(timed.steps) for timed in pace.timed)
            rate.scale(_bounded(now))
        if not rate.is_known or not pace.leaving or pace.rest_s <= 0:
            return None
        all_s, fewer_s = pace.replayed_s(rate), pace.replayed_s(rate, pace.leaving)
        known.all_s.add(all_s)
        known.fewer_s.add(fewer_s)
        if not pace.has_repurposed:
            known.all_factor.add(_bounded(pace.rest_s / max(all_s, _LEAST_S)))
            return None
        known.fewer_factor.add(_bounded(pace.rest_s / max(fewer_s, _LEAST_S)))
        self._wake_s.add(outcome.wake_s)
        computable = outcome.tokens_per_s * outcome.num_awake * max(0.0, pace.rest_s - outcome.wake_s)
        possible = min(outcome.batch_tokens, computable)
        if possible > 0:
            known.streamed.add(min(1.0, outcome.streamed_tokens / possible))
        shorter_s = outcome.streamed_tokens / (self._tokens_per_s.value * outcome.num_replicas)
        return shorter_s - (pace.rest_s - known.all_factor.value * all_s)


def _bounded(correction: float) -> float:
    least, most = _CORRECTIONS
    return min(most, max(least, correction))
