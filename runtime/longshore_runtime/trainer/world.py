"""All ranks of the trainer as actors: they start together, and after the loss of one, all of them start again."""

import contextlib
import queue
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import ray

from longshore.api.names import Component
from longshore.checks.memory import gib
from longshore_runtime.backends.trainer_spec import TrainerSpec
from longshore_runtime.cluster.actors import Check, checked_get, wait_ended
from longshore_runtime.cluster.deaths import Death, find_death
from longshore_runtime.cluster.placement import placement
from longshore_runtime.errors import TrainerLost
from longshore_runtime.places import Place
from longshore_runtime.rollout.events import Event, ReplicaLost
from longshore_runtime.trainer.actor import RemoteTrainer
from longshore_runtime.trainer.failures import cause

_FIRST_PODS_LIMIT_S: Final = 24 * 3600.0
"""Seconds to wait for the first pods, which may wait for GPUs that others hold; the operator reports that."""
PODS_LIMIT_S: Final = 600.0
"""Time for a lost pod to return: usually, image and volumes are already on its node."""
CALL_LIMIT_S: Final = 1800.0
"""Seconds for a call of a rank: reading or writing a model takes less, also from slow storage."""


@dataclass(frozen=True)
class RankDeath:
    """End of a rank of a trainer replica, and what to do about it."""

    replica: int
    pod: int
    """Index of its pod among those of the component."""
    death: Death
    memory_bytes: int
    """Memory that the pod of the rank may use."""
    component: Component
    micro_batch_tokens: int
    has_peers: bool
    """Whether the trainers have other ranks."""

    @property
    def is_own_fault(self) -> bool:
        """Whether the same work would probably end the same way."""
        return self.death.is_own_fault(self.memory_bytes, has_peers=self.has_peers)

    def __str__(self) -> str:
        what = f"trainer replica {self.replica} ({self.component} {self.pod}) {self.death}"
        if not self.death.is_lack_of_memory(self.memory_bytes):
            return what
        workers = "trainerWorkers" if self.component is Component.TRAINER else "workers"
        return (
            f"{what}: probably out of memory. Lower trainer.maxTokensPerMicroBatch ({self.micro_batch_tokens}) or "
            f"raise {workers}.resources.memory ({gib(self.memory_bytes)} GiB)"
        )


class TrainerWorld:
    """All ranks of the trainer, with one actor each."""

    def __init__(
        self, places: Sequence[Place], spec: TrainerSpec, model: str, output: str, check: Check | None = None
    ) -> None:
        """Start a rank in each place; `model` is a Hugging Face directory, relative to the storage.

        Raises:
            UserError: the model cannot be trained so.
            Exception: what `check` raises while pods are awaited.
        """
        self._places = places
        self._spec = spec
        self._model = model
        self._output = output
        self._check = check
        self._events: queue.SimpleQueue[Event] | None = None
        self.actors: list[Any] = []
        """Actors in the order of their ranks."""
        self.generation = 0
        """Number of restarts so far."""
        self._losses: dict[int, BaseException] = {}
        """Errors by which Ray reports that an actor of this generation is gone, by rank."""
        self._start(_FIRST_PODS_LIMIT_S)

    def watch(self, events: "queue.SimpleQueue[Event]") -> None:
        """Report the loss of a rank as an event from now on, so that it is noticed during a round."""
        self._events = events
        generation, losses = self.generation, self._losses

        def notify(rank: int, future: "Future[None]") -> None:  # Runs in a thread of Ray.
            error = future.exception()
            assert error is not None, "`lasts` never returns"
            losses[rank] = error
            events.put(ReplicaLost(_gone(error), generation))

        for rank, actor in enumerate(self.actors):
            actor.lasts.remote().future().add_done_callback(partial(notify, rank))

    def find_death(self) -> "RankDeath | None":
        """Return how the first rank that is known to be gone ended; None: its pod does not know, or is gone, too."""
        for rank, error in sorted(self._losses.items()):
            place = self._places[rank]
            if (death := find_death(error, place.worker, place.component)) is not None:
                return RankDeath(
                    replica=self._spec.sizes.replica(rank),
                    pod=place.worker,
                    death=death,
                    memory_bytes=self._spec.pod_memory_bytes,
                    component=place.component,
                    micro_batch_tokens=self._spec.options.max_tokens_per_micro_batch,
                    has_peers=len(self._places) > 1,
                )
        return None

    def restart(self, timeout_s: float) -> None:
        """End all ranks and start them again in the same places, with the initial model.

        Raises:
            TrainerLost: the pods are not there (again) within `timeout_s`.
            Exception: what the check raises before.
        """
        self.stop()
        self.generation += 1
        self._losses = {}
        self._start(timeout_s)
        if self._events is not None:
            self.watch(self._events)

    def stop(self) -> None:
        """End all ranks."""
        for actor in self.actors:
            ray.kill(actor)
        wait_ended(self.actors)

    def get(
        self,
        references: Sequence[Any],
        timeout_s: float = CALL_LIMIT_S,
        late: str = "a trainer replica does not answer",
        check: Check | None = None,
    ) -> list[Any]:
        """Wait for answers of ranks; the first failure ends the wait.

        Raises:
            TrainerLost: a rank is gone or `late`.
            Exception: what a rank itself has raised.
        """
        try:
            results: list[Any] = checked_get(list(references), timeout_s, check)
        except ray.exceptions.RayTaskError as error:
            raise cause(error) from error
        except ray.exceptions.GetTimeoutError as error:
            raise TrainerLost(f"{late} after {timeout_s:.0f} s") from error
        except ray.exceptions.RayError as error:
            self._note(error)
            raise TrainerLost(_gone(error)) from error
        return results

    def _note(self, error: ray.exceptions.RayError) -> None:
        """Remember which rank an error is about."""
        actor_id = getattr(error, "actor_id", None)
        for rank, actor in enumerate(self.actors):
            if actor_id is not None and actor._actor_id.hex() == actor_id:
                self._losses.setdefault(rank, error)

    def _start(self, pods_limit_s: float) -> None:
        self.actors = [
            placement(place.worker, gpus=place.gpus, component=place.component).remote(RemoteTrainer)
            for place in self._places
        ]
        with contextlib.ExitStack() as undo:
            undo.callback(self.stop)  # A rank that waits for one that failed would keep its GPU.
            # Ray starts an actor as soon as its pod is there.
            answers = [actor.rendezvous.remote() for actor in self.actors]
            late = "a pod of the trainers is not there"
            rendezvous = self.get(answers, pods_limit_s, late, self._check)[0]
            size = len(self.actors)
            self.get(
                [
                    actor.start.remote(self._spec, self._model, self._output, rendezvous, size, rank=rank)
                    for rank, actor in enumerate(self.actors)
                ],
                check=self._check,
            )
            undo.pop_all()


def _gone(error: BaseException) -> str:
    return f"a trainer replica is gone ({type(error).__name__})"
