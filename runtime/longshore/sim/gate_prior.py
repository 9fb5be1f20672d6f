"""What the benefit gate takes from a profile."""

from longshore.policy.benefit_gate import GatePrior
from longshore.policy.decode_rate import DecodeRate, DecodeSteps
from longshore.sim.profile import Profile


def gate_prior(profile: Profile, ranks_per_replica: int) -> GatePrior | None:
    """Return its decode steps and gradients, by which the gate decides before a step is over; None if it has none."""
    rates: dict[int, DecodeRate] = {}
    for point in profile.decode:
        capacity = profile.kv_capacity_tokens.get(point.tp_size, 0)
        usage = min(1.0, point.context_tokens / capacity) if capacity else 0.0
        rates.setdefault(point.tp_size, DecodeRate()).add(DecodeSteps(1, point.num_running, usage), point.step_s)
    if not rates or profile.train_tokens_per_s is None:
        return None
    return GatePrior(rates, ranks_per_replica * profile.train_tokens_per_s)
