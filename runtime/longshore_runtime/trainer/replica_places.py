"""Map ranks to replicas and to the pods in which they lie. Pure."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from longshore.api.names import Component
from longshore.record.facts import LanePlace
from longshore_runtime.places import Place, Places


@dataclass(frozen=True)
class ReplicaPlaces:
    """A place per rank; consecutive ranks hold a replica together."""

    places: Sequence[Place]
    ranks_per_replica: int

    @property
    def num_replicas(self) -> int:
        """Number of whole replicas."""
        return len(self.places) // self.ranks_per_replica

    def ranks(self, replica: int) -> range:
        """Return ranks of one replica."""
        return range(replica * self.ranks_per_replica, (replica + 1) * self.ranks_per_replica)

    def lane_places(self) -> tuple[LanePlace, ...]:
        """Return where the replicas are, in their order."""
        found = []
        for replica in range(self.num_replicas):
            places = [self.places[rank] for rank in self.ranks(replica)]
            gpus = tuple(sorted({gpu for place in places for gpu in place.gpus}))
            pods = tuple(sorted({place.worker for place in places}))
            found.append(LanePlace(replica, pods, places[0].component, gpus))
        return tuple(found)

    def pods_of(self, replica: int) -> tuple[int, ...]:
        """Return the worker pods that a replica lies in; none where pods that only train hold it."""
        places = (self.places[rank] for rank in self.ranks(replica))
        return tuple(sorted({place.worker for place in places if place.component is Component.WORKER}))

    def within(self, pods: Collection[int]) -> tuple[int, ...]:
        """Return the replicas that lie in these worker pods with all their ranks."""
        pods_of = {replica: set(self.pods_of(replica)) for replica in range(self.num_replicas)}
        return tuple(replica for replica, own in pods_of.items() if own and own <= set(pods))

    def writers(self, readers: Collection[int]) -> tuple[int, ...]:
        """Return all ranks of the replicas that these belong to, or of the first one: they gather weights together.

        The first of them broadcasts.
        """
        replicas = sorted({rank // self.ranks_per_replica for rank in readers or [0]})
        return tuple(rank for replica in replicas for rank in self.ranks(replica))

    def shares_gpu(self, engine: Places, rank: int) -> bool:
        """Return whether a rank and an engine in these places share a GPU, as members of a group of NCCL must not."""
        own = self.places[rank]
        return any(_pod(own) == _pod(place) and not set(own.gpus).isdisjoint(place.gpus) for place in engine)

    def colocated_ranks(self, engine: Places, num_workers: int = 1) -> tuple[int, ...]:
        """Return the rank on each GPU of an engine; none unless there is one on each.

        Without GPUs, as many ranks of each of its pods as it has workers there, or one for all of these.
        """
        if len(engine) == 1:
            return self._colocated_ranks(engine[0], num_workers)
        here = num_workers // len(engine)
        of_pods = [self._colocated_ranks(place, here) for place in engine]
        # Workers read the memory of their pod alone.
        each = [ranks if len(ranks) == here else ranks * here for ranks in of_pods]
        return tuple(rank for ranks in each for rank in ranks) if all(of_pods) else ()

    def _colocated_ranks(self, place: Place, num_workers: int) -> tuple[int, ...]:
        here = [rank for rank, own in enumerate(self.places) if _pod(own) == _pod(place)]
        if not place.gpus:
            return tuple(here[:num_workers] if len(here) >= num_workers else here[:1])
        by_gpu = {gpu: rank for rank in here for gpu in self.places[rank].gpus}
        ranks = tuple(by_gpu[gpu] for gpu in place.gpus if gpu in by_gpu)
        return ranks if len(ranks) == len(place.gpus) else ()


def _pod(place: Place) -> tuple[Component, int]:
    return place.component, place.worker
