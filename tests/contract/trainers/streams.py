"""Streamed steps: the runtime's own code deals samples out while groups arrive and replicas wake at random moments."""

import queue
import random
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

from longshore_runtime.rollout.events import Event, GradientsDone
from longshore_runtime.sums import GradientSums
from longshore_runtime.trainer.group import PendingUpdate
from longshore_runtime.trainer.streaming import StreamedUpdate
from longshore_runtime.trainer_protocol import Sample, TrainResult, UpdateReport


class StillClock:
    def now_s(self) -> float:
        return 0.0


@dataclass
class Answer:
    """Of a replica to one part, at the moment that the test chooses."""

    replica: int
    reply: "Future[object]" = field(default_factory=Future)

    def future(self) -> "Future[object]":
        return self.reply


@dataclass
class Replicas:
    """Stands for a trainer group: remembers which replica was given what, in which order."""

    num_replicas: int
    parts: list[list[tuple[Sample, ...]]] = field(default_factory=list)
    answers: list[Answer] = field(default_factory=list)
    num_updates: int = 0
    num_given: int = 0

    def num_computed(self) -> float:
        return self.num_given

    def begin(self) -> PendingUpdate:
        self.parts = [[] for _ in range(self.num_replicas)]
        self.answers = []
        return PendingUpdate()

    def give(self, update: PendingUpdate, replica: int, samples: Sequence[Sample]) -> Any:
        assert not any(update.steps), "samples after the end of the update"
        update.samples += samples
        self.num_given += len(samples)
        self.parts[replica].append(tuple(samples))
        self.answers.append(Answer(replica))
        return self.answers[-1]

    def end(
        self,
        update: PendingUpdate,
        *,
        verify: bool = False,
        batch: Sequence[Sample] = (),
        max_mismatch: float | None = None,
    ) -> None:
        assert sorted(map(id, batch)) == sorted(map(id, update.samples)), "the batch is what the replicas were given"
        update.steps = [None]

    def finish(self, update: PendingUpdate) -> TrainResult:
        self.num_updates += 1
        return TrainResult(GradientSums(), UpdateReport(0.0, 0.0, self.num_updates), update.denominator)

    def answer_one(self, rng: random.Random) -> None:
        """One replica has computed the oldest part that it has in hand."""
        waiting = {one.replica: one for one in reversed(self.answers) if not one.reply.done()}
        if waiting:
            rng.choice(list(waiting.values())).reply.set_result(None)


def stream(replicas: Replicas, batch: Sequence[Sample], rng: random.Random, *, loses_world: bool = False) -> None:
    """One step: groups arrive in any order, replicas wake at any moment or never before the end."""
    events: queue.SimpleQueue[Event] = queue.SimpleQueue()
    groups: dict[Any, list[Sample]] = {}
    for sample in batch:
        groups.setdefault(sample.draw, []).append(sample)
    update = StreamedUpdate(replicas, lambda given: groups[given[0]], events, StillClock())  # type: ignore[arg-type,return-value]
    happenings: list[Any] = [*groups, *rng.sample(range(replicas.num_replicas), rng.randint(0, replicas.num_replicas))]
    rng.shuffle(happenings)
    for one in happenings:
        if isinstance(one, int):
            update.replicas_awake([one])
        else:
            update.train_on(one)
        for _ in range(rng.randrange(3)):
            replicas.answer_one(rng)
        while not events.empty():
            event = events.get()
            assert isinstance(event, GradientsDone)
            update.gradients_done(event)
    if loses_world:
        update.restart()
    update.finish()
