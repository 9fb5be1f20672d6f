"""Where engines and trainers run."""

from longshore.api.pods import Workers
from longshore_runtime.places import Place, engine_places, trainer_places


def test_engines_fill_pods_or_sets_of_whole_pods() -> None:
    workers = Workers(replicas=2, gpus_per_pod=4)
    first, second = Place(0, (0, 1, 2, 3)), Place(1, (0, 1, 2, 3))
    pairs = [(0, (0, 1)), (0, (2, 3)), (1, (0, 1)), (1, (2, 3))]
    assert engine_places(workers, tp_size=2) == [(Place(*pair),) for pair in pairs]
    assert engine_places(workers, tp_size=4) == [(first,), (second,)]
    assert engine_places(workers, tp_size=8) == [(first, second)]


def test_pods_without_gpus_hold_one_engine_and_one_trainer_each() -> None:
    workers = Workers(replicas=2, gpus_per_pod=0)
    assert engine_places(workers, tp_size=1) == [(Place(0, ()),), (Place(1, ()),)]
    assert trainer_places(workers, None) == [Place(0, ()), Place(1, ())]


def test_one_trainer_per_gpu_or_as_many_as_asked_for_spread_over_the_pods() -> None:
    workers = Workers(replicas=2, gpus_per_pod=2)
    assert len(trainer_places(workers, None)) == 4
    assert trainer_places(workers, 2) == [Place(0, (0,)), Place(1, (0,))]


def test_the_ranks_of_a_trainer_replica_are_consecutive_in_its_pods() -> None:
    workers = Workers(replicas=2, gpus_per_pod=4)
    first, second, *others = trainer_places(workers, None, ranks_per_replica=2)
    assert (first, second) == (Place(0, (0,)), Place(0, (1,)))
    assert others[-2:] == [Place(1, (2,)), Place(1, (3,))]
    assert trainer_places(workers, 2, ranks_per_replica=2) == [first, second, Place(1, (0,)), Place(1, (1,))]
    across = trainer_places(workers, None, ranks_per_replica=8)
    assert across == [Place(pod, (gpu,)) for pod in range(2) for gpu in range(4)]


def test_pods_without_gpus_hold_one_trainer_replica_each_with_all_its_ranks() -> None:
    assert [place.worker for place in trainer_places(Workers(replicas=2, gpus_per_pod=0), None, 2)] == [0, 0, 1, 1]
