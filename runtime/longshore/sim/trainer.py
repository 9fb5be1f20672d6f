"""The simulated trainer: data-parallel replicas that take samples, longest first, and update together."""

import math
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from longshore.policy.balancing import balance
from longshore.sim.costs import Costs
from longshore.sim.events import EventQueue
from longshore.sim.result import SpanRecorder, Work

Samples = Sequence[int]
"""Tokens of samples, prompts included."""


def makespan_s(durations_s: Sequence[float], free_s: Sequence[float]) -> list[float]:
    """Return when workers that are free from `free_s` on end: longest piece first, to the worker that is free first."""
    return list(balance(durations_s, float, dict(enumerate(free_s))).load.values())


@dataclass(frozen=True)
class TrainerShape:
    """The replicas of a trainer and what they cost."""

    costs: Costs
    replicas: tuple[tuple[int, ...], ...]
    """GPUs of each data-parallel replica, all of one size."""
    num_extra_forwards: int = 0
    """Forwards of every training pass besides its own, as for reference log-probabilities."""
    computes_old_log_probs: bool = False
    """Whether a step begins with a forward pass over its batch."""
    num_epochs: int = 1
    """Training passes over the batch."""

    @property
    def gpus(self) -> tuple[int, ...]:
        """GPUs of all replicas."""
        return tuple(gpu for replica in self.replicas for gpu in replica)

    @property
    def gpus_per_replica(self) -> int:
        """GPUs of one replica (tensor, pipeline and context parallel)."""
        return len(self.replicas[0])

    def sample_s(self, num_tokens: int) -> float:
        """Return the seconds of one replica over one sample, all its passes together."""
        pass_s = self.costs.train_s(num_tokens, self.gpus_per_replica, self.num_extra_forwards)
        forward_s = pass_s / self.costs.num_forwards(self.num_extra_forwards)
        return self.num_epochs * pass_s + (forward_s if self.computes_old_log_probs else 0.0)

    def optimizer_s(self) -> float:
        """Return the seconds of an update in every epoch, gradient reduction included."""
        return self.num_epochs * self.costs.optimizer_s(self.gpus_per_replica, len(self.replicas))


@dataclass(frozen=True)
class StreamedWork:
    """What the replicas of a streaming trainer computed in a step."""

    num_tokens: int
    streamed_tokens: int
    """Tokens that were computed when the round ended."""
    tokens_per_s: float
    """Tokens that one replica computes in a second."""
    num_awake: int
    """Replicas that were woken while the round ran."""


class SimTrainer:
    """All replicas take every batch together, one batch after the other."""

    def __init__(self, shape: TrainerShape, recorder: SpanRecorder) -> None:
        self._shape = shape
        self._recorder = recorder
        self.free_s = 0.0
        """When the last batch so far is done."""
        self.compute_s = 0.0
        self.first_start_s: float | None = None

    def begin_round(self, *, computes_old_log_probs: bool = False) -> None:
        """Count again; the step may begin with a pass for old log-probabilities."""
        self._shape = replace(self._shape, computes_old_log_probs=computes_old_log_probs)
        self.compute_s, self.first_start_s = 0.0, None

    def train(self, samples: Samples, not_before_s: float, *, ends_update: bool) -> float:
        """Compute gradients, and update if the batch ends one; returns when that is done."""
        start_s = max(not_before_s, self.free_s)
        durations = [self._shape.sample_s(tokens) for tokens in samples]
        ends = makespan_s(durations, [start_s] * len(self._shape.replicas))
        for replica, end_s in zip(self._shape.replicas, ends, strict=True):
            self._recorder.busy(replica, Work.TRAINING, start_s, end_s, "gradients")
        self.free_s = max(ends)
        if ends_update:
            self.free_s = self.update(self.free_s)
        self.first_start_s = start_s if self.first_start_s is None else self.first_start_s
        self.compute_s += self.free_s - start_s
        return self.free_s

    def update(self, start_s: float) -> float:
        """Do one optimizer step on all GPUs; returns its end."""
        end_s = start_s + self._shape.optimizer_s()
        self._recorder.busy(self._shape.gpus, Work.TRAINING, start_s, end_s, "update")
        return end_s


class StreamingTrainer:
    """Replicas that the rollout freed take trainable groups while the round runs; all replicas take what is left.

    RollPacker, section 4.4: gradients add up, one update ends the step.
    """

    def __init__(
        self, shape: TrainerShape, queue: EventQueue, recorder: SpanRecorder, max_fetched_once: int | None = None
    ) -> None:
        """Let replicas that wake take at most `max_fetched_once` groups, of those that are there by then."""
        self._shape = shape
        self._queue = queue
        self._recorder = recorder
        self._max_fetched_once = max_fetched_once
        self.begin_round()

    def begin_round(self) -> None:
        """Begin a round with no replica awake and nothing to do."""
        self._groups: deque[Samples] = deque()
        self._free_s: dict[int, float] = {}
        self._idle: list[int] = []
        self._num_fetchable: float | None = None
        """Groups that replicas may still take while the round runs; None: no replica is awake."""
        self.compute_s = 0.0
        self.first_start_s: float | None = None
        self._taken: list[int] = []
        """Tokens of the samples that replicas took while the round ran."""
        self.work = StreamedWork(0, 0, 0.0, 0)
        """Work of the whole step, once it has ended."""

    def join(self, replica: int, at_s: float) -> None:
        """Let a replica take groups from `at_s` on."""
        self._free_s[replica] = at_s
        self._queue.at(at_s, partial(self._next, replica, self._free_s))

    def train_on(self, samples: Samples) -> None:
        """Train on a group as soon as a replica is free."""
        self._groups.append(samples)
        if self._idle:
            self._next(self._idle.pop(), self._free_s)

    def finish(self, now_s: float, others_from_s: float) -> float:
        """Spread what is left after the round over all replicas, and update; return the end."""
        shape = self._shape
        awake, self._free_s = self._free_s, {}
        self.work = self._work_done(awake, now_s)
        free = [max(now_s, awake.get(replica, others_from_s)) for replica in range(len(shape.replicas))]
        ends = makespan_s([shape.sample_s(tokens) for samples in self._groups for tokens in samples], free)
        for replica, start_s, end_s in zip(shape.replicas, free, ends, strict=True):
            self._recorder.busy(replica, Work.TRAINING, start_s, end_s, "gradients")
        updated_s = max(ends) + shape.optimizer_s()
        self._recorder.busy(shape.gpus, Work.TRAINING, max(ends), updated_s, "update")
        self._computed(min(free), updated_s, share=1.0)
        return updated_s

    def _work_done(self, awake: Mapping[int, float], now_s: float) -> StreamedWork:
        left = [tokens for samples in self._groups for tokens in samples]
        num_tokens = sum(left) + sum(self._taken)
        gradients_s = sum(map(self._shape.sample_s, (*left, *self._taken)))
        tokens_per_s = num_tokens / gradients_s if gradients_s else 0.0
        in_hand_s = sum(max(0.0, free_s - now_s) for free_s in awake.values()) if self._taken else 0.0
        streamed = max(0, round(sum(self._taken) - in_hand_s * tokens_per_s))
        return StreamedWork(num_tokens, streamed, tokens_per_s, len(awake))

    def _next(self, replica: int, round_of: dict[int, float]) -> None:
        """Take the next group; `round_of` says whether the round is still the one that the replica joined."""
        if round_of is not self._free_s:
            return
        if self._num_fetchable is None:
            once = self._max_fetched_once
            self._num_fetchable = math.inf if once is None else min(once, len(self._groups))
        if not self._groups or not self._num_fetchable:
            self._idle.append(replica)
            return
        self._num_fetchable -= 1
        now_s = self._queue.now_s
        samples = self._groups.popleft()
        self._taken += samples
        end_s = now_s + sum(map(self._shape.sample_s, samples))
        self._recorder.busy(self._shape.replicas[replica], Work.TRAINING, now_s, end_s, "streamed gradients")
        self._computed(now_s, end_s, share=1 / len(self._shape.replicas))
        self._free_s[replica] = end_s
        self._queue.at(end_s, partial(self._next, replica, round_of))

    def _computed(self, start_s: float, end_s: float, share: float) -> None:
        """Note that a share of the trainer computed."""
        self.first_start_s = start_s if self.first_start_s is None else self.first_start_s
        self.compute_s += share * (end_s - start_s)
