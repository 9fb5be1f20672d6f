"""From scored groups to training samples, and from samples to replicas."""

from collections.abc import Sequence

from longshore.policy.advantages import group_advantages
from longshore_runtime.rollout.batch import ScoredGroup
from longshore_runtime.types import PromptRecord, Sample


def samples_of(group: ScoredGroup, record: PromptRecord, advantage_epsilon: float) -> tuple[Sample, ...]:
    """Training samples of a group, advantages normalised within it."""
    advantages = group_advantages([scored.reward for scored in group.responses], advantage_epsilon)
    return tuple(
        Sample(
            draw=group.draw,
            index=scored.response.index,
            prompt_tokens=record.prompt_tokens,
            response_tokens=scored.completion.tokens,
            rollout_log_probs=scored.completion.log_probs,
            advantage=advantage,
            reward=scored.reward,
        )
        for scored, advantage in zip(group.responses, advantages, strict=True)
    )


def shares(samples: Sequence[Sample], num_replicas: int) -> list[list[Sample]]:
    """Samples by replica: longest first onto the replica with the fewest tokens, so that all end together."""
    ordered = sorted(samples, key=lambda sample: (-_num_tokens(sample), sample.draw, sample.index))
    parts: list[list[Sample]] = [[] for _ in range(num_replicas)]
    load = [0] * num_replicas
    for sample in ordered:
        lightest = load.index(min(load))
        parts[lightest].append(sample)
        load[lightest] += _num_tokens(sample)
    return parts


def _num_tokens(sample: Sample) -> int:
    return len(sample.prompt_tokens) + len(sample.response_tokens)
