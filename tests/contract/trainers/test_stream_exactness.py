"""Gradients that were streamed are those of one plain backward, whichever groups came when and whichever replica woke.

The parts come from the runtime's own bookkeeping (`streams.stream`); the plain run is transformers alone.
"""

import random
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from longshore.policy.draws import Draw
from longshore_runtime.backends.parallel_sizes import ParallelSizes
from longshore_runtime.backends.world import World
from tests.contract.trainers.plans import (
    BATCHES,
    Mistake,
    Step,
    Trained,
    count_tokens,
    plain,
    train_megatron,
    train_torch,
    wrong_denominator,
)
from tests.contract.trainers.ranks import kept_ranks
from tests.contract.trainers.streams import Replicas, stream
from tests.contract.trainers.test_exactness import assert_exact, whole
from tests.contract.trainers.tiny_models import Family, build

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")

PRECISIONS = pytest.mark.parametrize("double", [True, False], ids=["fp64", "fp32"])


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("model"), Family("qwen3", tied=False))


@pytest.fixture(scope="module")
def expected(model: Path) -> Trained:
    return plain(model)


def streamed(num_replicas: int, seed: int, *, loses_world: bool = False) -> tuple[Step, ...]:
    """Every batch as a stream of groups, dealt out by the runtime; some replicas never wake before the end."""
    rng = random.Random(seed)
    steps = []
    for batch in BATCHES:
        replicas = Replicas(num_replicas)
        stream(replicas, batch, rng, loses_world=loses_world)
        steps.append(Step(tuple(tuple(parts) for parts in replicas.parts), count_tokens(batch)))
    return tuple(steps)


@PRECISIONS
@pytest.mark.parametrize("num_replicas", [1, 2, 4])
def test_torch(num_replicas: int, double: bool, model: Path, expected: Trained) -> None:
    for seed in range(2):
        steps = streamed(num_replicas, seed)
        if num_replicas == 1:
            assert_exact(train_torch(World(), model, steps, double), expected, double=double)
        else:
            replicas = kept_ranks(num_replicas).run(train_torch, model, steps, double)
            assert_exact(whole(replicas), expected, double=double)


@PRECISIONS
@pytest.mark.parametrize("num_replicas", [1, 2], ids=["FSDP2", "FSDP2 DP2"])
def test_torch_with_shards(num_replicas: int, double: bool, model: Path, expected: Trained) -> None:
    steps = streamed(num_replicas, seed=3)
    ranks = kept_ranks(2 * num_replicas).run(train_torch, model, steps, double, ParallelSizes(fsdp=2))
    assert_exact(whole(ranks[::2]), expected, double=double)


@PRECISIONS
@pytest.mark.parametrize(
    ("num_replicas", "sizes"),
    [(1, ParallelSizes(tensor=2)), (2, ParallelSizes()), (2, ParallelSizes(tensor=2)), (4, ParallelSizes())],
    ids=["TP2", "DP2", "TP2 DP2", "DP4"],
)
def test_megatron(num_replicas: int, sizes: ParallelSizes, double: bool, model: Path, expected: Trained) -> None:
    steps = streamed(num_replicas, seed=5)
    ranks = kept_ranks(num_replicas * sizes.ranks_per_replica).run(train_megatron, model, steps, double, sizes)
    for rank, trained in enumerate(ranks):
        if sizes.is_first_of_replica(rank):
            assert_exact(trained, expected, double=double)


def test_a_step_that_is_computed_again_after_a_loss(model: Path, expected: Trained) -> None:
    replicas = kept_ranks(2).run(train_torch, model, streamed(2, seed=9, loses_world=True), True)
    assert_exact(whole(replicas), expected, double=True)


def dropped_group(step: Step) -> Step:
    """Nobody was given one of the groups."""
    lost = _weightiest(step)
    parts = tuple(tuple(part for part in own if part[0].draw != lost) for own in step.parts)
    return replace(step, parts=parts)


def doubled_group(step: Step) -> Step:
    """The last replica was given a group that somebody had already."""
    twice = [part for own in step.parts for part in own if part[0].draw == _weightiest(step)]
    return replace(step, parts=(*step.parts[:-1], (*step.parts[-1], *twice)))


def _weightiest(step: Step) -> Draw:
    weights: Counter[Draw] = Counter()
    for sample in (sample for own in step.parts for part in own for sample in part):
        weights[sample.draw] += round(1_000 * abs(sample.advantage) * sample.num_loss_tokens)
    return weights.most_common(1)[0][0]


@PRECISIONS
@pytest.mark.parametrize("mistake", [dropped_group, doubled_group, wrong_denominator])
def test_a_group_that_is_lost_or_counted_twice_is_not_taken_for_rounding(
    mistake: Mistake, double: bool, model: Path, expected: Trained
) -> None:
    steps = tuple(mistake(step) for step in streamed(2, seed=1))
    replicas = kept_ranks(2).run(train_torch, model, steps, double)
    with pytest.raises(AssertionError):
        assert_exact(whole(replicas), expected, double=double)
