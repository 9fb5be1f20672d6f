"""How many examples a property is tried on: few in every run, many before a release (`make soak`)."""

import os
from typing import Final

from hypothesis import settings
from hypothesis.internal.conjecture.providers import Constants, HypothesisProvider

DEEP: Final = os.environ.get("HYPOTHESIS_PROFILE") == "deep"


def examples(num: int) -> int:
    """Return the number of examples of a property: half of `num`, or 25 times as many before a release."""
    return num * 25 if DEEP else num // 2


def load_profile() -> None:
    """Set what holds for every property."""
    # Without a deadline: an example that takes 200 ms says something about the machine and nothing about the code.
    # The same examples in every run: a new one found by luck would fail a change that has nothing to do with it.
    # `make soak` looks for new ones.
    settings.register_profile("ci", deadline=None, max_examples=25, derandomize=True)
    settings.register_profile("deep", deadline=None, max_examples=1000)
    settings.load_profile("deep" if DEEP else "ci")
    if not DEEP:
        _draw_no_constants_of_modules()


def _draw_no_constants_of_modules() -> None:
    """Otherwise examples depend on the modules that other tests have imported, and on each number in one of them.

    Hypothesis has no setting for this.
    """
    assert hasattr(HypothesisProvider, "_local_constants"), "another version of hypothesis keeps them elsewhere"
    HypothesisProvider._local_constants = Constants()
