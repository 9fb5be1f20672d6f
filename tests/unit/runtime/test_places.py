"""Where engines and trainers run."""

from typing import Any

import pytest

from longshore.api.pods import Workers
from longshore_runtime.places import Place, engine_places, possible_tp_sizes, trainer_places


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


def test_the_ranks_of_a_trainer_replica_are_consecutive_and_lie_in_one_pod() -> None:
    workers = Workers(replicas=2, gpus_per_pod=4)
    first, second, *others = trainer_places(workers, None, ranks_per_replica=2)
    assert (first, second) == (Place(0, (0,)), Place(0, (1,)))
    assert others[-2:] == [Place(1, (2,)), Place(1, (3,))]
    assert trainer_places(workers, 2, ranks_per_replica=2) == [first, second, Place(1, (0,)), Place(1, (1,))]


def test_pods_without_gpus_hold_one_trainer_replica_each_with_all_its_ranks() -> None:
    assert [place.worker for place in trainer_places(Workers(replicas=2, gpus_per_pod=0), None, 2)] == [0, 0, 1, 1]


HEADS = {"num_attention_heads": 12, "num_key_value_heads": 2, "intermediate_size": 64}


@pytest.mark.parametrize(
    ("gpus_per_pod", "config", "configured", "sizes"),
    [
        (8, {}, 1, (1, 2, 4, 8)),
        (8, HEADS, 1, (1, 2, 4)),  # 12 heads do not divide by 8
        (8, {**HEADS, "num_attention_heads": 16}, 1, (1, 2, 4, 8)),  # two key-value heads are repeated
        (8, {**HEADS, "num_attention_heads": 24, "num_key_value_heads": 3}, 1, (1,)),
        (8, {**HEADS, "intermediate_size": 66}, 1, (1, 2)),
        (6, HEADS, 2, (1, 2)),
        (6, {**HEADS, "num_key_value_heads": 12, "intermediate_size": 96}, 3, (1, 2, 3)),
        (4, {"text_config": HEADS}, 1, (1, 2, 4)),
        (4, {"num_attention_heads": 2}, 1, (1, 2)),
        (0, HEADS, 1, (1,)),
    ],
)
def test_engines_can_have_sizes_that_fill_the_pods_and_split_the_model(
    gpus_per_pod: int, config: dict[str, Any], configured: int, sizes: tuple[int, ...]
) -> None:
    assert possible_tp_sizes(Workers(gpus_per_pod=gpus_per_pod), config, configured) == sizes
