"""Rewards as people write them for TRL's GRPOTrainer; nothing in them knows Longshore."""

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


def needs_ids(completions, completion_ids, **kwargs):
    return [float(len(ids)) for ids in completion_ids]


def of_cut(completions, is_cut):
    return [float(one) for one in is_cut]


def of_cut_or_more(completions, **kwargs):
    return [float(one) for one in kwargs["is_cut"]]
