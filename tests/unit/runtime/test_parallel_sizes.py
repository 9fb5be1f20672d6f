"""How ranks fall to the replicas of a trainer, and to the workers of engines beside them."""

import pytest

from longshore_runtime.backends.parallel_sizes import ParallelSizes


def test_ranks_of_a_replica_are_consecutive_and_its_first_speaks_for_it() -> None:
    sizes = ParallelSizes(tensor=2, pipeline=2)
    assert sizes.ranks_per_replica == 4
    assert [sizes.replica(rank) for rank in range(8)] == [0, 0, 0, 0, 1, 1, 1, 1]
    assert [rank for rank in range(8) if sizes.is_first_of_replica(rank)] == [0, 4]


@pytest.mark.parametrize(
    ("sizes", "ranks", "is_alike"),
    [
        (ParallelSizes(tensor=2), (0, 1), True),
        (ParallelSizes(tensor=2), (2, 3), True),
        (ParallelSizes(tensor=2, pipeline=2), (2, 3), True),
        (ParallelSizes(tensor=2), (1, 0), False),
        (ParallelSizes(tensor=2), (0,), False),
        (ParallelSizes(tensor=2), (0, 1, 2, 3), False),
        (ParallelSizes(tensor=4), (0, 1), False),
        (ParallelSizes(), (0,), False),
        (ParallelSizes(fsdp=2), (0, 1), False),
        (ParallelSizes(pipeline=2), (0, 1), False),
    ],
)
def test_ranks_are_cut_as_workers_are_where_tensor_parallelism_numbers_both_alike(
    sizes: ParallelSizes, ranks: tuple[int, ...], is_alike: bool
) -> None:
    assert sizes.is_cut_alike(ranks) == is_alike


@pytest.mark.parametrize(
    ("sizes", "fields"),
    [(ParallelSizes(fsdp=4), "trainer.fsdpSize"), (ParallelSizes(tensor=4), "trainer.tensorParallelSize")],
)
def test_replicas_that_do_not_fill_the_world_are_refused(sizes: ParallelSizes, fields: str) -> None:
    sizes.check_world(8)
    with pytest.raises(ValueError, match=f"^{fields}.*is 4, which does not divide the trainer's 6 GPUs"):
        sizes.check_world(6)
