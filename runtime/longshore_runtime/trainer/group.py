"""All trainer replicas behind one handle. Samples go out, to one or all; sums come back; one update follows.

    driver ── `give`, `end` (do not wait) ──► actors, one per rank: each runs its calls in their order
           ◄── `finish`, `begin_save` (wait) ─────
    driver, threads of engines that join ── calls that all ranks make together ──► actors, under the lock `_in_order`
    any thread ── `num_computed`, `loaded_share` ──► thread `meter` of each actor
    actor ── `lasts` fails ──► thread of Ray (`TrainerWorld.watch`) ── ReplicaLost ──► driver's queue

A replica is one rank, or several consecutive ones that hold it together; each rank is an actor.
"""

import queue
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any, Final

import ray

from longshore.api.objectives.aggregation import denominator
from longshore.policy.balancing import balance
from longshore.record.facts import LanePlace, TrainerPass, UpdatePasses
from longshore_runtime.backends.sums import GradientSums
from longshore_runtime.backends.trainer_protocol import Sample, SampleKey, TrainerOptions, TrainResult
from longshore_runtime.backends.trainer_spec import TrainerSpec
from longshore_runtime.clock import SystemClock
from longshore_runtime.cluster.actors import Check
from longshore_runtime.places import Place
from longshore_runtime.rollout.events import Event
from longshore_runtime.rollout.published import PublishedWeights, StoredWeights
from longshore_runtime.rollout.remote_engine import EngineHandle
from longshore_runtime.trainer.direct_weights import Delivery, DirectWeights
from longshore_runtime.trainer.replica_places import ReplicaPlaces
from longshore_runtime.trainer.sending import Sending
from longshore_runtime.trainer.world import CALL_LIMIT_S, PODS_LIMIT_S, RankDeath, TrainerWorld
from longshore_runtime.trajectories.trajectory import LogProbs
from longshore_runtime.weights.buckets import MAX_BUCKET_BYTES

_METER_LIMIT_S: Final = 10.0
"""Seconds to read a meter while a rank works; a progress report does without it if it takes longer."""
_UPDATE_LIMIT_S: Final = 6 * 3600.0
"""Seconds for an update, which may be much work.

A lost rank is noticed at once, and a rank that waits for it gives up earlier.
"""


@dataclass
class PendingUpdate:
    """An optimizer step in progress."""

    samples: list[Sample] = field(default_factory=list)
    passes: list[Any] = field(default_factory=list)
    """Tuples (rank, pending answer: sums of its replica, seconds) for all parts given to ranks."""
    given_s: list[float] = field(default_factory=list)
    """Times at which each part was given, in seconds."""
    differences: list[Any] = field(default_factory=list)
    """Pending answers, one per rank, if the update is verified."""
    steps: list[Any] = field(default_factory=list)
    """Pending answers, one per rank: (report, seconds)."""
    denominator: float = 0.0


@dataclass(frozen=True)
class Checks:
    """Functions that are called every few seconds during long waits; each raises to end the wait."""

    pods: Check | None = None
    """Function that is called while pods or a checkpoint are awaited."""
    update: Check | None = None
    """Function that is called while an update or a pass is awaited."""


@dataclass(frozen=True)
class PassResult:
    """Log-probabilities, or a critic's values, of the response tokens of samples, and the time that they took."""

    by_sample: Mapping[SampleKey, LogProbs]
    compute_s: float
    """Time in which the busiest replica worked."""
    work: UpdatePasses | None = None
    """Work of each replica, and the times at which it was given."""


class TrainerGroup:
    """The data-parallel world of a job; every method raises TrainerLost when a replica is gone."""

    def __init__(
        self,
        places: Sequence[Place],
        spec: TrainerSpec,
        model: str,
        output: str,
        delivery: Delivery | None = None,
        checks: Checks = Checks(),
    ) -> None:
        """Start one rank per place from a Hugging Face directory, `model`, relative to the storage.

        Raises:
            UserError: the model cannot be trained so.
            Exception: what `checks.pods` raises.
        """
        self._replicas = ReplicaPlaces(places, spec.sizes.ranks_per_replica)
        self._spec = spec
        self._delivery = delivery or Delivery()
        self._clock = SystemClock()
        self._checks = checks
        self._world = TrainerWorld(places, spec, model, output, checks.pods)
        self._in_order = threading.Lock()
        """Held while calls go to several ranks, which compute together and so need them in one order: engines that join
        ask for weights from threads of their own."""
        self.num_given = 0
        """Samples that these ranks were asked to compute gradients or log-probabilities of; one counts each time."""

    @property
    def num_replicas(self) -> int:
        """Number of data-parallel replicas."""
        return self._replicas.num_replicas

    def lane_places(self) -> tuple[LanePlace, ...]:
        """Return the places of the replicas, in their order."""
        return self._replicas.lane_places()

    def pods_of(self, replica: int) -> tuple[int, ...]:
        """Return the worker pods that hold a replica; none if pods that only train hold it."""
        return self._replicas.pods_of(replica)

    def replicas_on(self, pods: Collection[int]) -> tuple[int, ...]:
        """Return the replicas all of whose ranks are in these worker pods."""
        return self._replicas.within(pods)

    @property
    def generation(self) -> int:
        """Number of restarts so far."""
        return self._world.generation

    def watch(self, events: "queue.SimpleQueue[Event]") -> None:
        """Report the loss of a rank as an event from now on, so that it is noticed during a round."""
        self._world.watch(events)

    def find_death(self) -> RankDeath | None:
        """See `TrainerWorld.find_death`."""
        return self._world.find_death()

    def restart(self, timeout_s: float = PODS_LIMIT_S) -> None:
        """End all ranks and start them again in the same places, as `__init__` did; `load` has to follow.

        Raises:
            TrainerLost: the pods are not there (again) within `timeout_s`.
        """
        self.num_given = 0
        self._world.restart(timeout_s)

    def stop(self) -> None:
        """End all replicas."""
        self._world.stop()

    def train(self, samples: Sequence[Sample]) -> TrainResult:
        """Compute the gradient over all samples and make one optimizer step."""
        update = self.begin()
        self.add(update, samples)
        self.end(update)
        return self.finish(update)

    def begin(self) -> PendingUpdate:
        """Begin an optimizer step to which samples can be added."""
        return PendingUpdate()

    def add(self, update: PendingUpdate, samples: Sequence[Sample]) -> None:
        """Spread samples over the replicas, which add their gradients to what they have; does not wait."""
        for replica, part in enumerate(shares(samples, self.num_replicas)):
            if part:
                self.give(update, replica, part)

    def give(self, update: PendingUpdate, replica: int, samples: Sequence[Sample]) -> Any:
        """Have one replica add the gradients of these samples to what it has; does not wait.

        Returns a Ray object that is there when the replica is done with them.
        """
        dealt = self._deal(replica, samples)
        with self._in_order:
            passes = [(rank, self._world.actors[rank].accumulate.remote(stored)) for rank, _, stored in dealt]
        self.num_given += len(samples)
        update.samples += samples
        update.passes += passes
        update.given_s += [self._clock.now_s()] * len(passes)
        return passes[0][1]

    def log_probs(self, samples: Sequence[Sample], timeout_s: float = _UPDATE_LIMIT_S) -> PassResult:
        """Return the log-probabilities of all samples under the current weights.

        Waits for updates that were ended, and for the passes.
        """
        return self._pass("log_probs", samples, timeout_s)

    def values(self, samples: Sequence[Sample], timeout_s: float = _UPDATE_LIMIT_S) -> PassResult:
        """Return the values that the critic gives the tokens of all samples, as `log_probs` does."""
        return self._pass("values", samples, timeout_s)

    def _pass(self, method: str, samples: Sequence[Sample], timeout_s: float) -> PassResult:
        parts, given_s = shares(samples, self.num_replicas), self._clock.now_s()
        dealt = [one for replica, part in enumerate(parts) if part for one in self._deal(replica, part)]
        with self._in_order:
            calls = [(part, rank, getattr(self._world.actors[rank], method), stored) for rank, part, stored in dealt]
            pending = [(part, rank, call.remote(stored)) for part, rank, call, stored in calls]
        self.num_given += len(samples)
        found: dict[SampleKey, LogProbs] = {}
        passes = []
        answers = self._world.get([one for *_, one in pending], timeout_s, check=self._checks.update)
        for (part, rank, _), (values, took_s) in zip(pending, answers, strict=True):
            # Copied, because they lie in Ray's store of objects, and live as long as the samples.
            found |= {part[place].key: of_sample.copy() for place, of_sample in values.items()}
            passes.append((rank, given_s, took_s))
        assert len(found) == len(samples), "the replicas computed other samples than those of the batch"
        return PassResult(found, max((took_s for *_, took_s in passes), default=0.0), self._work(passes))

    def end(
        self,
        update: PendingUpdate,
        *,
        verify: bool = False,
        batch: Sequence[Sample] | None = None,
        max_mismatch: float | None = None,
    ) -> None:
        """Make one optimizer step with everything that was added; does not wait. Another may begin behind it.

        `batch`: what that has to be (None: whatever was given); `finish` asserts it. `verify`: before the step, the
        gradients are compared with those of one pass over it. `max_mismatch`: past this mean mismatch of
        log-probabilities the step is not made, nor is any that follows, and `finish` raises LogProbMismatch; `discard`
        has to follow.
        """
        if batch is not None:
            update.samples = list(batch)
        update.denominator = step_denominator(update.samples, self._spec.options)
        if verify:
            ordered = in_draw_order(update.samples)
            parts = [ordered[replica :: self.num_replicas] for replica in range(self.num_replicas)]
            dealt = [one for replica, part in enumerate(parts) for one in self._deal(replica, part)]
            with self._in_order:
                update.differences = [
                    self._world.actors[rank].compare.remote(stored, update.denominator) for rank, _, stored in dealt
                ]
        # Ranks get the sums from each other, so the driver does not wait for them before the update.
        sums = [answer for rank, answer in update.passes if self._spec.sizes.is_first_of_replica(rank)]
        with self._in_order:
            update.steps = [actor.update.remote(update.denominator, max_mismatch, sums) for actor in self._world.actors]

    def finish(self, update: PendingUpdate, timeout_s: float = _UPDATE_LIMIT_S) -> TrainResult:
        """Wait for an update that was ended; raises LogProbMismatch for one that was refused."""
        assert update.steps, "the update was not ended"
        # One wait for all: the first failure ends it.
        num_passes, num_steps = len(update.passes), len(update.steps)
        pending = [answer for _, answer in update.passes] + update.steps + update.differences
        answers = self._world.get(pending, timeout_s, check=self._checks.update)
        passes, steps = answers[:num_passes], answers[num_passes : num_passes + num_steps]
        differences = answers[num_passes + num_steps :]
        seconds = [seconds for _, seconds in steps]
        sums, gradients_s = GradientSums(), 0.0
        for (rank, _), (of_pass, pass_s) in zip(update.passes, passes, strict=True):
            seconds[rank] += pass_s
            if self._spec.sizes.is_first_of_replica(rank):  # Every rank reports its replica's sums.
                sums += of_pass
                gradients_s += pass_s
        num_tokens = sum(sample.num_response_tokens for sample in update.samples)
        assert sums.num_tokens == num_tokens, "the replicas processed other tokens than those of the batch"
        given = zip(update.passes, update.given_s, passes, strict=True)
        work = self._work([(rank, given_s, pass_s) for (rank, _), given_s, (_, pass_s) in given], steps[0][1])
        difference = max(differences, default=None)
        return TrainResult(sums, steps[0][0], update.denominator, max(seconds), gradients_s, difference, work)

    def num_computed(self) -> float:
        """Return how many of those that were given are computed, within a call as well; called from any thread."""
        sizes = self._spec.sizes
        counting = [
            actor
            for rank, actor in enumerate(self._world.actors)
            if sizes.deals_samples or sizes.is_first_of_replica(rank)
        ]
        return sum(self._world.get([actor.num_computed.remote() for actor in counting], _METER_LIMIT_S))

    def policy_version(self) -> int:
        """Return the number of optimizer steps so far, including those in progress."""
        (version,) = self._world.get([self._world.actors[0].policy_version.remote()])
        return int(version)

    def weights(self, policy_version: int) -> PublishedWeights:
        """Return the current weights, on their way to engines."""
        if not self._delivery.is_direct:
            return self.begin_copies(policy_version)()
        return DirectWeights(self, policy_version, keeps_copies=self._delivery.keeps_copies)

    def begin_copies(
        self, policy_version: int, max_bucket_bytes: int = MAX_BUCKET_BYTES
    ) -> Callable[[], StoredWeights]:
        """Have the ranks of one replica copy the current weights, as objects of Ray, collected on its first rank.

        Does not wait; the returned function does, and raises WeightsUnavailable if they were of another version.
        """
        ranks = self._replicas.ranks(0)
        with self._in_order:
            streams = [self._world.actors[rank].weights.remote(max_bucket_bytes, policy_version) for rank in ranks]

        def copies() -> StoredWeights:
            self._world.get([stream.completed() for stream in streams])
            *buckets, checksum = streams[0]
            return StoredWeights(tuple(buckets), self._world.get([checksum])[0], policy_version)

        return copies

    def begin_sending(
        self,
        readers: Collection[int],
        policy_version: int,
        *,
        in_pieces: bool = False,
        max_bucket_bytes: int = MAX_BUCKET_BYTES,
    ) -> Sending:
        """See `SendingTrainers`: all ranks of the replicas that are read take part."""
        writers = {rank: self._world.actors[rank] for rank in self._replicas.writers(readers)}
        sending = Sending(writers, readers, self._world.get, self._in_order)
        sending.begin(max_bucket_bytes, policy_version, in_pieces=in_pieces)
        return sending

    def colocated_ranks(self, engine: EngineHandle) -> tuple[int, ...]:
        """See `ReplicaPlaces.colocated_ranks`."""
        return self._replicas.colocated_ranks(engine.places, engine.num_workers)

    def can_broadcast_to(self, engine: EngineHandle, readers: Collection[int]) -> bool:
        """Return whether the rank that broadcasts while these ranks are read has no GPU in common with an engine."""
        first, *_ = self._replicas.writers(readers)
        return not self._replicas.shares_gpu(engine.places, first)

    def is_cut_alike(self, ranks: Sequence[int]) -> bool:
        """See `ParallelSizes.is_cut_alike`."""
        return self._spec.sizes.is_cut_alike(ranks)

    def begin_save(self, directory: str, *, timeout_s: float = CALL_LIMIT_S) -> Callable[[], None]:
        """Begin to write the trainer's part of a checkpoint to a directory in the storage, as it is now.

        Updates wait until it is written; all else goes on.

        Returns:
            Function that waits for it, in any thread; like this one, it raises TrainerLost.
        """
        world, deadline_s = self._world, time.monotonic() + min(timeout_s, CALL_LIMIT_S)

        def get(answers: Sequence[Any]) -> None:
            world.get(answers, max(0.0, deadline_s - time.monotonic()))

        savers = world.actors if self._spec.saves_together else world.actors[:1]
        with self._in_order:
            begun = [actor.begin_save.remote(directory) for actor in savers]
        get(begun)
        saved = [actor.wait_saved.remote() for actor in savers]

        def wait() -> None:
            get(saved)
            get([savers[0].finish_save.remote(directory)])

        return wait

    def load(self, directory: str) -> None:
        """Restore every replica; raises UserError for a checkpoint of another backend."""
        self._world.get([actor.load.remote(directory) for actor in self._world.actors], check=self._checks.pods)

    def loaded_share(self) -> float:
        """Return the share of the checkpoint that the slowest rank has loaded; called from any thread during `load`."""
        return float(min(self._world.get([one.loaded_share.remote() for one in self._world.actors], _METER_LIMIT_S)))

    def discard(self) -> None:
        """Discard accumulated gradients."""
        self._world.get([actor.discard.remote() for actor in self._world.actors])

    def sleep(self, replicas: Collection[int] | None = None) -> None:
        """Free the GPUs of these replicas (None: of all) for the engines; accumulated gradients are kept."""
        self._world.get([actor.sleep.remote() for actor in self._actors_of(replicas)])

    def wake(self, replicas: Collection[int] | None = None, timeout_s: float = CALL_LIMIT_S) -> None:
        """Take the GPUs of these replicas back. Neither this nor `give` to them needs replicas that still sleep."""
        self._world.get([actor.wake.remote() for actor in self._actors_of(replicas)], timeout_s)

    def _deal(self, replica: int, samples: Sequence[Sample]) -> list[tuple[int, Sequence[Sample], Any]]:
        """Return the samples of each rank of a replica, and where Ray stores them: no rank fetches those of others."""
        ranks = self._replicas.ranks(replica)
        if self._spec.sizes.deals_samples:
            parts = rank_shares(samples, len(ranks))
            return [(rank, part, ray.put(part)) for rank, part in zip(ranks, parts, strict=True)]
        stored = ray.put(samples)
        return [(rank, samples, stored) for rank in ranks]

    def _work(self, passes: Sequence[tuple[int, float, float]], update_s: float = 0.0) -> UpdatePasses:
        """Describe passes of (rank, when it was given, seconds) by the first rank of each replica."""
        sizes = self._spec.sizes
        firsts = [one for one in passes if sizes.is_first_of_replica(one[0])]
        return UpdatePasses(
            tuple(TrainerPass(sizes.replica(rank), given_s, took_s) for rank, given_s, took_s in firsts), update_s
        )

    def _actors_of(self, replicas: Collection[int] | None) -> list[Any]:
        chosen = range(self.num_replicas) if replicas is None else replicas
        return [self._world.actors[rank] for replica in chosen for rank in self._replicas.ranks(replica)]


def shares(samples: Sequence[Sample], num_replicas: int) -> list[list[Sample]]:
    """Return samples by replica: longest first onto the replica with the fewest tokens, so that all end together."""
    shares = balance(in_draw_order(samples), attrgetter("num_tokens"), dict.fromkeys(range(num_replicas), 0))
    return list(shares.pieces.values())


def rank_shares(samples: Sequence[Sample], num_ranks: int) -> list[list[Sample]]:
    """Return the samples of each rank of a replica that deals them out: alike in length, and in what has gradients."""
    order = sorted(in_draw_order(samples), key=lambda sample: (not sample.has_advantage, -sample.num_tokens))
    return [order[first::num_ranks] for first in range(num_ranks)]


def in_draw_order(samples: Sequence[Sample]) -> list[Sample]:
    """Return the same samples in the order of the data, no matter who had them first."""
    return sorted(samples, key=lambda sample: (sample.draw, sample.index, sample.branch))


def step_denominator(samples: Sequence[Sample], options: TrainerOptions) -> float:
    """Return what the sums of one optimizer step over exactly these samples are divided by."""
    in_loss = [(sample.num_loss_tokens, sample.share) for sample in samples]
    return denominator(options.objective.aggregation, in_loss, options.max_response_tokens)
