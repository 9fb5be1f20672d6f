"""Which replicas lie in which pods: what decides who can be repurposed together."""

from hypothesis import given
from hypothesis import strategies as st

from longshore.api.names import Component
from longshore.record.facts import LanePlace
from longshore_runtime.places import Place
from longshore_runtime.trainer.replica_places import ReplicaPlaces

FOUR_RANKS = [Place(0, (0,)), Place(0, (1,)), Place(0, (2,)), Place(1, (0,))]


def test_a_replica_is_in_the_pods_of_its_ranks() -> None:
    replicas = ReplicaPlaces(FOUR_RANKS, 2)
    assert replicas.num_replicas == 2
    assert [list(replicas.ranks(replica)) for replica in range(2)] == [[0, 1], [2, 3]]
    assert [replicas.pods_of(replica) for replica in range(2)] == [(0,), (0, 1)]


def test_only_whole_replicas_are_within_pods() -> None:
    replicas = ReplicaPlaces(FOUR_RANKS, 2)
    assert replicas.within([0]) == (0,)
    assert replicas.within([1]) == ()
    assert replicas.within([1, 0]) == (0, 1)
    assert replicas.within([]) == ()


def test_pods_that_only_train_are_no_worker_pods() -> None:
    replicas = ReplicaPlaces([Place(0, (0,), Component.TRAINER), Place(0, (0,))], 1)
    assert [replicas.pods_of(replica) for replica in range(2)] == [(), (0,)]
    assert replicas.within([0]) == (1,)


def test_the_replicas_that_are_read_gather_together_and_their_first_rank_broadcasts() -> None:
    replicas = ReplicaPlaces(FOUR_RANKS, 2)
    assert replicas.writers({0}) == (0, 1)
    assert replicas.writers({3}) == (2, 3)
    assert replicas.writers({3, 1}) == (0, 1, 2, 3)
    assert replicas.writers(set()) == (0, 1)


def test_an_engine_with_ranks_on_some_of_its_gpus_shares_a_gpu_but_is_not_colocated() -> None:
    """Torch with two replicas in two pods of two GPUs, and engines of two GPUs."""
    replicas = ReplicaPlaces([Place(0, (0,)), Place(1, (0,))], 1)
    engines = [(Place(0, (0, 1)),), (Place(1, (0, 1)),)]
    assert [replicas.colocated_ranks(engine, num_workers=2) for engine in engines] == [(), ()]
    assert [replicas.shares_gpu(engine, 0) for engine in engines] == [True, False]
    assert [replicas.shares_gpu(engine, 1) for engine in engines] == [False, True]
    assert not replicas.shares_gpu((Place(0, (1,)),), 0)


def test_pods_that_only_train_and_pods_without_gpus_share_none() -> None:
    replicas = ReplicaPlaces([Place(0, (0,), Component.TRAINER), Place(0, ())], 1)
    assert not any(replicas.shares_gpu((Place(0, (0,)),), rank) for rank in range(2))
    assert not replicas.shares_gpu((Place(0, ()),), 1)


@given(st.lists(st.integers(0, 4), min_size=1, max_size=4), st.integers(1, 3), st.sets(st.integers(0, 4)))
def test_replicas_that_fill_pods_are_split_between_any_pods_and_the_others(
    workers: list[int], ranks_per_replica: int, pods: set[int]
) -> None:
    places = [Place(worker, (rank,)) for worker in workers for rank in range(ranks_per_replica)]
    replicas = ReplicaPlaces(places, ranks_per_replica)
    inside, outside = replicas.within(pods), replicas.within(set(range(5)) - pods)
    assert sorted((*inside, *outside)) == list(range(len(workers)))
    assert all(set(replicas.pods_of(replica)) <= pods for replica in inside)


def test_a_lane_of_the_timeline_is_a_replica_with_the_gpus_of_all_its_ranks() -> None:
    places = ReplicaPlaces([Place(0, (1,)), Place(0, (0,)), Place(1, ()), Place(1, ())], 2).lane_places()
    assert places == (LanePlace(0, (0,), Component.WORKER, (0, 1)), LanePlace(1, (1,), Component.WORKER, ()))
