"""Refused changes of jobs that are not suspended name the fields that differ."""

from typing import Any

import pytest

from longshore_client.changes import changed_fields, refused_change


@pytest.mark.parametrize(
    ("given", "fields"),
    [
        ({"algorithm": {"steps": 5}}, ["algorithm.steps"]),
        (
            {"algorithm": {"steps": 3, "clipLow": 0.3}, "workers": {"replicas": 4}},
            ["algorithm.clipLow", "workers.replicas"],
        ),
        ({"tracking": {"openTelemetry": {}}}, ["tracking"]),
        ({"reward": {"functions": [{"name": "other"}]}}, ["reward.functions"]),
        ({"algorithm": {"steps": 3}, "suspend": True}, []),
    ],
)
def test_fields_that_differ_are_named_by_their_paths(given: dict[str, Any], fields: list[str]) -> None:
    stored = {"algorithm": {"steps": 3, "clipLow": 0.2}, "workers": {"replicas": 2}, "suspend": True,
              "reward": {"functions": [{"name": "maths"}]}}  # fmt: skip
    assert list(changed_fields(stored, given)) == fields


def test_a_refused_change_says_which_commands_allow_it() -> None:
    there = {"metadata": {"name": "demo"}, "spec": {"algorithm": {"steps": 3}, "suspend": False}}
    refused = refused_change(there, {"spec": {"algorithm": {"steps": 5}, "suspend": True}})
    assert refused.message == "algorithm.steps: this may change only while the RLJob 'demo' is suspended."
    assert "`longshore suspend demo`" in refused.fix and "`longshore resume demo`" in refused.fix
