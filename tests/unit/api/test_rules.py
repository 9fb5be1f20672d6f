"""Rules in CEL say what is wrong with a value, and nothing about what they cannot read."""

from typing import Any

import pytest
from pydantic import BaseModel, ValidationError

from longshore.api.mistakes import mistakes
from longshore.api.rljob import RLJob
from longshore.api.rules import Rule, check
from tests.unit.api.specs import spec as minimal


def refused(model: type[BaseModel], value: Any) -> list[tuple[str, str]]:
    with pytest.raises(ValidationError) as error:
        model.model_validate(value)
    return mistakes(error.value, model=model)


def job(name: Any = "demo", **spec: Any) -> dict[str, Any]:
    return {"metadata": {"name": name}, "spec": minimal({}) | spec}


@pytest.mark.parametrize("number", [2**63, 10**20, -(10**30), 10**400])
def test_numbers_beyond_64_bits_break_no_rule(number: int) -> None:
    """An API server stores them as floating-point numbers."""
    template = {"spec": {"hostAliases": [{"note": number}]}}
    RLJob.model_validate(job(coordinator={"template": template}))
    RLJob.model_validate(job() | {"status": {"planner": {"state": {"x": number}}}})


def test_texts_that_are_no_unicode_break_no_rule() -> None:
    RLJob.model_validate(job(coordinator={"template": {"metadata": {"annotations": {"note": "\ud800"}}}}))


@pytest.mark.parametrize("name", [123, "Upper", "", "-"])
def test_wrong_name_has_the_one_sentence_that_fits(name: Any) -> None:
    (mistake,) = refused(RLJob, job(name))
    assert mistake[1].startswith("metadata.name must begin with a letter")


def test_long_name_has_the_sentence_about_its_length() -> None:
    (mistake,) = refused(RLJob, job("a" * 60))
    assert mistake[1].startswith("metadata.name must have at most 45 characters")


def test_rule_that_fails_is_no_broken_rule() -> None:
    rules = (Rule("a", "self.a > 1", "a must be above 1"), Rule("b", "self.b.c > 1", "b.c must be above 1"))
    check(rules, {"a": 2, "b": {"c": 2}}, "Model")
    with pytest.raises(ValidationError, match="a must be above 1") as broken:
        check(rules, {"a": 1, "b": {}}, "Model")
    assert broken.value.error_count() == 1
    with pytest.raises(ValidationError, match=r'it cannot be checked: .* "c"') as failed:
        check(rules, {"a": 2, "b": {}}, "Model")
    assert failed.value.error_count() == 1


@pytest.mark.parametrize(
    ("toleration", "mistake"),
    [
        ({"key": "a", "operater": "Exists"}, "spec.workers.tolerations.0.operater: there is no such field"),
        ({"key": "a", "operator": "In"}, "spec.workers.tolerations.0.operator: "),
        ({"key": "a", "effect": "NoSchedul"}, "spec.workers.tolerations.0.effect: "),
        ({"key": ["a"]}, "spec.workers.tolerations.0.key: "),
        ({"tolerationSeconds": "soon"}, "spec.workers.tolerations.0.tolerationSeconds: "),
    ],
)
def test_mistake_in_a_toleration_is_named_before_a_pod_has_it(toleration: dict[str, Any], mistake: str) -> None:
    ((_, text),) = refused(RLJob, job(workers={"tolerations": [toleration]}))
    assert text.startswith(mistake)


@pytest.mark.parametrize("effect", [None, "", "NoExecute"])
def test_toleration_of_a_pod_is_taken_as_it_is(effect: str | None) -> None:
    toleration = {"key": "spot", "operator": "Exists", "effect": effect, "tolerationSeconds": 30}
    assert RLJob.model_validate(job(workers={"tolerations": [toleration]})).spec.workers.tolerations == [toleration]
