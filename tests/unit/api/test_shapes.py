"""Engines and trainer replicas inside of pods, and across sets of whole pods."""

from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from pydantic import ValidationError

from longshore.api.pods import Workers
from longshore.api.rljob import RLJob
from longshore.api.shapes import (
    all_parts,
    engine_pods,
    is_possible,
    parts_per_pod,
    pods_per_set,
    pods_per_step,
    replica_parts,
    replica_pods,
    united,
)
from longshore.api.training import TrainerSettings

PODS = st.builds(Workers, replicas=st.integers(1, 6), gpus_per_pod=st.sampled_from([0, 1, 2, 3, 4, 8]))
SIZES = st.sampled_from([1, 2, 3, 4, 6, 8, 16, 24])


def spec(trainer: dict[str, Any], **more: Any) -> Any:
    fields = {
        "model": {"builtin": "Tiny"},
        "data": {"builtin": "Counting"},
        "algorithm": {"steps": 3, "promptsPerStep": 4, "responsesPerPrompt": 2, "maxResponseTokens": 64},
        "storage": {"create": {"size": "1Gi"}},
        "workers": {"replicas": 3, "gpusPerPod": 4},
        "trainer": trainer,
    }
    return RLJob.model_validate({"metadata": {"name": "demo"}, "spec": fields | more}).spec


@given(PODS, SIZES)
def test_possible_sizes_use_every_gpu_once_and_cut_no_pod(workers: Workers, size: int) -> None:
    gpus = workers.gpus_per_pod
    assume(gpus > 0 and is_possible(gpus, workers.replicas, size))
    found = all_parts(workers, size)
    slots = [(part.pod, slot) for parts in found for part in parts for slot in part.slots]
    assert slots == [(pod, slot) for pod in range(workers.replicas) for slot in range(gpus)]
    assert {len(parts) for parts in found} == {pods_per_set(gpus, size)}
    assert all(sum(len(part.slots) for part in parts) == size for parts in found)
    in_first = [parts for parts in found if any(part.pod == 0 for part in parts)]
    assert len(in_first) == parts_per_pod(gpus, size)


@given(PODS, st.booleans(), SIZES, st.integers(1, 6))
def test_a_spec_is_refused_unless_its_engines_and_replicas_are_possible(
    workers: Workers, is_engine: bool, size: int, least: int
) -> None:
    assume(least <= workers.replicas)
    pods = {"replicas": workers.replicas, "gpusPerPod": workers.gpus_per_pod, "minReplicas": least}
    fields = {"rollout": {"engine": {"tensorParallelSize": size}}} if is_engine else {}
    possible = all(is_possible(workers.gpus_per_pod, num_pods, size) for num_pods in (workers.replicas, least))
    try:
        found = spec({} if is_engine else {"fsdpSize": size}, workers=pods, **fields)
    except ValidationError:
        assert not possible
    else:
        assert possible or (workers.gpus_per_pod == 0 and not is_engine), "a pod without GPUs holds any replica"
        assert is_engine or found.max_trainer_replicas == len(all_parts(workers, size))


def test_a_given_number_of_replicas_is_spread_over_the_pods() -> None:
    trainer = TrainerSettings(data_parallel_size=2)
    assert replica_pods(Workers(replicas=3, gpus_per_pod=4), trainer) == (frozenset({0}), frozenset({1}))
    three = replica_parts(Workers(replicas=2, gpus_per_pod=4), 3)
    assert [(part.pod, part.slots.start) for (part,) in three] == [(0, 0), (0, 1), (1, 0)]


def test_a_pod_without_gpus_holds_one_replica_with_all_its_processes() -> None:
    found = replica_parts(Workers(replicas=2, gpus_per_pod=0), None, 2)
    assert [(part.pod, list(part.slots)) for (part,) in found] == [(0, [0, 1]), (1, [0, 1])]


def test_replicas_of_several_pods_follow_each_other() -> None:
    trainer = TrainerSettings(fsdp_size=8)
    workers = Workers(replicas=4, gpus_per_pod=4)
    assert replica_pods(workers, trainer) == engine_pods(workers, 8) == (frozenset({0, 1}), frozenset({2, 3}))
    assert pods_per_step(4, [8, 4, 12]) == 6


def test_overlapping_sets_of_pods_are_united() -> None:
    sets = [frozenset({0, 1}), frozenset({2}), frozenset({1, 3}), frozenset({4})]
    assert sorted(united(sets), key=min) == [frozenset({0, 1, 3}), frozenset({2}), frozenset({4})]


@pytest.mark.parametrize(
    ("trainer", "problem"),
    [
        ({"backend": "Megatron", "tensorParallelSize": 8}, "tensorParallelSize must divide gpusPerPod"),
        ({"backend": "Megatron", "tensorParallelSize": 4, "contextParallelSize": 3, "dataParallelSize": 2}, "exceeds"),
        ({"fsdpSize": 6}, "fsdpSize must divide gpusPerPod, or be a multiple"),
        ({"fsdpSize": 8}, "hold whole"),
    ],
)
def test_a_replica_that_does_not_fit_the_pods_is_refused_with_the_reason(trainer: dict[str, Any], problem: str) -> None:
    with pytest.raises(ValidationError, match=problem):
        spec(trainer)
