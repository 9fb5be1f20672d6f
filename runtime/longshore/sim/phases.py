"""When the trainer computes: after the round, while it runs, or on GPUs that the round frees."""

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Final

from longshore.api.rollout import Handover
from longshore.policy.draws import Draw
from longshore.policy.handover import MAX_TOKENS_PER_REPLICA, Batch, HandoverQueue, TrainableGroup
from longshore.policy.long_round_updates import streams_gradients
from longshore.policy.old_log_probs import computes_old_log_probs
from longshore.sim.events import EventQueue
from longshore.sim.job import SimJob, Training
from longshore.sim.result import SpanRecorder, Work
from longshore.sim.round import TrainableSamples
from longshore.sim.trainer import SimTrainer, StreamedWork, StreamingTrainer, TrainerShape

_WHOLE_UPDATE: Final = 1 << 62
"""Token budget of a batch where an update is given to the trainer in one piece."""


class TrainingPhase(ABC):
    """What training does during a round and at its end."""

    _trainer: SimTrainer | StreamingTrainer

    def __init__(self, job: SimJob, queue: EventQueue, recorder: SpanRecorder) -> None:
        self._job = job
        self._queue = queue
        self._recorder = recorder
        first_gpu = job.gpus.num_gpus if job.trainer.pool else 0
        replicas = job.trainer_pool.split(job.trainer.gpus_per_replica, first_gpu)
        layout = job.trainer
        self.shape = TrainerShape(
            job.trainer_costs,
            replicas,
            layout.num_extra_forwards,
            num_epochs=layout.num_epochs,
        )

    @abstractmethod
    def begin_round(self, update_sizes: Sequence[int]) -> None:
        """Start a round with U of each of its updates, as for `HandoverQueue`."""

    @abstractmethod
    def train_on(self, group: TrainableSamples) -> None:
        """Take a group that is accepted and scored."""

    @abstractmethod
    def finish(self) -> float:
        """Complete the round; return when its last update is done."""

    @property
    def compute_s(self) -> float:
        """Time in which the trainer computed, in this round."""
        return self._trainer.compute_s

    @property
    def first_start_s(self) -> float | None:
        """Time at which the trainer first computed in this round; None before that."""
        return self._trainer.first_start_s

    def _to_training(self, replicas: Sequence[tuple[int, ...]], after_s: float = 0.0) -> float:
        """Switch the GPUs of these replicas to training after `after_s`; returns when they can compute."""
        end_s = self._queue.now_s + after_s + self.shape.costs.to_training_s(len(self.shape.gpus))
        gpus = [gpu for replica in replicas for gpu in replica]
        self._recorder.busy(gpus, Work.SWITCH, self._queue.now_s, end_s, "to training")
        return end_s


class BatchedTraining(TrainingPhase):
    """U groups by U groups: after the round, or, on GPUs of its own, as soon as they are there."""

    def __init__(self, job: SimJob, queue: EventQueue, recorder: SpanRecorder) -> None:
        super().__init__(job, queue, recorder)
        self._is_pipelined = job.trainer.training is Training.PIPELINED
        pipelined = MAX_TOKENS_PER_REPLICA * len(self.shape.replicas)
        self._budget = pipelined if self._is_pipelined else _WHOLE_UPDATE
        self._handover = HandoverQueue((job.groups_per_update,), self._budget)
        self.trainer = self._trainer = SimTrainer(self.shape, recorder)
        self._samples: dict[Draw, tuple[int, ...]] = {}
        self._batches: list[Batch] = []

    def begin_round(self, update_sizes: Sequence[int]) -> None:
        layout, is_undivided = self._job.trainer, update_sizes[0] >= self._job.shape.num_prompts
        computes = computes_old_log_probs(
            is_relative=layout.compares_with_trainer,
            makes_one_update=is_undivided and layout.num_epochs == 1,
            begins_during_round=self._is_pipelined,
        )
        self.trainer.begin_round(computes_old_log_probs=computes)
        self._handover = HandoverQueue(update_sizes, self._budget)
        self._samples = {}

    def train_on(self, group: TrainableSamples) -> None:
        self._samples[group.draw] = group.num_tokens
        self._batches += self._handover.add(TrainableGroup(group.draw, sum(group.num_tokens)))
        if self._is_pipelined:
            self._train(self._queue.now_s)

    def finish(self) -> float:
        self._batches += self._handover.round_ended()
        has_own_gpus = self._job.trainer.pool is not None
        self._train(self._queue.now_s if has_own_gpus else self._to_training(self.shape.replicas))
        return max(self._queue.now_s, self.trainer.free_s)

    def _train(self, from_s: float) -> None:
        batches, self._batches = self._batches, []
        for batch in batches:
            samples = [tokens for draw in batch.draws for tokens in self._samples[draw]]
            self.trainer.train(samples, from_s, ends_update=batch.ends_update)


class StreamedTraining(TrainingPhase):
    """Gradients on GPUs that were repurposed while the round ran, the rest and the update on all.

    Rounds of several updates are trained on after they have ended.
    """

    def __init__(self, job: SimJob, queue: EventQueue, recorder: SpanRecorder) -> None:
        super().__init__(job, queue, recorder)
        share = job.trainer.fetched_once_share
        most = None if share is None else math.ceil(share * job.shape.num_prompts)
        self._streaming = StreamingTrainer(self.shape, queue, recorder, most)
        self._after_round = BatchedTraining(job, queue, recorder)
        self.is_streamed = True
        """Whether gradients of the round can be computed while it runs."""
        self._trainer: SimTrainer | StreamingTrainer = self._streaming
        self._awake: set[int] = set()
        self.wake_s = 0.0
        """From the decision to repurpose GPUs until their replicas were awake, in this round."""

    def begin_round(self, update_sizes: Sequence[int]) -> None:
        self.is_streamed = streams_gradients(Handover.STREAMED, update_sizes)
        self._trainer = self._streaming if self.is_streamed else self._after_round.trainer
        self._streaming.begin_round()
        self._after_round.begin_round(update_sizes)
        self._awake = set()
        self.wake_s = 0.0

    def train_on(self, group: TrainableSamples) -> None:
        if self.is_streamed:
            self._streaming.train_on(group.num_tokens)
        else:
            self._after_round.train_on(group)

    @property
    def work(self) -> StreamedWork:
        """Work of the replicas in the step that has ended."""
        return self._streaming.work

    def repurpose(self, gpus: Sequence[int], decided_s: float) -> None:
        """Wake the replicas that lie on these GPUs, which are free."""
        free = set(gpus)
        replicas = [index for index, replica in enumerate(self.shape.replicas) if free.issuperset(replica)]
        freed = [self.shape.replicas[index] for index in replicas]
        awake_s = self._to_training(freed, after_s=self.shape.costs.migration_s())
        self.wake_s = awake_s - decided_s
        self._awake.update(replicas)
        for replica in replicas:
            self._streaming.join(replica, awake_s)

    def finish(self) -> float:
        if not self.is_streamed:
            return self._after_round.finish()
        asleep = [replica for index, replica in enumerate(self.shape.replicas) if index not in self._awake]
        others_from_s = self._to_training(asleep) if asleep else self._queue.now_s
        return self._streaming.finish(self._queue.now_s, others_from_s)


def training_phase(job: SimJob, queue: EventQueue, recorder: SpanRecorder) -> TrainingPhase:
    """Return the training phase that the job asks for."""
    if job.trainer.training is Training.STREAMED:
        return StreamedTraining(job, queue, recorder)
    return BatchedTraining(job, queue, recorder)
