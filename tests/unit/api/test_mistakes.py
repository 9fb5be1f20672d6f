"""Operator, coordinator and command line report a mistake in a spec in the same sentence."""

from typing import Any

import pytest
from pydantic import ValidationError

from longshore.api.mistakes import mistakes, sentence
from longshore.api.spec import RLJobSpec
from tests.unit.api.specs import refusal, spec


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"algorithm.steps": 0}, "spec.algorithm.steps: input should be greater than or equal to 1, not 0"),
        (
            {"algorithm.promptsPerUpdate": 3},
            "spec.algorithm.promptsPerUpdate: promptsPerUpdate must divide promptsPerStep",
        ),
        (
            {"rollout.strategy": "PartialRollout"},
            "spec.rollout.onPolicy: onPolicy must be Relaxed with strategy PartialRollout",
        ),
        ({"rollout.speed": 1}, "spec.rollout.speed: there is no such field"),
        ({"algorithm.steps": None}, "spec.algorithm.steps: the field is required"),
        ({"reward.functions": [{"name": "A", "kind": "Task"}]}, "spec.reward.functions.0.name: string should match"),
        ({"algorithm.steps": -1, "algorithm.promptsPerStep": 0}, "(and 1 more)"),
    ],
)
def test_the_sentence_names_the_field_from_the_root_and_what_is_there(changes: dict[str, Any], message: str) -> None:
    assert message in refusal(spec(changes))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rollout.sped": 1}, "spec.rollout.sped: there is no such field"),
        (
            {"rollout.engine.extraargs": {}},
            "spec.rollout.engine.extraargs: there is no such field; did you mean extraArgs?",
        ),
        (
            {"evaluation": {"everyStep": 10}},
            "spec.evaluation.everyStep: there is no such field; did you mean everySteps?",
        ),
        ({"data.source": []}, "spec.data.source: there is no such field; did you mean sources?"),
        (
            {"reward.functions": [{"name": "a", "kind": "Maths", "weigth": 1}]},
            "spec.reward.functions.0.weigth: there is no such field; did you mean weight?",
        ),
        (
            {"workers.resources": {"requests": {"memory": "8Gi"}}},
            "spec.workers.resources: write the requests alone, as {memory: 16Gi}; limits go into template",
        ),
        (
            {"workers.resources": {"memory": 1.5}},
            "spec.workers.resources.memory: input should be a valid string, not 1.5",
        ),
        ({"model": {"hub": "https://huggingface.co/a/b"}}, "spec.model.hub: write OWNER/NAME, without the address"),
        (
            {"reward.functions": [{"name": "a", "kind": "Python", "importPath": "score-v2.run"}]},
            "spec.reward.functions.0.importPath: write package.module:function",
        ),
    ],
)
def test_what_was_probably_meant_is_named(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError) as refused:
        RLJobSpec.model_validate(spec(changes))
    found = sentence(refused.value, "spec", RLJobSpec)
    assert found.startswith(message)
    assert found.endswith("?") is ("did you mean" in message)


def test_names_that_do_not_exist_come_first_since_others_are_missing_for_them() -> None:
    changes = {"algorithm.steps": None, "algorithm.step": 3, "algorithm.promptsPerStep": 0}
    with pytest.raises(ValidationError) as refused:
        RLJobSpec.model_validate(spec(changes))
    paths = [path for path, _ in mistakes(refused.value, "spec", RLJobSpec)]
    assert paths == ["spec.algorithm.step", "spec.algorithm.steps", "spec.algorithm.promptsPerStep"]


def test_a_rule_that_is_broken_twice_in_one_part_is_reported_twice() -> None:
    """Only what pydantic says of the types of one value is one mistake."""
    changes = {"algorithm.promptsPerUpdate": 3, "workers.resources": {"memory": 1.5}}
    with pytest.raises(ValidationError) as refused:
        RLJobSpec.model_validate(spec(changes))
    assert len(refused.value.errors()) == len(mistakes(refused.value, "spec", RLJobSpec)) + 1


def test_what_is_there_is_shown_in_part_where_it_is_long() -> None:
    assert refusal(spec({"algorithm.steps": "9" * 10_000})).endswith(", not " + ('"' + "9" * 199) + "...")
