"""Policies remember what they have answered, and answer as if they did not."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from longshore_devcluster.apiserver import policies
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
CONDITIONS = ("request.userInfo.username == 'guest'", "object.spec.size > 1", "request.extra.missing == 1", "true")
VARIABLES = ("object.spec.size", "has(oldObject.spec) ? oldObject.spec.size : 0", "object.spec.missing")
VALIDATIONS = (
    "variables.one < 2",
    "variables.one == variables.other",
    "has(object.metadata.labels) && 'queue' in object.metadata.labels",
    "request.operation == 'CREATE' || object.status == oldObject.status",
)

conditions = st.sampled_from(CONDITIONS).map(lambda text: {"name": "c", "expression": text})
pieces = st.fixed_dictionaries(
    {
        "failurePolicy": st.sampled_from(["Fail", "Ignore"]),
        "matchConditions": st.lists(conditions, max_size=2),
        "variables": st.permutations(VARIABLES).map(
            lambda texts: [{"name": n, "expression": t} for n, t in zip(("one", "other"), texts, strict=False)]
        ),
        "validations": st.lists(
            st.builds(
                lambda text, message: {"expression": text, "message": message},
                st.sampled_from(VALIDATIONS),
                st.sampled_from(["no", "never"]),
            ),
            min_size=1,
            max_size=2,
        ),
    }
)  # fmt: skip
things = st.builds(
    lambda size, labels, status: {
        "metadata": {
            "name": "a",
            "namespace": "default",
            "managedFields": [],
            **({"labels": labels} if labels else {}),
        },
        "spec": {"size": size},
        "status": status,
    },
    st.integers(0, 2),
    st.sampled_from([{}, {"queue": "q"}]),
    st.sampled_from([{}, {"step": 1}]),
)
users = st.sampled_from(["guest", "owner"]).map(User)
writes = st.tuples(users, things, st.none() | things)


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


@settings(max_examples=30)
@given(st.lists(st.one_of(pieces, writes), min_size=2, max_size=12), pieces)
def test_with_memory_the_answers_are_those_to_requests_seen_for_the_first_time(events: list[Any], first: Json) -> None:
    """The policy changes between the writes, too."""
    store = store_with(first)
    judge = Policies(store)
    for event in events:
        if isinstance(event, dict):
            bind(store, event)
        else:
            assert answer(judge, *event) == answer(Policies(store), *event)


def test_what_a_policy_does_not_read_is_not_judged_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Most writes change the status of a job."""
    spec = {"validations": [{"expression": "object.spec.size < 2"}]}
    judge = Policies(store_with(spec))
    evaluated: list[str] = []

    def evaluate(expression: str, known: Json) -> bool:
        evaluated.append(expression)
        return bool(known["object"]["spec"]["size"] < 2)

    monkeypatch.setattr(policies, "evaluate", evaluate)
    for step in range(3):
        thing = {"metadata": {"name": "a", "namespace": "default"}, "spec": {"size": 1}, "status": {"step": step}}
        judge.check(User("owner"), THINGS, thing, None, "")
    assert len(evaluated) == 1
    thing["spec"]["size"] = 2
    assert answer(judge, User("owner"), thing, None) is not None


def test_a_policy_that_was_changed_judges_what_it_has_let_pass() -> None:
    """By its new variables, validations and failure policy."""
    variables = [{"name": "one", "expression": "object.spec.size"}, {"name": "other", "expression": "1"}]
    swapped = [{"name": "other", "expression": "object.spec.size"}, {"name": "one", "expression": "1"}]
    small, missing = [{"expression": "variables.one < 2"}], [{"expression": "variables.one.missing == 1"}]
    store = store_with({"variables": swapped, "validations": small})
    judge = Policies(store)
    thing = {"metadata": {"name": "a", "namespace": "default"}, "spec": {"size": 2}}
    assert answer(judge, User("owner"), thing, None) is None
    bind(store, {"variables": variables, "validations": small})
    assert answer(judge, User("owner"), thing, None) is not None
    bind(store, {"variables": variables, "validations": missing, "failurePolicy": "Ignore"})
    assert answer(judge, User("owner"), thing, None) is None
    bind(store, {"variables": variables, "validations": missing, "failurePolicy": "Fail"})
    assert answer(judge, User("owner"), thing, None) is not None
