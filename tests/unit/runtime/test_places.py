"""Where engines and trainers run."""

from longshore.api.pods import Workers
from longshore_runtime.places import Place, engine_places, trainer_places


def test_engines_fill_pods_and_never_cross_one() -> None:
    places = engine_places(Workers(replicas=2, gpus_per_pod=4), tp_size=2)
    assert places == [Place(0, (0, 1)), Place(0, (2, 3)), Place(1, (0, 1)), Place(1, (2, 3))]


def test_pods_without_gpus_hold_one_engine_and_one_trainer_each() -> None:
    workers = Workers(replicas=2, gpus_per_pod=0)
    assert engine_places(workers, tp_size=1) == [Place(0, ()), Place(1, ())]
    assert trainer_places(workers, None) == [Place(0, ()), Place(1, ())]


def test_one_trainer_per_gpu_or_as_many_as_asked_for_spread_over_the_pods() -> None:
    workers = Workers(replicas=2, gpus_per_pod=2)
    assert len(trainer_places(workers, None)) == 4
    assert trainer_places(workers, 2) == [Place(0, (0,)), Place(1, (0,))]
