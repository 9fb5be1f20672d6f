"""What the benefit gate takes from a profile, before a step is over."""

import pytest

from longshore.policy.decode_rate import DecodeSteps
from longshore.sim.gate_prior import gate_prior
from longshore.sim.profile import DecodePoint, Profile

DECODE = [
    DecodePoint(tp_size=2, num_running=running, context_tokens=context, step_s=0.01 + 0.001 * running + 1e-6 * context)
    for running in (1, 8, 64)
    for context in (0, 1_000)
]


def test_engines_of_a_size_that_was_measured_take_as_long_as_there() -> None:
    prior = gate_prior(Profile(decode=DECODE, kv_capacity_tokens={2: 2_000}, train_tokens_per_s=100.0), 4)
    assert prior is not None and set(prior.rates) == {2}
    assert prior.rates[2].seconds(DecodeSteps(1, 32, 0.5)) == pytest.approx(0.01 + 0.032 + 0.001, rel=1e-3)
    assert prior.tokens_per_s == 400.0, "of a replica of four ranks"


@pytest.mark.parametrize("profile", [Profile(decode=DECODE), Profile(train_tokens_per_s=100.0)])
def test_a_profile_without_decode_steps_or_gradients_says_nothing(profile: Profile) -> None:
    assert gate_prior(profile, 1) is None
