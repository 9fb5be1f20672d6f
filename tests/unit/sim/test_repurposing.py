"""The simulator scales down by the job's own limit on the KV caches of the engines that stay."""

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
