"""However a batch is cut, ordered and spread, an update equals that of one plain backward over the whole of it.

The plain run is transformers and nothing of ours (`plans.plain`).
"""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from longshore.api.training import Recompute
from longshore_runtime.backends.parallel_sizes import ParallelSizes
from longshore_runtime.backends.world import World
from tests.contract.trainers.plans import (
    CORRECTED,
    SOME_CLIPPED,
    Mistake,
    Named,
    Step,
    Trained,
    apart,
    doubled_sample,
    dropped_sample,
    plain,
    plan,
    train_megatron,
    train_torch,
    wrong_denominator,
)
from tests.contract.trainers.ranks import kept_ranks
from tests.contract.trainers.tiny_models import FAMILIES, Family, build

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")

SOAK = pytest.mark.soak
DOUBLE_PRECISION = pytest.mark.parametrize("double", [True, pytest.param(False, marks=SOAK)], ids=["fp64", "fp32"])
"""Double precision shows a mistake of any size; what is computed is the same in both."""
DOUBLE_GRADIENTS, DOUBLE_WEIGHTS, SINGLE_GRADIENTS = 1e-10, 1e-9, 2e-5

ONE_OF_EACH = (Family("llama", tied=False), Family("qwen2", tied=True), Family("qwen3", tied=False))
TWO_WAYS = {"TP2": ParallelSizes(tensor=2), "PP2": ParallelSizes(pipeline=2), "CP2": ParallelSizes(context=2)}
FOUR_WAYS = {
    "TP2 PP2": ParallelSizes(tensor=2, pipeline=2),
    "TP2 CP2": ParallelSizes(tensor=2, context=2),
    "PP2 CP2": ParallelSizes(pipeline=2, context=2),
    "PP2 DP2": ParallelSizes(pipeline=2),
    "TP2 DP2": ParallelSizes(tensor=2),
    "DP4": ParallelSizes(),
}


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[Family, Path]:
    """A model of every family."""
    return {family: build(tmp_path_factory.mktemp(str(family)), family) for family in FAMILIES}


@pytest.fixture(scope="module")
def expected(models: dict[Family, Path]) -> dict[Family, Trained]:
    """The plain runs."""
    return {family: plain(model) for family, model in models.items()}


def each(*families: Family) -> Callable[..., pytest.MarkDecorator]:
    return pytest.mark.parametrize("family", families, ids=str)


def assert_exact(actual: Trained, wanted: Trained, *, double: bool) -> None:
    tolerance = DOUBLE_GRADIENTS if double else SINGLE_GRADIENTS
    assert apart(actual.gradients, wanted.gradients) < tolerance
    if double:
        assert actual.norms == pytest.approx(wanted.norms, rel=tolerance)
        assert apart(actual.weights, wanted.weights) < DOUBLE_WEIGHTS


def whole(replicas: list[Trained]) -> Trained:
    """The torch trainer's replicas together."""
    names = replicas[0].gradients
    added: Named = {name: np.sum([replica.gradients[name] for replica in replicas], axis=0) for name in names}
    assert all(apart(replica.weights, replicas[0].weights) == 0 for replica in replicas), "replicas hold equal weights"
    return Trained(added, replicas[0].norms, replicas[0].weights)


@each(*FAMILIES)
@DOUBLE_PRECISION
def test_one_torch_replica(
    family: Family, double: bool, models: dict[Family, Path], expected: dict[Family, Trained]
) -> None:
    assert_exact(train_torch(World(), models[family], plan(1, seed=1), double), expected[family], double=double)


@each(*FAMILIES)
@DOUBLE_PRECISION
def test_one_megatron_rank(
    family: Family, double: bool, models: dict[Family, Path], expected: dict[Family, Trained]
) -> None:
    trained = train_megatron(World(), models[family], plan(1, seed=2), double, ParallelSizes())
    assert_exact(trained, expected[family], double=double)


def test_corrected_losses_in_both_trainers(models: dict[Family, Path]) -> None:
    family = Family("qwen3", tied=False)
    expected = plain(models[family], CORRECTED)
    assert apart(expected.gradients, plain(models[family]).gradients) > 0.01, "the correction matters"
    assert_exact(train_torch(World(), models[family], plan(1, seed=1), True, None, CORRECTED), expected, double=True)
    one = ParallelSizes()
    assert_exact(train_megatron(World(), models[family], plan(1, seed=2), True, one, CORRECTED), expected, double=True)


@DOUBLE_PRECISION
def test_two_torch_replicas(double: bool, models: dict[Family, Path], expected: dict[Family, Trained]) -> None:
    family = Family("qwen3", tied=False)
    replicas = kept_ranks(2).run(train_torch, models[family], plan(2, seed=3), double)
    assert_exact(whole(replicas), expected[family], double=double)


@pytest.mark.parametrize(
    ("late", "idle"), [((), ()), ((1, 2), ()), ((2,), (0,)), ((), (1, 2, 3))], ids=["even", "late", "one idle", "alone"]
)
@DOUBLE_PRECISION
def test_four_torch_replicas(
    double: bool,
    late: tuple[int, ...],
    idle: tuple[int, ...],
    models: dict[Family, Path],
    expected: dict[Family, Trained],
) -> None:
    """Some replicas sleep at first, and some get nothing at all."""
    family = Family("llama", tied=False)
    steps = plan(4, seed=8, late=late, idle=idle)
    assert all(not step.parts[replica] for step in steps for replica in idle)
    assert_exact(whole(kept_ranks(4).run(train_torch, models[family], steps, double)), expected[family], double=double)


@each(*ONE_OF_EACH)
@DOUBLE_PRECISION
def test_one_torch_replica_of_two_ranks(
    family: Family, double: bool, models: dict[Family, Path], expected: dict[Family, Trained]
) -> None:
    steps = plan(1, seed=10)
    for rank in kept_ranks(2).run(train_torch, models[family], steps, double, ParallelSizes(fsdp=2)):
        assert_exact(rank, expected[family], double=double)


@pytest.mark.parametrize("recompute", [Recompute.SELECTIVE, Recompute.FULL])
def test_two_ranks_with_shards_whose_layers_are_computed_again(
    recompute: Recompute, models: dict[Family, Path], expected: dict[Family, Trained]
) -> None:
    """In single precision: what makes singles double here does not reach what a backward pass computes again."""
    family, options = Family("qwen3", tied=False), replace(SOME_CLIPPED, recompute=recompute)
    found = kept_ranks(2).run(train_torch, models[family], plan(1, seed=14), False, ParallelSizes(fsdp=2), options)
    for rank in found:
        assert_exact(rank, expected[family], double=False)


@pytest.mark.parametrize(
    ("size", "late", "idle"),
    [
        pytest.param(4, (), (), id="FSDP4"),
        pytest.param(2, (), (), id="FSDP2 DP2", marks=SOAK),
        pytest.param(2, (1,), (), id="FSDP2 DP2, late"),
        pytest.param(2, (), (0,), id="FSDP2 DP2, idle", marks=SOAK),
    ],
)
@DOUBLE_PRECISION
def test_four_torch_ranks_with_shards(
    double: bool,
    size: int,
    late: tuple[int, ...],
    idle: tuple[int, ...],
    models: dict[Family, Path],
    expected: dict[Family, Trained],
) -> None:
    """131 words do not divide by 4: shards are of different sizes."""
    family = Family("qwen3", tied=True)
    steps = plan(4 // size, seed=11, late=late, idle=idle)
    ranks = kept_ranks(4).run(train_torch, models[family], steps, double, ParallelSizes(fsdp=size))
    assert_exact(whole(ranks[::size]), expected[family], double=double)
    assert_exact(whole(ranks[size - 1 :: size]), expected[family], double=double)


@pytest.mark.parametrize(
    ("family", "sizes"),
    [
        pytest.param(family, sizes, id=f"{way}-{family}", marks=[] if number == place else [SOAK])
        for number, (way, sizes) in enumerate(TWO_WAYS.items())
        for place, family in enumerate(ONE_OF_EACH)
    ],
)
def test_one_megatron_replica_of_two_ranks(
    family: Family,
    sizes: ParallelSizes,
    models: dict[Family, Path],
    expected: dict[Family, Trained],
) -> None:
    first, second = kept_ranks(2).run(train_megatron, models[family], plan(1, seed=4), True, sizes)
    assert_exact(first, expected[family], double=True)
    assert not second.weights


@DOUBLE_PRECISION
def test_two_megatron_replicas(double: bool, models: dict[Family, Path], expected: dict[Family, Trained]) -> None:
    family = Family("qwen2", tied=True)
    for replica in kept_ranks(2).run(train_megatron, models[family], plan(2, seed=5), double, ParallelSizes()):
        assert_exact(replica, expected[family], double=double)


@pytest.mark.parametrize(
    "sizes",
    [
        pytest.param(sizes, id=way, marks=[] if way in ("TP2 PP2", "PP2 CP2", "TP2 DP2") else [SOAK])
        for way, sizes in FOUR_WAYS.items()
    ],
)
def test_four_megatron_ranks(
    sizes: ParallelSizes,
    models: dict[Family, Path],
    expected: dict[Family, Trained],
) -> None:
    family = Family("qwen3", tied=True)
    num_replicas = 4 // sizes.ranks_per_replica
    ranks = kept_ranks(4).run(train_megatron, models[family], plan(num_replicas, seed=6), True, sizes)
    for rank, trained in enumerate(ranks):
        if sizes.is_first_of_replica(rank):
            assert_exact(trained, expected[family], double=True)
        else:
            assert not trained.weights


@DOUBLE_PRECISION
@pytest.mark.parametrize(
    ("sizes", "late", "idle"),
    [
        pytest.param(ParallelSizes(tensor=2), (1,), (), id="TP2 DP2, late"),
        pytest.param(ParallelSizes(tensor=2), (), (0,), id="TP2 DP2, idle", marks=SOAK),
        pytest.param(ParallelSizes(pipeline=2), (1,), (), id="PP2 DP2, late", marks=SOAK),
        pytest.param(ParallelSizes(pipeline=2), (), (0,), id="PP2 DP2, idle"),
    ],
)
def test_megatron_replicas_that_sleep(
    sizes: ParallelSizes,
    late: tuple[int, ...],
    idle: tuple[int, ...],
    double: bool,
    models: dict[Family, Path],
    expected: dict[Family, Trained],
) -> None:
    family = Family("qwen3", tied=True)
    steps = plan(2, seed=9, late=late, idle=idle)
    ranks = kept_ranks(4).run(train_megatron, models[family], steps, double, sizes)
    for rank in (0, 2):
        assert_exact(ranks[rank], expected[family], double=double)


@pytest.mark.parametrize("mistake", [wrong_denominator, dropped_sample, doubled_sample])
def test_the_comparison_notices_a_mistake(
    mistake: Mistake, models: dict[Family, Path], expected: dict[Family, Trained]
) -> None:
    family = Family("qwen3", tied=False)
    steps: tuple[Step, ...] = tuple(map(mistake, plan(1, seed=7)))
    for double in (True, False):
        for trained in (
            train_torch(World(), models[family], steps, double),
            train_megatron(World(), models[family], steps, double, ParallelSizes()),
        ):
            with pytest.raises(AssertionError):
                assert_exact(trained, expected[family], double=double)
            assert apart(trained.weights, expected[family].weights) > 10 * DOUBLE_WEIGHTS
