"""Admission policies: variables, conditions and errors of their expressions."""

from typing import Any

import pytest

from longshore_devcluster.apiserver.access.users import User
from longshore_devcluster.apiserver.errors import ApiError
from longshore_devcluster.apiserver.policies import GROUP, Policies
from longshore_devcluster.apiserver.resources import Resource
from longshore_devcluster.apiserver.schema.node import Schema
from longshore_devcluster.apiserver.store import Key, Store

Json = dict[str, Any]

THINGS = Resource(
    "example.com", "v1", "Thing", "things", "thing", namespaced=True, schema=Schema("object"), printer=None
)  # type: ignore[arg-type]
REFUSED = "things.example.com \"a\" is forbidden: ValidatingAdmissionPolicy 'p' with binding 'b' denied request: "
THING: Json = {"metadata": {"name": "a", "namespace": "default"}, "spec": {"size": 2}}


def store_with(spec: Json) -> Store:
    """A store that has one policy, bound everywhere."""
    store = Store(":memory:")
    bind(store, spec)
    return store


def bind(store: Store, spec: Json) -> None:
    everything = {
        "resourceRules": [{"apiGroups": ["*"], "apiVersions": ["*"], "operations": ["*"], "resources": ["*/*"]}]
    }
    policy = {"metadata": {"name": "p"}, "spec": {"matchConstraints": everything, **spec}}
    binding = {"metadata": {"name": "b"}, "spec": {"policyName": "p", "validationActions": ["Deny"]}}
    store.put(Key(f"validatingadmissionpolicies.{GROUP}", "", "p"), policy)
    store.put(Key(f"validatingadmissionpolicybindings.{GROUP}", "", "b"), binding)


def answer(judge: Policies, user: User, new: Json, old: Json | None) -> tuple[int, str] | None:
    """The code and the message of a refusal."""
    try:
        judge.check(user, THINGS, new, old, "")
    except ApiError as error:
        return error.code, error.message
    return None


def test_changed_policy_judges_with_its_new_expressions() -> None:
    store = store_with({"validations": [{"expression": "object.spec.size < 3"}]})
    judge = Policies(store)
    assert answer(judge, User("owner"), THING, None) is None
    bind(store, {"validations": [{"expression": "object.spec.size < 2", "message": "too large"}]})
    assert answer(judge, User("owner"), THING, None) == (422, REFUSED + "too large")


@pytest.mark.parametrize(
    ("expression", "error"),
    [
        ("variables.one < 2", "no such key: missing"),
        ("variables.one < 2 && variables.other == 1", "no such key: missing"),
        ("variables.other == 1", None),
        ("variables.other == 1 || variables.one < 2", None),
    ],
)
def test_error_of_a_variable_is_one_where_the_variable_is_used(expression: str, error: str | None) -> None:
    variables = [{"name": "one", "expression": "object.spec.missing"}, {"name": "other", "expression": "1"}]
    judge = Policies(store_with({"variables": variables, "validations": [{"expression": expression}]}))
    expected = error and (422, f"{REFUSED}expression '{expression}' resulted in error: {error}")
    assert answer(judge, User("owner"), THING, None) == expected


def test_failure_policy_says_what_an_error_means() -> None:
    missing = {"validations": [{"expression": "object.spec.missing == 1"}]}
    for policy, is_refused in (("Ignore", False), ("Fail", True)):
        judge = Policies(store_with({**missing, "failurePolicy": policy}))
        assert (answer(judge, User("owner"), THING, None) is not None) is is_refused


@pytest.mark.parametrize(("user", "is_refused"), [("guest", True), ("owner", False)])
def test_policy_judges_what_its_conditions_match(user: str, is_refused: bool) -> None:
    condition = {"name": "c", "expression": "request.userInfo.username == 'guest'"}
    judge = Policies(store_with({"matchConditions": [condition], "validations": [{"expression": "false"}]}))
    assert (answer(judge, User(user), THING, None) is not None) is is_refused
