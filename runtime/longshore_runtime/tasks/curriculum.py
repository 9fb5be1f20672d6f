"""Demonstrations of the built-in tasks as rows of a warm start: first the skill, then bad habits beside it."""

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final

from longshore.api.model import BuiltinTask
from longshore.api.warm_start import WarmStart
from longshore_runtime.data.supervised import Exchange, ExchangesOf
from longshore_runtime.tasks import counting, guessing
from longshore_runtime.tasks.demonstration import Demonstration


@dataclass(frozen=True)
class _Curriculum:
    """What is demonstrated of a task, and when."""

    demonstrations: Callable[[random.Random, float], Iterator[Demonstration]]
    """Function that yields demonstrations, of which a given share is right."""
    skill_share: float
    """Share of the steps that imitate right demonstrations only: the skill comes quickest without noise."""
    share_right: float
    """Share of right demonstrations in the steps after that, which teach bad habits."""


_CURRICULA: Final = {
    BuiltinTask.COUNTING: _Curriculum(counting.demonstrations, skill_share=0.8, share_right=0.4),
    BuiltinTask.GUESSING: _Curriculum(guessing.demonstrations, skill_share=0.9, share_right=0.2),
}


def demonstrated(task: BuiltinTask, settings: WarmStart, seed: int, tokenizer: Any) -> ExchangesOf:
    """Return the demonstrations of each step."""
    curriculum = _CURRICULA[task]

    def of_step(step: int) -> Sequence[Exchange]:
        rng = random.Random(f"warm-start/{seed}/{step}")
        share_right = 1.0 if step <= curriculum.skill_share * settings.steps else curriculum.share_right
        shown = islice(curriculum.demonstrations(rng, share_right), settings.rows_per_step)
        return [exchange(one, tokenizer) for one in shown]

    return of_step


def exchange(demonstration: Demonstration, tokenizer: Any) -> Exchange:
    """Return the tokens of a demonstration; the model ends its turns with the end token."""
    prompt, *turns = [
        ((*tokenizer.encode(segment.text), *([tokenizer.eos_token_id] if segment.is_models else [])), segment.is_models)
        for segment in demonstration.segments
    ]
    return Exchange.of(prompt[0], turns)
