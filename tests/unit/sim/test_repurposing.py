"""The simulator scales down once the remaining responses fit the KV caches of the engines that stay."""

from dataclasses import replace

import pytest

from longshore.api.rollout import Strategy
from longshore.sim.job import TrainerLayout, Training
from longshore.sim.profile import Profile
from longshore.sim.simulate import simulate
from tests.unit.sim.jobs import job, rollout

STREAMED = TrainerLayout(Training.STREAMED, gpus_per_replica=2)
SMALL_CACHES = Profile(kv_capacity_tokens={1: 8_000})


def scale_downs(kv_capacity_tokens: int) -> list[str]:
    """Decisions in the second round, when lengths are known."""
    profile = Profile(kv_capacity_tokens={1: kv_capacity_tokens})
    simulated = simulate(job(chosen=rollout(Strategy.SYNCHRONOUS), trainer=STREAMED, profile=profile), 2)
    return list(simulated.steps[1].scale_downs)


@pytest.mark.parametrize(
    ("kv_capacity_tokens", "when"),
    [(8_000, "20 %: projected KV peak 69 %"), (5_500, "39 %: projected KV peak 85 %"), (4_500, None)],
)
def test_gpus_leave_once_the_projected_peak_fits_the_rest(kv_capacity_tokens: int, when: str | None) -> None:
    found = scale_downs(kv_capacity_tokens)
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
