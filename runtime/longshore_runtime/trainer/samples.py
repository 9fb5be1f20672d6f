"""Build training samples from scored groups and assign them to trainer replicas."""

from collections.abc import Iterator, Sequence
from operator import attrgetter

import numpy as np

from longshore.api.algorithm import Algorithm
from longshore.api.objectives.aggregation import denominator
from longshore.policy.balancing import balance
from longshore.policy.overlong import overlong_punishment
from longshore_runtime.backends.engine_protocol import Completion
from longshore_runtime.backends.trainer_protocol import Sample, TrainerOptions
from longshore_runtime.data.prompt_record import PromptRecord
from longshore_runtime.rollout.batch import ScoredGroup, ScoredResponse
from longshore_runtime.trajectories.trajectory import Mask, TokenIds, Trajectory


def batch_samples(
    groups: Sequence[ScoredGroup], records: Sequence[PromptRecord], algorithm: Algorithm, policy_version: int
) -> list[Sample]:
    """Return training samples of a whole batch, group by group; `records` by index of the draw."""
    rewards = [[one.reward + _penalty(one.completion, algorithm) for one in group.responses] for group in groups]
    advantages = algorithm.objective.advantages(rewards)
    return [
        sample
        for group, of_group in zip(groups, advantages, strict=True)
        for scored, advantage in zip(group.responses, of_group, strict=True)
        for sample in _samples(scored, advantage, records[group.draw.index], algorithm, policy_version)
    ]


def conversations(completion: Completion, record: PromptRecord) -> list[tuple[TokenIds, Trajectory]]:
    """Return prompts and what follows each: one pair, unless the response is an episode of several branches."""
    if completion.episode is None:
        return [(record.prompt_tokens, completion.trajectory)]
    return [(branch.prompt_tokens, branch.trajectory) for branch in completion.episode.branches]


def step_denominator(samples: Sequence[Sample], options: TrainerOptions) -> float:
    """Return what the sums of one optimizer step over exactly these samples are divided by."""
    in_loss = [(sample.num_loss_tokens, sample.share) for sample in samples]
    return denominator(options.objective.loss_aggregation, in_loss, options.max_response_tokens)


def off_policy_token_share(samples: Sequence[Sample]) -> float:
    """Return the share of sampled tokens that older weights than the round's sampled, 0 to 1, masked ones included."""
    num_sampled = sum(sample.trajectory.num_sampled_tokens for sample in samples)
    num_stale = sum(np.count_nonzero(sample.trajectory.mask[: sample.num_stale_tokens]) for sample in samples)
    return num_stale / num_sampled if num_sampled else 0.0


def shares(samples: Sequence[Sample], num_replicas: int) -> list[list[Sample]]:
    """Return samples by replica: longest first onto the replica with the fewest tokens, so that all end together."""
    shares = balance(in_draw_order(samples), attrgetter("num_tokens"), dict.fromkeys(range(num_replicas), 0))
    return list(shares.pieces.values())


def rank_shares(samples: Sequence[Sample], num_ranks: int) -> list[list[Sample]]:
    """Return the samples of each rank of a replica that deals them out: alike in length, and in what has gradients."""
    order = sorted(in_draw_order(samples), key=lambda sample: (sample.advantage == 0, -sample.num_tokens))
    return [order[first::num_ranks] for first in range(num_ranks)]


def in_draw_order(samples: Sequence[Sample]) -> list[Sample]:
    """Return the same samples in the order of the data, no matter who had them first."""
    return sorted(samples, key=lambda sample: (sample.draw, sample.index, sample.branch))


def _samples(
    scored: ScoredResponse, advantage: float, record: PromptRecord, algorithm: Algorithm, policy_version: int
) -> Iterator[Sample]:
    """Build the samples of a response, which together count as one: a sample for each branch of an episode."""
    branches = conversations(scored.completion, record)
    num_sampled = sum(trajectory.num_sampled_tokens for _, trajectory in branches)
    for number, (prompt_tokens, trajectory) in enumerate(branches):
        num_stale_tokens = trajectory.num_tokens_before(policy_version)
        yield Sample(
            draw=scored.response.draw,
            index=scored.response.index,
            prompt_tokens=prompt_tokens,
            trajectory=trajectory,
            advantage=advantage,
            reward=scored.reward,
            penalty=_penalty(scored.completion, algorithm),
            loss_mask=_loss_mask(trajectory, num_stale_tokens if algorithm.mask_stale_tokens else 0),
            num_stale_tokens=num_stale_tokens,
            branch=number,
            share=trajectory.num_sampled_tokens / num_sampled if len(branches) > 1 else 1.0,
        )


def _penalty(completion: Completion, algorithm: Algorithm) -> float:
    return overlong_punishment(
        completion.num_tokens,
        max_tokens=algorithm.max_response_tokens,
        buffer_tokens=algorithm.overlong_buffer_tokens,
        penalty=algorithm.overlong_penalty,
    )


def _loss_mask(trajectory: Trajectory, num_masked: int) -> Mask | None:
    """Return the mask of the sampled tokens without the first `num_masked`; None: all are in the loss."""
    if not num_masked and all(run.policy_version is not None for run in trajectory.runs):
        return None
    mask = trajectory.mask
    mask[:num_masked] = False
    return mask
