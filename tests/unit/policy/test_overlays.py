"""Which overlays can be carried out: late, repeated and impossible ones are refused with the reason."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longshore.api.pods import Workers
from longshore.api.shapes import engine_pods, replica_pods, sets_that_train
from longshore.api.status import Overlay
from longshore.api.training import TrainerSettings
from longshore.policy.overlays import RoundState, refusal
from longshore.policy.scale_down import MilestonePodLoad, pick_pods

NOW = RoundState(
    number=7,
    attempt=2,
    has_batch=False,
    trainer_pods=(),
    rollout_pods=frozenset({0, 1, 2}),
    trainer_replicas=(frozenset({0}), frozenset({1})),
)


TOGETHER = "pods 0, 1 move together, because an engine or a trainer replica lies in several of them"


def overlay(*pods: int, round: int = 7, attempt: int = 2) -> Overlay:
    return Overlay(round=round, attempt=attempt, trainer_pods=list(pods))


def test_an_overlay_for_the_round_that_runs_is_carried_out() -> None:
    assert refusal(overlay(0), NOW) == ""
    assert refusal(overlay(1, 0), NOW) == ""


@pytest.mark.parametrize(
    ("wanted", "changes", "reason"),
    [
        (overlay(0, attempt=1), {}, "it is for attempt 1, and this is attempt 2"),
        (overlay(0, round=6), {}, "it is for round 6, and this is round 7"),
        (overlay(0, round=8), {}, "it is for round 8, and this is round 7"),
        (overlay(0), {"has_batch": True}, "round 7 has its batch already"),
        (overlay(0), {"trainer_pods": (1,)}, "round 7 has repurposed pods 1 already"),
        (overlay(3), {}, "no engine samples in pods 3"),
        (overlay(2), {}, "pods 2 hold no whole trainer replica"),
        (overlay(0), {"trainer_replicas": (frozenset({0, 1}),)}, TOGETHER),
        (overlay(0), {"engines": (frozenset({0, 1}), frozenset({2}))}, TOGETHER),
        (overlay(0, 1), {"rollout_pods": frozenset({0, 1})}, "no pod would be left to sample"),
    ],
)
def test_every_other_is_refused_with_the_reason(wanted: Overlay, changes: dict[str, Any], reason: str) -> None:
    assert refusal(wanted, replace(NOW, **changes)) == reason


SETS = st.lists(st.frozensets(st.integers(0, 4), min_size=1, max_size=2), max_size=4).map(tuple)


@given(
    st.builds(
        lambda pods, round, attempt: overlay(*pods, round=round, attempt=attempt),
        st.lists(st.integers(0, 4), min_size=1, max_size=5),
        st.integers(1, 3),
        st.integers(1, 2),
    ),
    st.builds(
        RoundState,
        number=st.integers(1, 3),
        attempt=st.integers(1, 2),
        has_batch=st.booleans(),
        trainer_pods=st.just(()),
        rollout_pods=st.frozensets(st.integers(0, 4)),
        trainer_replicas=SETS,
        engines=SETS,
    ),
)
def test_what_is_carried_out_leaves_a_pod_to_sample_and_splits_no_replica(wanted: Overlay, state: RoundState) -> None:
    if refusal(wanted, state) == "":
        pods = set(wanted.trainer_pods)
        assert state.rollout_pods - pods
        assert pods <= state.rollout_pods
        assert all(one <= pods or one.isdisjoint(pods) for one in (*state.trainer_replicas, *state.engines))
        assert all(any(pod in one for one in sets_that_train(state.trainer_replicas, state.engines)) for pod in pods)
        assert (wanted.round, wanted.attempt) == (state.number, state.attempt)


SIZES = st.sampled_from([1, 2, 4, 8])


@given(st.integers(1, 4), SIZES, SIZES, st.integers(1, 4))
def test_pods_that_are_picked_to_train_are_not_refused(
    quarter: int, tp_size: int, fsdp_size: int, num_replicas: int
) -> None:
    workers = Workers(replicas=4 * quarter, gpus_per_pod=2)
    engines = engine_pods(workers, tp_size)
    replicas = replica_pods(workers, TrainerSettings(fsdp_size=fsdp_size, data_parallel_size=num_replicas))
    pods = range(workers.replicas)
    picked = pick_pods([MilestonePodLoad(pod, 2, 1, 0) for pod in pods], replicas, engines)
    state = replace(NOW, rollout_pods=frozenset(pods), trainer_replicas=replicas, engines=engines)
    assert not picked or refusal(overlay(*picked), state) == ""
