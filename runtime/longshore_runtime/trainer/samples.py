"""Build training samples from scored groups and assign them to trainer replicas."""

from collections.abc import Sequence

from longshore.api.algorithm import Algorithm
from longshore.api.objective import OBJECTIVES
from longshore.policy.advantages import batch_advantages
from longshore.policy.aggregation import denominator
from longshore.policy.balancing import balance
from longshore.policy.overlong import overlong_punishment
from longshore_runtime.data.prompt_record import PromptRecord
from longshore_runtime.engine_protocol import Completion
from longshore_runtime.rollout.batch import ScoredGroup, ScoredResponse
from longshore_runtime.trainer_protocol import Sample, TrainerOptions


def batch_samples(
    groups: Sequence[ScoredGroup], records: Sequence[PromptRecord], algorithm: Algorithm, policy_version: int
) -> list[Sample]:
    """Return training samples of a whole batch, group by group; `records` by index of the draw."""
    rewards = [[one.reward + _penalty(one.completion, algorithm) for one in group.responses] for group in groups]
    estimator = OBJECTIVES[algorithm.name].advantage
    advantages = batch_advantages(estimator, rewards, algorithm.advantage_epsilon)
    return [
        _sample(scored, advantage, records[group.draw.index], algorithm, policy_version)
        for group, of_group in zip(groups, advantages, strict=True)
        for scored, advantage in zip(group.responses, of_group, strict=True)
    ]


def step_denominator(samples: Sequence[Sample], options: TrainerOptions) -> float:
    """Return what the sums of one optimizer step over exactly these samples are divided by."""
    num_loss_tokens = [sample.num_loss_tokens for sample in samples]
    return denominator(options.objective.aggregation, num_loss_tokens, options.max_response_tokens)


def step_signal(samples: Sequence[Sample], options: TrainerOptions) -> float:
    """Return the share, 0 to 1, of these samples that teach something: all of them where there is a KL penalty."""
    if options.kl_coefficient > 0:
        return 1.0
    in_loss = [sample for sample in samples if sample.num_loss_tokens]
    return sum(sample.advantage != 0 for sample in in_loss) / max(1, len(in_loss))


def off_policy_token_share(samples: Sequence[Sample]) -> float:
    """Share of response tokens that older weights than the round's sampled, 0 to 1; masked ones count as well."""
    num_tokens = sum(len(sample.response_tokens) for sample in samples)
    return sum(sample.num_stale_tokens for sample in samples) / num_tokens if num_tokens else 0.0


def shares(samples: Sequence[Sample], num_replicas: int) -> list[list[Sample]]:
    """Samples by replica: longest first onto the replica with the fewest tokens, so that all end together."""
    shares = balance(in_draw_order(samples), _num_tokens, dict.fromkeys(range(num_replicas), 0))
    return list(shares.pieces.values())


def in_draw_order(samples: Sequence[Sample]) -> list[Sample]:
    """Return the same samples in the order of the data, no matter who had them first."""
    return sorted(samples, key=lambda sample: (sample.draw, sample.index))


def _num_tokens(sample: Sample) -> int:
    return len(sample.prompt_tokens) + len(sample.response_tokens)


def _sample(
    scored: ScoredResponse, advantage: float, record: PromptRecord, algorithm: Algorithm, policy_version: int
) -> Sample:
    completion = scored.completion
    return Sample(
        draw=scored.response.draw,
        index=scored.response.index,
        prompt_tokens=record.prompt_tokens,
        response_tokens=completion.tokens,
        rollout_log_probs=completion.log_probs,
        advantage=advantage,
        reward=scored.reward,
        penalty=_penalty(completion, algorithm),
        loss_mask=_fresh_tokens(completion, policy_version) if algorithm.mask_stale_tokens else None,
        num_stale_tokens=_num_stale_tokens(completion, policy_version),
    )


def _penalty(completion: Completion, algorithm: Algorithm) -> float:
    return overlong_punishment(
        len(completion.tokens),
        max_tokens=algorithm.max_response_tokens,
        buffer_tokens=algorithm.overlong_buffer_tokens,
        penalty=algorithm.overlong_penalty,
    )


def _fresh_tokens(completion: Completion, policy_version: int) -> tuple[bool, ...]:
    return tuple(run.policy_version >= policy_version for run in completion.runs for _ in run.tokens)


def _num_stale_tokens(completion: Completion, policy_version: int) -> int:
    return sum(len(run.tokens) for run in completion.runs if run.policy_version < policy_version)
