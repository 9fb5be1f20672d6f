"""Packages of trackers are looked for before anything runs."""

import pytest

from longshore.api.spec import RLJobSpec
from longshore.checks import trackers
from longshore.checks.job import file_checks
from longshore.checks.result import Check, CheckOutcome, CheckResult
from tests.unit.checks.test_job import SPEC

TRACKING = {"mlflow": {"address": "http://mlflow:5000"}, "wandb": {"mode": "Offline"}}


def checks(tracking: object) -> list[CheckResult]:
    spec = RLJobSpec.model_validate(SPEC | {"tracking": tracking})
    return [one for one in file_checks(spec, None, None, None) if one.name is Check.TRACKERS]


def test_a_package_that_is_missing_fails_the_check_with_the_fix(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trackers.importlib.util, "find_spec", lambda name: None if name == "mlflow" else object())
    (result,) = checks(TRACKING)
    assert result.outcome is CheckOutcome.FAILED
    assert result.mistakes == (
        "tracking.mlflow: the Python package mlflow is not installed; use an image with longshore[trackers], or remove "
        "tracking.mlflow; add --skip trackers if the image has it",
    )


def test_nothing_is_looked_for_where_no_tracker_needs_a_package() -> None:
    assert checks({}) == checks({"openTelemetry": {"endpoint": "http://collector:4318"}}) == []
