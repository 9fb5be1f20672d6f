"""Gradients that wait: a replica may give its accelerator away in the middle of a step, and others may sleep on."""

import random
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from longshore_runtime.backends.trainer_protocol import Sample, Trainer, TrainerOptions
from longshore_runtime.backends.world import World
from longshore_runtime.trainer.group import step_denominator
from tests.contract.trainers.ranks import kept_ranks
from tests.contract.trainers.replicas import OPTIONS, Kind, assert_same_weights, make_samples, step, with_masks

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")

SAMPLES = with_masks(make_samples())
PARTS = [SAMPLES[:3], SAMPLES[3:4], SAMPLES[4:9], SAMPLES[9:]]
OFFLOADED = replace(OPTIONS, offload_gradients=True)
SWAPPED = replace(OPTIONS, offload_reference=True)
_LIMIT = timedelta(seconds=60)


@pytest.mark.parametrize("options", [OPTIONS, OFFLOADED, SWAPPED], ids=["on the device", "offloaded", "swapped"])
@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.soak) for seed in (1, 2))])
def test_a_step_with_naps_in_it_equals_one_without(kind: Kind, options: TrainerOptions, seed: int) -> None:
    awake, drowsy = kind.start(), kind.start(options)
    before = dict(awake.weights())
    rng = random.Random(seed)
    for _ in range(2):
        expected = step(awake, PARTS)
        for part in PARTS:
            maybe_nap(drowsy, rng)
            drowsy.accumulate(part)
        maybe_nap(drowsy, rng)
        report = drowsy.update(step_denominator(SAMPLES, options))
        assert report.grad_norm == pytest.approx(expected.report.grad_norm, rel=1e-4)
        assert_same_weights(kind, before, expected.weights, dict(drowsy.weights()))


def maybe_nap(trainer: Trainer, rng: random.Random) -> None:
    """Stay awake, fall asleep, or sleep and wake again."""
    match rng.randrange(3):
        case 1:
            trainer.sleep()
        case 2:
            trainer.sleep()
            trainer.sleep()
            trainer.wake()
            trainer.wake()


def test_a_sleeping_trainer_returns_and_saves_its_weights(kind: Kind, tmp_path: Path) -> None:
    trainer = kind.start()
    expected = step(trainer, PARTS).weights
    trainer.sleep()
    asleep = dict(trainer.weights())
    trainer.begin_save(tmp_path)()
    other = kind.start()
    other.sleep()
    other.load(tmp_path)
    for weights in (asleep, dict(other.weights()), dict(trainer.weights())):
        assert all(np.array_equal(expected[name], weights[name]) for name in expected), "bit by bit"
    one, same = step(trainer, PARTS), step(other, PARTS)
    assert all(np.array_equal(one.weights[name], same.weights[name]) for name in expected)


def test_what_was_kept_while_asleep_can_still_be_dropped(kind: Kind) -> None:
    trainer, other = kind.start(), kind.start()
    before = dict(trainer.weights())
    trainer.accumulate(SAMPLES[:5])
    trainer.sleep()
    trainer.discard()
    trainer.wake()
    assert_same_weights(kind, before, step(other, PARTS).weights, step(trainer, PARTS).weights)


def test_megatron_gives_the_memory_of_weights_and_gradients_back(model: Path) -> None:
    trainer: Any = Kind("megatron", model).start()
    trainer.accumulate(SAMPLES)

    def held() -> list[int]:
        buffers = trainer._data_parallel.buffers
        return [tensor.untyped_storage().nbytes() for one in buffers for tensor in (one.param_data, one.grad_data)]

    assert all(held())
    trainer.sleep()
    assert not any(held())
    trainer.wake()
    assert [bool(size) for size in held()] == [True, False], "gradients wait on the host until they are needed"


def wake_alone(world: World, kind: Kind, parts: list[list[Sample]]) -> dict[str, Any]:
    """Both ranks sleep; the first wakes and computes while the second waits, in no call of the trainer's."""
    import torch.distributed as dist

    trainer = kind.start(world=world)
    trainer.sleep()
    store = dist.distributed_c10d._get_default_store()
    if world.rank == 0:
        groups = set(dist.distributed_c10d._world.pg_map)
        trainer.wake()
        trainer.accumulate(parts[0])
        trainer.sleep()
        trainer.accumulate(parts[1])
        assert set(dist.distributed_c10d._world.pg_map) == groups, "no communicator was made"
        store.set("first is done", "")
    else:
        store.wait(["first is done"], _LIMIT)
        trainer.accumulate(parts[2])
    trainer.update(step_denominator([sample for part in parts for sample in part], OPTIONS))
    return dict(trainer.weights())


@pytest.mark.parametrize("name", ["torch", "megatron"])
def test_a_replica_wakes_and_computes_without_the_other(name: str, model: Path) -> None:
    kind, parts = Kind(name, model), [SAMPLES[:4], SAMPLES[4:7], SAMPLES[7:]]
    alone = kind.start()
    before = dict(alone.weights())
    expected = step(alone, parts).weights
    for weights in kept_ranks(2).run(wake_alone, kind, parts):
        assert_same_weights(kind, before, expected, weights)
