"""All trainer replicas behind one handle. Samples go out in shares; sums come back; one update follows.

A replica is one rank, or several consecutive ones that hold it together; each rank is an actor.
"""

import contextlib
import queue
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, Final

import ray

from longshore_runtime.backends.trainer_spec import TrainerSpec
from longshore_runtime.cluster.actors import wait_ended
from longshore_runtime.cluster.placement import placement
from longshore_runtime.errors import TrainerLost, UserError
from longshore_runtime.places import Place
from longshore_runtime.rollout.engine_pool import PublishedWeights
from longshore_runtime.rollout.events import Event, TrainerGone
from longshore_runtime.trainer.actor import TrainerActor
from longshore_runtime.trainer.samples import shares, step_denominator
from longshore_runtime.types import GradientSums, Sample, TrainResult

_LOST_PEER: Final = ("onnection", "imed out", "peer", "remote process")
"""What gloo and nccl say when another rank is gone."""


@dataclass
class PendingUpdate:
    """An optimizer step that the ranks work on."""

    samples: list[Sample] = field(default_factory=list)
    passes: list[Any] = field(default_factory=list)
    """Answers to come, one per rank and `add`: (sums of its replica, seconds)."""
    steps: list[Any] = field(default_factory=list)
    """Answers to come, one per rank: (report, seconds)."""
    denominator: float = 0.0


class TrainerGroup:
    """The data-parallel world of a job; every method raises TrainerLost when a replica is gone."""

    def __init__(self, places: Sequence[Place], spec: TrainerSpec, model: str, output: str) -> None:
        """Start one rank per place from a Hugging Face directory, `model`, relative to the storage.

        Raises UserError for a model that cannot be trained so.
        """
        self._spec = spec
        self._actors = [TrainerActor.options(**placement(place.worker, gpus=place.gpus)).remote() for place in places]
        with contextlib.ExitStack() as undo:
            undo.callback(self.stop)  # A rank that waits for one that failed would keep its GPU.
            rendezvous = self._get([self._actors[0].rendezvous.remote()])[0]
            self._call("start", spec, model, output, rendezvous, len(self._actors), ranked=True)
            undo.pop_all()

    def watch(self, events: "queue.SimpleQueue[Event]") -> None:
        """From now on the loss of a rank is an event, so that a round need not end before it is noticed."""

        def tell(future: "Future[None]") -> None:
            events.put(TrainerGone(f"a trainer replica is gone ({type(future.exception()).__name__})"))

        for actor in self._actors:
            actor.lasts.remote().future().add_done_callback(tell)

    def train(self, samples: Sequence[Sample]) -> TrainResult:
        """Gradient of the objective over all samples, and one optimizer step."""
        update = self.begin()
        self.add(update, samples)
        self.end(update)
        return self.finish(update)

    def begin(self) -> PendingUpdate:
        """An optimizer step to which samples can be added."""
        return PendingUpdate()

    def add(self, update: PendingUpdate, samples: Sequence[Sample]) -> None:
        """Spread samples over the replicas, which add their gradients to what they have; does not wait."""
        sizes = self._spec.sizes
        parts = [ray.put(part) for part in shares(samples, len(self._actors) // sizes.ranks_per_replica)]
        update.samples += samples
        update.passes += [
            actor.accumulate.remote(parts[sizes.replica(rank)]) for rank, actor in enumerate(self._actors)
        ]

    def end(self, update: PendingUpdate) -> None:
        """One optimizer step with everything that was added; does not wait. Another may begin behind it."""
        update.denominator = step_denominator(update.samples, self._spec.options)
        update.steps = [actor.update.remote(update.denominator) for actor in self._actors]

    def finish(self, update: PendingUpdate) -> TrainResult:
        """Wait for an update that was ended."""
        assert update.steps, "the update was not ended"
        passes = self._get(update.passes)
        steps = self._get(update.steps)
        # Every rank reports its replica's sums: each replica counts once.
        sums = sum((one for one, _ in passes[:: self._spec.sizes.ranks_per_replica]), GradientSums())
        num_tokens = sum(len(sample.response_tokens) for sample in update.samples)
        assert sums.num_tokens == num_tokens, "the replicas processed other tokens than they were given"
        size = len(self._actors)
        compute_s = max(sum(seconds for _, seconds in passes[rank::size]) + steps[rank][1] for rank in range(size))
        return TrainResult(sums, steps[0][0], update.denominator, compute_s)

    def weights(self, policy_version: int) -> PublishedWeights:
        """The current weights, on their way to engines: the ranks of one replica collect them on its first."""
        replica = self._actors[: self._spec.sizes.ranks_per_replica]
        answers = [actor.weights.options(num_returns=2).remote() for actor in replica]
        checksums = self._get([checksum for _, checksum in answers])
        return PublishedWeights(answers[0][0], checksums[0], policy_version)

    def save(self, directory: str, *, timeout_s: float | None = None) -> None:
        """Write the trainer's part of a checkpoint to a directory in the storage."""
        savers = self._actors if self._spec.saves_together else self._actors[:1]
        self._get([actor.save.remote(directory) for actor in savers], timeout_s)

    def load(self, directory: str) -> None:
        """Restore every replica; raises UserError for a checkpoint of another backend."""
        self._call("load", directory)

    def discard(self) -> None:
        """Drop accumulated gradients."""
        self._call("discard")

    def sleep(self) -> None:
        """Give the GPUs to the engines."""
        self._call("sleep")

    def wake(self) -> None:
        """Take the GPUs back."""
        self._call("wake")

    def stop(self) -> None:
        """End all replicas."""
        for actor in self._actors:
            ray.kill(actor)
        wait_ended(self._actors)

    def _call(self, method: str, *arguments: Any, ranked: bool = False) -> list[Any]:
        return self._get(
            [
                getattr(actor, method).remote(*arguments, **({"rank": rank} if ranked else {}))
                for rank, actor in enumerate(self._actors)
            ]
        )

    def _get(self, references: Sequence[Any], timeout_s: float | None = None) -> list[Any]:
        try:
            results: list[Any] = ray.get(list(references), timeout=timeout_s)
        except ray.exceptions.RayTaskError as error:
            raise _cause(error) from error
        except ray.exceptions.GetTimeoutError as error:
            raise TrainerLost("a trainer replica does not answer") from error
        except ray.exceptions.RayError as error:
            raise TrainerLost(f"a trainer replica is gone ({type(error).__name__})") from error
        return results


def _cause(error: Exception) -> Exception:
    """What was raised in the actor. A peer's loss shows as a communication error in the survivors."""
    cause = getattr(error, "cause", None)
    kind, text = type(cause).__name__, str(cause)
    if kind.startswith("Dist") or (isinstance(cause, RuntimeError) and any(sign in text for sign in _LOST_PEER)):
        return TrainerLost(f"a trainer replica lost its peers ({text.splitlines()[0]})")
    if kind == "OutOfMemoryError":
        return UserError("trainer.maxTokensPerMicroBatch: the trainer ran out of GPU memory; lower it")
    return cause if isinstance(cause, UserError | FloatingPointError) else error
