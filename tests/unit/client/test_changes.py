"""Refused changes of jobs that are not suspended name the fields that differ."""

from typing import Any

import pytest

from longshore_client.changes import changed_fields, ended, refused_change, spelling_mistake


@pytest.mark.parametrize(
    ("given", "fields"),
    [
        ({"algorithm": {"steps": 5}}, ["algorithm.steps"]),
        (
            {"algorithm": {"steps": 3, "learningRate": 0.3}, "workers": {"replicas": 4}},
            ["algorithm.learningRate", "workers.replicas"],
        ),
        ({"tracking": {"openTelemetry": {}}}, ["tracking"]),
        ({"reward": {"functions": [{"name": "other"}]}}, ["reward.functions"]),
        ({"reward": {"functions": [{"name": "maths"}]}}, []),
        ({"algorithm": {"steps": 3}, "suspend": True}, []),
    ],
)
def test_fields_that_differ_are_named_by_their_paths(given: dict[str, Any], fields: list[str]) -> None:
    stored = {"algorithm": {"steps": 3, "learningRate": 0.2}, "workers": {"replicas": 2}, "suspend": True,
              "reward": {"functions": [{"name": "maths", "weight": 1.0}]}}  # fmt: skip
    assert list(changed_fields(stored, given)) == fields


def test_a_refused_change_says_which_commands_allow_it() -> None:
    there = {"metadata": {"name": "demo"}, "spec": {"algorithm": {"steps": 3}, "suspend": False}}
    refused = refused_change(there, {"spec": {"algorithm": {"steps": 5}, "suspend": True}}, is_immutable=False)
    assert refused.message == "algorithm.steps: this may change only while the RLJob 'demo' is suspended."
    assert "`longshore suspend demo`" in refused.fix and "`longshore resume demo`" in refused.fix


@pytest.mark.parametrize("phase", ["Failed", "Succeeded"])
def test_a_change_of_an_ended_job_is_refused_with_a_new_name_or_a_delete(phase: str) -> None:
    there = {"metadata": {"name": "demo"}, "spec": {"algorithm": {"steps": 3}}, "status": {"phase": phase}}
    refused = refused_change(there, {"spec": {"algorithm": {"steps": 5}}}, is_immutable=False)
    assert refused.message == f"The RLJob 'demo' has {phase.lower()} already, and an ended job never runs again."
    assert "another metadata.name" in refused.fix and "`kubectl delete rljob demo`" in refused.fix


def test_who_runs_an_ended_job_again_learns_what_a_delete_takes_and_how_to_go_on() -> None:
    failed = {"phase": "Failed", "runtime": {"checkpointStep": 20}}
    made: dict[str, Any] = {"metadata": {"name": "demo"}, "spec": {"storage": {"create": {}}}, "status": failed}
    assert "which deletes its storage as well" in ended(made).fix
    assert "`longshore resume demo` says how a new job continues" in ended(made).fix
    assert "`longshore watch demo` shows how it ended" in ended(made | {"status": {"phase": "Failed"}}).fix
    kept = made | {"spec": {"storage": {"claimName": "shared"}}, "status": {"phase": "Succeeded"}}
    assert "storage" not in ended(kept).fix and "`longshore watch demo`" in ended(kept).fix


def test_a_change_of_what_never_changes_says_that_the_name_is_taken() -> None:
    there = {"metadata": {"name": "demo"}, "spec": {"data": {"path": "a"}}, "status": {"phase": "Running"}}
    refused = refused_change(there, {"spec": {"data": {"path": "b"}}}, is_immutable=True)
    assert refused.message == "There is an RLJob 'demo' already, and data.path of a job never change."
    left_out = refused_change(there, {"spec": {"data": {}}}, is_immutable=True)
    assert left_out.message == "There is an RLJob 'demo' already, and model, data, storage of a job never change."


def test_a_misspelled_field_is_named_with_the_nearest_name() -> None:
    spec = {"algorithm": {"steps": 1, "promptPerStep": 2}}
    found = spelling_mistake({"apiVersion": "longshore.dev/v1alpha1", "kind": "RLJob", "spec": spec})
    assert found is not None
    assert found.startswith("spec.algorithm.promptPerStep: there is no such field; did you mean promptsPerStep?")
