"""Rewards as people write them for TRL's GRPOTrainer; nothing in them knows Longshore."""

import random
import re


def accuracy_reward(completions, solution, **kwargs):
    """For conversations: each completion is a list with one message."""
    contents = [completion[0]["content"] for completion in completions]
    return [1.0 if content.strip() == sol else 0.0 for content, sol in zip(contents, solution)]


def prompt_reward(prompts, completions, level):
    """For plain texts, without **kwargs."""
    return [len(completion) / len(prompt) + lvl for prompt, completion, lvl in zip(prompts, completions, level)]


def format_reward(completions, **kwargs):
    return [None if not re.match("<think>", content) else 1.0 for content in completions]


async def slow_reward(prompts, completions, **kwargs):
    return [float(prompt[-1]["role"] == "user") for prompt in prompts]


def needs_environments(environments, **kwargs):
    return [one.score for one in environments]


def needs_ids(completions, completion_ids, **kwargs):
    return [float(len(ids)) for ids in completion_ids]


def len_reward(completions, solution, **kwargs):
    """Like that of open-r1 (Kimi 1.5): the shortest of the correct responses of a group gets most."""
    contents = [completion[0]["content"] for completion in completions]
    lengths = [len(content) for content in contents]
    shortest, longest = min(lengths), max(lengths)
    if shortest == longest:
        return [0.0] * len(completions)
    shares = [0.5 - (length - shortest) / (longest - shortest) for length in lengths]
    return [
        share if content.strip() == sol else min(0.0, share) for content, sol, share in zip(contents, solution, shares)
    ]


async def best_of_group(completions, **kwargs):
    return [float(len(completion) == max(map(len, completions))) for completion in completions]


def of_batch(completions, **kwargs):
    """A model whose results differ a little between sizes of a batch."""
    return [1.0 + 1e-3 * len(completions) for _ in completions]


def of_chance(completions, **kwargs):
    return [random.random() for _ in completions]


_seen = set()


def of_new(completions, **kwargs):
    """With a memory: the first response of its text gets a reward."""
    rewards = [float(completion not in _seen) for completion in completions]
    _seen.update(completions)
    return rewards


def of_one(completions, **kwargs):
    assert len(completions) == 1
    return [1.0]


def of_cut(completions, is_cut):
    return [float(one) for one in is_cut]


def of_cut_or_more(completions, **kwargs):
    return [float(one) for one in kwargs["is_cut"]]


def of_state(completions, state):
    return [one["score"] for one in state]


def of_state_or_more(completions, **kwargs):
    return [0.0 if one is None else one["score"] for one in kwargs["state"]]
