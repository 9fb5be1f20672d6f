"""Make the only update of a step whose gradients are streamed.

Groups go to awake replicas while the round runs, and the rest to all replicas at its end (RollPacker, section 4.4).
"""

import queue
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future

from longshore.policy.round import ResponseId
from longshore.policy.streaming import SamplePart, StreamLedger, StreamSample
from longshore_runtime.backends.trainer_protocol import Sample
from longshore_runtime.clock import Clock
from longshore_runtime.rollout.batch import ScoredGroup
from longshore_runtime.rollout.events import Event, GradientsDone
from longshore_runtime.trainer.group import PendingUpdate, TrainerGroup
from longshore_runtime.trainer.step_progress import StepProgress
from longshore_runtime.trainer.updates import StepTraining


class StreamedUpdate:
    """Update of one step. Use once: give it every group, wake replicas, then finish."""

    def __init__(
        self,
        trainers: TrainerGroup,
        batch_samples: Callable[[Sequence[ScoredGroup]], list[Sample]],
        events: "queue.SimpleQueue[Event]",
        clock: Clock,
        *,
        awake: Iterable[int] = (),
        verify: bool = False,
        max_mismatch: float | None = None,
    ) -> None:
        """Begin the update.

        Args:
            batch_samples: `updates.batch_samples`, for the prompts and the algorithm of the step.
            awake: replicas that compute from the beginning.
            max_mismatch: see `TrainerGroup.end`.
        """
        self._trainers = trainers
        self._batch_samples = batch_samples
        self._events = events
        self._clock = clock
        self._verify = verify
        self._max_mismatch = max_mismatch
        self._awake = set(awake)
        self._ledger = StreamLedger()
        self._samples: dict[ResponseId, tuple[Sample, ...]] = {}
        self._update = trainers.begin()
        self._started_s = clock.now_s()
        self._first_dispatch_s: float | None = None
        self._first_gradient_s: float | None = None
        self._has_ended = False
        self._progress = StepProgress(trainers)

    @property
    def may_have_updated(self) -> bool:
        """Whether the update has begun; streamed gradients change no weights, and are lost with the trainers only."""
        return self._has_ended

    def train_on(self, group: ScoredGroup) -> None:
        samples = self._batch_samples([group])
        of_group: dict[ResponseId, tuple[Sample, ...]] = {}
        for sample in samples:  # All branches of an episode go to one replica.
            of_group[sample.response] = (*of_group.get(sample.response, ()), sample)
        self._samples |= of_group
        self._ledger.accept(
            [StreamSample(one, sum(sample.num_tokens for sample in branches)) for one, branches in of_group.items()]
        )
        self._dispatch()

    def replicas_awake(self, replicas: Iterable[int]) -> None:
        """Use these replicas, which can compute although the round still runs."""
        self._awake.update(replicas)
        self._dispatch()

    def gradients_done(self, event: GradientsDone) -> None:
        """Note that a replica has computed what it was given."""
        if event.update is not self._update:
            return
        if self._first_gradient_s is None:
            self._first_gradient_s = self._clock.now_s() - self._started_s
        self._ledger.computed(event.replica)
        self._dispatch()

    def finish(self) -> StepTraining:
        streamed_tokens = self._ledger.computed_tokens
        self._give(self._ledger.last_parts(range(self._trainers.num_replicas)))
        batch = self._batch
        self._has_ended = True
        self._trainers.end(self._update, verify=self._verify, batch=batch, max_mismatch=self._max_mismatch)
        result = self._trainers.finish(self._update)
        assert self._first_dispatch_s is not None, "a round has groups"
        replica_of = dict(self._ledger.replica_of)
        return StepTraining(
            (result,), (batch,), self._first_dispatch_s, self._first_gradient_s, replica_of, streamed_tokens
        )

    def progress(self) -> tuple[int, int]:
        total = len(self._batch)
        return self._progress.num_computed(total), total

    def restart(self) -> None:
        self._progress.restart()
        self._ledger.lost()
        self._update = self._trainers.begin()

    @property
    def _batch(self) -> tuple[Sample, ...]:
        """Samples of all groups that were accepted so far."""
        return tuple(sample for branches in self._samples.values() for sample in branches)

    def _dispatch(self) -> None:
        self._give(self._ledger.next_parts(self._awake))

    def _give(self, parts: Iterable[SamplePart]) -> None:
        for part in parts:
            if self._first_dispatch_s is None:
                self._first_dispatch_s = self._clock.now_s() - self._started_s
            samples = [sample for response in part.responses for sample in self._samples[response]]
            answer = self._trainers.give(self._update, part.replica, samples)
            answer.future().add_done_callback(self._report_to(part.replica, self._update))

    def _report_to(self, replica: int, update: PendingUpdate) -> "Callable[[Future[object]], None]":
        def report(future: "Future[object]") -> None:
            if future.exception() is None:  # What failed shows when the update is finished.
                self._events.put(GradientsDone(replica, update))

        return report
