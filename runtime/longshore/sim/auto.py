"""What a job with strategy Auto learns of itself, and what it makes of it: pure, as all decisions.

Lengths are those of the groups that it trained on, in whole periods: from the end of one long round to the end of the
next, nearly every draw that was started has been trained on, so that long ones are not missing. Costs are the job's
own: decode steps as its engines made them, gradients as its trainers computed them, and what else a step takes. From
these the search simulates the job with other factors.
"""

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any, Final

from longshore.api.rollout import Strategy
from longshore.api.round_status import RoundKind
from longshore.api.spec import RLJobSpec
from longshore.policy.auto import RoundChoice, free_handovers
from longshore.policy.decode_rate import DecodeRate, DecodeSteps
from longshore.policy.rollout_pace import TimedSteps
from longshore.rounds.messages import EpisodeLength, ResponseLength
from longshore.sim.choices import Choice, SearchBounds
from longshore.sim.hardware import ModelShape, gpu_described
from longshore.sim.job import Rewards, SimJob, job_of
from longshore.sim.lengths import TraceLengths
from longshore.sim.profile import DecodePoint, Profile
from longshore.sim.rewards import MathsRewards
from longshore.sim.search import SearchResult, search

_LEAST_STEPS: Final = 4
"""Least steps of P0 groups each: before, too little is known of the tail."""
_MOST_STEPS: Final = 32
"""Older lengths are forgotten."""
_NUM_RESPONSES: Final = 200_000
"""Simulated in a search: some seconds of one core."""
_LEAST_ROUNDS: Final = 120
"""Fewer leave nothing for choices besides the last comparison. So steps of more than 1,600 responses take longer."""
_MOST_ROUNDS: Final = 800
"""Small steps are quick, and more rounds bring nothing."""
_LEAST_S: Final = 1e-7
_BOUNDLESS_TOKENS: Final = 1 << 40
_AT_ONCE: Final = 1e12
"""Tokens per second, where a cost is contained in another one."""
_MEASURED: Final = ModelShape("measured", num_parameters=1, num_layers=1, hidden_size=1, kv_bytes_per_token=1)
"""Every cost of the model is measured."""


@dataclass(frozen=True)
class StepFacts:
    """What a step says of lengths and costs."""

    kind: RoundKind
    groups: tuple[tuple[ResponseLength, ...], ...]
    """Lengths of the responses of each group that was trained on."""
    prompt_tokens: float
    """Mean over the prompts of these groups; 0: unknown."""
    num_deferred: int
    """Draws that wait after it."""
    timed: Sequence[TimedSteps]
    """Decode steps of its engines."""
    tp_size: int
    kv_capacity_tokens: int
    """Tokens that the KV cache of an engine holds; 0: unknown."""
    tokens_per_s: float
    """That one trainer replica computes gradients of; 0: unknown."""
    other_s: float
    """Time of the step besides rollout and gradients, where that of gradients is known."""


@dataclass(frozen=True)
class Question:
    """What a search is asked; values only, so that another process can answer."""

    job: SimJob
    bounds: SearchBounds
    margin: float
    num_turns: float = 1.0
    """Mean turns of a response: each costs the search as much as a response that has none."""

    def answer(self) -> SearchResult:
        """Search for the answer; raises ValueError if the job cannot be simulated."""
        return search(self.job, self.bounds, num_rounds=self.num_rounds, margin=self.margin)

    @property
    def num_rounds(self) -> int:
        """Rounds that the search may simulate: as many as have `_NUM_RESPONSES`, within bounds."""
        num_responses = self.num_turns * self.job.shape.num_prompts * self.job.shape.num_responses
        return min(_MOST_ROUNDS, max(_LEAST_ROUNDS, int(_NUM_RESPONSES / num_responses)))


@dataclass(frozen=True)
class RoundChange:
    """Another choice for the next rounds, and why."""

    before: RoundChoice
    after: RoundChoice
    predicted_share: float
    """Time of a step over that of the present, as predicted."""

    def __str__(self) -> str:
        pairs = zip(self.before.fields.items(), self.after.fields.values(), strict=True)
        changes = ", ".join(f"{name} {old} -> {new}" for (name, old), new in pairs if old != new)
        return f"{changes}: predicted step {self.predicted_share:.2f} of the present"


class AutoTuner:
    """One per job. Its memory belongs to checkpoints."""

    def __init__(self, spec: RLJobSpec) -> None:
        self._spec = spec
        self._handovers = free_handovers(spec)
        self._open: list[tuple[ResponseLength, ...]] = []
        """Groups of the period that has not ended."""
        self._periods: deque[list[tuple[ResponseLength, ...]]] = deque()
        self._rate = DecodeRate()
        self._tp_size = 0
        self._kv_capacity_tokens = 0
        self._prompt_tokens: deque[float] = deque(maxlen=_MOST_STEPS)
        self._tokens_per_s: deque[float] = deque(maxlen=_MOST_STEPS)
        self._other_s: deque[float] = deque(maxlen=_MOST_STEPS)
        self._num_deferred = 0
        self._is_due = False

    @property
    def chooses_handover(self) -> bool:
        """Whether the layout and the job leave it open."""
        return bool(self._handovers)

    def observe(self, facts: StepFacts) -> None:
        """Learn from a step that is over."""
        if facts.tp_size != self._tp_size:
            self._rate, self._tp_size = DecodeRate(), facts.tp_size
        if self._rate.is_known:
            self._rate.fade()
        for timed in facts.timed:
            self._rate.add(timed.steps, timed.seconds)
        self._kv_capacity_tokens = facts.kv_capacity_tokens
        if facts.prompt_tokens > 0:
            self._prompt_tokens.append(facts.prompt_tokens)
        if facts.tokens_per_s > 0:
            self._tokens_per_s.append(facts.tokens_per_s)
        self._other_s.append(max(0.0, facts.other_s))
        self._open += facts.groups
        if facts.kind is RoundKind.LONG or facts.num_deferred == self._num_deferred:
            self._end_period()
        self._num_deferred = facts.num_deferred

    def question(self, present: RoundChoice) -> Question | None:
        """Return what to search for in the spare time before the next rounds, or None for no search.

        Raises:
            ValueError: the job cannot be simulated.
        """
        if not self._is_due or not self._rate.is_known:
            return None
        self._is_due = False
        bounds = SearchBounds(
            strategies=frozenset({Strategy.TAIL_BATCHING}),
            max_response_factor=self._spec.rollout.tail_batching.response_factor,
            handovers=self._handovers,
            is_frontier_open=bool(self._handovers) and self._spec.rollout.admission.frontier_width is None,
        )
        turns = [one.num_turns if isinstance(one, EpisodeLength) else 1 for group in self._groups for one in group]
        return Question(self._job(present), bounds, self._spec.rollout.auto.margin, fmean(turns))

    def decide(self, found: SearchResult, present: RoundChoice) -> RoundChange | None:
        """Return what to change, or None if nothing beats the present choice by the margin."""
        best = found.best.choice
        chosen = RoundChoice(
            # Without factors it is Synchronous, which is tail batching with factors of 1.
            prompt_factor=best.prompt_factor or 1.0,
            response_factor=best.response_factor or 1.0,
            handover=best.handover if self._handovers else present.handover,
            frontier_width=best.frontier_width,
        )
        return RoundChange(present, chosen, found.best.cost(found.present)) if chosen != present else None

    def export_state(self) -> dict[str, Any]:
        """Return the state as JSON values."""
        return {
            "open": self._open,
            "periods": list(self._periods),
            "rate": self._rate.export_state(),
            "tp_size": self._tp_size,
            "kv_capacity_tokens": self._kv_capacity_tokens,
            "prompt_tokens": list(self._prompt_tokens),
            "tokens_per_s": list(self._tokens_per_s),
            "other_s": list(self._other_s),
            "num_deferred": self._num_deferred,
            "is_due": self._is_due,
        }

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Undo `export_state`."""
        self._open = list(map(_group, state["open"]))
        self._periods = deque([*map(_group, period)] for period in state["periods"])
        self._rate.load_state(state["rate"])
        self._tp_size, self._kv_capacity_tokens = state["tp_size"], state["kv_capacity_tokens"]
        self._prompt_tokens.extend(state["prompt_tokens"])
        self._tokens_per_s.extend(state["tokens_per_s"])
        self._other_s.extend(state["other_s"])
        self._num_deferred, self._is_due = state["num_deferred"], state["is_due"]

    def _end_period(self) -> None:
        self._periods.append(self._open)
        self._open = []
        num_prompts = self._spec.algorithm.prompts_per_step
        while len(self._periods) > 1 and sum(map(len, self._periods)) > _MOST_STEPS * num_prompts:
            self._periods.popleft()
        self._is_due = sum(map(len, self._periods)) >= _LEAST_STEPS * num_prompts

    def _job(self, present: RoundChoice) -> SimJob:
        """Return the job as it has been, with costs that were measured; raises ValueError if it cannot be simulated."""
        _require_all_replicas(self._spec)
        spec, groups, profile = self._spec, self._groups, self._profile()
        engine = spec.rollout.engine.model_copy(update={"tensor_parallel_size": self._tp_size})
        sized = spec.model_copy(update={"rollout": spec.rollout.model_copy(update={"engine": engine})})
        job = job_of(sized, _MEASURED, gpu_described("measured"), self._lengths(groups), profile)
        job = replace(
            job,
            trainer=replace(job.trainer, gpus_per_replica=spec.trainer.ranks_per_replica if self._has_gpus else 1),
            trainer_profile=profile,
            rewards=Rewards(MathsRewards(per_sample_s=0.0)),
            plans_parallelism=False,
            num_prompts=max(len(groups), 2 * spec.algorithm.prompts_per_step),
        )
        own = Choice.of(job)
        return replace(
            own,
            prompt_factor=present.prompt_factor,
            response_factor=present.response_factor,
            handover=present.handover if self._handovers else own.handover,
            frontier_width=present.frontier_width,
        ).applied_to(job)

    @property
    def _groups(self) -> list[tuple[ResponseLength, ...]]:
        return [group for period in self._periods for group in period]

    def _lengths(self, groups: Sequence[tuple[ResponseLength, ...]]) -> TraceLengths:
        """Return lengths with mean prompts, which fill KV caches and are trained on with each response."""
        return TraceLengths(groups, prompts=(round(fmean(self._prompt_tokens)),) if self._prompt_tokens else ())

    @property
    def _has_gpus(self) -> bool:
        return self._spec.training_pods.gpus_per_pod > 0

    def _profile(self) -> Profile:
        spec, capacity = self._spec, self._kv_capacity_tokens or _BOUNDLESS_TOKENS
        num_ranks = spec.trainer.ranks_per_replica if self._has_gpus else 1
        sizes = {1 << power for power in range(spec.rollout.engine.max_num_seqs.bit_length())}
        return Profile(
            decode=[
                DecodePoint(tp_size=self._tp_size, num_running=size, context_tokens=usage * capacity, step_s=step_s)
                for size in sorted({*sizes, spec.rollout.engine.max_num_seqs})
                for usage in (0, 1)
                for step_s in [max(_LEAST_S, self._rate.seconds(DecodeSteps(1, size, usage)))]
            ],
            prefill_tokens_per_s=_AT_ONCE,
            kv_capacity_tokens={self._tp_size: capacity},
            train_tokens_per_s=fmean(self._tokens_per_s) / num_ranks if self._tokens_per_s else _AT_ONCE,
            optimizer_s=0.0,
            publish_s=fmean(self._other_s),
            to_training_s=0.0,
            to_rollout_s=0.0,
            migration_s=0.0,
        )


def _group(stored: Sequence[Any]) -> tuple[ResponseLength, ...]:
    return tuple(one if isinstance(one, int) else EpisodeLength(*one) for one in stored)


def _require_all_replicas(spec: RLJobSpec) -> None:
    num_replicas, most = spec.trainer.data_parallel_size, spec.max_trainer_replicas
    if num_replicas is not None and num_replicas < most:
        raise ValueError(
            f"trainer.dataParallelSize: {num_replicas} of the {most} replicas that the pods hold are used, and the "
            "simulator uses all of them; remove it"
        )
