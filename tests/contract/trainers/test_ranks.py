"""Ranks serve many tests: nothing of one world may burden the next. They are forks of a process with imports done."""

import sys

import psutil

from longshore_runtime.backends.world import World
from tests.contract.trainers.ranks import kept_ranks
from tests.warm import PRELOADED


def num_threads(world: World) -> int:
    """Threads of this rank."""
    return psutil.Process().num_threads()


def preloaded(world: World) -> tuple[bool, int]:
    """Whether this rank was forked with the imports of pods done, and the threads of what it was forked from."""
    return PRELOADED in sys.modules, psutil.Process().parent().num_threads()


def test_what_pods_are_forked_from_has_no_second_thread() -> None:
    """With one, pods would start as new processes instead, each with seconds of imports, and nobody would see it."""
    assert kept_ranks(1).run(preloaded) == [(True, 1)]
