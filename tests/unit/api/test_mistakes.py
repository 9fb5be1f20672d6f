"""Operator, coordinator and command line report a mistake in a spec in the same sentence."""

from typing import Any

import pytest

from tests.unit.api.specs import refusal, spec


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"algorithm.steps": 0}, "spec.algorithm.steps: input should be greater than or equal to 1, not 0"),
        (
            {"algorithm.promptsPerUpdate": 3},
            "spec.algorithm.promptsPerUpdate: promptsPerUpdate must divide promptsPerStep",
        ),
        ({"rollout.strategy": "PartialRollout"}, "spec.rollout.strategy: strategy PartialRollout trains on"),
        ({"rollout.speed": 1}, "spec.rollout.speed: there is no such field"),
        ({"algorithm.steps": None}, "spec.algorithm.steps: the field is required"),
        ({"reward.functions": [{"name": "A", "kind": "Task"}]}, "spec.reward.functions.0.name: string should match"),
        ({"algorithm.steps": -1, "algorithm.promptsPerStep": 0}, "(and 1 more)"),
    ],
)
def test_the_sentence_names_the_field_from_the_root_and_what_is_there(changes: dict[str, Any], message: str) -> None:
    assert message in refusal(spec(changes))


def test_what_is_there_is_shown_in_part_where_it_is_long() -> None:
    assert refusal(spec({"algorithm.steps": "9" * 10_000})).endswith(", not " + ('"' + "9" * 199) + "...")
