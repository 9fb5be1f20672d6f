"""Whatever a coordinator leaves in the status of its job: the job can be suspended, restarted and ended."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from longshore.api.rljob import RLJob
from longshore.api.status import Assignment, Phase, RLJobStatus
from longshore_operator.apply import status_fields
from longshore_operator.context import Observed
from longshore_operator.plan import DeletePod, Event, Plan
from longshore_operator.reconcile import reconcile
from longshore_operator.stored_job import read_status
from tests.unit.operator.model import CONFIG, START, Cluster, make_job

ELASTIC: dict[str, Any] = {
    "workers": {"replicas": 4, "gpusPerPod": 2},
    "rollout": {"handover": "Streamed", "engine": {"parallelism": "Adaptive"}},
    "reward": {"pods": 1, "maxPods": 3},
    "activeDeadlineSeconds": 3600,
    "ttlSecondsAfterFinished": 60,
}
NUMBERS = st.one_of(
    st.integers(-2, 40),
    st.sampled_from([2**31 + 5, 2**53, 2**53 + 1, 2**63 - 1, 10**300, -(2**63)]),
    st.floats(allow_nan=False, allow_infinity=False),
)
TEXTS = st.one_of(
    st.text(max_size=5),
    st.sampled_from(
        [
            "2026-01-01T00:00:00Z",
            "2026-01-01T00:00:00",
            "0001-01-01T00:00:00Z",
            "0000-00-00T00:00:00Z",
            "Short",
            "Long",
            "9999-12-31T23:59:59Z",
            "9999-12-31T23:59:59-23:59",
            "2026-01-01",
            "now",
            "Running",
            "Suspended",
            "True",
        ]
    ),
)
NAMES = sorted(
    {
        str(name)
        for schema in RLJobStatus.model_json_schema(by_alias=True)["$defs"].values()
        for name in schema.get("properties", {})
    }
    | {str(field.alias) for field in RLJobStatus.model_fields.values()}
    | {"Short", "Long", "Full", "1", "2"}
)
ANYTHING = st.recursive(
    st.one_of(st.none(), st.booleans(), NUMBERS, TEXTS),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.sampled_from(NAMES), inner, max_size=4)),
    max_leaves=15,
)


def from_schema(schema: dict[str, Any], definitions: dict[str, Any]) -> st.SearchStrategy[Any]:
    """Values of the right types, mostly; bounds are not kept."""
    if "$ref" in schema:
        return st.deferred(lambda: from_schema(definitions[schema["$ref"].rsplit("/", 1)[1]], definitions))
    if "anyOf" in schema:
        return st.one_of([from_schema(one, definitions) for one in schema["anyOf"]])
    if "enum" in schema:
        return st.sampled_from(schema["enum"])
    match schema.get("type"):
        case "object" if "properties" in schema:
            fields = {name: from_schema(field, definitions) for name, field in schema["properties"].items()}
            required = {name: fields.pop(name) for name in schema.get("required", ())}
            return st.fixed_dictionaries(required, optional=fields)
        case "object":
            return ANYTHING
        case "array":
            return st.lists(from_schema(schema["items"], definitions), max_size=3)
        case "integer":
            return st.one_of(st.integers(0, 10), NUMBERS)
        case "number":
            return NUMBERS
        case "boolean":
            return st.booleans()
        case "string":
            return TEXTS
        case _:
            return st.none()


_SCHEMA = RLJobStatus.model_json_schema(by_alias=True)
LIKELY = from_schema(_SCHEMA, _SCHEMA["$defs"])
STATUSES = st.one_of(LIKELY, ANYTHING)


def decide(stored: Any, *, suspend: bool = False, cluster: Cluster | None = None) -> tuple[RLJob, Plan]:
    """What the operator makes of a stored status: the job as it reads it, and the plan."""
    status_read, unreadable = read_status(stored, START)
    made = make_job(**ELASTIC | {"suspend": suspend})
    job = RLJob(metadata=made.metadata, spec=made.spec, status=status_read)  # As the controller makes it.
    observed = cluster.observed() if cluster is not None else Observed()
    return job, reconcile(job, replace(observed, unreadable_status=unreadable), START, CONFIG)


@example({"planner": {"state": {"x": 10**20}}})
@given(STATUSES)
def test_no_status_stops_the_operator_and_what_it_writes_can_be_read_again(stored: Any) -> None:
    _, plan = decide(stored)
    assert plan.status is not None
    written = status_fields(plan.status)
    status_reread, unreadable = read_status(written, START)
    assert unreadable == ""
    assert status_fields(status_reread) == written


@given(STATUSES)
def test_no_status_keeps_a_job_from_being_suspended(stored: Any) -> None:
    cluster = Cluster(ELASTIC)
    cluster.reconcile_until_stable()
    job, plan = decide(stored, suspend=True, cluster=cluster)
    assert plan.status is not None
    if job.status.phase not in (Phase.SUCCEEDED, Phase.FAILED):
        assert plan.status.phase is Phase.SUSPENDED
        leaving = {action.name for action in plan.actions if isinstance(action, DeletePod)}
        assert leaving == set(cluster.names()) - {pod.name for pod in cluster.workers()}


@given(LIKELY)
def test_no_runtime_changes_what_is_decided_about_suspension(stored: Any) -> None:
    cluster = Cluster(ELASTIC)
    cluster.reconcile_until_stable()
    own = cluster.status.model_dump(mode="json", by_alias=True, exclude_none=True)
    _, plan = decide(own | {"runtime": (stored or {}).get("runtime")}, suspend=True, cluster=cluster)
    assert plan.status is not None
    assert plan.status.phase is Phase.SUSPENDED
    leaving = {action.name for action in plan.actions if isinstance(action, DeletePod)}
    assert leaving == set(cluster.names()) - {pod.name for pod in cluster.workers()}


@pytest.mark.parametrize(
    "runtime",
    [
        {"attempt": "one"},
        {"step": -1},
        {"step": 10**300},
        {"newField": 1},
        {"round": {"number": 1, "kind": "Odd"}},
        {"notices": [{"number": 1}]},
        {"trainerPods": list(range(5_000))},
        "text",
        [1],
    ],
    ids=lambda runtime: str(runtime)[:30],
)
def test_an_unreadable_runtime_is_dropped_and_reported_once(runtime: Any) -> None:
    cluster = Cluster()
    cluster.reconcile_until_stable()
    own = cluster.status.model_dump(mode="json", by_alias=True, exclude_none=True)
    status_read, unreadable = read_status(own | {"runtime": runtime}, START)
    assert status_read == cluster.status
    assert unreadable.startswith("status.runtime")
    plan = cluster.plan(unreadable_status=unreadable)
    assert [action.reason for action in plan.actions if isinstance(action, Event)] == ["StatusUnreadable"]
    cluster.apply(plan)
    assert cluster.condition("StatusUnreadable") == ("True", "Dropped", unreadable)
    assert cluster.plan(unreadable_status=unreadable).actions == ()
    cluster.apply(cluster.plan())
    assert not [one for one in cluster.status.conditions if one.type == "StatusUnreadable"]


@pytest.mark.parametrize("time", ["0001-01-01T00:00:00Z", "9999-12-31T23:59:59Z", "2026-01-01T00:00:00", "soon"])
@pytest.mark.parametrize("field", ["startTime", "restartTime", "completionTime"])
def test_a_time_with_which_nothing_can_be_computed_becomes_now(field: str, time: str) -> None:
    status_read, unreadable = read_status({field: time}, START)
    assert status_read.model_dump(by_alias=True)[field] == "2026-01-01T00:00:00Z"
    assert unreadable == f"status.{field}: is no time that the operator wrote"


@pytest.mark.parametrize("time", ["0000-01-01T00:00:00Z", "2026-01-01T00:00:00+99:99", "9999-12-31T23:59:59Z"])
def test_times_of_the_admission_and_of_conditions_are_read_as_strictly(time: str) -> None:
    ready = {"type": "Ready", "status": "False", "reason": "PodsStarting", "lastTransitionTime": time}
    status_read, unreadable = read_status(
        {"admission": {"admitted": True, "shrinkingSince": time}, "conditions": [ready]}, START
    )
    assert status_read.admission is not None
    assert (status_read.admission.admitted, status_read.admission.shrinking_since) == (True, None)
    assert [one.last_transition_time for one in status_read.conditions] == ["2026-01-01T00:00:00Z"]
    assert "status.admission.shrinkingSince" in unreadable
    assert "status.conditions" in unreadable


@pytest.mark.parametrize("size", [{"workers": 10**6, "held": 1}, {"workers": 1, "held": 2**53}])
def test_more_pods_than_any_job_may_have_are_not_booked(size: dict[str, int]) -> None:
    """The ledger lists them one by one, for all jobs."""
    status_read, unreadable = read_status({"assignment": {"epoch": 3, "size": size}}, START)
    assert status_read.assignment == Assignment()
    assert unreadable


def test_a_restart_is_not_put_off_for_longer_than_any_back_off() -> None:
    assert read_status({"restartTime": "2026-01-01T00:06:00Z"}, START)[1] == ""
    assert read_status({"restartTime": "2026-01-01T01:00:00Z"}, START)[0].restart_time == "2026-01-01T00:00:00Z"


def test_what_the_operator_wrote_is_read_as_it_was() -> None:
    cluster = Cluster(ELASTIC)
    cluster.reconcile_until_stable()
    status_read, unreadable = read_status(status_fields(cluster.status), cluster.now)
    assert (status_read, unreadable) == (cluster.status, "")
