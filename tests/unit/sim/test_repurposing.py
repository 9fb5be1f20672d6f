"""The simulator scales down by the job's own limit on the KV caches of the engines that stay."""

from dataclasses import replace

import pytest

from longshore.api.rollout import RepurposingSettings, Strategy
from longshore.sim.job import TrainerLayout, Training
from longshore.sim.profile import Profile
from longshore.sim.simulate import simulate
from tests.unit.sim.jobs import job, rollout

STREAMED = TrainerLayout(Training.STREAMED, gpus_per_replica=2)
SMALL_CACHES = Profile(kv_capacity_tokens={1: 8_000})


def scale_downs(max_kv_peak: float) -> list[str]:
    """Of the second round, when lengths are known."""
    limited = rollout(Strategy.SYNCHRONOUS).model_copy(
        update={"repurposing": RepurposingSettings(max_kv_peak=max_kv_peak)}
    )
    return list(simulate(job(chosen=limited, trainer=STREAMED, profile=SMALL_CACHES), 2).steps[1].scale_downs)


@pytest.mark.parametrize(
    ("max_kv_peak", "when"),
    [(1.0, "20 %: projected KV peak 69 %"), (0.6, "39 %: projected KV peak 58 %"), (0.5, None), (0.05, None)],
)
def test_gpus_leave_once_the_projected_peak_is_within_max_kv_peak(max_kv_peak: float, when: str | None) -> None:
    found = scale_downs(max_kv_peak)
    assert len(found) == int(when is not None)
    assert all(f"4 of 8 GPUs to training at {when}" in reason for reason in found)


def test_the_benefit_gate_learns_in_the_first_round_and_rollpackers_rule_does_not() -> None:
    def frees(layout: TrainerLayout) -> list[int]:
        roomy = Profile(kv_capacity_tokens={1: 1_000_000})
        return [len(step.scale_downs) for step in simulate(job(trainer=layout, profile=roomy), 2).steps]

    assert frees(replace(STREAMED, weighs_benefit=False)) == [1, 1]
    assert frees(STREAMED)[0] == 0


def test_rollpackers_rule_still_asks_for_room() -> None:
    layout = replace(STREAMED, weighs_benefit=False)
    assert not simulate(job(trainer=layout, profile=SMALL_CACHES), 1).steps[0].scale_downs
