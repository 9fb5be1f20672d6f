"""Rewards as people write them for Longshore."""


def of_cut(prompt, response, answer, is_cut=None):
    return {True: 1.0, False: 0.0}[is_cut]


def of_length(prompt, response, answer):
    return float(len(response))


def of_options(prompt, response, answer, **options):
    """With options of its own, which it passes on."""
    return float(len(options))
