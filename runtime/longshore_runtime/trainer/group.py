"""All trainer replicas behind one handle. Samples go out in shares; sums come back; one update follows."""

import queue
from collections.abc import Sequence
from concurrent.futures import Future
from typing import Any, Final

import ray

from longshore.api.training import TrainerBackend
from longshore_runtime.cluster.actors import wait_ended
from longshore_runtime.cluster.placement import placement
from longshore_runtime.errors import TrainerLost, UserError
from longshore_runtime.places import Place
from longshore_runtime.rollout.engine_pool import PublishedWeights
from longshore_runtime.rollout.events import Event, TrainerGone
from longshore_runtime.trainer.actor import TrainerActor, TrainerStartError
from longshore_runtime.trainer.samples import shares
from longshore_runtime.types import GradientSums, Sample, TrainerOptions, TrainResult

_LOST_PEER: Final = ("onnection", "imed out", "peer", "remote process")
"""What gloo and nccl say when another replica is gone."""


class TrainerGroup:
    """The data-parallel world of a job; every method raises TrainerLost when a replica is gone."""

    def __init__(
        self, places: Sequence[Place], backend: TrainerBackend, options: TrainerOptions, model: str, output: str
    ) -> None:
        """Start one replica per place from a Hugging Face directory, `model`, relative to the storage."""
        self._actors = [TrainerActor.options(**placement(place.worker, gpus=place.gpus)).remote() for place in places]
        rendezvous = self._get([self._actors[0].rendezvous.remote()])[0]
        world_size = len(self._actors)
        try:
            self._call("start", backend, options, model, output, rendezvous, world_size, ranked=True)
        except TrainerStartError as error:
            raise UserError(str(error)) from error

    def watch(self, events: "queue.SimpleQueue[Event]") -> None:
        """From now on the loss of a replica is an event, so that a round need not end before it is noticed."""

        def tell(future: "Future[None]") -> None:
            events.put(TrainerGone(f"a trainer replica is gone ({type(future.exception()).__name__})"))

        for actor in self._actors:
            actor.lasts.remote().future().add_done_callback(tell)

    def train(self, samples: Sequence[Sample]) -> TrainResult:
        """Gradient of the token-mean loss over all samples, and one optimizer step."""
        parts = shares(samples, len(self._actors))
        pairs = zip(self._actors, parts, strict=True)
        sums = add_sums(self._get([actor.accumulate.remote(part) for actor, part in pairs]))
        num_tokens = sum(len(sample.response_tokens) for sample in samples)
        assert sums.num_tokens == num_tokens, "the replicas processed other tokens than they were given"
        update = self._call("update", num_tokens)[0]
        return TrainResult(sums, update)

    def weights(self, policy_version: int) -> PublishedWeights:
        """The current weights, on their way to engines."""
        weights, checksum = self._actors[0].weights.options(num_returns=2).remote()
        return PublishedWeights(weights, self._get([checksum])[0], policy_version)

    def save(self, directory: str, *, timeout_s: float | None = None) -> None:
        """Write the trainer's part of a checkpoint to a directory in the storage."""
        self._get([self._actors[0].save.remote(directory)], timeout_s)

    def load(self, directory: str) -> None:
        """Restore every replica."""
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


def add_sums(parts: Sequence[GradientSums]) -> GradientSums:
    """Sum over replicas (the maximum of maxima)."""
    fields = [field for field in GradientSums.__dataclass_fields__ if field != "mismatch_max"]
    totals: dict[str, Any] = {field: sum(getattr(part, field) for part in parts) for field in fields}
    return GradientSums(**totals, mismatch_max=max((part.mismatch_max for part in parts), default=0.0))


def _cause(error: Exception) -> Exception:
    """What was raised in the actor. A peer's loss shows as a communication error in the survivors."""
    cause = getattr(error, "cause", None)
    if isinstance(cause, TrainerStartError):
        return cause
    kind, text = type(cause).__name__, str(cause)
    if kind.startswith("Dist") or (isinstance(cause, RuntimeError) and any(sign in text for sign in _LOST_PEER)):
        return TrainerLost(f"a trainer replica lost its peers ({text.splitlines()[0]})")
    if kind == "OutOfMemoryError":
        return UserError("trainer.maxTokensPerMicroBatch: the trainer ran out of GPU memory; lower it")
    return cause if isinstance(cause, FloatingPointError) else error
