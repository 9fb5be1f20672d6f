"""What `longshore check` prints of what it found."""

import pytest

from longshore.checks.result import Check, CheckResult
from longshore_cli.check.report import show


def test_a_mistake_of_many_rows_is_shown_once(capsys: pytest.CaptureFixture[str]) -> None:
    missing = [f"train.jsonl, line {line}: answer is missing; name its field" for line in range(1, 1001)]
    show([CheckResult(Check.DATA_ROWS, (*missing, "train.jsonl, line 7: prompt is empty"))], as_json=False)
    assert capsys.readouterr().out.splitlines() == [
        "✗ data-rows  1,001 mistakes",
        "  train.jsonl, line 1: answer is missing; name its field (so have 999 other rows)",
        "  train.jsonl, line 7: prompt is empty",
    ]


def test_different_fields_with_one_mistake_are_all_shown(capsys: pytest.CaptureFixture[str]) -> None:
    show([CheckResult(Check.SPEC, ("spec.model: it is required", "spec.data: it is required"))], as_json=False)
    assert capsys.readouterr().out.count("it is required") == 2
